"""Where the taps of a candidate come from: taken by name, in any order, one chunk after another."""

import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ..engines.protocol import Engine

Array = NDArray[Any]
TokenIds = NDArray[np.int64]

#: Number of taps that an engine may be ahead of the comparison.
AHEAD = 48


@dataclass(frozen=True, slots=True)
class LastPositions:
    """A tap that covers the last positions of its chunk alone: logits of the last token, say.

    Attributes:
        value: As the whole tap, with fewer positions on its T axis.
    """

    value: Array


class TapSource(Protocol):
    """The taps of one run of one candidate."""

    def take(self, chunk: int, tap: str) -> Array | LastPositions | None:
        """Hand over a tap and forget it; None if this chunk has no such tap.

        Chunks must be asked for in order; taps may be asked for in any order within one.
        """
        ...


class EngineSource(AbstractContextManager["EngineSource"]):
    """Runs an engine in a thread of its own, held back so that taps need not all fit in memory.

    Args:
        engine: The engine.
        chunks: Token ids [B, T] of each forward pass, one after another on one cache.

    Raises:
        Exception: Whatever the engine raised, from :meth:`take` or, if nobody takes a tap any
            more, when the source is closed.
    """

    def __init__(self, engine: Engine, chunks: Sequence[TokenIds]) -> None:
        self._engine = engine
        self._chunks = chunks
        self._queue: queue.Queue[tuple[int, str, Array | None]] = queue.Queue(AHEAD)
        self._arrived: dict[str, Array] = {}
        self._chunk = 0
        self._ended: set[int] = set()
        self._failure: BaseException | None = None
        self._broken = False
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"parity {engine.name}", daemon=True)

    def __enter__(self) -> Self:
        """Start the engine."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the engine, if it still runs, and wait until it has cleaned up."""
        self._abandoned.set()
        while self._thread.is_alive():
            self._drain()
            self._thread.join(timeout=0.01)
        if self._failure is not None and not self._broken and error is None:
            raise self._failure

    def take(self, chunk: int, tap: str) -> Array | None:
        """Hand over a tap and forget it; None if this chunk has no such tap."""
        if not 0 <= chunk < len(self._chunks):
            raise IndexError(f"chunk {chunk} of {len(self._chunks)}")
        if chunk != self._chunk:
            self._arrived.clear()
            self._chunk = chunk
        while tap not in self._arrived and chunk not in self._ended:
            self._receive()
        return self._arrived.pop(tap, None)

    def _receive(self) -> None:
        if self._broken and self._failure is not None:
            raise self._failure
        chunk, tap, array = self._queue.get()
        if self._failure is not None and tap == _FAILED:
            self._broken = True
            raise self._failure
        if array is None:
            self._ended.add(chunk)
        elif chunk == self._chunk:
            self._arrived[tap] = array

    def _run(self) -> None:
        try:
            with self._engine.open(cache=len(self._chunks) > 1) as session:
                for index, tokens in enumerate(self._chunks):
                    session.feed(tokens, partial(self._put, index))
                    self._put(index, _ENDED, None)
        except _AbandonedError:
            pass
        except BaseException as error:
            self._failure = error
            self._put_quietly((-1, _FAILED, None))

    def _put(self, chunk: int, tap: str, array: Array | None) -> None:
        if self._abandoned.is_set():
            raise _AbandonedError
        self._queue.put((chunk, tap, array))

    def _put_quietly(self, item: tuple[int, str, Array | None]) -> None:
        if not self._abandoned.is_set():
            self._queue.put(item)

    def _drain(self) -> None:
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                return


_ENDED, _FAILED = "<end>", "<failed>"


class _AbandonedError(Exception):
    """Unwinds an engine whose taps nobody wants any more."""


class RecordedSource:
    """Taps that are already there, for tests and for candidates that arrive as data.

    Args:
        chunks: The taps of each chunk, by name.
    """

    def __init__(self, chunks: Sequence[Mapping[str, Array]]) -> None:
        self._chunks = chunks

    def take(self, chunk: int, tap: str) -> Array | None:
        """Hand over a tap; None if this chunk has no such tap."""
        return self._chunks[chunk].get(tap)
