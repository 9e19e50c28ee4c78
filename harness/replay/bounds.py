"""How much rounding each op may do, componentwise, from its own inputs.

``bound(op)`` gives for every element a number ``b`` such that a correct evaluation in a dtype of
unit roundoff ``u`` differs from the exact result by a small multiple of ``u * b``: the classical
running error bounds of Higham, Accuracy and Stability of Numerical Algorithms (2nd edition 2002),
chapter 3. Where an input carries a bound of its own, because the candidate did not tap it, that
bound is carried through to first order (section 3.3).

The constants in front are set by measurement, so that one limit in units serves every op; see
``docs/rounding.md``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from . import expert_bounds, norm_bounds, pointwise_bounds
from .call import Call, Operand, positive_sum, summation

Array = NDArray[Any]

__all__ = ["BOUNDS", "Bound", "Call", "Operand", "unit"]

Bound = Callable[[Call], Array]


def _exact(call: Call) -> Array:
    """Copying rounds nothing; one unit of the value itself is the scale to show an error on."""
    return call.output.magnitude


def _extend(call: Call) -> Array:
    past, new = call.inputs[0], call.input(1)
    if new.incoming is None and (past is None or past.incoming is None):
        return call.output.magnitude
    parts = [x.slack + 0 * x.magnitude for x in (past, new) if x is not None]
    keep = call.constants.get("keep")
    carried = np.concatenate(parts, axis=2)
    bound: Array = call.output.magnitude + (carried if keep is None else carried[:, :, -keep:, :])
    return bound


def _add(call: Call) -> Array:
    bound = call.output.magnitude
    for x in (call.input(0), call.input(1)):
        bound = bound if x.incoming is None else bound + x.incoming
    return bound


def _add_scaled(call: Call) -> Array:
    """A product, rounded on its own as its factor was, and a sum."""
    x, y = call.input(0), call.input(1)
    factor = np.float32(abs(call.constants["factor"]))
    own: Array = call.output.magnitude + factor * (1 + call.precision.float32_ratio) * y.magnitude
    return own + x.slack + factor * y.slack


def _scale(call: Call) -> Array:
    """One rounding, and that of the number, which is at least a float32."""
    own: Array = call.output.magnitude * np.float32(1 + call.precision.float32_ratio)
    return own + np.float32(abs(call.constants["factor"])) * call.input(0).slack


def _divide(call: Call) -> Array:
    """As :func:`_scale`; one more where the reciprocal is multiplied by."""
    own: Array = call.output.magnitude * np.float32(1 + call.precision.float32_ratio)
    return own + np.float32(1 / abs(call.constants["divisor"])) * call.input(0).slack


def _multiply(call: Call) -> Array:
    x, y = call.input(0), call.input(1)
    bound = call.output.magnitude
    if x.incoming is not None:
        bound = bound + x.incoming * y.magnitude
    if y.incoming is not None:
        bound = bound + y.incoming * x.magnitude
    return bound


def _linear_bound(
    call: Call, op: Callable[..., Array], *, summed: int = 1, **constants: Any
) -> Array:
    """Of a matrix product, with a bias or without; ``summed`` is the weight's axis of inputs."""
    x, weight = call.input(0), call.input(1)
    squares = op(x.square, weight.square, **constants)
    bound = summation(call, squares, weight.value.shape[summed])
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


def _affine(call: Call) -> Array:
    return _linear_bound(call, ops.affine, summed=0)


def _affine_merged(call: Call) -> Array:
    return _linear_bound(call, ops.affine_merged, summed=0)


def _part_heads(call: Call) -> Array:
    """Copying: exact, with what the input carries."""
    incoming = call.input(0).incoming
    own = call.output.magnitude
    return own if incoming is None else own + ops.part_heads(incoming, **call.constants)


def _scaled_embedding(call: Call) -> Array:
    """A copy and one product with a constant of the same dtype."""
    return call.output.magnitude


def _rope(call: Call) -> Array:
    x = call.input(0)
    times = np.asarray(call.constants["positions"])[:, None, :, None]
    angle = np.abs(times * np.asarray(call.constants["frequencies"], dtype=np.float32))
    half = angle.shape[-1]
    pair = x.magnitude[..., :half] + x.magnitude[..., half : 2 * half]
    own = pair * (1 + call.precision.float32_ratio * angle)
    rest = x.magnitude[..., 2 * half :]  # copied
    if x.incoming is not None:
        own = own + x.incoming[..., :half] + x.incoming[..., half : 2 * half]
        rest = rest + x.incoming[..., 2 * half :]
    own = own * call.constants.get("attention_factor", 1.0)
    bound: Array = np.concatenate([own, own, rest], axis=-1).astype(np.float32)
    return bound


def _scores(call: Call) -> Array:
    q, k, scale = call.input(0), call.input(1), abs(call.constants["scale"])
    squares = ops.scores(q.square, k.square, scale=scale**2)
    bound = summation(call, squares, q.value.shape[-1])
    if q.incoming is not None:
        bound = bound + ops.scores(q.incoming, k.magnitude, scale=scale)
    if k.incoming is not None:
        bound = bound + ops.scores(q.magnitude, k.incoming, scale=scale)
    return bound


def _masked_softmax(call: Call) -> Array:
    scores, probs = call.input(0), call.output.magnitude
    seen = call.input(1).value[:, None]
    shift = scores.value.astype(np.float32)
    lowest = np.float32(-np.inf)
    top = np.max(shift, axis=-1, keepdims=True, where=seen, initial=lowest)
    np.subtract(top, shift, out=shift)
    shift *= np.float32(call.precision.float32_ratio)
    if scores.incoming is not None:
        shift += scores.incoming
    shift *= seen
    mean_shift = np.einsum("bhts,bhts->bht", probs, shift)[..., None]
    total = call.precision.float32_ratio + positive_sum(call, probs.shape[-1])
    shift += mean_shift + np.float32(1 + total)
    shift *= probs
    shift += seen * np.float32(call.precision.underflow / call.precision.unit_roundoff)
    bound: Array = shift
    return bound


def _masked_softmax_sink(call: Call) -> Array:
    """As :func:`_masked_softmax`, but engines subtract the maximum in the model's own dtype.

    They join scores and sink first, so that what is subtracted is rounded: ``r`` is 1 for that.
    """
    scores, probs = call.input(0), call.output.magnitude
    seen, sink = call.input(1).value[:, None], call.input(2).value[None, :, None, None]
    value = np.where(seen, scores.value, -np.inf)
    top = np.maximum(np.max(value, axis=-1, keepdims=True), sink)
    ratio = 1 + call.precision.float32_ratio
    shift = np.where(seen, ratio * (top - scores.value) + scores.slack, 0)
    mean = np.sum(probs * shift, axis=-1, keepdims=True)
    mean += (1 - np.sum(probs, axis=-1, keepdims=True)) * ratio * (top - sink)
    total = call.precision.float32_ratio + positive_sum(call, probs.shape[-1])
    bound: Array = probs * (1 + total + shift + mean)
    bound += seen * (call.precision.underflow / call.precision.unit_roundoff)
    return bound.astype(np.float32)


def _context(call: Call) -> Array:
    probs, values = call.input(0), call.input(1)
    terms = np.count_nonzero(probs.value, axis=-1, keepdims=True)
    bound = summation(call, ops.context(probs.square, values.square), terms)
    if probs.incoming is not None:
        bound = bound + ops.context(probs.incoming, values.magnitude)
    if values.incoming is not None:
        bound = bound + ops.context(probs.magnitude, values.incoming)
    return bound.astype(np.float32)


def _visible(call: Call) -> Array:
    """A mask is right or wrong: any difference is one, on a scale of one unit of 1."""
    return np.ones(call.output.value.shape, dtype=np.float32)


BOUNDS: dict[Callable[..., Any], Bound] = {
    ops.embedding: _exact,
    ops.scaled_embedding: _scaled_embedding,
    ops.extend: _extend,
    ops.add: _add,
    ops.add_scaled: _add_scaled,
    ops.scale: _scale,
    ops.divide: _divide,
    ops.multiply: _multiply,
    ops.linear: _linear,
    ops.linear_heads: _linear_heads,
    ops.linear_merged: _linear_merged,
    ops.affine: _affine,
    ops.affine_merged: _affine_merged,
    ops.part_heads: _part_heads,
    ops.layer_norm: norm_bounds.layer_norm,
    ops.rms_norm: norm_bounds.rms_norm,
    ops.rms_norm_from_one: norm_bounds.rms_norm_from_one,
    ops.rope: _rope,
    ops.scores: _scores,
    ops.visible: _visible,
    ops.masked_softmax: _masked_softmax,
    ops.masked_softmax_sink: _masked_softmax_sink,
    ops.context: _context,
    ops.silu: pointwise_bounds.silu,
    ops.gelu_tanh: pointwise_bounds.gelu_tanh,
    ops.gelu_new: pointwise_bounds.gelu_new,
    ops.softcap: pointwise_bounds.softcap,
    ops.top_experts: expert_bounds.top_experts,
    ops.expert_weights: expert_bounds.expert_weights,
    ops.experts: lambda call: expert_bounds.experts(call, unit),
    ops.clamped_experts: lambda call: expert_bounds.clamped_experts(call, unit),
}


def unit(op: Callable[..., Any], call: Call) -> Array:
    """Bound of one evaluation in units of ``u``: float32, of the shape of the output."""
    return BOUNDS[op](call)
