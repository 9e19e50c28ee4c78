"""Mistakes in the scaling of rotary frequencies, in transformers models."""

import math
from collections.abc import Callable
from typing import Any

import torch

from .plant import Plant, Planting, rope_of
from .rope import Put, frequencies, has_rope, unscaled

Tensor = torch.Tensor


def _of(kind: str) -> Callable[[Any], str]:
    """A reason for a model whose rotation is of another scaling type."""

    def reason(config: Any) -> str:
        own = rope_of(config).get("rope_type", "default")
        return has_rope(config) or ("" if own == kind else f"RoPE is of type {own}, not {kind}")

    return reason


def parameters(**changes: Any) -> Put:
    """A plant that makes the rotary module anew from other rope parameters."""

    def put(at: Planting) -> None:
        config = type(at.config).from_dict(at.config.to_dict())
        given = dict(config.rope_parameters)
        target = given["full_attention"] = dict(given["full_attention"]) if _apart(given) else given
        target.update({k: v(at.config) if callable(v) else v for k, v in changes.items()})
        if target.get("rope_type") == "default":
            kept = ("rope_type", "rope_theta", "partial_rotary_factor")
            for key in [key for key in target if key not in kept]:
                target.pop(key)
        config.rope_parameters = given
        at.model.model.rotary_emb = type(at.rotary())(config)

    return put


def _apart(given: dict[str, Any]) -> bool:
    return "full_attention" in given


def _raised(config: Any) -> float:
    """The base of NTK scaling, whatever the length of the sequence."""
    rope = rope_of(config)
    dim = config.head_dim
    return float(rope["rope_theta"] * rope["factor"] ** (dim / (dim - 2)))


def _hard_switch(at: Planting) -> None:
    rope, rotary = rope_of(at.config), at.rotary()
    size = 2 * len(rotary.inv_freq)
    plain = rope["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    waves = 2 * math.pi / plain
    long = waves > rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    rotary.inv_freq = torch.where(long, plain / rope["factor"], plain).float()


def _all_divided(at: Planting) -> None:
    rope, rotary = rope_of(at.config), at.rotary()
    size = 2 * len(rotary.inv_freq)
    plain = rope["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    rotary.inv_freq = (plain / rope["factor"]).float()


def _attention_scaling(change: Callable[[float], float]) -> Put:
    def put(at: Planting) -> None:
        at.rotary().attention_scaling = change(at.rotary().attention_scaling)

    return put


def _full_as_sliding(at: Planting) -> None:
    rotary = at.rotary()
    rotary.full_attention_inv_freq = rotary.sliding_attention_inv_freq.clone()


def _sliding_as_full(at: Planting) -> None:
    rotary = at.rotary()
    rotary.sliding_attention_inv_freq = rotary.full_attention_inv_freq.clone()


def _by_layer_type(config: Any) -> str:
    given = getattr(config, "rope_parameters", None) or {}
    return "" if _apart(given) else "all layers share one rotation"


def _first_kind(kind: str) -> Callable[[Any], str]:
    """A reason for a model whose first layer is not of that type: another layer fails first."""

    def reason(config: Any) -> str:
        why = _by_layer_type(config)
        return why or ("" if config.layer_types[0] == kind else f"layer 0 is not {kind}")

    return reason


def _no_passage(config: Any, dtype: str) -> str:
    rope, size = rope_of(config), int(config.head_dim)
    share = float(rope.get("partial_rotary_factor") or 1.0)
    pairs = int(size * share) // 2
    waves = [2 * math.pi * rope["rope_theta"] ** (i / pairs) for i in range(pairs)]
    turns = [rope["original_max_position_embeddings"] / wave for wave in waves]
    between = [t for t in turns if rope["low_freq_factor"] < t < rope["high_freq_factor"]]
    return "" if between else "no pair of a head turns so often that it lies in the passage"


def _usual_betas(config: Any, dtype: str) -> str:
    rope = rope_of(config)
    own = float(rope.get("beta_fast") or 32), float(rope.get("beta_slow") or 1)
    return "the config has these betas" if own == (32.0, 1.0) else ""


def _no_factor(config: Any, dtype: str) -> str:
    rope = rope_of(config)
    one = rope.get("attention_factor") == 1.0 or rope.get("factor") == 1.0
    return "the attention factor is 1" if one else ""


def _divide(by: float) -> Put:
    return frequencies(lambda f: f / by)


def _scaling(fault: str, name: str, put: Put, reason: Callable[[Any], str], **more: Any) -> Plant:
    given: dict[str, Any] = {"first": "attn.q_rope", "everywhere": True, "reason": reason} | more
    return Plant(fault=fault, name=name, put=put, **given)


def _first_full(config: Any) -> str:
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    apart = _apart(getattr(config, "rope_parameters", None) or {})
    return "layer 0 is not scaled" if apart and kinds[0] != "full_attention" else ""


def _both(*reasons: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda config: next((why for reason in reasons if (why := reason(config))), "")


PLANTS = (
    *(
        _scaling(
            *(f"rope-{kind}-ignored", "as type default", parameters(rope_type="default")),
            _both(_of(kind), _first_full),
            alike=("rope-twice", "rope-theta"),  # a factor of 2 is a second rotation
        )
        for kind in ("linear", "dynamic", "llama3", "yarn")
    ),
    _scaling(
        *("rope-linear-inverse", "divided twice"),
        parameters(factor=lambda config: rope_of(config)["factor"] ** 2),
        _both(_of("linear"), _first_full),
    ),
    _scaling(
        *("rope-linear-inverse", "multiplied"),
        parameters(factor=lambda config: 1 / rope_of(config)["factor"]),
        _both(_of("linear"), _first_full),
    ),
    _scaling("rope-linear-invented", "factor 4", _divide(4.0), _both(unscaled, has_rope)),
    _scaling(
        *("rope-dynamic-fixed", "base raised always"),
        parameters(rope_type="default", rope_theta=_raised),
        _of("dynamic"),
        alike=("rope-theta",),  # a raised base is another base
    ),
    _scaling(
        *("rope-llama3-constants", "those of Llama 3.1"),
        parameters(
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
        ),
        _of("llama3"),
    ),
    _scaling(
        *("rope-llama3-passage", "hard switch", _hard_switch, _of("llama3")),
        equivalent=_no_passage,
    ),
    _scaling("rope-yarn-ramp", "all divided", _all_divided, _of("yarn")),
    _scaling(
        *("rope-yarn-trained-length", "max_position_embeddings"),
        parameters(original_max_position_embeddings=lambda config: config.max_position_embeddings),
        _of("yarn"),
    ),
    _scaling(
        *("rope-yarn-truncate", "the other way"),
        parameters(truncate=lambda config: not rope_of(config).get("truncate", True)),
        _of("yarn"),
    ),
    _scaling(
        *("rope-yarn-betas", "32 and 1", parameters(beta_fast=32.0, beta_slow=1.0), _of("yarn")),
        alike=("rope-yarn-trained-length",),  # both ends are rounded to whole pairs
        equivalent=_usual_betas,
    ),
    _scaling(
        *("rope-attention-factor", "left out", _attention_scaling(lambda a: 1.0), _of("yarn")),
        equivalent=_no_factor,
    ),
    _scaling(
        *("rope-attention-factor", "twice", _attention_scaling(lambda a: a * a), _of("yarn")),
        equivalent=_no_factor,
    ),
    _scaling(
        "rope-layer-types", "full as sliding", _full_as_sliding, _first_kind("full_attention")
    ),
    _scaling(
        "rope-layer-types", "sliding as full", _sliding_as_full, _first_kind("sliding_attention")
    ),
)
