"""What a candidate would have computed with a mistake in it, and how well that explains it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..faults.fault import Instead
from ..replay.bounds import BOUNDS, unit
from ..replay.call import Call, Made, Operand
from ..replay.lane import covered
from ..replay.precision import precision

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Score:
    """How well an evaluation explains what a candidate has.

    Attributes:
        explained: Share of the squared error, in rounding units of the op as it should be, that
            it takes away: 1 explains all, 0 nothing.
        units: Largest error that is left, in rounding units of the evaluation.
        spread: Root mean square of these errors in units.
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


@np.errstate(all="ignore")  # a mistake may well compute what is not finite
def evaluate(made: Made, instead: Mapping[int, Instead]) -> Operand:
    """Evaluate an op and what it was made of, with some evaluations replaced.

    Args:
        made: The op.
        instead: Replacements by the ``id`` of the call that each replaces.

    Returns:
        Its value in float64 and, as ``incoming``, its rounding bound in units of ``u``.
    """
    known: dict[int, Operand] = {}

    def operand(given: Operand | None) -> Operand | None:
        return given if given is None or given.made is None else run(given.made)

    def run(node: Made) -> Operand:
        key = id(node.call)
        if key not in known:
            known[key] = _run(node, instead.get(key), tuple(map(operand, node.call.inputs)))
        return known[key]

    return run(made)


def _run(node: Made, instead: Instead | None, inputs: tuple[Operand | None, ...]) -> Operand:
    if instead is None:
        return _evaluated(node.op, node.op, replace(node.call, inputs=inputs))
    # A replaced op may keep inputs that were made before it, and those may be replaced as well.
    own = {id(old): new for old, new in zip(node.call.inputs, inputs, strict=True)}
    given = tuple(own.get(id(x), x) for x in instead.inputs)
    call = replace(node.call, inputs=given, constants=dict(instead.constants))
    result = _evaluated(instead.op, node.op, call, original=node.call)
    if instead.precision and result.incoming is not None:
        ratio = precision(instead.precision).unit_roundoff / call.precision.unit_roundoff
        result.incoming = result.incoming * np.float32(max(1.0, ratio))
    return result


def _evaluated(op: Any, replaced: Any, call: Call, *, original: Call | None = None) -> Operand:
    values = (None if x is None else x.value for x in call.inputs)
    value = op(*values, **call.constants)
    if value.dtype.kind == "f" and value.dtype != np.float64:
        raise TypeError(f"{op.__name__}: computed {value.dtype}, not float64")
    output = Operand(value)
    call = replace(call, output=output)
    if op in BOUNDS:
        output.incoming = unit(op, call)
        return output
    bound = output.magnitude
    if original is not None:
        usual = unit(replaced, original)
        if usual.shape == bound.shape:
            # Rows have one scale: what a mistake mixes stays on it.
            bound = np.maximum(bound, usual.max(axis=-1, keepdims=True))
    output.incoming = bound
    return output


def explain(
    made: Made, found: Array, evaluated: Operand, *, counted: Array | None = None
) -> Score | None:
    """How well an evaluation in place of an op explains what a candidate has there.

    Args:
        made: The op as it should be.
        found: What the candidate has, float64 or booleans.
        evaluated: What :func:`evaluate` gave.
        counted: Booleans of the shape of ``found``, true where a value means something.

    Returns:
        None where the two have other shapes.
    """
    value, bound = evaluated.value, evaluated.incoming
    if bound is None or value.ndim != found.ndim:
        return None
    if value.shape != found.shape:
        expected = made.call.output.value.shape
        if value.shape != expected or any(
            a > b for a, b in zip(found.shape, expected, strict=True)
        ):
            return None
    given = covered(value, found)
    error = _distance(found, value[given])
    size = _absolute(made.call, bound)[given]
    left = error / size
    if counted is not None:
        left = left * counted
    if not np.isfinite(left).all():
        return None
    before = _before(made, found, counted)
    after = 0.0
    if before is not None:
        after = float(np.mean(np.square(error * before.weight)))
    explained = 1.0 if before is None else 1.0 - after / max(before.mean_square, 1e-300)
    return Score(explained, float(left.max()), float(np.sqrt(np.mean(np.square(left)))))


@dataclass(frozen=True, slots=True)
class _Before:
    weight: Array
    mean_square: float


def _before(made: Made, found: Array, counted: Array | None) -> _Before | None:
    """The error as it stands, in units of the op as it should be; None for another shape."""
    value = made.call.output.value
    if value.ndim != found.ndim or any(
        a > b for a, b in zip(found.shape, value.shape, strict=True)
    ):
        return None
    given = covered(value, found)
    size = _absolute(made.call, unit(made.op, made.call))[given]
    weight = (1.0 if counted is None else counted) / size
    return _Before(weight, float(np.mean(np.square(_distance(found, value[given]) * weight))))


def _absolute(call: Call, bound: Array) -> Array:
    """A bound in units of ``u`` as an absolute size, never 0."""
    roundoff, underflow = call.precision.unit_roundoff, call.precision.underflow
    size: Array = bound.astype(np.float64) * roundoff + underflow
    return size


def _distance(found: Array, value: Array) -> Array:
    distance: Array = np.abs(found.astype(np.float64) - value.astype(np.float64))
    return distance
