"""Constants of scores that nobody tapped, fitted to probabilities or to the context.

A kernel such as sdpa forms scores and probabilities inside. With ``P = softmax(s)`` and
``s = scale q @ k.T``, ``d P / d ln(scale) = P (s - sum(P s))`` in every row, and the context passes
that on by the values. A soft cap between passes on its slope.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..contract import UNIT_LIMIT
from ..references_seam import ops
from ..replay.call import Call, Made, summation
from .estimate import Array, Estimate, Sample, estimate, stored
from .masks import fit_window_inside
from .seen import MOST, Seen, rows, thin
from .softcap import capped


@dataclass(frozen=True, slots=True)
class Inside:
    """What lies between queries, keys and the probabilities.

    Attributes:
        softmax: The call of the softmax.
        scores: The call of the scores.
        cap: The call of the soft cap, None if there is none.
    """

    softmax: Call
    scores: Call
    cap: Call | None


def inside(softmax: Call) -> Inside | None:
    """How untapped scores were made; None where the candidate taps them or their inputs are not."""
    node, cap = softmax.input(0).made, None
    if node is not None and node.op is ops.softcap:
        cap, node = node.call, node.call.input(0).made
    if node is None or node.op is not ops.scores:
        return None
    direct = all(x is not None and x.incoming is None for x in node.call.inputs)
    return Inside(softmax, node.call, cap) if direct else None


def _softmax_of(call: Call) -> Call | None:
    """The softmax behind probabilities that nobody tapped."""
    made: Made | None = call.input(0).made
    return None if made is None or made.op is not ops.masked_softmax else made.call


def fit_inside_context(seen: Seen) -> list[tuple[str, Estimate]]:
    """Scale and cap, from the context of a kernel that shows neither scores nor probabilities."""
    softmax = _softmax_of(seen.call)
    between = None if softmax is None else inside(softmax)
    values = seen.call.input(1)
    if between is None or values.incoming is not None:
        return []
    shape = seen.call.input(0).value.shape  # [B, H, T, S]
    keys = values.value.shape
    heads = np.arange(shape[1]) // (shape[1] // keys[1])
    at = thin(shape, most=MOST, whole=True)
    lifted = values.value[:, heads]  # [B, H, S, D]
    size = _own_size(seen, at)
    sample = Sample(rows(seen.found[at]), rows(size), seen.call.precision.name)
    result, own = seen.call.output.value[at], rows(seen.size(at))
    fits = _fit(between, at, sample, lambda p: p @ lifted, lambda: result, own=own)
    if (np.abs(sample.found - rows(result)) <= UNIT_LIMIT * own).all():
        return fits
    window = fit_window_inside(seen, between.softmax, lifted)
    return fits if window is None else [*fits, ("window", window)]


def fit_inside_probs(seen: Seen) -> list[tuple[str, Estimate]]:
    """The same from probabilities whose scores nobody tapped."""
    between = inside(seen.call)
    if between is None:
        return []
    at = thin(seen.found.shape, whole=True)
    sample = Sample(rows(seen.found[at]), rows(seen.size(at)), seen.call.precision.name)
    result = seen.call.output.value[at]
    return _fit(between, at, sample, lambda p: p, lambda: result, own=sample.size)


def _own_size(seen: Seen, at: tuple[slice, ...]) -> Array:
    """Rounding of the last product and of the probabilities alone, without what is carried.

    What the scores may lose inside a kernel is a worst case that no kernel comes near; as a weight
    it would silence the rows that tell most.
    """
    call = seen.call
    probs, values = call.input(0), call.input(1)
    squares = ops.context(probs.square, values.square)
    size: Array = summation(call, squares, probs.value.shape[-1])[at].astype(np.float64)
    size += np.sqrt(squares[at])
    size *= call.precision.unit_roundoff
    size += call.precision.underflow
    return size


Through = Callable[[Array], Array]


def _fit(
    between: Inside,
    at: tuple[slice, ...],
    sample: Sample,
    through: Through,
    first: Callable[[], Array],
    *,
    own: Array,
) -> list[tuple[str, Estimate]]:
    """Fit each constant by itself; the better explanation comes first.

    Args:
        between: The ops.
        at: Rows that are looked at.
        sample: What the candidate has there.
        through: From probabilities to what the candidate has.
        first: That for the configured constants.
        own: Size of a rounding unit with all that is carried, for what may be left.
    """
    scale = float(between.scores.constants["scale"])
    cap = None if between.cap is None else float(between.cap.constants["cap"])
    raw = between.scores.output.value[at] / scale
    seen_keys = between.softmax.input(1).value[:, None][..., at[2], :]
    probs = between.softmax.output.value[at]

    def curve(which: str, value: float) -> tuple[Array, Array]:
        now = value if which == "scale" else scale
        s, slope = raw * now, raw
        if cap is not None:
            s, to_cap, to_score = capped(s, value if which == "softcap" else cap)
            slope = to_cap if which == "softcap" else raw * to_score
        p = probs_of(which, value)
        mean = np.einsum("bhts,bhts->bht", p, slope)[..., None]
        result = first() if p is probs else through(p)
        return rows(result), rows(through(p * (slope - mean)))

    def probs_of(which: str, value: float) -> Array:
        if value == (scale if which == "scale" else cap):
            return probs
        s = raw * (value if which == "scale" else scale)
        if cap is not None:
            s = capped(s, value if which == "softcap" else cap)[0]
        return _softmax(s, seen_keys)

    def narrow(which: str, value: float) -> Array:
        """With probabilities that are rounded before they meet the values."""
        return rows(through(stored(probs_of(which, value), sample.dtype)))

    def narrow_powers(which: str, value: float) -> Array:
        """With powers that are rounded before they meet the values, and divided by their sum."""
        p = probs_of(which, value)
        top = p.max(axis=-1, keepdims=True)
        return rows(through(stored(p / top, sample.dtype) * top))

    found: list[tuple[str, Estimate]] = []
    for which, configured in (("scale", scale), ("softcap", cap)):
        if configured is not None:
            orders = [partial(order, which) for order in (narrow, narrow_powers)]
            one = estimate(sample, partial(curve, which), configured, lowest=0.0, orders=orders)
            if one is not None:
                found.append((which, _with_left(one, sample, own, which, curve)))
    return found


def _softmax(scores: Array, seen_keys: Array) -> Array:
    masked = np.where(seen_keys, scores, -np.inf)
    e = np.exp(masked - masked.max(axis=-1, keepdims=True))
    result: Array = e / e.sum(axis=-1, keepdims=True)
    return result


def _with_left(
    one: Estimate,
    sample: Sample,
    own: Array,
    which: str,
    curve: Callable[[str, float], tuple[Array, Array]],
) -> Estimate:
    """An estimate judged by what it leaves on the scale of the op's own bound."""
    candidate = replace(one, left=0.0)
    if not candidate.excludes:
        return candidate
    result, _ = curve(which, one.value)
    return replace(one, left=float((np.abs(sample.found - result) / own).max()))
