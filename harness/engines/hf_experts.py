"""Mixtures of experts in transformers: what a router hands over, and parameters of all experts."""

from collections.abc import Iterator, Mapping

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


def unpacked(
    name: str, parameter: torch.Tensor, packed: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """A parameter of the model as the checkpoint has it: one tensor for each expert and map.

    Args:
        name: Its name in the model.
        parameter: [E, ...], the rows of its maps one after another; any other parameter comes
            back as it is.
        packed: End of a name to the names of the maps.
    """
    for ending, maps in packed.items():
        if name.endswith(ending):
            prefix = name[: len(name) - len(ending)] + ending.rpartition(".")[0]
            for expert, rows in enumerate(parameter):
                for part, piece in zip(maps, rows.chunk(len(maps)), strict=True):
                    yield f"{prefix}.{expert}.{part}.weight", piece
            return
    yield name, parameter
