"""The safetensors container of a trace: header and problems first, data only when it is sound."""

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .problems import Problem

Array = NDArray[Any]

_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
}
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_DAMAGED = "the file is damaged or was not written to its end: write it again"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the header.

    Attributes:
        dtype: Of the stored numbers.
        shape: As stored.
        start: Offset of its first byte in the file.
        size: Number of bytes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Container:
    """What the header says.

    Attributes:
        path: The file.
        metadata: Texts by key.
        entries: Tensors whose bytes lie within the file.
        problems: Everything that is wrong with the header.
    """

    path: Path
    metadata: Mapping[str, Any]
    entries: Mapping[str, Entry]
    problems: tuple[Problem, ...]

    def map(self) -> dict[str, Array]:
        """Every sound tensor as a read-only view of one memory map."""
        if not self.entries:
            return {}
        mapped = np.memmap(self.path, dtype=np.uint8, mode="r")
        return {
            name: np.frombuffer(
                mapped, dtype=entry.dtype, count=math.prod(entry.shape), offset=entry.start
            ).reshape(entry.shape)
            for name, entry in self.entries.items()
        }


def scan(path: Path) -> Container:
    """Read a safetensors header, going on behind whatever is wrong with it.

    The rules are those of https://huggingface.co/docs/safetensors: a header length in 8 bytes,
    little-endian, a JSON object, and tensors that fill the rest of the file without gap or overlap.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            head = file.read(_LENGTH_BYTES)
            length = struct.unpack("<Q", head)[0] if len(head) == _LENGTH_BYTES else -1
            room = min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES)
            raw = file.read(length) if 0 <= length <= room else b""
    except OSError as error:
        found = (error.strerror or type(error).__name__).lower()
        return _refused(path, "a readable trace file", found, "check the path")
    if length < 0:
        return _refused(path, "at least 8 bytes", f"{len(head)}", _DAMAGED)
    if length > room:
        return _refused(path, f"a header of at most {room} bytes", f"one of {length}", _DAMAGED)
    try:
        table = json.loads(raw.decode(), object_pairs_hook=_Object)
    except (ValueError, RecursionError) as error:
        return _refused(path, "JSON in the header", f"{error}"[:200], _DAMAGED)
    if not isinstance(table, _Object):
        return _refused(path, "a JSON object in the header", type(table).__name__, _DAMAGED)
    return _read_table(path, table, data=_LENGTH_BYTES + length, size=size)


class _Object(dict[str, Any]):
    """A JSON object that remembers which keys came twice.

    Attributes:
        twice: Those keys, sorted.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs)
        self.twice = sorted(key for key, count in counts.items() if count > 1)


def _read_table(path: Path, table: _Object, *, data: int, size: int) -> Container:
    problems = [Problem(name, "one tensor", "two of this name", _DAMAGED) for name in table.twice]
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        problems.append(Problem("metadata", "an object of texts", repr(metadata)[:60], _DAMAGED))
        metadata = {}
    entries: dict[str, Entry] = {}
    spans: list[tuple[int, int, str]] = []
    for name, value in table.items():
        entry = _read_entry(name, value, data, problems)
        if entry is None:
            continue
        spans.append((entry.start, entry.start + entry.size, name))
        if entry.start + entry.size <= size:
            entries[name] = entry
    problems += _judge_spans(sorted(spans), data, size)
    return Container(path, metadata, entries, tuple(problems))


def _read_entry(name: str, value: object, data: int, problems: list[Problem]) -> Entry | None:
    raw = value if isinstance(value, dict) else {}
    dtype, shape, offsets = raw.get("dtype"), _sizes(raw, "shape"), _sizes(raw, "data_offsets")
    if shape is None or offsets is None or len(offsets) != 2:
        expected = "dtype, shape and data_offsets"
        problems.append(Problem(name, expected, repr(value)[:80], _DAMAGED))
        return None
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        advice = "store taps in one of these; U8 only for masks"
        problems.append(Problem(name, "dtype " + ", ".join(_DTYPES), repr(dtype)[:60], advice))
        return None
    wanted = math.prod(shape) * _DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != wanted:
        found = f"{offsets[1] - offsets[0]}"
        expected = f"{wanted} bytes for {dtype} {list(shape)}"
        problems.append(Problem(name, expected, found, "write offsets of its first and last byte"))
        return None
    return Entry(_DTYPES[dtype], tuple(shape), data + offsets[0], wanted)


def _sizes(raw: Mapping[str, Any], key: str) -> list[int] | None:
    value = raw.get(key)
    if isinstance(value, list) and all(type(n) is int and 0 <= n < 2**62 for n in value):
        return value
    return None


def _judge_spans(spans: list[tuple[int, int, str]], data: int, size: int) -> list[Problem]:
    problems = []
    end = data
    for start, stop, name in spans:
        if start != end:
            kind = "a gap" if start > end else "an overlap"
            found = f"{kind} of {abs(start - end)} bytes"
            problems.append(
                Problem(name, f"bytes from offset {end - data} of the data", found, _GAPLESS)
            )
        end = max(end, stop)
    cut = [name for _, stop, name in spans if stop > size]
    if size != end:
        lost = f"; {len(cut)} tensors are cut off, first {cut[0]}" if cut else ""
        problems.append(
            Problem("file", f"{end} bytes, as the header says", f"{size}{lost}", _DAMAGED)
        )
    return problems


_GAPLESS = "tensors must follow one another without gap or overlap"


def _refused(path: Path, expected: str, found: str, advice: str) -> Container:
    return Container(path, {}, {}, (Problem("file", expected, found, advice),))
