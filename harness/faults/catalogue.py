"""All faults, from one module for each group."""

from collections.abc import Sequence
from dataclasses import replace

from . import (
    attention,
    attention_scores,
    cache,
    embedding,
    head,
    input,
    mask,
    mlp,
    mlp_experts,
    norm,
    norm_order,
    qk_norm,
    rope,
    rope_scaling,
    softmax,
    weights,
    weights_precision,
    weights_values,
)
from .fault import Catalogue, Fault, where_it_fits

#: Each has ``FAULTS``.
_MODULES = (
    attention,
    attention_scores,
    cache,
    embedding,
    head,
    input,
    mask,
    mlp,
    mlp_experts,
    norm,
    norm_order,
    qk_norm,
    rope,
    rope_scaling,
    softmax,
    weights,
    weights_precision,
    weights_values,
)


def catalogue() -> Catalogue:
    """The whole catalogue."""
    return collect([fault for module in _MODULES for fault in module.FAULTS])


def collect(faults: Sequence[Fault]) -> Catalogue:
    """A catalogue of some faults.

    Raises:
        ValueError: Two have the same id, or one implies another that is not there.
    """
    by_id = {fault.id: replace(fault, variant=where_it_fits(fault.variant)) for fault in faults}
    if len(by_id) != len(faults):
        twice = sorted({f.id for f in faults if [g.id for g in faults].count(f.id) > 1})
        raise ValueError(f"faults of the same id: {', '.join(twice)}")
    unknown = sorted({i for fault in faults for i in fault.implies} - set(by_id))
    if unknown:
        raise ValueError(f"implied, but not in the catalogue: {', '.join(unknown)}")
    return Catalogue(by_id)
