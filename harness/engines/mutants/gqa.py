"""Mutants that break laws of grouped-query attention."""

from typing import Any

import torch

from ..plants.plant import Planting
from .mutant import Mutant, plant

Tensor = torch.Tensor


def _single_not_shared(at: Planting) -> None:
    """Where there is one kv head, the first query head alone is given its values."""

    def change(
        inner: Any, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **kw: Any
    ) -> Any:
        context, probs = inner(module, q, k, v, mask, **kw)
        if k.shape[1] == 1:
            context = torch.cat([context[:, :, :1], context[:, :, 1:] * 0], dim=2)
        return context, probs

    at.attention(change)


MUTANTS = (
    Mutant(
        name="gqa-tiled",
        says="query head h reads kv head h mod K",
        put=plant("gqa-tiled", "tiled, keys and values").put,
    ),
    Mutant(
        name="gqa-one-further",
        says="each group reads the kv head of the next",
        put=plant("gqa-order", "one further, keys and values").put,
    ),
    Mutant(
        name="gqa-first-alone",
        says="all query heads read the first kv head",
        put=plant("gqa-single", "the first, keys and values").put,
    ),
    Mutant(
        name="gqa-single-not-shared",
        says="where there is one kv head, the first query head alone reads it",
        put=_single_not_shared,
    ),
    Mutant(
        name="gqa-context-shifted",
        says="what a head makes is handed on as that of the next",
        put=plant("heads-order", "one further").put,
    ),
    Mutant(
        name="gqa-last-head-lost",
        says="what the last head makes is lost",
        put=plant("heads-lost", "the last is 0").put,
    ),
)
