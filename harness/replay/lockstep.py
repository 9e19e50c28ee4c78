"""The comparing step: one walk through the reference for the truth and all candidates.

Every value that the model passes around is a bundle of lanes. The first lane is the float64
reference, end to end. Each further lane belongs to a candidate: the op is run in float64 on the
candidate's own inputs, its result is compared with what the candidate has there, and the walk
goes on with what the candidate has. So the error of each op stands alone, nothing inherited, and
each parameter is lifted to float64 once for all lanes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compare import difference, local_error, locate, weight_difference, worst_nonfinite
from ..contract import UNIT_LIMIT
from ..references_seam import step as seam
from ..result import Comparison, LocalError, PairDifference, TapStatus, WeightDifference
from ..taps import axes_of, format_shape, split
from .bounds import Call, Operand, unit
from .precision import DTYPES, precision
from .source import TapSource

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One side of the comparison.

    Attributes:
        name: The engine's name.
        dtype: Its dtype; parameters are rounded to it before they are lifted.
        source: Its taps.
        unavailable: Kinds of taps that it declares it cannot give, with the reason.
        parameters: Its parameters in memory, by their name in the checkpoint.
    """

    name: str
    dtype: str
    source: TapSource
    unavailable: dict[str, str]
    parameters: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bundle:
    """One value in every lane: the float64 reference first, then the candidates in order."""

    lanes: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """An op of one candidate with all that is known of it, for whoever looks for the cause.

    Attributes:
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
        on_failure: Callable[[Replayed], None] | None = None,
        on_layer: Callable[[int, int], None] | None = None,
    ) -> None:
        self._candidates = tuple(candidates)
        self._dtypes = (dtype, *(c.dtype for c in candidates))
        self._precisions = tuple(precision(d) for d in self._dtypes)
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
        truth = _run(op, lanes[0], constants)
        outputs = [Operand(truth)]
        seen: dict[str, Array] = {}
        for index, candidate in enumerate(self._candidates):
            call = Call(
                output=Operand(_run(op, lanes[index + 1], constants)),
                inputs=lanes[index + 1],
                constants=constants,
                precision=self._precisions[index + 1],
            )
            weights = self._differing_weights(candidate, inputs)
            outputs.append(self._candidate(candidate, tap, op, call, truth, seen, weights))
        if tap is not None:
            self._compare_pairs(tap, seen)
            if tap == "logits":
                self.record.logits.append(LogitsSeen(self._chunk, truth, seen))
            self._order += 1
        return Bundle(tuple(outputs))

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
                lifted[key] = Operand(_lift(value, self._dtypes[index]))
            return lifted[key]

        return [tuple(lane(x, index) for x in inputs) for index in range(len(self._dtypes))]

    def _candidate(
        self,
        candidate: Candidate,
        tap: str | None,
        op: seam.Op,
        call: Call,
        truth: Array,
        seen: dict[str, Array],
        weights: tuple[WeightDifference, ...],
    ) -> Operand:
        """Compare one candidate at one tap and return what its lane goes on with."""
        if tap is None:
            return Operand(call.output.value, unit(op, call))
        reason = candidate.unavailable.get(split(tap).kind)
        found = None if reason is not None else candidate.source.take(self._chunk, tap)
        status, note = _judge_shape(found, truth, tap, reason)
        if found is None or status is not TapStatus.COMPARED:
            self._note(candidate, tap, op, truth, status, note)
            return Operand(call.output.value, unit(op, call))
        lifted = found if found.dtype == bool else np.asarray(found, dtype=np.float64)
        if worst_nonfinite(lifted) is not None and np.isfinite(truth).all():
            self._note_nonfinite(candidate, tap, op, truth, lifted)
            return Operand(call.output.value, unit(op, call))
        self._note_compared(candidate, tap, op, call, truth, lifted, weights)
        seen[candidate.name] = lifted
        return Operand(lifted)

    def _differing_weights(
        self, candidate: Candidate, inputs: Sequence[seam.Handle]
    ) -> tuple[WeightDifference, ...]:
        """Parameters of this op that the candidate holds otherwise than the checkpoint."""
        if self._chunk > 0:
            return ()
        differing = []
        for value in inputs:
            if isinstance(value, seam.Weight) and value.name in candidate.parameters:
                stored = _round(np.asarray(value.array), candidate.dtype)
                held = candidate.parameters[value.name]
                differing.append(weight_difference(value.name, stored, held))
        return tuple(d for d in differing if d is not None)

    def _note_compared(
        self,
        candidate: Candidate,
        tap: str,
        op: seam.Op,
        call: Call,
        truth: Array,
        found: Array,
        weights: tuple[WeightDifference, ...],
    ) -> None:
        axes = axes_of(tap)
        local = self._local(op, call, found, axes)
        comparison = Comparison(
            candidate=candidate.name,
            chunk=self._chunk,
            tap=tap,
            op=op.__name__,
            order=self._order,
            axes=axes,
            shape=truth.shape,
            status=TapStatus.COMPARED,
            difference=difference(_float(truth), _float(found), axes, start=self._start),
            local=local,
            weights=weights,
        )
        self.record.comparisons.append(comparison)
        if self._on_failure is not None and (local.units > UNIT_LIMIT or weights):
            self._on_failure(Replayed(comparison, op, call, found))

    def _local(self, op: seam.Op, call: Call, found: Array, axes: str) -> LocalError:
        rounding = call.precision
        size = unit(op, call).astype(np.float64) * rounding.unit_roundoff + rounding.underflow
        inherited = any(x is not None and x.incoming is not None for x in call.inputs)
        return local_error(
            _float(call.output.value),
            _float(found),
            size,
            axes,
            start=self._start,
            inherited_bound=inherited,
        )

    def _note(
        self,
        candidate: Candidate,
        tap: str,
        op: seam.Op,
        truth: Array,
        status: TapStatus,
        note: str,
    ) -> None:
        self.record.comparisons.append(
            Comparison(
                candidate=candidate.name,
                chunk=self._chunk,
                tap=tap,
                op=op.__name__,
                order=self._order,
                axes=axes_of(tap),
                shape=truth.shape,
                status=status,
                note=note,
            )
        )

    def _note_nonfinite(
        self, candidate: Candidate, tap: str, op: seam.Op, truth: Array, found: Array
    ) -> None:
        flat = worst_nonfinite(found) or 0
        where = locate(axes_of(tap), flat, truth, found, start=self._start)
        count = int(np.count_nonzero(~np.isfinite(found)))
        note = (
            f"{count} of {found.size} values are not finite, first {found.flat[flat]} at "
            f"{list(where.index)}, where the reference has {where.reference:.6g}"
        )
        self._note(candidate, tap, op, truth, TapStatus.NOT_FINITE, note)

    def _compare_pairs(self, tap: str, seen: dict[str, Array]) -> None:
        names = list(seen)
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                error = np.abs(_float(seen[a]) - _float(seen[b]))
                pair = PairDifference(
                    a, b, self._chunk, tap, float(error.max()), float(error.mean())
                )
                self.record.pairs.append(pair)


def _run(op: seam.Op, lane: tuple[Operand | None, ...], constants: dict[str, Any]) -> Array:
    result: Array = op(*(None if x is None else x.value for x in lane), **constants)
    if result.dtype.kind == "f" and result.dtype != np.float64:
        raise TypeError(f"{op.__name__}: replay computed {result.dtype}, not float64")
    return result


def _lift(value: seam.Handle, dtype: str) -> Array:
    """A parameter rounded to ``dtype`` and lifted to float64; integers as they are."""
    array = np.asarray(value.array if isinstance(value, seam.Weight) else value)
    if array.dtype.kind in "iub":
        return array
    return _round(array, dtype).astype(np.float64)


def _round(array: Array, dtype: str) -> Array:
    """A parameter as a candidate of that dtype holds it."""
    target = DTYPES[dtype]
    narrower = array.dtype != target and array.dtype.itemsize >= target.itemsize
    return array.astype(target) if narrower else array


def _float(array: Array) -> NDArray[np.float64]:
    return array.astype(np.float64) if array.dtype == bool else array


def _judge_shape(
    found: Array | None, truth: Array, tap: str, reason: str | None
) -> tuple[TapStatus, str]:
    if reason is not None:
        return TapStatus.UNAVAILABLE, reason
    if found is None:
        return TapStatus.MISSING, "the engine did not hand it over and did not declare so"
    if found.shape != truth.shape:
        axes = axes_of(tap)
        expected, got = format_shape(axes, truth.shape), list(found.shape)
        return TapStatus.MISSHAPEN, f"expected {expected}, found {got}"
    return TapStatus.COMPARED, ""
