"""One candidate at one op: what it has there, against the op on its own inputs and the truth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compare import difference, local_error, locate, weight_difference, worst_nonfinite
from ..references_seam import step as seam
from ..result import Comparison, LocalError, TapStatus, WeightDifference
from ..taps import axes_of, declared, format_shape
from .bounds import Call, Operand, unit
from .precision import DTYPES
from .source import LastPositions, TapSource

Array = NDArray[Any]


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
        tap: Name of the tap, None for an intermediate that nobody compares.
    """

    chunk: int
    start: int
    order: int
    tap: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one candidate at one op.

    Attributes:
        operand: What its lane goes on with.
        comparison: None for an intermediate that nobody compares.
        call: Inputs, constants and float64 output of the op.
        found: What the candidate has, in float64; None if that was not compared. It may cover
            the last positions alone.
    """

    operand: Operand
    comparison: Comparison | None
    call: Call
    found: Array | None


@np.errstate(all="ignore")  # what is not finite is a status of its own
def examine(
    candidate: Candidate,
    place: Place,
    op: Callable[..., Any],
    call: Call,
    truth: Array,
    weights: Sequence[seam.Weight],
) -> Outcome:
    """Take the candidate's tap and compare it.

    Args:
        candidate: Whose tap.
        place: Where.
        op: The op that makes the tap.
        call: The op on the candidate's own inputs.
        truth: Float64 value of the reference, end to end.
        weights: Parameters of the op, as stored.
    """
    if place.tap is None:
        return Outcome(_carried(op, call), None, call, None)
    held = differing_weights(candidate, weights) if place.chunk == 0 else ()
    found, status, note = _take(candidate, place, place.tap, truth)
    measured, local, operand = None, None, None
    if found is not None:
        axes = axes_of(place.tap)
        given = _given(truth, found)
        start = _start(place, axes, given)
        measured = difference(truth[given], found, axes, start=start)
        bound = unit(op, call)
        call.output.forget()
        local = _local(call, bound, given, found, axes, start)
        if np.isfinite(measured.max_abs) and np.isfinite(local.units):
            operand = _merged(call, bound, given, found)
        else:
            status, note = TapStatus.NOT_FINITE, _why_not_finite(place, truth, call, found)
            measured = local = None
            found = None if worst_nonfinite(found) is not None else found
    comparison = Comparison(
        candidate=candidate.name,
        chunk=place.chunk,
        tap=place.tap,
        op=op.__name__,
        order=place.order,
        axes=axes_of(place.tap),
        shape=truth.shape,
        status=status,
        difference=measured,
        local=local,
        note=note,
        weights=held,
    )
    if operand is None:
        operand = _carried(op, call) if found is None else Operand(found)
    return Outcome(operand, comparison, call, found)


def _carried(op: Callable[..., Any], call: Call) -> Operand:
    """The float64 output with the bound that it carries, for an op without a tap."""
    return Operand(call.output.value, unit(op, call))


def _given(truth: Array, found: Array) -> tuple[slice, ...]:
    """Which part of the whole tap the candidate gave: all of it, or its last positions."""
    if found.shape == truth.shape:
        return (slice(None),) * truth.ndim
    return tuple(
        slice(whole - size, None) for whole, size in zip(truth.shape, found.shape, strict=True)
    )


def _start(place: Place, axes: str, given: tuple[slice, ...]) -> int:
    """Position of the first query that the candidate gave."""
    return place.start + (given[axes.index("T")].start or 0 if "T" in axes else 0)


def _merged(call: Call, bound: Array, given: tuple[slice, ...], found: Array) -> Operand:
    """What the candidate gave and, at the other positions, the float64 output with its bound."""
    if found.shape == call.output.value.shape:
        return Operand(found)
    value, incoming = call.output.value.copy(), bound.copy()
    value[given], incoming[given] = found, 0
    return Operand(value, incoming)


def _take(
    candidate: Candidate, place: Place, tap: str, truth: Array
) -> tuple[Array | None, TapStatus, str]:
    """The candidate's tap in float64, or why it cannot be compared."""
    reason = declared(candidate.unavailable, tap)
    if reason is not None:
        return None, TapStatus.UNAVAILABLE, reason
    found = candidate.source.take(place.chunk, tap)
    if found is None:
        note = "the engine did not hand it over and did not declare so"
        return None, TapStatus.MISSING, note
    axes, note, whole = axes_of(tap), "", truth.shape
    if isinstance(found, LastPositions):
        found = found.value
        whole = _last(axes, truth.shape, found.shape)
        if whole != truth.shape:
            at = axes.index("T")
            note = f"the last {whole[at]} of {truth.shape[at]} positions"
    if found.shape != whole:
        expected, got = format_shape(axes, whole), format_shape(axes, found.shape)
        return None, TapStatus.MISSHAPEN, f"expected {expected}, found {got}"
    if found.dtype != bool:
        found = np.ascontiguousarray(found, dtype=np.float64)
    return found, TapStatus.COMPARED, note


def _last(axes: str, whole: tuple[int, ...], found: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a tap of the last positions must have: some T, 1 to all, and the rest."""
    at = axes.find("T")
    if at < 0 or len(found) != len(whole) or not 0 < found[at] <= whole[at]:
        return whole
    return (*whole[:at], found[at], *whole[at + 1 :])


def _why_not_finite(place: Place, truth: Array, call: Call, found: Array) -> str:
    """Which of the numbers that were compared was not finite."""
    flat = worst_nonfinite(found)
    if flat is None and worst_nonfinite(truth) is not None:
        return "the float64 reference itself is not finite there"
    if flat is None and worst_nonfinite(call.output.value) is not None:
        return "the op in float64 on the candidate's own inputs is not finite"
    if flat is None:
        return "the inputs are so large, beyond 1e19, that their squares overflow in the bound"
    axes = axes_of(place.tap or "")
    given = _given(truth, found)
    where = locate(axes, flat, truth[given], found, start=_start(place, axes, given))
    count = int(np.count_nonzero(~np.isfinite(found)))
    return (
        f"{count} of {found.size} values are not finite, first {found.flat[flat]} at "
        f"{list(where.index)}, where the reference has {where.reference:.6g}"
    )


def _local(
    call: Call, bound: Array, given: tuple[slice, ...], found: Array, axes: str, start: int
) -> LocalError:
    return local_error(
        call.output.value[given],
        found,
        bound[given],
        axes,
        roundoff=call.precision.unit_roundoff,
        underflow=call.precision.underflow,
        start=start,
        inherited_bound=any(x is not None and x.incoming is not None for x in call.inputs),
    )


def differing_weights(
    candidate: Candidate, weights: Sequence[seam.Weight]
) -> tuple[WeightDifference, ...]:
    """Parameters that the candidate holds in memory otherwise than the checkpoint."""
    differing = [
        weight_difference(
            weight.name,
            rounded(np.asarray(weight.array), candidate.dtype),
            candidate.parameters[weight.name],
        )
        for weight in weights
        if weight.name in candidate.parameters
    ]
    return tuple(d for d in differing if d is not None)


def rounded(array: Array, dtype: str) -> Array:
    """A parameter as a candidate of that dtype holds it."""
    target = DTYPES[dtype]
    narrower = array.dtype != target and array.dtype.itemsize >= target.itemsize
    return array.astype(target) if narrower else array
