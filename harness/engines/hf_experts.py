"""Mixtures of experts in transformers: what a router hands over."""

import torch

#: What a router gives: logits [N, E], weights [N, k] and indices [N, k] of the chosen experts.
Routed = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def router_logits(routed: Routed) -> torch.Tensor:
    """[N, E]."""
    return routed[0]


def router_weights(routed: Routed) -> torch.Tensor:
    """[N, E], 0 for experts that are not chosen."""
    logits, weights, indices = routed
    empty = torch.zeros_like(logits, dtype=weights.dtype)
    return empty.scatter(-1, indices, weights)


def chosen(routed: Routed) -> torch.Tensor:
    """[N, E] booleans."""
    logits, _, indices = routed
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, indices, value=True)
