"""One candidate at one op: what it has there, against the op on its own inputs and the truth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compare import difference, local_error, locate, weight_difference, worst_nonfinite
from ..references_seam import step as seam
from ..result import Comparison, LocalError, TapStatus, WeightDifference
from ..taps import axes_of, format_shape, split
from .bounds import Call, Operand, unit
from .precision import DTYPES
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
        found: What the candidate has, in float64; None if that was not compared.
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
    measured, local = None, None
    if found is not None and worst_nonfinite(call.output.value) is not None:
        status = TapStatus.NOT_FINITE
        note = "the op in float64 on the candidate's own inputs is not finite"
    elif found is not None:
        axes = axes_of(place.tap)
        measured = difference(_float(truth), _float(found), axes, start=place.start)
        local = _local(op, call, found, axes, place)
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
    operand = _carried(op, call) if found is None else Operand(found)
    return Outcome(operand, comparison, call, found)


def _carried(op: Callable[..., Any], call: Call) -> Operand:
    """The float64 output with the bound that it carries, for an op without a tap."""
    return Operand(call.output.value, unit(op, call))


def _take(
    candidate: Candidate, place: Place, tap: str, truth: Array
) -> tuple[Array | None, TapStatus, str]:
    """The candidate's tap in float64, or why it cannot be compared."""
    reason = candidate.unavailable.get(split(tap).kind)
    if reason is not None:
        return None, TapStatus.UNAVAILABLE, reason
    found = candidate.source.take(place.chunk, tap)
    if found is None:
        note = "the engine did not hand it over and did not declare so"
        return None, TapStatus.MISSING, note
    if found.shape != truth.shape:
        axes = axes_of(tap)
        expected, got = format_shape(axes, truth.shape), format_shape(axes, found.shape)
        return None, TapStatus.MISSHAPEN, f"expected {expected}, found {got}"
    if found.dtype != bool:
        found = np.ascontiguousarray(found, dtype=np.float64)
    if worst_nonfinite(found) is not None:
        return None, TapStatus.NOT_FINITE, _describe_nonfinite(tap, place, truth, found)
    if worst_nonfinite(truth) is not None:
        return None, TapStatus.NOT_FINITE, "the float64 reference itself is not finite there"
    return found, TapStatus.COMPARED, ""


def _describe_nonfinite(tap: str, place: Place, truth: Array, found: Array) -> str:
    flat = worst_nonfinite(found) or 0
    where = locate(axes_of(tap), flat, truth, found, start=place.start)
    count = int(np.count_nonzero(~np.isfinite(found)))
    return (
        f"{count} of {found.size} values are not finite, first {found.flat[flat]} at "
        f"{list(where.index)}, where the reference has {where.reference:.6g}"
    )


def _local(op: Callable[..., Any], call: Call, found: Array, axes: str, place: Place) -> LocalError:
    size = unit(op, call).astype(np.float64)
    size *= call.precision.unit_roundoff
    size += call.precision.underflow
    return local_error(
        _float(call.output.value),
        _float(found),
        size,
        axes,
        start=place.start,
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


def _float(array: Array) -> NDArray[np.float64]:
    return array.astype(np.float64) if array.dtype == bool else array
