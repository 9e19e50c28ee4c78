"""The window of a mask, from the mask itself or from what attention makes of it."""

import numpy as np

from ..references_seam import ops
from ..replay.call import Call
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


#: Rows that a search for a window looks at, and about how many numbers it may hold.
_ROWS, _HELD = 8, 1 << 22


def fit_window_inside(seen: Seen, softmax: Call, values: Array) -> Estimate | None:
    """The window of a mask that nobody tapped, from the context of the last positions.

    The contexts of all windows of a row are sums over its nearest keys, so that one running sum
    gives them all.

    Args:
        seen: The context.
        softmax: The softmax of its probabilities.
        values: [B, H, S, D], one for each query head.
    """
    mask = softmax.input(1).made
    if mask is None or mask.op is not ops.visible or mask.call.constants.get("window") is None:
        return None
    constants = mask.call.constants
    distance = np.asarray(constants["queries"])[0][:, None] - np.asarray(constants["keys"])[0]
    if constants.get("real") is not None or (np.diff(distance) != -1).any():
        return None
    count = max(1, min(_ROWS, len(distance), _HELD // max(1, values.size)))
    part = (slice(None), slice(None), slice(len(distance) - count, None))
    scores = np.where(distance[part[2]] >= 0, softmax.input(0).value[part], -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))[..., ::-1]  # nearest keys first
    later = (distance[part[2]] < 0).sum(axis=-1)  # keys behind a query come before its own
    sums = np.cumsum(powers, axis=-1)[..., None]
    made = np.cumsum(powers[..., None] * values[:, :, None, ::-1], axis=3) / sums
    off = (made - seen.found[part][:, :, :, None]) / seen.size(part)[:, :, :, None]
    keys = distance.shape[1]
    windows = np.arange(1, keys + 1)
    at = np.minimum(windows[None] - 1 + later[:, None], keys - 1)  # [R, S]
    units = np.abs(off).max(axis=(0, 1, 4))  # [R, S]
    worst = np.take_along_axis(units, at, axis=1).max(axis=0)
    best = int(np.argmin(worst))
    return Estimate(
        configured=float(constants["window"]),
        value=float(windows[best]),
        error=0.0,
        doubt=1.0,
        systematic=0.0,
        left=float(worst[best]),
        power=0.0,
    )
