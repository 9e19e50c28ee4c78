"""What a candidate would have computed with a mistake in it, and how well that explains it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import UNIT_LIMIT
from ..faults.fault import Instead
from ..replay.bounds import BOUNDS, unit
from ..replay.call import Call, Made, Operand
from ..replay.lane import covered
from ..replay.precision import precision

Array = NDArray[Any]


#: Elements of an output from which on some do to tell mistakes apart: they are tried by the dozen.
_SAMPLE = 1 << 18


@dataclass(frozen=True, slots=True)
class Score:
    """How well an evaluation explains what a candidate has.

    Attributes:
        explained: Share of the squared error of a sample of elements, in rounding units of the op
            as it should be, that it takes away: 1 explains all, 0 nothing.
        units: Largest error that is left, in rounding units of the evaluation.
        spread: Root mean square of what is left, in rounding units of the op as it should be, so
            that it is on one scale for all mistakes that are tried.
    """

    explained: float
    units: float
    spread: float


def upstream(made: Made) -> list[Made]:
    """The op and all untapped ops that its inputs were made by, the op itself last."""
    found: dict[int, Made] = {}

    def visit(node: Made) -> None:
        if id(node.call) in found:
            return
        for operand in node.call.inputs:
            if operand is not None and operand.made is not None:
                visit(operand.made)
        found[id(node.call)] = node

    visit(made)
    return list(found.values())


class _MisfitError(Exception):
    """A mistake gives a shape that the ops behind it cannot take."""


@np.errstate(all="ignore")  # a mistake may well compute what is not finite
def evaluate(
    made: Made,
    instead: Mapping[int, Instead],
    *,
    bounded: bool = True,
    value: Array | None = None,
    usual: Array | None = None,
) -> Operand | None:
    """Evaluate an op and what it was made of, with some evaluations replaced.

    Args:
        made: The op.
        instead: Replacements by the ``id`` of the call that each replaces.
        bounded: Whether rounding bounds are wanted.
        value: What the op comes out as, where that is known and only its bound is wanted.
        usual: Rounding bound of the op as it should be, in units of ``u``, where that is known.

    Returns:
        Its value in float64 and, as ``incoming``, its rounding bound in units of ``u``; None where
        a replacement before the op has another shape than the ops behind it can take.
    """
    changed = _downstream(made, set(instead))
    known: dict[int, Operand] = {}

    def operand(given: Operand | None) -> Operand | None:
        if given is None or given.made is None or id(given.made.call) not in changed:
            return given
        return run(given.made)

    def run(node: Made) -> Operand:
        key = id(node.call)
        if key not in known:
            inputs = tuple(map(operand, node.call.inputs))
            own = (value, usual) if node is made else (None, None)
            known[key] = _run(node, instead.get(key), inputs, bounded=bounded, known=own)
            if node is not made and known[key].value.shape != node.call.output.value.shape:
                raise _MisfitError
        return known[key]

    try:
        return run(made)
    except _MisfitError:
        return None


def _downstream(made: Made, replaced: set[int]) -> set[int]:
    """Calls that are replaced or were made of one that is."""
    changed: set[int] = set()
    for node in upstream(made):  # in data-flow order
        sources = (x.made for x in node.call.inputs if x is not None and x.made is not None)
        if id(node.call) in replaced or any(id(source.call) in changed for source in sources):
            changed.add(id(node.call))
    return changed


def _run(
    node: Made,
    instead: Instead | None,
    inputs: tuple[Operand | None, ...],
    *,
    bounded: bool,
    known: tuple[Array | None, Array | None],
) -> Operand:
    value, usual = known
    if instead is None:
        call = replace(node.call, inputs=inputs)
        return _bounded(node.op, call, value) if bounded else _evaluated(node.op, call, value)
    # A replaced op may keep inputs that were made before it, and those may be replaced as well.
    own = {id(old): new for old, new in zip(node.call.inputs, inputs, strict=True)}
    given = tuple(own.get(id(x), x) for x in instead.inputs)
    call = replace(node.call, inputs=given, constants=dict(instead.constants))
    if not bounded:
        return _evaluated(instead.op, call, value)
    if instead.op in BOUNDS:
        result = _bounded(instead.op, call, value)
    else:
        result = _evaluated(instead.op, call, value)
        result.incoming = _scale_of_rows(
            result, unit(node.op, node.call) if usual is None else usual
        )
    if instead.precision and result.incoming is not None:
        narrow, unit_of = precision(instead.precision), call.precision.unit_roundoff
        result.incoming = result.incoming * np.float32(max(1.0, narrow.unit_roundoff / unit_of))
        result.incoming += np.float32(narrow.underflow / unit_of)
    return result


def _evaluated(op: Any, call: Call, known: Array | None) -> Operand:
    """What an op comes out as, unless that is known."""
    if known is not None:
        return Operand(known)
    value = op(*(None if x is None else x.value for x in call.inputs), **call.constants)
    if value.dtype.kind == "f" and value.dtype != np.float64:
        raise TypeError(f"{op.__name__}: computed {value.dtype}, not float64")
    return Operand(value)


def _bounded(op: Any, call: Call, known: Array | None) -> Operand:
    """The same with the op's own bound."""
    output = _evaluated(op, call, known)
    output.incoming = unit(op, replace(call, output=output))
    return output


def _scale_of_rows(output: Operand, usual: Array) -> Array:
    """Bound of an op that has none of its own: what a mistake mixes stays on its row's scale."""
    if usual.shape != output.value.shape:
        return output.magnitude
    bound: Array = np.maximum(output.magnitude, usual.max(axis=-1, keepdims=True))
    return bound


class Judge:
    """Says how well evaluations explain what a candidate has at one op.

    Args:
        made: The op as it should be.
        found: What the candidate has, float64 or booleans; it may have another shape.
        counted: Booleans of its shape, true where a value means something; None for everywhere.
        misshapen: Whether it has a shape that it must not have: then only an evaluation of that
            very shape can explain it. Without, fewer positions than expected are the last ones.
        usual: Rounding bound of the op in units of ``u``, where that is known.
        worst: Index on the last axis of the largest error, where that is known.

    Attributes:
        usual: The same, known or not; None for another shape.
    """

    def __init__(
        self,
        made: Made,
        found: Array,
        counted: Array | None = None,
        *,
        misshapen: bool = False,
        usual: Array | None = None,
        worst: int | None = None,
    ) -> None:
        self._call = made.call
        self._found = found
        self._counted = counted
        self._misshapen = misshapen
        self._weight: Array | float = 1.0
        self._before: float | None = None
        self._some: Any = ...
        self.usual: Array | None = None
        value = made.call.output.value
        if not misshapen and _covers(value, found):
            given = covered(value, found)
            self.usual = unit(made.op, made.call) if usual is None else usual
            self._some = _sample(found, value[given], worst)
            size = _absolute(made.call, self.usual[given][self._some])
            self._weight = (1.0 if counted is None else counted[self._some]) / size
            distance = _distance(found[self._some], value[given][self._some])
            self._before = _mean_square(distance, self._weight)

    def plausible(self, value: Array) -> bool:
        """Whether a value is worth a rounding bound: it explains half, or leaves little."""
        given = self._given(value)
        if given is None:
            return False
        if self._before is None:
            return True
        left = _distance(self._found[self._some], given[self._some])
        left *= self._weight
        largest = float(left.max())
        if not np.isfinite(largest):
            return False
        return largest < 4 * UNIT_LIMIT or _mean_square(left) < 0.5 * self._before

    def score(self, evaluated: Operand) -> Score | None:
        """How well an evaluation with its bound explains it; None where shapes differ."""
        value, given = evaluated.value, self._given(evaluated.value)
        if given is None or evaluated.incoming is None:
            return None
        error = _distance(self._found, given)
        size = _absolute(self._call, evaluated.incoming)[covered(value, self._found)]
        left = np.divide(error, size, out=size)  # everywhere: a sample would miss the largest
        if self._counted is not None:
            left *= self._counted
        largest = float(left.max())
        if not np.isfinite(largest):
            return None
        if self._before is None:
            return Score(1.0, largest, float(np.sqrt(_mean_square(left))))
        after = _mean_square(error[self._some], self._weight)
        explained = 1.0 - after / max(self._before, 1e-300)
        return Score(explained, largest, float(np.sqrt(after)))

    def _given(self, value: Array) -> Array | None:
        """The part of a value that the candidate gave; None where shapes differ."""
        if value.shape == self._found.shape:
            return value
        whole = value.shape == self._call.output.value.shape and not self._misshapen
        return value[covered(value, self._found)] if whole and _covers(value, self._found) else None


def _covers(value: Array, found: Array) -> bool:
    """Whether ``found`` is all of a value or its last positions."""
    return value.ndim == found.ndim and all(
        a <= b for a, b in zip(found.shape, value.shape, strict=True)
    )


def _sample(found: Array, value: Array, worst: int | None) -> Any:
    """Index of some elements of an output, by which mistakes are told apart; all of a small one.

    Elements of the last axis at even distances, the one with the largest error among them: a
    mistake that is in one row of a matrix shows there alone.
    """
    step = found.size // _SAMPLE
    if step < 2 or found.shape[-1] < 2 * step:
        return ...
    if worst is None:
        worst = int(np.abs(found - value).argmax()) % found.shape[-1]
    return ..., np.union1d(np.arange(0, found.shape[-1], step), worst)


def _absolute(call: Call, bound: Array) -> Array:
    """A bound in units of ``u`` as an absolute size, never 0."""
    roundoff, underflow = call.precision.unit_roundoff, call.precision.underflow
    size: Array = bound.astype(np.float64)
    size *= roundoff
    size += underflow
    return size


def _distance(found: Array, value: Array) -> Array:
    wide = (x.astype(np.float64, copy=False) for x in (found, value))
    distance: Array = np.subtract(*wide)
    return np.abs(distance, out=distance)


def _mean_square(x: Array, weight: Array | float = 1.0) -> float:
    """Mean of squares, without an array of them."""
    flat = (x if isinstance(weight, float) and weight == 1.0 else x * weight).reshape(-1)
    return float(flat @ flat) / flat.size
