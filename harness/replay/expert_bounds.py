"""Rounding of mixtures of experts; see :mod:`harness.replay.bounds`."""

from collections.abc import Callable
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
    x, weights = call.input(0), call.input(1)
    rows, shares = _flat(x.value), _flat(weights.value)
    incoming = None if x.incoming is None else _flat(x.incoming)
    share_slack = _flat(np.broadcast_to(weights.slack, weights.value.shape))
    own = np.zeros(rows.shape)
    carried = np.zeros(rows.shape)
    squares = np.zeros(rows.shape)
    for expert in range(shares.shape[1]):
        sent = shares[:, expert] != 0
        if not sent.any():
            continue
        given = Operand(rows[sent], None if incoming is None else incoming[sent])
        inner = _Expert(call, given, expert, unit)
        share = np.abs(shares[sent, expert, None])
        term = share * np.abs(inner.output)
        squares[sent] += term**2
        own[sent] += (share * inner.own) ** 2 + term**2
        carried[sent] += share * inner.carried
        carried[sent] += share_slack[sent, expert, None] * np.abs(inner.output)
    output = np.abs(_flat(call.output.value))
    terms = np.count_nonzero(shares, axis=-1)[:, None]
    walk = 4 * terms * (squares / 6 + output**2 / 3)
    bound: Array = (output + np.sqrt(own + walk) + carried).astype(np.float32)
    return bound.reshape(call.output.value.shape)


class _Expert:
    """One expert on the tokens that it gets.

    Attributes:
        output: [N, C].
        own: Rounding of its own ops, [N, C] in units.
        carried: What its input's bound becomes.
    """

    def __init__(self, call: Call, x: Operand, expert: int, unit: Unit) -> None:
        gate, up, down = (call.input(2 + 3 * expert + part) for part in range(3))
        activation = call.constants["activation"]

        def run(op: Callable[..., Any], *inputs: Operand) -> tuple[Operand, Array]:
            output = Operand(op(*(given.value for given in inputs)))
            return output, unit(op, Call(output, inputs, {}, call.precision)).astype(np.float64)

        plain = Operand(x.value)
        (g, g_own), (u, u_own) = run(ops.linear, plain, gate), run(ops.linear, plain, up)
        act, act_own = run(activation, g)
        prod = Operand(act.value * u.value)
        result, own = run(ops.linear, prod, down)

        def through(slack: Array) -> Array:
            """What a bound of the gate becomes behind the activation."""
            return run(activation, Operand(g.value, slack))[1] - act_own

        # Twice what is one rounding; the walk in a product's bound is five deviations already.
        squares = 4 * prod.value**2 + 4 * (act_own * u.value) ** 2
        squares += (through(g_own + g.magnitude) * u.value) ** 2
        squares += ((u_own + u.magnitude) * act.value) ** 2
        self.output = result.value
        self.own = np.sqrt(own**2 + squares @ (down.value**2).T)
        self.carried = np.zeros_like(result.value)
        if x.incoming is not None:
            g_slack, u_slack = (x.incoming @ matrix.magnitude.T for matrix in (gate, up))
            slack = through(g_slack) * np.abs(u.value) + np.abs(act.value) * u_slack
            self.carried = slack @ down.magnitude.T


def _softmax(x: Array) -> Array:
    """Over the last axis; at least a number that can be divided by."""
    exponentials = np.exp(x - np.max(x, axis=-1, keepdims=True))
    probs: Array = exponentials / np.sum(exponentials, axis=-1, keepdims=True)
    return np.maximum(probs, 1e-280)


def _flat(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])
