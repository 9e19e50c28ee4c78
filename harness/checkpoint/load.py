"""Find out what the user named (a directory, a GGUF file or a hub id) and load it."""

import re
from pathlib import Path

from ..cache_folder import default_cache_dir
from ..errors import CheckpointError
from ..locate import exists, expanded
from .checkpoint import Checkpoint
from .directory import read_directory

# Pickled weights and other variants (consolidated.safetensors, onnx) are left on the hub.
_HUB_PATTERNS = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILE_ENDINGS = (".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth", ".ckpt")


def load_checkpoint(
    source: str | Path, *, cache_dir: Path | None = None, revision: str | None = None
) -> Checkpoint:
    """Open a checkpoint without reading its weights.

    Args:
        source: A directory in the Hugging Face layout, a single `.gguf` file, or a hub id
            `org/name`. What exists on the disk is a path; so is a `Path`, an absolute or dotted
            (`./x/y`) name and a name with the ending of a weight file. Only another `x/y` is a
            hub id.
        cache_dir: Where converted GGUF files are kept, instead of `default_cache_dir()`. Hub
            snapshots stay in the cache of huggingface_hub.
        revision: Branch, tag or commit of a hub id.

    Returns:
        The checkpoint, its tensors memory-mapped.

    Raises:
        CheckpointError: If the source does not exist, cannot be fetched, is damaged, or holds
            only pickled weights.
    """
    path = expanded(source)
    if exists(path):
        _refuse_revision(source, revision)
        if path.is_dir():
            return read_directory(path, origin=str(source))
        return _load_file(path, origin=str(source), cache_dir=cache_dir)
    if isinstance(source, str) and _looks_like_hub_id(source):
        return read_directory(_fetch(source, revision), origin=source)
    raise CheckpointError(
        str(source),
        expected="an existing directory or .gguf file, or a hub id org/name",
        found="no such file or directory",
        advice="check the spelling and the working directory",
    )


def _looks_like_hub_id(source: str) -> bool:
    return bool(_HUB_ID.fullmatch(source)) and not source.lower().endswith(_FILE_ENDINGS)


def _refuse_revision(source: str | Path, revision: str | None) -> None:
    if revision is not None:
        raise CheckpointError(
            str(source),
            expected="a hub id when a revision is given",
            found=f"a path on the disk, with revision {revision!r}",
            advice="leave the revision out; it would be ignored",
        )


def _load_file(path: Path, *, origin: str, cache_dir: Path | None) -> Checkpoint:
    if not path.is_file():  # reading a pipe would wait, and a device may never end
        raise CheckpointError(
            str(path),
            expected="a directory or a file",
            found="neither: a pipe, a socket or a device",
            advice="name the checkpoint itself",
        )
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise CheckpointError(
            str(path),
            expected="a readable file",
            found=(error.strerror or type(error).__name__).lower(),
            advice="check its permissions",
        ) from error
    if magic == b"GGUF" or path.suffix.lower() == ".gguf":
        from .from_gguf import convert_gguf

        directory = convert_gguf(path, cache_dir=cache_dir or default_cache_dir())
        try:
            return read_directory(directory, origin=origin)
        except CheckpointError as error:
            raise CheckpointError(
                error.where,
                expected=error.expected,
                found=error.found,
                advice=f"delete {directory}; the GGUF file is then converted anew",
            ) from error
    if path.suffix == ".safetensors":
        advice = "weights need their config; name the directory that holds both"
    else:
        advice = "name a directory with config.json and safetensors, or a .gguf file"
    raise CheckpointError(
        str(path),
        expected="a directory, or a GGUF file, which starts with b'GGUF'",
        found=f"a file that starts with {magic!r}",
        advice=advice,
    )


def _fetch(hub_id: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(
            snapshot_download(hub_id, revision=revision, allow_patterns=list(_HUB_PATTERNS))
        )
    # The hub client's errors come from three libraries, httpx among them; each means "not fetched".
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(
            hub_id,
            expected="a repository on the Hugging Face hub (there is no such path here)",
            found=f"{type(error).__name__}: {reason}",
            advice="check the spelling, the network and, for a gated model, your access; or name "
            "a local directory",
        ) from error
