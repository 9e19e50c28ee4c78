"""Mistakes in rotary embeddings, in transformers models."""

from collections.abc import Callable
from typing import Any

import torch

from .plant import Plant, Planting, replace_forward, rope_of

Tensor = torch.Tensor


def _no_rope(config: Any) -> str:
    return "" if rope_of(config) else f"{config.model_type} has no rotary embedding"


def frequencies(change: Callable[[Tensor, Any], Tensor]) -> Callable[[Planting], None]:
    """A plant that replaces the rotary frequencies [R/2] of all layers."""

    def put(at: Planting) -> None:
        rotary = at.rotary()
        for name in [n for n, _ in rotary.named_buffers() if n.endswith("inv_freq")]:
            if "original" not in name:
                setattr(rotary, name, change(getattr(rotary, name).clone(), at.config))

    return put


def tables(change: Callable[..., Any]) -> Callable[[Planting], None]:
    """A plant that changes how cosines and sines [B, T, R] are made: ``change(inner, x, ids)``."""

    def put(at: Planting) -> None:
        replace_forward(at.rotary(), change)

    return put


def other_theta(theta: float) -> Callable[[Planting], None]:
    """A plant that makes frequencies of another base."""

    def change(old: Tensor, config: Any) -> Tensor:
        size = 2 * len(old)
        return (theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)).float()

    return frequencies(change)


def _scaled(config: Any) -> str:
    kind = rope_of(config).get("rope_type", "default")
    return _no_rope(config) or ("" if kind == "default" else "frequencies are scaled")


PLANTS = (
    Plant(
        fault="rope-theta",
        name="theta 10,000 for the config's",
        put=other_theta(1e4),
        first="attn.q_rope",
        everywhere=True,
        reason=_scaled,
    ),
)
