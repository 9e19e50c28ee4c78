"""Rounding of norms; see :mod:`harness.replay.bounds`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .call import Call, positive_sum

Array = NDArray[Any]


def rms_norm(call: Call) -> Array:
    """Of :func:`references.ops.rms_norm`."""
    return _root_mean_square(call, call.input(1).magnitude)


def rms_norm_from_one(call: Call) -> Array:
    """As :func:`rms_norm`: one more sum, of 1 and a weight, is one more relative rounding."""
    bound = _root_mean_square(call, np.abs(1 + call.input(1).value.astype(np.float32)))
    return bound + call.precision.float32_ratio * call.output.magnitude


def _root_mean_square(call: Call, weight: Array) -> Array:
    x = call.input(0)
    own: Array = call.output.magnitude * (1 + positive_sum(call, x.value.shape[-1]))
    if x.incoming is None:
        return own
    square = np.mean(x.magnitude**2, axis=-1, keepdims=True) + call.constants["eps"]
    tilt = x.magnitude * np.mean(x.magnitude * x.incoming, axis=-1, keepdims=True) / square
    bound: Array = own + weight * (x.incoming + tilt) / np.sqrt(square)
    return bound


def layer_norm(call: Call) -> Array:
    """The mean cancels: what is rounded is as large as the input, not as the distance from it.

    With ``m`` the mean, ``q`` the mean square and ``s`` the standard deviation (epsilon included),
    the numerator loses one rounding of ``x`` and of ``m``. The mean itself is a sum of n terms of
    either sign, divided by n: twice its walk (see :func:`~harness.replay.call.summation`) is
    ``2 sqrt(q / 6)`` for the bridge, and for its drift what a sum of terms of one sign loses. The
    variance is a mean of n positive terms. Its terms carry the error of the mean, which nearly
    cancels, as they add up to 0 without it; subtracting squares instead would cost
    ``m**2 / s**2``, but no library in use does so.
    """
    x, weight, bias = call.input(0), call.input(1).magnitude, call.input(2).magnitude
    ratio, sums = call.precision.float32_ratio, positive_sum(call, x.value.shape[-1])
    narrow = x.value.astype(np.float32)
    mean = np.mean(narrow, axis=-1, keepdims=True)
    centred = np.abs(narrow - mean)
    deviation = np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + call.constants["eps"])
    walk = 2 * np.sqrt(np.mean(narrow**2, axis=-1, keepdims=True) / 6)
    numerator = ratio * (x.magnitude + np.abs(mean) + walk) + sums * (np.abs(mean) + centred)
    own: Array = call.output.magnitude + weight * numerator / deviation + ratio * bias
    if x.incoming is None:
        return own
    tilt = centred * np.mean(centred * x.incoming, axis=-1, keepdims=True) / deviation**2
    spread = x.incoming + np.mean(x.incoming, axis=-1, keepdims=True) + tilt
    bound: Array = own + weight * spread / deviation
    return bound
