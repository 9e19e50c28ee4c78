"""Mistakes in embeddings, in transformers models."""

from collections.abc import Callable
from typing import Any

import torch

from .plant import Plant, Planting, float32_only

Tensor = torch.Tensor
Put = Callable[[Planting], None]


def table(config: Any) -> str:
    """Why the table's rows are scaled."""
    return "embeddings are scaled" if scaled(config) else ""


def scaled(config: Any) -> bool:
    """Whether embeddings are multiplied by something."""
    return str(config.model_type).startswith("gemma") or config.model_type == "granite"


def _gemma(config: Any) -> str:
    return "" if str(config.model_type).startswith("gemma") else "no root multiplies embeddings"


def _granite(config: Any) -> str:
    return "" if config.model_type == "granite" else "no multiplier of embeddings in the config"


def _learned(config: Any) -> str:
    return "" if config.model_type == "gpt2" else "it has no learned positions"


def _untied(config: Any) -> str:
    return "the head is the table" if config.tie_word_embeddings else ""


def times(factor: Callable[[Any], float]) -> Put:
    """A plant that multiplies embeddings."""

    def put(at: Planting) -> None:
        at.forward("embed", lambda inner, ids: inner(ids) * factor(at.config))

    return put


def _multiplier(change: Callable[[float], float]) -> Put:
    """A plant that changes Granite's multiplier of embeddings."""

    def put(at: Planting) -> None:
        at.model.model.embedding_multiplier = change(at.model.model.embedding_multiplier)

    return put


def _unscaled(at: Planting) -> None:
    held = at.module("embed")
    at.forward("embed", lambda inner, ids: torch.nn.functional.embedding(ids, held.weight))


def _rounded_root(at: Planting) -> None:
    held = at.module("embed")
    root = torch.tensor(at.config.hidden_size**0.5).bfloat16().float()

    def forward(inner: Any, ids: Tensor) -> Tensor:
        return torch.nn.functional.embedding(ids, held.weight) * root

    at.forward("embed", forward)


def _zero_row(held: Tensor) -> Tensor:
    held[44] = 0
    return held


def _two_exchanged(held: Tensor) -> Tensor:
    held[[17, 61]] = held[[61, 17]]
    return held


def _of_head(at: Planting) -> None:
    at.module("embed").weight = torch.nn.Parameter(at.model.lm_head.weight.detach().clone())


def _from(start: int) -> Put:
    return lambda at: at.forward("pos_embed", lambda inner, ids: inner(ids + start))


def _restarted(at: Planting) -> None:
    def forward(inner: Any, ids: Tensor) -> Tensor:
        made: Tensor = inner(torch.arange(ids.shape[-1]).expand_as(ids))
        return made

    at.forward("pos_embed", forward)


def _one_rounding(config: Any, dtype: str) -> str:
    return "" if dtype == "float32" else "the root is rounded so in half precision"


PLANTS = (
    Plant(
        fault="embed-scale-missing",
        name="no root",
        put=_unscaled,
        first="embed",
        reason=_gemma,
    ),
    Plant(
        fault="embed-scale-missing",
        name="no multiplier",
        put=_multiplier(lambda held: 1.0),
        first="embed_scaled",
        reason=_granite,
    ),
    Plant(
        fault="embed-scale-added",
        name="the root of the channels",
        put=times(lambda config: float(config.hidden_size**0.5)),
        first="embed",
        reason=lambda config: "" if config.model_type != "granite" else "it has a multiplier",
    ),
    Plant(
        fault="embed-scale-added",
        name="divided by the multiplier",
        put=_multiplier(lambda held: 1 / held),
        first="embed_scaled",
        reason=_granite,
    ),
    Plant(
        fault="embed-scale-other",
        name="by 1.1",
        put=times(lambda config: 1.1),
        first="embed",
    ),
    Plant(
        fault="embed-scale-rounding",
        name="a root rounded to bfloat16",
        put=_rounded_root,
        first="embed",
        reason=_gemma,
        equivalent=_one_rounding,
    ),
    Plant(
        fault="embed-pad-row",
        name="the row of a token is 0",
        put=lambda at: at.parameter("embed", _zero_row),
        first="embed",
    ),
    Plant(
        fault="embed-other-token",
        name="the next token",
        put=lambda at: at.forward(
            "embed", lambda inner, ids: inner((ids + 1).clamp(max=at.config.vocab_size - 1))
        ),
        first="embed",
    ),
    Plant(
        fault="embed-other-token",
        name="two tokens exchanged",
        put=lambda at: at.parameter("embed", _two_exchanged),
        first="embed",
    ),
    Plant(
        fault="embed-of-head",
        name="the head's matrix",
        put=_of_head,
        first="embed",
        reason=_untied,
    ),
    Plant(
        fault="embed-positions",
        name="from 2",
        put=_from(2),
        first="pos_embed",
        alike=("position-shifted",),
        reason=_learned,
    ),
    Plant(
        fault="embed-positions",
        name="from 1",
        put=_from(1),
        first="pos_embed",
        alike=("position-shifted",),
        reason=_learned,
    ),
    Plant(
        fault="embed-positions",
        name="every pass from 0",
        put=_restarted,
        first="pos_embed",
        chunk=1,
        alike=("position-restarted",),
        reason=_learned,
    ),
    Plant(
        fault="embed-positions-missing",
        name="none",
        put=lambda at: at.forward("pos_embed", lambda inner, ids: 0 * inner(ids)),
        first="pos_embed",
        reason=_learned,
    ),
    Plant(
        fault="embed-low-precision",
        name="a table in float16",
        put=lambda at: at.parameter("embed", lambda held: held.half()),
        first="embed",
        equivalent=float32_only,
    ),
)
