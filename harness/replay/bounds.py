"""How much rounding each op may do, componentwise, from its own inputs.

``bound(op)`` gives for every element a number ``b`` such that a correct evaluation in a dtype of
unit roundoff ``u`` differs from the exact result by a small multiple of ``u * b``: the classical
running error bounds of Higham, Accuracy and Stability of Numerical Algorithms (2nd edition 2002),
chapter 3. Where an input carries a bound of its own, because the candidate did not tap it, that
bound is carried through to first order (section 3.3).

The constants in front are set by measurement, so that one limit in units serves every op; see
``docs/rounding.md``.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from .precision import Precision

Array = NDArray[Any]


class Operand:
    """An input or output of an op in one lane.

    Args:
        value: Float64 array, or booleans or integers.
        incoming: Bound in units of ``u`` that it carries, None for what the candidate handed over.
    """

    __slots__ = ("_lock", "_magnitude", "_square", "incoming", "value")

    def __init__(self, value: Array, incoming: Array | None = None) -> None:
        self.value = value
        self.incoming = incoming
        self._magnitude: Array | None = None
        self._square: Array | None = None
        self._lock = threading.RLock()  # lanes that run side by side share parameters

    @property
    def magnitude(self) -> Array:
        """Absolute value in float32, which is exact enough for a bound."""
        with self._lock:
            if self._magnitude is None:
                self._magnitude = self.value.astype(np.float32)
                np.abs(self._magnitude, out=self._magnitude)
            return self._magnitude

    @property
    def square(self) -> Array:
        """Square in float32."""
        with self._lock:
            if self._square is None:
                self._square = self.magnitude * self.magnitude
            return self._square

    @property
    def slack(self) -> Array | float:
        """The incoming bound, 0 where there is none."""
        return 0.0 if self.incoming is None else self.incoming


@dataclass(frozen=True, slots=True)
class Call:
    """One evaluation of an op, seen by its bound.

    Attributes:
        output: The float64 result.
        inputs: Operands, None where the op was given None.
        constants: Keyword arguments of the op.
        precision: Of the candidate.
    """

    output: Operand
    inputs: tuple[Operand | None, ...]
    constants: dict[str, Any]
    precision: Precision

    def input(self, index: int) -> Operand:
        """An input that is there."""
        operand = self.inputs[index]
        if operand is None:
            raise TypeError(f"input {index} is None")
        return operand


Bound = Callable[[Call], Array]


def _exact(call: Call) -> Array:
    """Copying rounds nothing; one unit of the value itself is the scale to show an error on."""
    return call.output.magnitude


def _extend(call: Call) -> Array:
    past, new = call.inputs[0], call.input(1)
    parts = [x.slack + 0 * x.magnitude for x in (past, new) if x is not None]
    keep = call.constants.get("keep")
    carried = np.concatenate(parts, axis=2)
    bound: Array = call.output.magnitude + (carried if keep is None else carried[:, :, -keep:, :])
    return bound


def _add(call: Call) -> Array:
    return call.output.magnitude + call.input(0).slack + call.input(1).slack


def _multiply(call: Call) -> Array:
    x, y = call.input(0), call.input(1)
    return call.output.magnitude + x.slack * y.magnitude + y.slack * x.magnitude


def _summation(call: Call, squares: Array, terms: Array | int) -> Array:
    """Rounding of a sum of ``terms`` products whose squares sum to ``squares``.

    Each addition rounds the partial sum ``s_k``, and the roundings add up like a random walk, to
    about ``u * sqrt(sum(s_k**2))`` (Higham and Mary 2019, A New Approach to Probabilistic Rounding
    Error Analysis). For terms in random order the expected square of ``s_k`` runs from that of a
    bridge, ``k/n (1 - k/n) squares``, to ``(k/n)**2 output**2``: summed over k that is
    ``n (squares / 6 + output**2 / 3)``. A rounding has a standard deviation of about 0.4 u, so
    twice the walk is about five of them. The product of absolute values, which is the worst case
    without the factor n, is too small where one product outweighs the rest, as in the
    residual streams of real models, and no larger elsewhere. Narrow dtypes are summed in float32
    and rounded once.
    """
    output = call.output
    walk: Array = output.square * np.float32(1 / 3)
    walk += squares * np.float32(1 / 6)
    walk *= np.asarray(terms, dtype=np.float32)
    np.sqrt(walk, out=walk)
    walk *= np.float32(2 * call.precision.float32_ratio)
    walk += output.magnitude
    return walk


def _linear_bound(call: Call, op: Callable[..., Array], **constants: Any) -> Array:
    x, weight = call.input(0), call.input(1)
    squares = op(x.square, weight.square, **constants)
    bound = _summation(call, squares, weight.value.shape[1])
    if x.incoming is not None:
        bound = bound + op(x.incoming, weight.magnitude, **constants)
    bias = call.inputs[2] if len(call.inputs) > 2 else None
    if bias is None:
        return bound
    cut = constants.get("heads")
    size = bias.magnitude if cut is None else bias.magnitude.reshape(cut, 1, -1)
    return bound + size


def _linear(call: Call) -> Array:
    return _linear_bound(call, ops.linear)


def _linear_heads(call: Call) -> Array:
    return _linear_bound(call, ops.linear_heads, heads=call.constants["heads"])


def _linear_merged(call: Call) -> Array:
    return _linear_bound(call, ops.linear_merged)


def _positive_sum(call: Call, terms: int) -> float:
    """Relative rounding of a mean of positive terms, on the scale of the final result.

    A random walk over partial sums that grow evenly gives ``sqrt(n / 3)``; libraries keep at least
    16 partial sums apart, which divides it by 4.
    """
    return call.precision.float32_ratio * float(np.sqrt(terms)) / 8


def _rms_norm(call: Call) -> Array:
    x, weight = call.input(0), call.input(1).magnitude
    own: Array = call.output.magnitude * (1 + _positive_sum(call, x.value.shape[-1]))
    if x.incoming is None:
        return own
    square = np.mean(x.magnitude**2, axis=-1, keepdims=True) + call.constants["eps"]
    tilt = x.magnitude * np.mean(x.magnitude * x.incoming, axis=-1, keepdims=True) / square
    bound: Array = own + weight * (x.incoming + tilt) / np.sqrt(square)
    return bound


def _rope(call: Call) -> Array:
    x = call.input(0)
    times = np.asarray(call.constants["positions"])[:, None, :, None]
    angle = times * np.asarray(call.constants["frequencies"], dtype=np.float32)
    half = x.value.shape[-1] // 2
    pair = x.magnitude[..., :half] + x.magnitude[..., half:]
    own = pair * (1 + call.precision.float32_ratio * angle)
    if x.incoming is not None:
        own = own + x.incoming[..., :half] + x.incoming[..., half:]
    both: Array = np.concatenate([own, own], axis=-1) * call.constants.get("attention_factor", 1.0)
    bound: Array = both.astype(np.float32)
    return bound


def _scores(call: Call) -> Array:
    q, k, scale = call.input(0), call.input(1), abs(call.constants["scale"])
    squares = ops.scores(q.square, k.square, scale=scale**2)
    bound = _summation(call, squares, q.value.shape[-1])
    if q.incoming is not None:
        bound = bound + ops.scores(q.incoming, k.magnitude, scale=scale)
    if k.incoming is not None:
        bound = bound + ops.scores(q.magnitude, k.incoming, scale=scale)
    return bound


def _masked_softmax(call: Call) -> Array:
    scores, probs = call.input(0), call.output.magnitude
    seen = call.input(1).value[:, None]
    narrow = scores.value.astype(np.float32)
    lowest = np.float32(-np.inf)
    depth = np.max(narrow, axis=-1, keepdims=True, where=seen, initial=lowest) - narrow
    shift = call.precision.float32_ratio * depth
    if scores.incoming is not None:
        shift += scores.incoming
    shift *= seen
    mean_shift = np.sum(probs * shift, axis=-1, keepdims=True)
    total = call.precision.float32_ratio + _positive_sum(call, probs.shape[-1])
    shift += mean_shift + (1 + total)
    bound: Array = probs * shift
    bound += seen * (call.precision.underflow / call.precision.unit_roundoff)
    return bound


def _context(call: Call) -> Array:
    probs, values = call.input(0), call.input(1)
    terms = np.count_nonzero(probs.value, axis=-1, keepdims=True)
    bound = _summation(call, ops.context(probs.square, values.square), terms)
    if probs.incoming is not None:
        bound = bound + ops.context(probs.incoming, values.magnitude)
    if values.incoming is not None:
        bound = bound + ops.context(probs.magnitude, values.incoming)
    return bound.astype(np.float32)


def _visible(call: Call) -> Array:
    """A mask is right or wrong: any difference is one, on a scale of one unit of 1."""
    return np.ones(call.output.value.shape, dtype=np.float32)


def _silu(call: Call) -> Array:
    """Exponential, sum, division and product; the slope of SiLU is at most 1.1.

    The sigmoid of a very negative number may be flushed to zero before it meets its factor.
    """
    own: Array = (1 + call.precision.float32_ratio) * call.output.magnitude
    own += call.input(0).magnitude * (call.precision.underflow / call.precision.unit_roundoff)
    return own + 1.1 * call.input(0).slack


BOUNDS: dict[Callable[..., Any], Bound] = {
    ops.embedding: _exact,
    ops.extend: _extend,
    ops.add: _add,
    ops.multiply: _multiply,
    ops.linear: _linear,
    ops.linear_heads: _linear_heads,
    ops.linear_merged: _linear_merged,
    ops.rms_norm: _rms_norm,
    ops.rope: _rope,
    ops.scores: _scores,
    ops.visible: _visible,
    ops.masked_softmax: _masked_softmax,
    ops.context: _context,
    ops.silu: _silu,
}


def unit(op: Callable[..., Any], call: Call) -> Array:
    """Bound of one evaluation in units of ``u``: float32, of the shape of the output."""
    return BOUNDS[op](call)
