"""Constants that a result is proportional to, or a part of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .estimate import Array, Estimate, Sample, estimate, of_constant, stored
from .seen import Seen, rows, thin


def fit_scale(seen: Seen) -> Estimate | None:
    """The scale of attention scores: ``scale q @ k.T``."""
    at, dtype = thin(seen.found.shape), seen.call.precision.name
    q = seen.call.input(0).value[at[:3]]
    k = seen.call.input(1).value[:, :, at[3]]

    def queries_first(scale: float) -> Array:
        """With queries that are scaled and rounded before they meet the keys."""
        batch, _, length, dim = q.shape
        grouped = stored(q * scale, dtype).reshape(batch, k.shape[1], -1, length, dim)
        scores: Array = grouped @ np.swapaxes(k, -1, -2)[:, :, None]
        return rows(scores)

    return _proportional(seen, float(seen.call.constants["scale"]), [queries_first])


def fit_factor(seen: Seen) -> Estimate | None:
    """The factor of :func:`references.ops.scale`."""
    return _proportional(seen, float(seen.call.constants["factor"]))


def fit_embedding_scale(seen: Seen) -> Estimate | None:
    """The scalar that embeddings are multiplied by, an input of the op."""
    found = _proportional(seen, float(seen.call.input(2).value))
    if found is None:
        return None
    # The scalar is a number of the model's dtype here; others may leave it as it is.
    root = found.configured * seen.call.precision.unit_roundoff
    return replace(found, systematic=found.systematic + root)


def fit_divisor(seen: Seen) -> Estimate | None:
    """The divisor of :func:`references.ops.divide`: its reciprocal is fitted."""
    divisor = float(seen.call.constants["divisor"])
    found = _proportional(seen, 1 / divisor)
    if found is None or found.value == 0:
        return None
    slope = 1 / found.value**2
    return replace(
        found,
        configured=divisor,
        value=1 / found.value,
        error=found.error * slope,
        systematic=found.systematic * divisor**2 + of_constant(divisor, seen.call.precision.name),
    )


def fit_added_factor(seen: Seen) -> Estimate | None:
    """The factor of what is added to the residual stream: ``x + factor y``."""
    at = thin(seen.found.shape)
    factor = float(seen.call.constants["factor"])
    result, added = rows(seen.call.output.value[at]), rows(seen.call.input(1).value[at])
    dtype = seen.call.precision.name
    rest = result - factor * added
    return estimate(
        _sample(seen, at),
        lambda value: (result + (value - factor) * added, added),
        factor,
        orders=[lambda value: rest + stored(value * added, dtype)],
    )


def _proportional(
    seen: Seen, configured: float, orders: Sequence[Callable[[float], Array]] = ()
) -> Estimate | None:
    if configured == 0:
        return None
    at = thin(seen.found.shape)
    slope = rows(seen.call.output.value[at]) / configured
    once = stored(slope, seen.call.precision.name)
    return estimate(
        _sample(seen, at),
        lambda value: (value * slope, slope),
        configured,
        orders=[lambda value: value * once, *orders],
    )


def _sample(seen: Seen, at: tuple[slice, ...]) -> Sample:
    found = rows(seen.found[at])
    # A token that comes twice is rounded twice in the same way.
    _, groups = np.unique(_key(found), return_inverse=True)
    return Sample(found, rows(seen.size(at)), seen.call.precision.name, groups.reshape(-1))


def _key(found: Array) -> Array:
    """A number for each row that equal rows have in common."""
    key: Array = found[:, :8].sum(axis=1) + found[:, -1]
    return key
