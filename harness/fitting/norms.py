"""The epsilon of norms."""

import numpy as np

from ..references_seam import ops
from .estimate import Array, Estimate, Sample, estimate, stored
from .seen import Seen, rows, thin

#: Rows whose mean squares differ by less than one part in so many count as one.
_APART = 1000

#: Norms are many, and a few rows of them tell as much as all.
_MOST = 1 << 14


def fit_eps(seen: Seen) -> Estimate | None:
    """The epsilon of an RMSNorm or a LayerNorm.

    ``d y / d eps = -(y - bias) / (2 (m + eps))`` with m the mean square, or the variance.
    """
    at = thin(seen.found.shape, most=_MOST, whole=True)
    weight = seen.call.input(1).value
    if weight.ndim > 1:  # each head has its own
        weight = rows(np.broadcast_to(weight, seen.found.shape)[at])
    x, rest = rows(seen.call.input(0).value[at]), [weight]
    bias: Array | float = 0.0
    if seen.op is ops.layer_norm:
        bias = seen.call.input(2).value
        rest.append(bias)
        square = np.var(x, axis=-1, keepdims=True)
    else:
        square = np.mean(np.square(x), axis=-1, keepdims=True)
    configured = float(seen.call.constants["eps"])
    first = rows(seen.call.output.value[at])

    def curve(eps: float) -> tuple[Array, Array]:
        result = first if eps == configured else seen.op(x, *rest, eps=eps)
        return result, (result - bias) / (-2 * (square + eps))

    # The root of a row is one rounding, and rows of one token are nearly one row, rounded alike.
    alike = np.round(np.log(np.maximum(square, 1e-300)) * _APART)
    sample = Sample(rows(seen.found[at]), rows(seen.size(at)), seen.call.precision.name, alike)
    mean = square.astype(np.float32)

    def summed(eps: float) -> Array:
        """With mean square plus epsilon as a float32 number: 10.49 of its units become 10."""
        result, _ = curve(eps)
        total = (mean + np.float32(eps)).astype(np.float64)
        moved: Array = (result - bias) * np.sqrt((square + eps) / total) + bias
        return moved

    def normed_first(eps: float) -> Array:
        """Rounded before the weight is applied, as RMSNorms are in most engines."""
        normed: Array = stored(x / np.sqrt(square + eps), sample.dtype) * rest[0]
        return normed

    orders = [summed, normed_first] if seen.op is ops.rms_norm else [summed]
    return estimate(sample, curve, configured, lowest=-float(square.min()) * 0.999, orders=orders)
