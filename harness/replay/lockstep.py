"""The comparing step: one walk through the reference for the truth and all candidates.

Every value that the model passes around is a bundle of lanes. The first lane is the float64
reference, end to end. Each further lane belongs to a candidate: the op is run in float64 on the
candidate's own inputs, its result is compared with what the candidate has there, and the walk
goes on with what the candidate has. So the error of each op stands alone, nothing inherited, and
each parameter is lifted to float64 once for all lanes.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compare import common_positions, pair_difference
from ..contract import UNIT_LIMIT
from ..references_seam import step as seam
from ..result import Comparison, PairDifference
from ..taps import axes_of, split
from .bounds import Call, Operand
from .lane import Candidate, Outcome, Place, examine, rounded
from .precision import precision

Array = NDArray[Any]

#: Lanes of results with more elements, logits of long prompts, are looked at one after another:
#: what is in use meanwhile for each of them would not fit several times.
_LARGE = 1 << 24

__all__ = ["Bundle", "Candidate", "Lockstep", "LogitsSeen", "Record", "Replayed"]


@dataclass(frozen=True, slots=True)
class Bundle:
    """One value in every lane: the float64 reference first, then the candidates in order."""

    lanes: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """An op of one candidate with all that is known of it, for whoever looks for the cause.

    Attributes:
        comparison: What was measured.
        op: The op.
        call: Inputs, constants and float64 output of the op.
        found: What the candidate has.
    """

    comparison: Comparison
    op: Callable[..., Any]
    call: Call
    found: Array


@dataclass(frozen=True, slots=True)
class LogitsSeen:
    """The logits of one chunk: float64 reference first, then each candidate that gave them."""

    chunk: int
    reference: Array
    candidates: dict[str, Array]


@dataclass(slots=True)
class Record:
    """What a walk leaves behind."""

    comparisons: list[Comparison]
    pairs: list[PairDifference]
    logits: list[LogitsSeen]


class Lockstep:
    """A step (see :mod:`references.step`) that compares while the reference walks.

    Args:
        candidates: Whom to compare.
        dtype: Dtype to which the float64 lane's parameters are rounded.
        executor: Runs the lanes side by side; None runs them one after another.
        on_failure: Called with every op that does not replay.
        on_layer: Called with chunk and layer when the walk enters a layer.

    Attributes:
        record: Comparisons so far.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        dtype: str,
        executor: Executor | None = None,
        on_failure: Callable[[Replayed], None] | None = None,
        on_layer: Callable[[int, int], None] | None = None,
    ) -> None:
        self._candidates = tuple(candidates)
        self._dtypes = (dtype, *(c.dtype for c in candidates))
        self._precisions = tuple(precision(c.dtype) for c in candidates)
        self._map: Callable[..., Iterator[Any]] = map if executor is None else executor.map
        self._on_failure = on_failure
        self._on_layer = on_layer
        self._layer: int | None = None
        self._chunk = 0
        self._start = 0
        self._order = 0
        self.record = Record([], [], [])

    def begin(self, chunk: int, *, start: int) -> None:
        """Enter the next chunk, whose first new position is ``start``."""
        self._chunk, self._start, self._order = chunk, start, 0

    def __call__(
        self, tap: str | None, op: seam.Op, *inputs: seam.Handle, **constants: Any
    ) -> Bundle:
        """Run the op in every lane and compare."""
        self._watch_layer(tap)
        lanes = self._spread(inputs)
        truth, *outputs = self._map(lambda lane: _run(op, lane, constants), lanes)
        calls = [
            Call(Operand(output), lane, constants, rounding)
            for output, lane, rounding in zip(outputs, lanes[1:], self._precisions, strict=True)
        ]
        place = Place(self._chunk, self._start, self._order, tap)
        weights = [x for x in inputs if isinstance(x, seam.Weight)]
        looking = map if truth.size > _LARGE else self._map
        outcomes: list[Outcome] = list(
            looking(
                lambda side, call: examine(side, place, op, call, truth, weights),
                self._candidates,
                calls,
            )
        )
        if tap is not None:
            self._note(tap, op, truth, outcomes)
        return Bundle((Operand(truth), *(outcome.operand for outcome in outcomes)))

    def _watch_layer(self, tap: str | None) -> None:
        layer = None if tap is None else split(tap).layer
        if self._on_layer is not None and layer is not None and layer != self._layer:
            self._on_layer(self._chunk, layer)
        self._layer = layer

    def _spread(self, inputs: Sequence[seam.Handle]) -> list[tuple[Operand | None, ...]]:
        """Inputs of each lane; a parameter is lifted once for all lanes of one dtype."""
        lifted: dict[tuple[int, str], Operand] = {}

        def lane(value: seam.Handle, index: int) -> Operand | None:
            if value is None:
                return None
            if isinstance(value, Bundle):
                return value.lanes[index]
            key = (id(value), self._dtypes[index])
            if key not in lifted:
                lifted[key] = _lift(value, self._dtypes[index])
            return lifted[key]

        return [tuple(lane(x, index) for x in inputs) for index in range(len(self._dtypes))]

    def _note(self, tap: str, op: seam.Op, truth: Array, outcomes: Sequence[Outcome]) -> None:
        """Keep what a report needs of one tap and forget the rest."""
        seen: dict[str, Array] = {}
        for outcome in outcomes:
            comparison, found = outcome.comparison, outcome.found
            if comparison is None:
                continue
            self.record.comparisons.append(comparison)
            if found is None:
                continue
            seen[comparison.candidate] = found
            failed = bool(comparison.weights) or (
                comparison.local is not None and comparison.local.units > UNIT_LIMIT
            )
            if failed and self._on_failure is not None:
                self._on_failure(Replayed(comparison, op, outcome.call, found))
        for a, b in combinations(seen, 2):
            x, y = common_positions(axes_of(tap), seen[a], seen[b])
            self.record.pairs.append(pair_difference(a, x, b, y, self._chunk, tap))
        if tap == "logits":
            self.record.logits.append(LogitsSeen(self._chunk, truth, seen))
        self._order += 1


def _run(op: seam.Op, lane: tuple[Operand | None, ...], constants: dict[str, Any]) -> Array:
    with np.errstate(all="ignore"):  # what is not finite is a status of its own
        result: Array = op(*(None if x is None else x.value for x in lane), **constants)
    if result.dtype.kind == "f" and result.dtype != np.float64:
        raise TypeError(f"{op.__name__}: replay computed {result.dtype}, not float64")
    return result


def _lift(value: seam.Handle, dtype: str) -> Operand:
    """A parameter rounded to ``dtype`` and lifted to float64; integers as they are."""
    array = np.asarray(value.array if isinstance(value, seam.Weight) else value)
    if array.dtype.kind in "iub":
        return Operand(array)
    narrow = rounded(array, dtype)
    return Operand(narrow.astype(np.float64), stored=narrow)
