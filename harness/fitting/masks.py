"""The window of a mask."""

import numpy as np

from ..references_seam import ops
from .estimate import Array, Estimate
from .seen import Seen


def fit_window(seen: Seen) -> Estimate | None:
    """The number of keys that a query reads, itself among them, from a mask of booleans.

    Returns:
        None where no window is configured, or no query has more keys before it than that. A mask
        that no window makes is not explained by the estimate.
    """
    constants = seen.call.constants
    window = constants.get("window")
    if window is None or constants.get("real") is not None:
        return None
    queries, keys = np.asarray(constants["queries"]), np.asarray(constants["keys"])
    distance = queries[:, :, None] - keys[:, None, :]
    if not (distance >= window).any() and np.array_equal(seen.found, seen.call.output.value):
        return None
    read: Array = np.where(seen.found, distance, -1)
    value = int(read.max()) + 1
    exact = np.array_equal(seen.found, ops.visible(queries=queries, keys=keys, window=value))
    return Estimate(
        configured=float(window),
        value=float(value),
        error=0.0,
        doubt=1.0,
        systematic=0.0,
        left=0.0 if exact else float("inf"),
        power=float(np.count_nonzero(seen.found != seen.call.output.value)),
    )
