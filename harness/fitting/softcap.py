"""The cap of a soft cap."""

import numpy as np

from .estimate import Array, Estimate, Sample, estimate, stored
from .seen import Seen, rows, thin


def capped(x: Array, cap: float) -> tuple[Array, Array, Array]:
    """``cap tanh(x / cap)``, its derivative to the cap and its derivative to x."""
    z = x / cap
    t = np.tanh(z)
    slope = 1 - t * t
    return cap * t, t - z * slope, slope


def fit_cap(seen: Seen) -> Estimate | None:
    """The cap of scores or logits, from values that are not small beside it."""
    at = thin(seen.found.shape)
    x = rows(seen.call.input(0).value[at])
    sample = Sample(rows(seen.found[at]), rows(seen.size(at)), seen.call.precision.name)
    dtype = sample.dtype

    def one_by_one(cap: float) -> Array:
        return cap * stored(np.tanh(stored(x / cap, dtype)), dtype)

    return estimate(
        sample,
        lambda cap: capped(x, cap)[:2],
        float(seen.call.constants["cap"]),
        lowest=0.0,
        orders=[one_by_one],
    )
