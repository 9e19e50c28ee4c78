"""A directory in the Hugging Face layout: config.json plus one or several safetensors files."""

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy.typing as npt

from ..errors import CheckpointError
from .checkpoint import Checkpoint
from .json_files import read_json_object
from .names import collapse_names
from .safetensors_file import map_safetensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def read_directory(path: Path, *, origin: str) -> Checkpoint:
    """Map the checkpoint in a directory; nothing but headers and JSON is read.

    Args:
        path: The directory.
        origin: What the user named; kept in the result.

    Raises:
        CheckpointError: If config or weights are absent or damaged, if there are only pickled
            weights, or if index and shards do not say the same.
    """
    try:
        present = (path / "config.json").is_file()
        next(path.iterdir(), None)
    except OSError as error:
        raise CheckpointError(
            str(path),
            expected="a readable directory",
            found=(error.strerror or type(error).__name__).lower(),
            advice="check its permissions",
        ) from error
    if not present:
        raise CheckpointError(
            str(path),
            expected="config.json",
            found=_describe_files(path),
            advice="name the directory that save_pretrained wrote",
        )
    config = read_json_object(path / "config.json")
    return Checkpoint(path=path, config=config, tensors=_map_weights(path), origin=origin)


def _map_weights(path: Path) -> dict[str, npt.NDArray[Any]]:
    single, index = path / SINGLE, path / INDEX
    if single.is_file() and index.is_file():
        raise CheckpointError(
            str(path),
            expected=f"{SINGLE} or {INDEX}",
            found="both, so it is not clear which weights are meant",
            advice="remove the one that is left over",
        )
    if single.is_file():
        return map_safetensors(single)
    if index.is_file():
        return _map_shards(path, index)
    pickled = sorted(file.name for pattern in _PICKLED for file in path.glob(pattern))
    if pickled:
        raise CheckpointError(
            str(path),
            expected=f"{SINGLE} or {INDEX}",
            found=f"only pickled weights ({', '.join(pickled[:3])})",
            advice="they are never opened, because unpickling can run any code; "
            "convert them to safetensors",
        )
    raise CheckpointError(
        str(path),
        expected=f"{SINGLE} or {INDEX}",
        found=_describe_files(path),
        advice="name a directory with safetensors weights, or a single .gguf file",
    )


def _map_shards(path: Path, index: Path) -> dict[str, npt.NDArray[Any]]:
    weight_map = _read_weight_map(index)
    shards = sorted(set(weight_map.values()))
    absent = [shard for shard in shards if not (path / shard).is_file()]
    if absent:
        raise CheckpointError(
            str(index),
            expected=f"{len(shards)} shards in the same directory",
            found=f"{len(absent)} absent: {', '.join(absent[:5])}",
            advice="the download is incomplete; fetch the absent files",
        )
    tensors: dict[str, npt.NDArray[Any]] = {}
    homes: dict[str, str] = {}
    twice: list[str] = []
    for shard in shards:
        for name, array in map_safetensors(path / shard).items():
            if name in tensors:
                twice.append(f"{name} ({homes[name]} and {shard})")
            tensors[name], homes[name] = array, shard
    if twice:
        raise CheckpointError(
            str(path),
            expected="every tensor in one shard",
            found=f"{len(twice)} in two: {', '.join(twice[:5])}",
            advice="shards of two different saves are mixed; fetch or save them again",
        )
    _check_index(index, weight_map, homes)
    return tensors


def _read_weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            str(index),
            expected="an object `weight_map` of tensor names to file names",
            found=repr(weight_map)[:80],
            advice="the index is damaged; fetch it again",
        )
    for name, shard in weight_map.items():
        # A shard outside the directory would make a downloaded index read any file.
        if not isinstance(shard, str) or not shard or PurePath(shard).name != shard:
            raise CheckpointError(
                str(index),
                expected=f"the name of a file in the same directory for {name}",
                found=repr(shard),
                advice="the index is damaged; fetch it again",
            )
    return weight_map


def _check_index(index: Path, weight_map: Mapping[str, str], homes: Mapping[str, str]) -> None:
    lines = []
    absent = sorted(n for n in weight_map if n not in homes)
    unlisted = sorted(n for n in homes if n not in weight_map)
    moved = sorted(n for n, shard in homes.items() if weight_map.get(n, shard) != shard)
    if absent:
        lines.append(f"{len(absent)} in the index but in no shard: {collapse_names(absent)}")
    if unlisted:
        lines.append(f"{len(unlisted)} in a shard but not in the index: {collapse_names(unlisted)}")
    if moved:
        lines.append(f"{len(moved)} in another shard than the index says: {collapse_names(moved)}")
    if lines:
        raise CheckpointError(
            str(index),
            expected="index and shards that list the same tensors",
            found="; ".join(lines),
            advice="shards and index come from different saves; fetch or save them again",
        )


def _describe_files(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    if not names:
        return "an empty directory"
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"{', '.join(names[:6])}{more}"
