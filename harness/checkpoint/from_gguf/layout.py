"""A walk through the header of a GGUF file before anything else reads it.

The gguf package trusts the numbers of a header: an array that claims 2**60 elements is read until
the memory is full, a size is multiplied in 64 bits and wraps, and what lies beyond the end of the
file is an empty array. So every count, length and offset is first held against the size of the
file, in an effort that is bounded by that size.

Source: the GGUF specification of the ggml project, versions 2 and 3.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ...errors import CheckpointError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MAX_ELEMENTS = 1 << 22
"""Elements of all metadata arrays together; the largest vocabularies need a quarter of it."""

_STRING, _ARRAY, _UINT32, _BOOL = 8, 9, 4, 7
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_ALIGNMENT = b"general.alignment"


class _Damage(Exception):
    """What is wrong with the header."""


@dataclass(frozen=True, slots=True)
class _Extent:
    """Where the values of one tensor lie, counted from the start of the data."""

    start: int
    end: int
    name: bytes


def check_layout(path: Path) -> None:
    """Require that everything the header names lies within the file, once and without overlap.

    Raises:
        CheckpointError: If it does not, if the file is unreadable, or if it was written for the
            other byte order.
    """
    try:
        size = path.stat().st_size
        if size == 0:
            _refuse(path, 0, "it is empty")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _refuse_byte_order(path, data[:8])
            _Walk(data).all()
    except _Damage as damage:
        _refuse(path, size, str(damage))
    except OSError as error:
        raise CheckpointError(
            str(path),
            expected="a readable file",
            found=error.strerror or str(error),
            advice="check path and permissions",
        ) from error


def _refuse(path: Path, size: int, reason: str) -> NoReturn:
    raise CheckpointError(
        str(path),
        expected="a complete GGUF file",
        found=f"{size} bytes that end early or make no sense ({reason})",
        advice="the file is damaged or its download stopped early; fetch it again",
    )


def _refuse_byte_order(path: Path, start: bytes) -> None:
    if start[:4] == _MAGIC and len(start) == 8 and struct.unpack("<I", start[4:])[0] & 0xFFFF == 0:
        raise CheckpointError(
            str(path),
            expected="a GGUF file in little-endian byte order",
            found="the other one",
            advice="convert it there, or fetch the file for this kind of machine",
        )


class _Walk:
    """One pass over the header, from the magic to the last tensor.

    Args:
        data: The whole file.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0
        self._elements = 0
        self._alignment = 32

    def all(self) -> None:
        """Walk; raises at the first thing that cannot be."""
        magic = self._take(4, "the magic")
        if magic != _MAGIC:
            raise _Damage(f"it starts with {magic!r}, not {_MAGIC!r}")
        version = self._number("<I", "the version")
        if version not in _VERSIONS:
            raise _Damage(f"version {version}; known are 2 and 3")
        tensors = self._number("<Q", "the number of tensors")
        pairs = self._number("<Q", "the number of metadata keys")
        self._require(pairs * 13 + tensors * 24, f"{pairs} keys and {tensors} tensors")
        self._walk_metadata(pairs)
        self._walk_tensors(tensors)

    def _walk_metadata(self, pairs: int) -> None:
        seen: set[bytes] = set()
        for number in range(pairs):
            key = self._string(f"metadata key {number}")
            _require_new(key, seen, "metadata key")
            kind = self._number("<I", f"the type of {_shown(key)}")
            if key == _ALIGNMENT:
                self._read_alignment(kind)
            else:
                self._skip_value(kind, _shown(key))

    def _read_alignment(self, kind: int) -> None:
        value = self._number("<I", "general.alignment") if kind == _UINT32 else 0
        if value < 8 or value & (value - 1):
            raise _Damage("general.alignment is not one power of two from 8 on, as uint32")
        self._alignment = value

    def _skip_value(self, kind: int, key: str) -> None:
        if kind == _STRING:
            self._string(key)
        elif kind == _ARRAY:
            self._skip_array(key)
        elif kind in _SCALAR_BYTES:
            self._skip_scalars(kind, 1, key)
        else:
            raise _Damage(f"{key} is of the unknown type {kind}")

    def _skip_array(self, key: str) -> None:
        kind = self._number("<I", key)
        count = self._number("<Q", key)
        self._elements += count
        if kind == _STRING:
            self._require(count * 8, f"{count} texts of {key}")
        elif kind not in _SCALAR_BYTES:
            raise _Damage(f"{key} is an array of type {kind}")
        else:
            self._require(count * _SCALAR_BYTES[kind], f"{count} elements of {key}")
        if self._elements > _MAX_ELEMENTS:
            raise _Damage(f"more than {_MAX_ELEMENTS} elements of metadata, up to {key}")
        if kind == _STRING:
            for index in range(count):
                self._string(f"{key}[{index}]")
        else:
            self._skip_scalars(kind, count, key)

    def _skip_scalars(self, kind: int, count: int, key: str) -> None:
        raw = self._take(count * _SCALAR_BYTES[kind], key)
        if kind == _BOOL and raw.strip(b"\0\1"):
            raise _Damage(f"{key} is neither true nor false")

    def _walk_tensors(self, count: int) -> None:
        seen: set[bytes] = set()
        extents = []
        for number in range(count):
            name = self._string(f"the name of tensor {number}")
            _require_new(name, seen, "tensor")
            extents.append(self._read_extent(name))
        start = -(-self._at // self._alignment) * self._alignment
        before = _Extent(0, 0, b"")
        for extent in sorted(extents, key=lambda e: (e.start, e.end)):
            if extent.start < before.end:
                raise _Damage(f"{_shown(before.name)} and {_shown(extent.name)} overlap")
            if start + extent.end > self._size:
                raise _Damage(f"{_shown(extent.name)} ends at byte {start + extent.end}")
            before = extent if extent.end > before.end else before

    def _read_extent(self, name: bytes) -> _Extent:
        shown = _shown(name)
        dimensions = self._number("<I", f"the shape of {shown}")
        if dimensions > _MAX_DIMENSIONS:
            raise _Damage(f"{shown} has {dimensions} dimensions; at most {_MAX_DIMENSIONS}")
        shape = [self._number("<Q", f"the shape of {shown}") for _ in range(dimensions)]
        kind = self._number("<I", f"the storage type of {shown}")
        offset = self._number("<Q", f"the offset of {shown}")
        if offset % self._alignment:
            raise _Damage(f"{shown} at offset {offset}, no multiple of {self._alignment}")
        return _Extent(offset, offset + _stored_bytes(shape, kind, shown), name)

    def _string(self, what: str) -> bytes:
        raw = self._take(self._number("<Q", what), what)
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError:
            raise _Damage(f"{what} is no UTF-8") from None
        return raw

    def _number(self, kind: str, what: str) -> int:
        value: int = struct.unpack(kind, self._take(struct.calcsize(kind), what))[0]
        return value

    def _take(self, count: int, what: str) -> bytes:
        self._require(count, what)
        raw = self._data[self._at : self._at + count]
        self._at += count
        return raw

    def _require(self, count: int, what: str) -> None:
        left = self._size - self._at
        if count > left:
            raise _Damage(f"{what}: at least {count} bytes at offset {self._at}, {left} are left")


def _stored_bytes(shape: list[int], kind: int, name: str) -> int:
    from gguf.constants import GGML_QUANT_SIZES

    sizes = {int(known): block for known, block in GGML_QUANT_SIZES.items()}
    if kind not in sizes:
        raise _Damage(f"{name} is of the unknown storage type {kind}")
    block, block_bytes = (int(size) for size in sizes[kind])
    if shape and shape[0] % block:
        raise _Damage(f"{name} has rows of {shape[0]}, no multiple of {block}")
    # NumPy cannot hold a shape whose other sizes multiply beyond 64 bits, though one of them be 0.
    if math.prod(size for size in shape if size) >= 1 << 56:
        raise _Damage(f"{name} has the shape {shape[::-1]}")
    return math.prod(shape) // block * block_bytes


def _require_new(name: bytes, seen: set[bytes], kind: str) -> None:
    if name in seen:
        raise _Damage(f"the {kind} {_shown(name)} is given twice")
    seen.add(name)


def _shown(name: bytes) -> str:
    text = name.decode("utf-8")
    return text if len(text) <= 60 else text[:57] + "..."
