"""The comparing step: one walk through the reference for the truth and all candidates.

Every value that the model passes around is a bundle of lanes. The first lane is the float64
reference, end to end. Each further lane belongs to a candidate: the op is run in float64 on the
candidate's own inputs, its result is compared with what the candidate has there, and the walk
goes on with what the candidate has. So the error of each op stands alone, nothing inherited, and
each parameter is lifted to float64 once for all lanes.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..compare import common_positions, pair_difference
from ..contract import UNIT_LIMIT
from ..padding import Booleans, RealColumns
from ..references_seam import step as seam
from ..result import Comparison, PairDifference, TapStatus
from ..taps import axes_of, split
from .bounds import Call, Operand
from .call import Made
from .lane import (
    Candidate,
    Measure,
    Outcome,
    Place,
    Taken,
    examine,
    proceed,
    receive,
    rounded,
    take,
)
from .precision import precision

Array = NDArray[Any]

_T = TypeVar("_T")

#: Values of each candidate by the kind of tap.
_Nearby = list[dict[str, Operand]]

#: Comparisons that go on behind the walk hold at most so many float64 numbers (256 MiB). Results
#: of more, logits of long prompts, are looked at one candidate after another.
_LARGE = 1 << 25

#: Ops on fewer elements are not worth a thread.
_SMALL = 1 << 16

#: Values of more elements (8 MiB) are not kept for who looks for a cause.
_KEPT = 1 << 20

#: Number of taps whose comparison may be behind the walk.
_BEHIND = 6

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
        made: The op and its evaluation in float64 on the candidate's own inputs.
        found: What the candidate has; of another shape where the status says so.
        counted: Booleans of its shape, true where a value means something; None for everywhere.
        nearby: What it has in the same layer, by the kind of tap, and as ``input`` what the layer
            is given. Large values are not kept.
        bound: Rounding bound of the op in units of ``u``, where it is known.
    """

    comparison: Comparison
    made: Made
    found: Array
    counted: Booleans | None = None
    nearby: Mapping[str, Operand] = field(default_factory=dict)
    bound: Array | None = None


@dataclass(frozen=True, slots=True)
class LogitsSeen:
    """The logits of one chunk: float64 reference first, then each candidate that gave them.

    Attributes:
        real: [B, T], false where a position is padding and its logits mean nothing; None where
            none is.
    """

    chunk: int
    reference: Array
    candidates: dict[str, Array]
    real: Booleans | None = None


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
        executor: Runs the lanes side by side, and comparisons behind them; None runs everything
            one after another.
        on_failure: Called with every op that does not replay, in data-flow order.
        measure: Fits the constants of every op; see :data:`harness.replay.lane.Measure`.
        on_layer: Called with chunk and layer when the walk enters a layer.
        record: Filled in; whoever gave it has what was compared also where the walk breaks off.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        dtype: str,
        executor: Executor | None = None,
        on_failure: Callable[[Replayed], None] | None = None,
        measure: Measure | None = None,
        on_layer: Callable[[int, int], None] | None = None,
        record: Record | None = None,
    ) -> None:
        self._candidates = tuple(candidates)
        self._dtypes = (dtype, *(c.dtype for c in candidates))
        self._precisions = tuple(precision(c.dtype) for c in candidates)
        self._executor = executor
        self._pending: deque[_Pending] = deque()
        self._record = Record([], [], []) if record is None else record
        self._on_failure = on_failure
        self._measure = measure
        self._on_layer = on_layer
        self._layer: int | None = None
        self._nearby: _Nearby = [{} for _ in candidates]
        self._nearby_era: tuple[int, int | None] | None = None
        self._chunk = 0
        self._start = 0
        self._order = 0
        self._real: RealColumns | None = None

    @property
    def _era(self) -> tuple[int, int | None]:
        """Chunk and layer; how a value was made is not remembered beyond them."""
        return self._chunk, self._layer

    @property
    def record(self) -> Record:
        """Comparisons of all ops so far; waits for those that are still going on."""
        self._settle_all()
        return self._record

    def give_up(self) -> None:
        """Put what is compared by now on record, up to the first comparison that fails to be made.

        Nobody is called about ops that do not replay: the walk is over.
        """
        self._on_failure = None
        with suppress(Exception):  # it is of a walk that breaks off for a reason of its own
            self._settle_all()

    def begin(self, chunk: int, *, start: int, real: RealColumns | None = None) -> None:
        """Enter the next chunk.

        Args:
            chunk: Its index.
            start: Its first new position.
            real: What of it is no padding, None for everything.
        """
        self._chunk, self._start, self._order, self._real = chunk, start, 0, real

    @property
    def _place(self) -> Place:
        return Place(self._chunk, self._start, self._order, self._real)

    def __call__(
        self, tap: str | None, op: seam.Op, *inputs: seam.Handle, **constants: Any
    ) -> Bundle:
        """Run the op in every lane and compare."""
        self._watch_layer(tap)
        lanes = self._spread(inputs)
        work = max((x.value.size for x in lanes[0] if x is not None), default=0)
        truth, *outputs = self._map(work, lambda lane: _run(op, lane, constants), lanes)
        calls = [
            Call(Operand(output), lane, constants, rounding)
            for output, lane, rounding in zip(outputs, lanes[1:], self._precisions, strict=True)
        ]
        self._enter(lanes[1:])
        weights = [x for x in inputs if isinstance(x, seam.Weight)]
        taken: list[Taken | None] = [None] * len(calls)
        if tap is not None:
            had = self._take(tap, truth)
            self._compare(tap, op, calls, truth, weights, had, max(work, truth.size))
            self._order += 1
            taken = [*had]
        made = [Made(tap, op, call, self._era) for call in calls]
        operands = self._map(work, proceed, made, taken)
        self._keep(tap, operands)
        return Bundle((Operand(truth), *operands))

    def _map(self, work: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Apply a function lane by lane, side by side where that is worth a thread."""
        if self._executor is None or work < _SMALL:
            return list(map(function, *arguments))
        return list(self._executor.map(function, *arguments))

    def _take(self, tap: str, truth: Array) -> list[Taken]:
        place = self._place
        came = [take(side, place, tap) for side in self._candidates]
        return self._map(
            truth.size,
            lambda side, array: receive(side, place, tap, truth, array),
            self._candidates,
            came,
        )

    def _compare(
        self,
        tap: str,
        op: seam.Op,
        calls: Sequence[Call],
        truth: Array,
        weights: Sequence[seam.Weight],
        taken: Sequence[Taken],
        work: int,
    ) -> None:
        """Begin to compare; the walk goes on, for it needs no result of it."""
        place = self._place
        size = truth.size * (1 + 2 * len(calls))
        held = sum(pending.size for pending in self._pending)
        while self._pending and (len(self._pending) >= _BEHIND or held + size > _LARGE):
            oldest = self._pending.popleft()
            held -= oldest.size
            self._settle(oldest)
        beside = self._executor if work >= _SMALL and size <= _LARGE else None
        outcomes = [
            _begin(beside, examine, side, place, tap, op, call, truth, weights, has, self._measure)
            for side, call, has in zip(self._candidates, calls, taken, strict=True)
        ]
        found = {
            side.name: has.found
            for side, has in zip(self._candidates, taken, strict=True)
            if has.found is not None
        }
        pairs = [
            _begin(beside, _pair, a, found[a], b, found[b], place, tap)
            for a, b in combinations(found, 2)
        ]
        nearby = self._nearby
        self._pending.append(_Pending(tap, op, place, truth, size, outcomes, pairs, nearby))
        if size > _LARGE:
            self._settle_all()  # nothing of it may be held any longer

    def _enter(self, lanes: Sequence[tuple[Operand | None, ...]]) -> None:
        """Begin to keep the values of a layer, with what it is given."""
        if self._era != self._nearby_era:
            self._nearby, self._nearby_era = [{} for _ in lanes], self._era
            if self._layer is not None:
                self._keep("input", [inputs[0] for inputs in lanes if inputs[0] is not None])

    def _keep(self, tap: str | None, made: Sequence[Operand]) -> None:
        """Keep what each candidate has there; what is kept of earlier taps stays."""
        if tap is None or self._on_failure is None:
            return
        for held, operand in zip(self._nearby, made, strict=True):
            if operand.value.size <= _KEPT:
                held[split(tap).kind] = operand

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
                own = value.lanes[index]
                if own.made is not None and own.made.era != self._era:
                    own.made = None
                return own
            key = (id(value), self._dtypes[index])
            if key not in lifted:
                lifted[key] = _lift(value, self._dtypes[index])
            return lifted[key]

        return [tuple(lane(x, index) for x in inputs) for index in range(len(self._dtypes))]

    def _settle_all(self) -> None:
        """Wait for all comparisons that are going on."""
        while self._pending:
            self._settle(self._pending.popleft())

    def _settle(self, pending: "_Pending") -> None:
        """Keep what a report needs of one tap and forget the rest."""
        outcomes = [outcome() for outcome in pending.outcomes]
        for outcome, nearby in zip(outcomes, pending.nearby, strict=True):
            comparison = outcome.comparison
            found = outcome.misshapen if outcome.found is None else outcome.found
            self._record.comparisons.append(comparison)
            if self._on_failure is not None and found is not None and _failed(comparison):
                made = Made(pending.tap, pending.op, outcome.call)
                counted = None
                if outcome.found is not None:
                    counted = pending.place.counted(pending.tap, found.shape)
                failure = Replayed(comparison, made, found, counted, nearby, outcome.bound)
                self._on_failure(failure)
        self._record.pairs += [pair() for pair in pending.pairs]
        if pending.tap == "logits":
            seen = {o.comparison.candidate: o.found for o in outcomes if o.found is not None}
            place = pending.place
            real = None if place.real is None else place.real.queries
            self._record.logits.append(LogitsSeen(place.chunk, pending.truth, seen, real))


@dataclass(frozen=True, slots=True)
class _Pending:
    """One tap whose comparisons are going on.

    Attributes:
        size: About how many float64 numbers it holds.
        outcomes: Wait for the comparison of each candidate.
        pairs: Wait for that of each two candidates.
        nearby: What each candidate has in the same layer.
    """

    tap: str
    op: seam.Op
    place: Place
    truth: Array
    size: int
    outcomes: list[Callable[[], Outcome]]
    pairs: list[Callable[[], PairDifference]]
    nearby: _Nearby


def _begin(
    executor: Executor | None, function: Callable[..., _T], *arguments: Any
) -> Callable[[], _T]:
    """Begin a call; what comes back waits for its result."""
    if executor is not None:
        return executor.submit(function, *arguments).result
    result = function(*arguments)
    return lambda: result


def _failed(comparison: Comparison) -> bool:
    """Whether somebody should look for a cause."""
    local = comparison.local
    return (
        comparison.status is TapStatus.MISSHAPEN
        or bool(comparison.weights)
        or any(fit.excluded for fit in comparison.fits)
        or (local is not None and not local.units <= UNIT_LIMIT)
    )


def _pair(a: str, x: Array, b: str, y: Array, place: Place, tap: str) -> PairDifference:
    x, y = common_positions(axes_of(tap), x, y)
    return pair_difference(a, x, b, y, place.chunk, tap, place.counted(tap, x.shape))


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
    name = value.name if isinstance(value, seam.Weight) else ""
    return Operand(narrow.astype(np.float64), stored=narrow, name=name)
