"""Where the taps of a candidate come from: taken by name, in any order, one chunk after another."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ..engines.protocol import Engine, begin
from ..padding import Padding

Array = NDArray[Any]
TokenIds = NDArray[np.int64]

#: Number of taps that an engine computes before it lets them be compared.
AHEAD = 48

#: The same in bytes: 16 MiB.
AHEAD_BYTES = 1 << 24


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
    """Runs an engine in a thread of its own that takes turns with the comparison.

    The engine goes on while a tap is waited for, until a batch of taps is there, and then rests
    while they are compared. So a run never has to fit in memory, and the two do not compete for
    cores and for Python's lock; ``docs/cost.md`` says what that is worth.

    Args:
        engine: The engine.
        chunks: Token ids [B, T] of each forward pass, one after another on one cache.
        padding: Where the first of them have pads.

    Raises:
        Exception: Whatever the engine raised, from :meth:`take` or, if nobody takes a tap any
            more, when the source is closed.
    """

    def __init__(
        self, engine: Engine, chunks: Sequence[TokenIds], padding: Padding | None = None
    ) -> None:
        self._engine = engine
        self._padding = padding
        self._chunks = chunks
        self._arrived: dict[str, Array] = {}
        self._chunk = 0
        self._ended: set[int] = set()
        self._batch = (0, 0)
        self._failure: BaseException | None = None
        self._broken = False
        self._abandoned = False
        self._running = False
        self._turn = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"parity {engine.name}", daemon=True)

    def __enter__(self) -> Self:
        """Make the engine ready; it begins when the first tap is waited for."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the engine, if it still runs, and wait until it has cleaned up."""
        with self._turn:
            self._abandoned = True
            self._turn.notify_all()
        self._thread.join()
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
            if self._failure is not None:
                self._broken = True
                raise self._failure
            self._let_run()
        return self._arrived.pop(tap, None)

    def _let_run(self) -> None:
        """Give the engine its turn and wait until it is over."""
        with self._turn:
            self._running = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: not self._running)

    def _run(self) -> None:
        """What the engine's thread does."""
        try:
            self._wait_for_turn()
            cached = len(self._chunks) > 1
            with begin(self._engine, cache=cached, padding=self._padding) as session:
                for index, tokens in enumerate(self._chunks):
                    session.feed(tokens, partial(self._put, index))
                    self._ended.add(index)
                    self._rest()
        except _AbandonedError:
            pass
        except BaseException as error:
            error.add_note(f"in engine {self._engine.name}")
            self._failure = error
        finally:
            self._hand_over()

    def _put(self, chunk: int, tap: str, array: Array) -> None:
        if self._abandoned:
            raise _AbandonedError
        if chunk == self._chunk:  # taps of an earlier one are not asked for any more
            self._arrived[tap] = array
        count, size = self._batch
        self._batch = count + 1, size + array.nbytes
        if count + 1 >= AHEAD or size + array.nbytes >= AHEAD_BYTES:
            self._rest()

    def _rest(self) -> None:
        self._batch = (0, 0)
        self._hand_over()
        self._wait_for_turn()

    def _hand_over(self) -> None:
        with self._turn:
            self._running = False
            self._turn.notify_all()

    def _wait_for_turn(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._running or self._abandoned)
        if self._abandoned:
            raise _AbandonedError


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
