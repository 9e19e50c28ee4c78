"""One GGUF file into one directory of config, weights and tokenizer."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from ..directory import SINGLE
from ..verify import compare_shapes
from .architecture import (
    Architecture,
    Array,
    Sizes,
    Source,
    Target,
    find_groups,
    plan_targets,
    read_facts,
)
from .conversion_record import ConversionRecord, write_record
from .gemma3 import GEMMA3
from .gguf_file import GgufFile, read_gguf
from .llama import LLAMA
from .qwen3 import QWEN3
from .tensor_writer import Produce, write_float32
from .tokenizer_files import TokenizerProblem, write_tokenizer

ARCHITECTURES: tuple[Architecture, ...] = (GEMMA3, LLAMA, QWEN3)
"""Every architecture that is converted; the next one is one module and one entry here."""

_TOKEN_IDS = (
    ("bos_token_id", "tokenizer.ggml.bos_token_id"),
    ("eos_token_id", "tokenizer.ggml.eos_token_id"),
    ("pad_token_id", "tokenizer.ggml.padding_token_id"),
)


def write_converted(path: Path, directory: Path, *, sha256: str) -> None:
    """Convert a GGUF file into an empty directory.

    Quantised weights become the float32 values that they stand for.

    Args:
        path: The GGUF file.
        directory: Where to write config.json, model.safetensors, the tokenizer and the record.
        sha256: Of the file; kept in the record.

    Raises:
        CheckpointError: If the file is damaged, of an unknown architecture, or holds metadata or
            tensors that the conversion cannot honour.
        OSError: If the directory cannot be written.
    """
    file = read_gguf(path)
    architecture = _find_architecture(file)
    facts = read_facts(file, architecture)
    layers = facts["block_count"]
    if not 0 < layers <= len(file.tensors):
        raise CheckpointError(
            str(path),
            expected="at least one tensor per layer",
            found=f"block_count {layers} and {len(file.tensors)} tensors",
            advice="the metadata is damaged; fetch the file again",
        )
    groups = find_groups(file, architecture.rules, layers)
    config = architecture.make_config(Source(file=file, facts=facts, groups=groups))
    targets = plan_targets(architecture, config, groups)
    compare_shapes(str(path), file.shapes, {n: t.shape for n, t in targets.items()})
    config |= _read_token_ids(file, config["vocab_size"])
    _write_weights(directory / SINGLE, file, targets, architecture.measure(config))
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    problem = None
    try:
        write_tokenizer(file, directory, vocab_size=config["vocab_size"])
    except TokenizerProblem as error:
        problem = str(error)
    record = ConversionRecord(
        source_name=path.name,
        source_sha256=sha256,
        architecture=architecture.name,
        tensor_types=file.count_types(),
        tokenizer_problem=problem,
    )
    write_record(directory, record)


def _find_architecture(file: GgufFile) -> Architecture:
    name = file.metadata.get("general.architecture")
    for architecture in ARCHITECTURES:
        if architecture.name == name:
            return architecture
    known = ", ".join(architecture.name for architecture in ARCHITECTURES)
    raise CheckpointError(
        str(file.path),
        expected=f"general.architecture among {known}",
        found=repr(name),
        advice="use the checkpoint in its original format",
    )


def _write_weights(path: Path, file: GgufFile, targets: Mapping[str, Target], sizes: Sizes) -> None:
    tensors: dict[str, tuple[tuple[int, ...], Produce]] = {
        target.name: (target.shape, partial(_make, file, source, target, sizes))
        for source, target in targets.items()
        if target.name is not None
    }
    write_float32(path, tensors)


def _make(file: GgufFile, source: str, target: Target, sizes: Sizes) -> Array:
    values = file.dequantise(source)
    return values if target.transform is None else target.transform(values, sizes)


def _read_token_ids(file: GgufFile, vocab_size: int) -> dict[str, Any]:
    """Null where the file names none, because transformers would fill in defaults of its own."""
    ids = {name: file.metadata.get(key) for name, key in _TOKEN_IDS}
    wrong = [
        f"{key} = {ids[name]!r}"
        for name, key in _TOKEN_IDS
        if not (ids[name] is None or (type(ids[name]) is int and ids[name] in range(vocab_size)))
    ]
    if wrong:
        raise CheckpointError(
            str(file.path),
            expected=f"token ids below the vocabulary size {vocab_size}",
            found=", ".join(wrong),
            advice="the metadata is damaged; fetch or convert the file again",
        )
    return ids
