"""Writing a trace while the engine runs: nothing is held in memory but the header.

A safetensors file begins with the offsets of its tensors, which are known only at the end. So room
is left for the header, the tensors are written behind it as they come, and the header is filled
with spaces, as the format allows. Where the room turns out too small, the data is moved up.

Tensors of another element size than the first one (masks among floats) go through a temporary file
and to the end, so that every tensor lies at a multiple of its element size: readers that map the
file need that.
"""

import json
import os
import secrets
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError, UsageError
from .head import METADATA_KEY, TraceHead, write_head

Array = NDArray[Any]

_NAMES = {
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.bool_): "BOOL",
}
_BLOCK = 1 << 24
_LENGTH_BYTES = 8
_SPOOL_BYTES = 1 << 26

#: Name of the tensor that keeps the data behind it aligned; readers pass over it.
PADDING = "padding"


class TraceWriter:
    """One trace file; there under its name only once it is whole.

    Args:
        path: The file to write.
        room: Bytes left for the header, see :func:`room_for`.

    Raises:
        UsageError: It cannot be written: no such folder, no space, no permission.
    """

    def __init__(self, path: Path, *, room: int = 1 << 20) -> None:
        self._path = path
        self._room = -(-room // _LENGTH_BYTES) * _LENGTH_BYTES
        self._temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")
        self._entries: dict[str, dict[str, Any]] = {}
        self._end = 0
        self._size = 0
        self._spools: dict[int, IO[bytes]] = {}
        self._spooled: dict[int, dict[str, tuple[dict[str, Any], int]]] = {}
        with self._reported():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("xb+")
            self._file.seek(_LENGTH_BYTES + self._room)

    def __enter__(self) -> Self:
        """The writer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what was not finished."""
        for spool in self._spools.values():
            spool.close()
        self._file.close()
        with suppress(OSError):
            self._temporary.unlink()

    def put(self, chunk: int, tap: str, array: Array) -> None:
        """Write one tap.

        Args:
            chunk: Index of the forward pass.
            tap: Its name.
            array: In the axes of the table of taps, or as the head's layout notes say.

        Raises:
            EngineError: The tap came twice, or is of a dtype that traces do not have.
            UsageError: It cannot be written.
        """
        name = f"{chunk}/{tap}"
        if name in self._entries or any(name in held for held in self._spooled.values()):
            raise EngineError(
                name,
                expected="each tap once in a chunk",
                found="a second one",
                advice="two modules write under one name: give them names of their own",
            )
        if array.dtype not in _NAMES:
            raise EngineError(
                name,
                expected="dtype " + ", ".join(str(dtype) for dtype in _NAMES),
                found=str(array.dtype),
                advice="convert it before it is handed over",
            )
        data = np.ascontiguousarray(array)
        entry = {"dtype": _NAMES[data.dtype], "shape": list(array.shape)}
        size = data.dtype.itemsize
        self._size = self._size or size
        with self._reported():
            if size == self._size:
                self._entries[name] = self._placed(entry, data.nbytes)
                self._file.write(_bytes(data))
            else:
                self._spool(size).write(_bytes(data))
                self._spooled[size][name] = (entry, data.nbytes)

    def finish(self, head: TraceHead) -> None:
        """Write the header and give the file its name.

        Raises:
            UsageError: It cannot be written.
        """
        with self._reported():
            for size in sorted(self._spools, reverse=True):
                self._append(size)
            header = self._header(head)
            if len(header) > self._room:
                room = -(-len(header) // _LENGTH_BYTES) * _LENGTH_BYTES
                self._move_up(room - self._room)
                self._room = room
            self._file.seek(0)
            self._file.write(struct.pack("<Q", self._room) + header.ljust(self._room))
            self._file.flush()
            self._file.close()
            os.replace(self._temporary, self._path)

    def _placed(self, entry: dict[str, Any], size: int) -> dict[str, Any]:
        start, self._end = self._end, self._end + size
        return {**entry, "data_offsets": [start, self._end]}

    def _spool(self, size: int) -> IO[bytes]:
        if size not in self._spools:
            where = self._path.parent
            spool: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - __exit__ closes it
                max_size=_SPOOL_BYTES, dir=str(where)
            )
            self._spools[size] = spool
            self._spooled[size] = {}
        return self._spools[size]

    def _append(self, size: int) -> None:
        short = -self._end % size
        if short:
            self._entries[PADDING] = self._placed({"dtype": "U8", "shape": [short]}, short)
            self._file.write(bytes(short))
        for name, (entry, length) in self._spooled[size].items():
            self._entries[name] = self._placed(entry, length)
        spool = self._spools[size]
        spool.seek(0)
        while block := spool.read(_BLOCK):
            self._file.write(block)

    def _header(self, head: TraceHead) -> bytes:
        table = {"__metadata__": {METADATA_KEY: write_head(head)}, **self._entries}
        return json.dumps(table, separators=(",", ":")).encode()

    def _move_up(self, by: int) -> None:
        start = _LENGTH_BYTES + self._room
        at = start + self._end
        while at > start:
            size = min(_BLOCK, at - start)
            at -= size
            self._file.seek(at)
            block = self._file.read(size)
            self._file.seek(at + by)
            self._file.write(block)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(
                str(self._path),
                expected="a file that can be written",
                found=(error.strerror or type(error).__name__).lower(),
                advice="choose another folder, or make room there; fewer taps make a smaller trace",
            ) from None


def room_for(layers: int, chunks: int) -> int:
    """Bytes to leave for the header of a trace of so many layers and forward passes."""
    return 4096 + 160 * 32 * (layers + 1) * chunks


def _bytes(data: Array) -> memoryview:
    return data.reshape(-1).view(np.uint8).data
