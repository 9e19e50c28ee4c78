"""One candidate at one op: what it has there, against the op on its own inputs and the truth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compare import Start, difference, local_error, locate, weight_difference, worst_nonfinite
from ..contract import UNIT_LIMIT
from ..padding import Booleans, RealColumns
from ..references_seam import step as seam
from ..result import Comparison, Fit, LocalError, TapStatus, WeightDifference
from ..taps import axes_of, declared, format_shape
from .bounds import Call, Operand, unit
from .call import Made
from .precision import DTYPES
from .source import LastPositions, TapSource

Array = NDArray[Any]

#: Fits the constants of an op to what a candidate has: the op, what the candidate has in float64,
#: and the op's rounding bound in units of ``u``.
Measure = Callable[[Made, Array, Array], tuple[Fit, ...]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One side of the comparison.

    Attributes:
        name: The engine's name.
        dtype: Its dtype; parameters are rounded to it before they are lifted.
        source: Its taps.
        unavailable: Taps that it declares it cannot give; see :func:`harness.taps.declared`.
        parameters: Its parameters in memory, by their name in the checkpoint.
    """

    name: str
    dtype: str
    source: TapSource
    unavailable: dict[str, str]
    parameters: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run an op stands.

    Attributes:
        chunk: 0 for the prompt, 1 and up for decoding steps.
        start: Position of the chunk's first query.
        order: Rank of the tap in data-flow order within the chunk.
        real: What of the chunk is no padding, None for everything.
    """

    chunk: int
    start: int
    order: int
    real: RealColumns | None = None

    def counted(self, tap: str, shape: tuple[int, ...]) -> Booleans | None:
        """Booleans of a tap's shape, true where a value means something; None for everywhere."""
        return None if self.real is None else self.real.of(tap, shape)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a candidate has at one op.

    Attributes:
        found: Its tap in float64 (booleans as they are), None if it cannot be compared. It may
            cover the last positions alone.
        status: Why not.
        note: The same in words.
        misshapen: What it has there in another shape.
    """

    found: Array | None
    status: TapStatus
    note: str
    misshapen: Array | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one candidate at one op.

    Attributes:
        comparison: What was measured.
        call: Inputs, constants and float64 output of the op.
        found: What the candidate has, in float64; None if that was not compared.
        misshapen: What it has there in another shape.
        bound: Rounding bound of the op in units of ``u``, where it does not replay.
    """

    comparison: Comparison
    call: Call
    found: Array | None
    misshapen: Array | None = None
    bound: Array | None = None


def take(candidate: Candidate, place: Place, tap: str) -> Array | LastPositions | TapStatus:
    """The candidate's tap as it came, or why there is none; may wait for its engine."""
    if declared(candidate.unavailable, tap) is not None:
        return TapStatus.UNAVAILABLE
    found = candidate.source.take(place.chunk, tap)
    return TapStatus.MISSING if found is None else found


@np.errstate(all="ignore")  # what is not finite is a status of its own
def receive(
    candidate: Candidate,
    place: Place,
    tap: str,
    truth: Array,
    came: Array | LastPositions | TapStatus,
) -> Taken:
    """A tap in float64, or why it cannot be compared.

    Args:
        candidate: Whose tap.
        place: Where.
        tap: Its name.
        truth: Float64 value of the reference, end to end.
        came: What :func:`take` gave.
    """
    if isinstance(came, TapStatus):
        note = "the engine did not hand it over and did not declare so"
        return Taken(None, came, declared(candidate.unavailable, tap) or note)
    axes, note, whole, found = axes_of(tap), "", truth.shape, came
    if isinstance(found, LastPositions):
        found = found.value
        whole = _last(axes, truth.shape, found.shape)
        if whole != truth.shape:
            at = axes.index("T")
            note = f"the last {whole[at]} of {truth.shape[at]} positions"
    if found.shape != whole:
        expected, got = format_shape(axes, whole), format_shape(axes, found.shape)
        note = f"expected {expected}, found {got}"
        return Taken(None, TapStatus.MISSHAPEN, note, misshapen=found)
    if found.dtype != bool:
        found = np.ascontiguousarray(found, dtype=np.float64)
    counted = place.counted(tap, found.shape)
    if counted is not None:
        found = _without_pads(found, truth, counted)
    flat = worst_nonfinite(found)
    if flat is not None:
        return Taken(
            None, TapStatus.NOT_FINITE, _describe_nonfinite(axes, place, truth, found, flat)
        )
    return Taken(found, TapStatus.COMPARED, note)


@np.errstate(all="ignore")  # a bound carried through many ops may overflow
def proceed(made: Made, taken: Taken | None) -> Operand:
    """What the lane goes on with: the candidate's own values, wherever it gave them.

    Elsewhere it is the float64 output with the bound that it carries.

    Args:
        made: The op on the candidate's own inputs.
        taken: What the candidate has; None for an intermediate that nobody compares.
    """
    op, call = made.op, made.call
    if taken is None or taken.found is None:
        return Operand(call.output.value, unit(op, call), made=made)
    found = taken.found
    if found.shape == call.output.value.shape:
        return Operand(found)
    given = covered(call.output.value, found)
    value, incoming = call.output.value.copy(), unit(op, call)
    value[given], incoming[given] = found, 0
    return Operand(value, incoming, made=made)


@np.errstate(all="ignore")  # what is not finite is a status of its own
def examine(
    candidate: Candidate,
    place: Place,
    tap: str,
    op: Callable[..., Any],
    call: Call,
    truth: Array,
    weights: Sequence[seam.Weight],
    taken: Taken,
    measure: Measure | None = None,
) -> Outcome:
    """Compare what a candidate has with the op on its own inputs and with the truth.

    Args:
        candidate: Whose tap.
        place: Where.
        tap: Its name.
        op: The op that makes it.
        call: The op on the candidate's own inputs.
        truth: Float64 value of the reference, end to end.
        weights: Parameters of the op, as stored.
        taken: What the candidate has.
        measure: Fits the op's constants to what the candidate has, None to fit nothing.
    """
    held = differing_weights(candidate, weights) if place.chunk == 0 else ()
    found, status, note = taken.found, taken.status, taken.note
    measured, local, bound, axes = None, None, None, axes_of(tap)
    fits: tuple[Fit, ...] = ()
    if found is not None:
        given = covered(truth, found)
        start, counted = _start(place, axes, given), place.counted(tap, found.shape)
        measured = difference(truth[given], found, axes, start=start, counted=counted)
        bound = unit(op, call)
        call.output.forget()
        local = _local(call, bound, given, found, axes, start, counted)
        # What is computed at pads would enter a fit: other prompts are fitted.
        if measure is not None and counted is None and found.shape == truth.shape:
            fits = measure(Made(tap, op, call), found, bound)
        if local.inherited_bound and not np.isfinite(local.bound):
            local, fits = None, ()  # carried through so many ops that it says nothing
        if not (np.isfinite(measured.max_abs) and (local is None or np.isfinite(local.units))):
            status, note = TapStatus.NOT_FINITE, _why_not_finite(truth, call)
            measured, local, fits = None, None, ()
    comparison = Comparison(
        candidate=candidate.name,
        chunk=place.chunk,
        tap=tap,
        op=op.__name__,
        order=place.order,
        axes=axes,
        shape=truth.shape,
        status=status,
        difference=measured,
        local=local,
        note=note,
        weights=held,
        fits=fits,
    )
    fails = local is not None and not local.units <= UNIT_LIMIT
    return Outcome(comparison, call, found, taken.misshapen, bound if fails else None)


def covered(truth: Array, found: Array) -> tuple[slice, ...]:
    """Which part of the whole tap the candidate gave: all of it, or its last positions."""
    if found.shape == truth.shape:
        return (slice(None),) * truth.ndim
    return tuple(
        slice(whole - size, None) for whole, size in zip(truth.shape, found.shape, strict=True)
    )


def _start(place: Place, axes: str, given: tuple[slice, ...]) -> Start:
    """Position of the first query that the candidate gave, of each row where rows are padded."""
    first = place.start if place.real is None else place.real.start
    return first + (given[axes.index("T")].start or 0 if "T" in axes else 0)


def _without_pads(found: Array, truth: Array, counted: Booleans) -> Array:
    """A tap in which pads cannot do harm.

    A NaN at a pad would become one wherever it meets a probability of zero, and a query that sees
    no key has no softmax: there the reference's values stand in for it.
    """
    harmful = True if found.dtype == bool else ~np.isfinite(found)
    return np.where(~counted & harmful, truth, found)


def _last(axes: str, whole: tuple[int, ...], found: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a tap of the last positions must have: some T, 1 to all, and the rest."""
    at = axes.find("T")
    if at < 0 or len(found) != len(whole) or not 0 < found[at] <= whole[at]:
        return whole
    return (*whole[:at], found[at], *whole[at + 1 :])


def _describe_nonfinite(axes: str, place: Place, truth: Array, found: Array, flat: int) -> str:
    given = covered(truth, found)
    where = locate(axes, flat, truth[given], found, start=_start(place, axes, given))
    count = int(np.count_nonzero(~np.isfinite(found)))
    return (
        f"{count} of {found.size} values are not finite, first {found.flat[flat]} at "
        f"{list(where.index)}, where the reference has {where.reference:.6g}"
    )


def _why_not_finite(truth: Array, call: Call) -> str:
    """Which of the numbers that a finite tap was compared with was not finite."""
    if worst_nonfinite(truth) is not None:
        return "the float64 reference itself is not finite there"
    if worst_nonfinite(call.output.value) is not None:
        return "the op in float64 on the candidate's own inputs is not finite"
    return "the inputs are so large, beyond 1e19, that their squares overflow in the bound"


def _local(
    call: Call,
    bound: Array,
    given: tuple[slice, ...],
    found: Array,
    axes: str,
    start: Start,
    counted: Booleans | None,
) -> LocalError:
    return local_error(
        call.output.value[given],
        found,
        bound[given],
        axes,
        roundoff=call.precision.unit_roundoff,
        underflow=call.precision.underflow,
        start=start,
        counted=counted,
        inherited_bound=any(x is not None and x.incoming is not None for x in call.inputs),
    )


def differing_weights(
    candidate: Candidate, weights: Sequence[seam.Weight]
) -> tuple[WeightDifference, ...]:
    """Parameters that the candidate holds in memory otherwise than the checkpoint."""
    differing = [
        weight_difference(
            weight.name,
            _as_held(np.asarray(weight.array), candidate.parameters[weight.name], candidate.dtype),
            candidate.parameters[weight.name],
        )
        for weight in weights
        if weight.name in candidate.parameters
    ]
    return tuple(d for d in differing if d is not None)


def _as_held(array: Array, held: Array, dtype: str) -> Array:
    """A stored parameter as a candidate holds it that may keep some wider than it computes in.

    A norm's weight in float32, say, in a float16 model: it is held against what is stored.
    """
    return array if held.dtype.itemsize > DTYPES[dtype].itemsize else rounded(array, dtype)


def rounded(array: Array, dtype: str) -> Array:
    """A parameter as a candidate of that dtype holds it."""
    target = DTYPES[dtype]
    narrower = array.dtype != target and array.dtype.itemsize >= target.itemsize
    return array.astype(target) if narrower else array
