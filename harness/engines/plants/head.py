"""Mistakes in the head, in transformers models."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from .norm_order import keep_output
from .plant import Plant, Planting

Tensor = torch.Tensor
Put = Callable[[Planting], None]


def logits(change: Callable[[Tensor, Tensor, Any], Tensor]) -> Put:
    """A plant that changes the logits: ``change(logits, what the matrix gives, config)``."""

    def put(at: Planting) -> None:
        held: dict[str, Tensor] = {}
        keep_output(at.model.lm_head, held, "made")
        inner = at.model.forward

        @functools.wraps(inner)
        def forward(**kwargs: Any) -> Any:
            output = inner(**kwargs)
            output.logits = change(output.logits, held["made"], at.config)
            return output

        at.model.forward = forward

    return put


def _cap(config: Any) -> float | None:
    return getattr(config, "final_logit_softcapping", None)


def _tied(config: Any) -> str:
    return "the head is the table" if config.tie_word_embeddings else ""


def _capped(config: Any) -> str:
    return "" if _cap(config) else "its logits are not capped"


def _divided(config: Any) -> str:
    return "" if config.model_type == "granite" else "its logits are not divided"


def _plain(config: Any) -> str:
    if _cap(config):
        return "its logits are capped"
    return "its logits are divided" if config.model_type == "granite" else ""


def _uncapped(config: Any) -> str:
    return "its logits are capped" if _cap(config) else ""


def _table(at: Planting) -> None:
    at.model.lm_head.weight = torch.nn.Parameter(at.module("embed").weight.detach().clone())


def _padded(at: Planting) -> None:
    head = at.model.lm_head
    more = 64 - len(head.weight) % 64
    rows = torch.zeros(more, head.weight.shape[1], dtype=head.weight.dtype)
    head.weight = torch.nn.Parameter(torch.cat([head.weight, rows]), requires_grad=False)


def _tanh(cap: float) -> Callable[[Tensor, Tensor, Any], Tensor]:
    return lambda given, made, config: cap * torch.tanh(made / cap)


def _later(given: Tensor, made: Tensor, config: Any) -> Tensor:
    return torch.cat([given[:, :1], given[:, :-1]], dim=1)


PLANTS = (
    Plant(
        fault="head-tied",
        name="the table of embeddings",
        put=_table,
        first="head",
        reason=_tied,
    ),
    Plant(
        fault="head-cap-missing",
        name="no cap",
        put=logits(lambda given, made, config: made),
        first="logits",
        reason=_capped,
    ),
    Plant(
        fault="head-cap-other",
        name="a cap of 17",
        put=logits(_tanh(17.0)),
        first="logits",
        reason=_capped,
    ),
    Plant(
        fault="head-cap-other",
        name="capped twice",
        put=logits(lambda given, made, config: _tanh(_cap(config) or 1.0)(made, given, config)),
        first="logits",
        reason=_capped,
    ),
    Plant(
        fault="head-cap-added",
        name="a cap of 30",
        put=logits(_tanh(30.0)),
        first="logits",
        reason=_plain,
    ),
    Plant(
        fault="head-scale-missing",
        name="not divided",
        put=logits(lambda given, made, config: made),
        first="logits",
        reason=_divided,
    ),
    Plant(
        fault="head-scale-inverse",
        name="multiplied",
        put=logits(lambda given, made, config: made * config.logits_scaling),
        first="logits",
        reason=_divided,
    ),
    Plant(
        fault="head-scale-other",
        name="by the root of the channels",
        put=logits(lambda given, made, config: given * config.hidden_size**-0.5),
        first="logits",
        reason=_uncapped,
    ),
    Plant(
        fault="head-probabilities",
        name="logarithms of probabilities",
        put=logits(lambda given, made, config: given.log_softmax(-1)),
        first="logits",
    ),
    Plant(
        fault="head-probabilities",
        name="probabilities",
        put=logits(lambda given, made, config: given.softmax(-1)),
        first="logits",
    ),
    Plant(
        fault="head-shifted",
        name="those of the position before",
        put=logits(_later),
        first="logits",
        length=3,
    ),
    Plant(
        fault="head-padded-vocabulary",
        name="to a multiple of 64",
        put=_padded,
        first="head",
    ),
    Plant(
        fault="head-bias-added",
        name="a bias of the head",
        put=lambda at: setattr(
            at.model.lm_head,
            "bias",
            torch.nn.Parameter(torch.linspace(-1, 2, len(at.model.lm_head.weight))),
        ),
        first="head",
        equivalent=lambda config, dtype: "" if dtype == "float32" else "tried in float32",
    ),
    Plant(
        fault="weights-zeroed",
        name="the head",
        put=lambda at: setattr(
            at.model.lm_head,
            "weight",
            torch.nn.Parameter(torch.zeros_like(at.model.lm_head.weight), requires_grad=False),
        ),
        first="head",
    ),
)
