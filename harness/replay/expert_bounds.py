"""Rounding of mixtures of experts; see :mod:`harness.replay.bounds`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from .call import Call, Operand, positive_sum

Array = NDArray[Any]
Unit = Callable[[Callable[..., Any], Call], Array]


def top_experts(call: Call) -> Array:
    """A choice is right or wrong, but two experts whose logits differ by rounding are as good.

    Engines choose by probabilities. Each of two is rounded once, and its exponential is off by
    ``r d``, d its distance from the largest logit: so what is rounding between a logit and the
    last one chosen (or, for a chosen one, the first one not chosen) is ``u (2 + r d + r d')``, and
    more where probabilities vanish. A wrong choice counts as many units as the gap has of that.
    """
    logits, chosen = call.input(0), call.output.value
    value, count = logits.value, call.constants["count"]
    ordered = -np.sort(-value, axis=-1)
    last = ordered[..., count - 1, None]
    lowest = np.full_like(last, -np.inf)
    following = ordered[..., count, None] if count < value.shape[-1] else lowest
    other = np.where(chosen, following, last)
    gap = np.abs(value - other)  # infinite where all are chosen
    ratio, top = call.precision.float32_ratio, ordered[..., :1]
    rounding = 2 + ratio * (top - value) + ratio * (top - np.maximum(other, ordered[..., -1:]))
    rounding += call.precision.underflow / (call.precision.unit_roundoff * _softmax(value))
    if logits.incoming is not None:
        rounding = rounding + logits.incoming + np.max(logits.incoming, axis=-1, keepdims=True)
    least = rounding * (1e-3 * call.precision.unit_roundoff)  # a unit must be finite
    bound: Array = (rounding / np.maximum(gap, least)).astype(np.float32)
    return bound


def expert_weights(call: Call) -> Array:
    """A softmax; its common sum cancels where weights are divided by theirs, whose rounding stays.

    The exponentials' errors ``r d`` count on the average of those in the sum.
    """
    logits, weights = call.input(0), call.output.magnitude
    value, chosen = logits.value, call.input(1).value.astype(bool)
    ratio, normalised = call.precision.float32_ratio, call.constants["normalised"]
    top = np.max(value, axis=-1, keepdims=True)
    shift = (ratio * (top - value) + logits.slack).astype(np.float32)
    if normalised:
        mean = np.sum(weights * shift, axis=-1, keepdims=True)
        sums = 2 * ratio + 2 * positive_sum(call, value.shape[-1])
    else:
        mean = np.sum(_softmax(value) * shift, axis=-1, keepdims=True)
        sums = ratio + positive_sum(call, value.shape[-1])
    bound: Array = weights * (1 + sums + shift + mean)
    bound += chosen * np.float32(call.precision.underflow / call.precision.unit_roundoff)
    narrow: Array = bound.astype(np.float32)
    return narrow


def experts(call: Call, unit: Unit) -> Array:
    """Roundings that are independent, so their squares add up, within an expert and among them.

    No engine hands over what happens inside an expert. What a rounding of gate, up, activation or
    product makes of the result is a sum over F of independent errors: five standard deviations of
    0.4 u each, as in :func:`~harness.replay.call.summation`. Each expert's result is rounded
    when its weight multiplies it, and the sum over experts is formed in the model's own dtype.
    """

    def inside(x: Operand, expert: int) -> _Inside:
        gate, up, down = (call.input(2 + 3 * expert + part) for part in range(3))
        activation = call.constants["activation"]
        plain = Operand(x.value)
        (g, g_own) = _run(call, unit, ops.linear, plain, gate)
        (u, u_own) = _run(call, unit, ops.linear, plain, up)
        act, act_own = _run(call, unit, activation, g)

        def through(slack: Array) -> Array:
            """What a bound of the gate becomes behind the activation."""
            return _run(call, unit, activation, Operand(g.value, slack))[1] - act_own

        prod = Operand(act.value * u.value)
        made, own = _run(call, unit, ops.linear, prod, down)
        # Twice what is one rounding; the walk in a product's bound is five deviations already.
        squares = 4 * prod.value**2 + 4 * (act_own * u.value) ** 2
        squares += (through(g_own + g.magnitude) * u.value) ** 2
        squares += ((u_own + u.magnitude) * act.value) ** 2
        carried: Array | float = 0.0
        if x.incoming is not None:
            g_slack, u_slack = (x.incoming @ matrix.magnitude.T for matrix in (gate, up))
            slack = through(g_slack) * np.abs(u.value) + np.abs(act.value) * u_slack
            carried = slack @ down.magnitude.T
        return _Inside(made.value, np.sqrt(own**2 + squares @ (down.value**2).T), carried)

    return _mixture(call, inside)


def clamped_experts(call: Call, unit: Unit) -> Array:
    """As :func:`experts`; the activation is written out, so each of its operations rounds.

    Of the gate g: ``alpha g``, its sigmoid s (which passes the first on by ``s (1 - s)``) and
    ``g s``. The sigmoid of a very negative number may be flushed to zero. Of up: the sum with 1.
    Where a clamp cuts, errors end.
    """
    alpha, limit = call.constants["alpha"], call.constants["limit"]

    def inside(x: Operand, expert: int) -> _Inside:
        gate_up, gate_up_bias, down, down_bias = (
            Operand(call.input(index).value[expert]) for index in range(2, 6)
        )
        both, both_own = _run(call, unit, ops.affine, Operand(x.value), gate_up, gate_up_bias)
        g, u = np.minimum(both.value[:, 0::2], limit), both.value[:, 1::2].clip(-limit, limit)
        sigmoid = 1 / (1 + np.exp(np.minimum(-alpha * g, 700.0)))
        act, up = g * sigmoid, u + 1
        bend = alpha * g * (1 - sigmoid)  # of the sigmoid, relative to it
        flushed = np.abs(g) * (call.precision.underflow / call.precision.unit_roundoff)
        act_square = (2 + bend**2) * act**2 + flushed**2
        open_g, open_u = both.value[:, 0::2] < limit, np.abs(both.value[:, 1::2]) < limit
        prod = Operand(act * up)
        made, own = _run(call, unit, ops.affine, prod, down, down_bias)
        both_own = both_own + both.magnitude  # as in experts: twice what is one rounding
        squares = 8 * prod.value**2 + 4 * act_square * up**2
        squares += (sigmoid * (1 + bend) * open_g * both_own[:, 0::2] * up) ** 2
        squares += (open_u * both_own[:, 1::2] * act) ** 2
        carried: Array | float = 0.0
        if x.incoming is not None:
            slack = x.incoming @ gate_up.magnitude
            through = 1.1 * slack[:, 0::2] * np.abs(up) + slack[:, 1::2] * np.abs(act)
            carried = through @ down.magnitude
        return _Inside(made.value, np.sqrt(own**2 + squares @ down.value**2), carried)

    return _mixture(call, inside)


@dataclass(frozen=True, slots=True)
class _Inside:
    """One expert on the tokens that it gets.

    Attributes:
        output: [N, C].
        own: Rounding of its own ops, [N, C] in units.
        carried: What its input's bound becomes.
    """

    output: Array
    own: Array
    carried: Array | float


def _mixture(call: Call, inside: Callable[[Operand, int], _Inside]) -> Array:
    """Of the weighted sum of experts, from what each of them does."""
    x, weights = call.input(0), call.input(1)
    rows, shares = _flat(x.value), _flat(weights.value)
    incoming = None if x.incoming is None else _flat(x.incoming)
    share_slack = _flat(np.broadcast_to(weights.slack, weights.value.shape))
    own, carried, squares = (np.zeros(rows.shape) for _ in range(3))
    for expert in range(shares.shape[1]):
        sent = shares[:, expert] != 0
        if not sent.any():
            continue
        one = inside(Operand(rows[sent], None if incoming is None else incoming[sent]), expert)
        share = np.abs(shares[sent, expert, None])
        term = share * np.abs(one.output)
        squares[sent] += term**2
        own[sent] += (share * one.own) ** 2 + term**2
        carried[sent] += share * one.carried
        carried[sent] += share_slack[sent, expert, None] * np.abs(one.output)
    output = np.abs(_flat(call.output.value))
    terms = np.count_nonzero(shares, axis=-1)[:, None]
    walk = 4 * terms * (squares / 6 + output**2 / 3)
    bound: Array = (output + np.sqrt(own + walk) + carried).astype(np.float32)
    return bound.reshape(call.output.value.shape)


def _run(call: Call, unit: Unit, op: Callable[..., Any], *inputs: Operand) -> tuple[Operand, Array]:
    """An op inside an expert: its result and its bound."""
    output = Operand(op(*(given.value for given in inputs)))
    bound = unit(op, Call(output, inputs, {}, call.precision)).astype(np.float64)
    return output, bound


def _softmax(x: Array) -> Array:
    """Over the last axis; at least a number that can be divided by."""
    exponentials = np.exp(x - np.max(x, axis=-1, keepdims=True))
    probs: Array = exponentials / np.sum(exponentials, axis=-1, keepdims=True)
    return np.maximum(probs, 1e-280)


def _flat(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])
