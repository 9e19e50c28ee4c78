"""Rounding of activations and other functions of one element; see :mod:`harness.replay.bounds`."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .call import Call

Array = NDArray[Any]


def silu(call: Call) -> Array:
    """Exponential, sum, division and product; the slope of SiLU is at most 1.1.

    The sigmoid of a very negative number may be flushed to zero before it meets its factor.
    """
    own: Array = (1 + call.precision.float32_ratio) * call.output.magnitude
    own += call.input(0).magnitude * (call.precision.underflow / call.precision.unit_roundoff)
    return own if call.input(0).incoming is None else own + 1.1 * call.input(0).slack


def gelu_tanh(call: Call) -> Array:
    """One kernel, in float32 or wider."""
    return _gelu_by_tanh(call, call.precision.float32_ratio)


def gelu_new(call: Call) -> Array:
    """The same formula written out: each of its operations rounds in the model's own dtype."""
    return _gelu_by_tanh(call, 1.0)


def _gelu_by_tanh(call: Call, ratio: float) -> Array:
    """``x / 2 (1 + t)`` with ``t = tanh(z)``: for negative x the sum cancels.

    So the roundings of t and of the sum count on the scale of ``x / 2`` and not of the result.
    That of z, some three roundings, is passed on by the slope ``1 - t**2``. GELU's own slope is at
    most 1.13.
    """
    x = call.input(0)
    z = math.sqrt(2 / math.pi) * (x.magnitude + 0.044715 * x.magnitude**3)
    t = np.tanh(z)
    inner = t + 3 * z * (1 - t * t)
    own: Array = call.output.magnitude + ratio * x.magnitude / 2 * inner
    return own + 1.13 * x.slack


def softcap(call: Call) -> Array:
    """Quotient, tanh and product; the quotient's rounding is passed on by the slope.

    In float16 the quotient of a small number may be denormal: what that loses comes back times cap.
    """
    x, cap = call.input(0), call.constants["cap"]
    slope = 1 - np.tanh(x.magnitude / np.float32(cap)) ** 2
    own: Array = call.output.magnitude + slope * x.magnitude
    own += np.float32(cap * call.precision.underflow / call.precision.unit_roundoff)
    return own + slope * x.slack
