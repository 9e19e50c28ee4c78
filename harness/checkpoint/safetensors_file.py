"""One safetensors file as read-only arrays that stay on the disk until they are touched.

The safetensors library judges whether header and offsets are sound; the arrays are then views of
one memory map, because the library's own NumPy reader copies and has no bfloat16.
"""

import math
import struct
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import CheckpointError
from .json_files import parse_json_object

SUPPORTED_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")
"""Names, as the header writes them, of the dtypes that are read."""

_NUMPY_NAMES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
_LENGTH_BYTES = 8  # the file starts with the header's length, a little-endian uint64
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_FETCH_AGAIN = "the file is damaged or its download stopped early; fetch it again"


def map_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Map every tensor of one safetensors file.

    Args:
        path: The file.

    Returns:
        Tensor name to a read-only array in the stored dtype, a view of one memory map.

    Raises:
        CheckpointError: If the file is absent, truncated or damaged, or stores a dtype outside
            `SUPPORTED_DTYPES`.
    """
    header, data_start = _read_header(path)
    _validate_with_library(path)
    _refuse_dtypes(path, header)
    mapped = np.memmap(path, dtype=np.uint8, mode="r")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, entry in header.items():
        shape = tuple(int(n) for n in entry["shape"])
        flat = np.frombuffer(
            mapped,
            dtype=_numpy_dtype(entry["dtype"]),
            count=math.prod(shape),
            offset=data_start + int(entry["data_offsets"][0]),
        )
        arrays[name] = flat.reshape(shape)
    return arrays


def _read_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Header without `__metadata__`, and the file offset at which the data starts."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            start = file.read(_LENGTH_BYTES)
            if start.startswith(b"version "):
                _fail(path, "weights", "a git-lfs pointer", "run `git lfs pull` in that repository")
            if len(start) < _LENGTH_BYTES:
                _fail(path, "at least 8 bytes", f"{len(start)}", _FETCH_AGAIN)
            length = struct.unpack("<Q", start)[0]
            limit = min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES)
            if length > limit:
                _fail(
                    path,
                    f"a header of at most {limit} bytes",
                    f"a header length of {length}",
                    _FETCH_AGAIN,
                )
            raw = file.read(length)
    except OSError as error:
        _fail(path, "a readable file", error.strerror or str(error), "check path and permissions")
    header = parse_json_object(raw, f"{path} (header)")
    header.pop("__metadata__", None)
    _check_entries(path, header)
    ends = [int(entry["data_offsets"][1]) for entry in header.values()]
    needed = _LENGTH_BYTES + length + max(ends, default=0)
    if size != needed:
        _fail(path, f"{needed} bytes, as the header says", f"{size} bytes", _FETCH_AGAIN)
    return header, _LENGTH_BYTES + length


def _check_entries(path: Path, header: dict[str, Any]) -> None:
    for name, entry in header.items():
        sound = (
            isinstance(entry, dict)
            and isinstance(entry.get("dtype"), str)
            and _is_sizes(entry.get("shape"))
            and _is_sizes(entry.get("data_offsets"))
            and len(entry["data_offsets"]) == 2
        )
        if not sound:
            _fail(
                path,
                f"dtype, shape and data_offsets for {name!r} in the header",
                repr(entry)[:120],
                _FETCH_AGAIN,
            )


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _validate_with_library(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        _fail(path, "a valid safetensors file", f"a damaged one ({error})", _FETCH_AGAIN)


def _refuse_dtypes(path: Path, header: dict[str, dict[str, Any]]) -> None:
    other = {n: e["dtype"] for n, e in header.items() if e["dtype"] not in SUPPORTED_DTYPES}
    if other:
        first = next(iter(other))
        _fail(
            path,
            f"dtypes {', '.join(SUPPORTED_DTYPES)}",
            f"{', '.join(sorted(set(other.values())))} in {len(other)} tensors, first {first}",
            "convert the weights to one of the dtypes named here",
        )


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "BF16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(_NUMPY_NAMES[name])


def _fail(path: Path, expected: str, found: str, advice: str) -> NoReturn:
    raise CheckpointError(str(path), expected=expected, found=found, advice=advice)
