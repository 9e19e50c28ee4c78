"""Which constants each op has, and how each is fitted."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..references_seam import ops
from . import attention, factors, masks, norms, rope, softcap
from .estimate import Estimate
from .seen import Seen

Fitter = Callable[[Seen], list[tuple[str, Estimate]]]


def _one(name: str, fit: Callable[[Seen], Estimate | None]) -> Fitter:
    def fitter(seen: Seen) -> list[tuple[str, Estimate]]:
        found = fit(seen) if seen.direct else None
        return [] if found is None else [(name, found)]

    return fitter


def _rotation(seen: Seen) -> list[tuple[str, Estimate]]:
    return rope.fit_rotation(seen) if seen.direct else []


def _factor(seen: Seen) -> list[tuple[str, Estimate]]:
    """A factor's name says what it multiplies."""
    name = "logits_scale" if seen.kind == "logits" else "embedding_multiplier"
    return _one(name, factors.fit_factor)(seen)


#: Fitters of each op; an op without one has no constant that could be wrong.
FITTERS: dict[Callable[..., Any], Fitter] = {
    ops.add_scaled: _one("residual_multiplier", factors.fit_added_factor),
    ops.context: attention.fit_inside_context,
    ops.divide: _one("logits_scale", factors.fit_divisor),
    ops.layer_norm: _one("eps", norms.fit_eps),
    ops.masked_softmax: attention.fit_inside_probs,
    ops.rms_norm: _one("eps", norms.fit_eps),
    ops.rms_norm_from_one: _one("eps", norms.fit_eps),
    ops.rope: _rotation,
    ops.scale: _factor,
    ops.scaled_embedding: _one("embedding_multiplier", factors.fit_embedding_scale),
    ops.scores: _one("scale", factors.fit_scale),
    ops.softcap: _one("softcap", softcap.fit_cap),
    ops.visible: _one("window", masks.fit_window),
}


@np.errstate(all="ignore")  # what is not finite says nothing
def fit_op(seen: Seen) -> list[tuple[str, Estimate]]:
    """Every constant of an op that the candidate's numbers say something of, by name."""
    fitter = FITTERS.get(seen.op)
    if fitter is None or not seen.found.size:
        return []
    return [(name, one) for name, one in fitter(seen) if np.isfinite(one.value)]


def fitted(seen: Seen, constant: str) -> Estimate | None:
    """One constant of an op; None where the numbers say nothing of it."""
    return next((one for name, one in fit_op(seen) if name == constant), None)
