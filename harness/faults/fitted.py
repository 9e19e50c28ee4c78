"""Constants fitted to what a candidate has at a site, for variants that try any value."""

import numpy as np

from ..fitting.estimate import Estimate
from ..fitting.seen import see
from ..fitting.table import fitted
from ..fitting.words import in_words
from .fault import Site

#: A fitted value within so many standard errors of another one is that one.
_SAME = 8.0

__all__ = ["differs", "fitted_at", "in_words"]


def fitted_at(site: Site, constant: str) -> Estimate | None:
    """What a candidate's numbers say of one constant of an op.

    Args:
        site: The op.
        constant: Its name in :mod:`harness.fitting.table`: ``rope_theta``, ``factor``,
            ``position_offset``, ``attention_factor``, ``scale``, ``softcap``, ``eps``,
            ``embedding_multiplier``, ``residual_multiplier``, ``logits_scale`` or ``window``.

    Returns:
        None where they say nothing, or what is there has another shape.
    """
    found = site.found
    if found is None or found.shape != site.call.output.value.shape:
        return None
    if found.dtype != bool and not np.isfinite(found).all():
        return None
    return fitted(
        see(site.op, site.call, found, kind=site.kind, config=site.facts.config), constant
    )


def differs(one: Estimate, value: float) -> bool:
    """Whether a fitted value is another one than this, rounding aside."""
    return abs(one.value - value) > one.systematic + _SAME * one.error
