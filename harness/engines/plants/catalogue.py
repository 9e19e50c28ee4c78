"""All plants, from one module for each group."""

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
    weights,
    weights_precision,
)
from .plant import Plant

#: Each has ``PLANTS``.
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
    weights,
    weights_precision,
)


def plants() -> tuple[Plant, ...]:
    """Every way to make a mistake of the catalogue in a transformers model."""
    return tuple(plant for module in _MODULES for plant in module.PLANTS)
