"""Mistakes in the formula of norms, in transformers models."""

from collections.abc import Callable
from typing import Any

import torch

from .plant import Plant, Planting, float32_only, replace_forward

Tensor = torch.Tensor

#: Normalises x [..., C] with an epsilon, before weight and bias.
Core = Callable[[Tensor, float], Tensor]

Put = Callable[[Planting], None]


def in_all_layers(put: Put) -> Put:
    """The same in every layer."""

    def everywhere(at: Planting) -> None:
        for layer in range(at.config.num_hidden_layers):
            at.layer = layer
            put(at)

    return everywhere


def gain(module: Any) -> Tensor:
    """What a norm multiplies by."""
    weight: Tensor = module.weight
    return 1 + weight if type(module).__name__.startswith("Gemma") else weight


def epsilon(module: Any) -> float:
    """Of a norm."""
    return float(module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps)


def is_layer_norm(config: Any) -> bool:
    """Whether norms subtract the mean."""
    return config.model_type in ("gpt2", "stablelm")


def from_one(config: Any) -> bool:
    """Whether weights of norms are stored as their distance from 1."""
    return str(config.model_type).startswith("gemma")


def shifted(module: Any, x: Tensor) -> Tensor:
    """What a norm divides."""
    return x - x.mean(-1, keepdim=True) if isinstance(module, torch.nn.LayerNorm) else x


def core(tap: str, change: Callable[[Any], Core]) -> Put:
    """A plant that normalises otherwise; ``change`` is given the module."""

    def put(at: Planting) -> None:
        module = at.module(tap)
        normalise = change(module)

        def forward(inner: Any, x: Tensor) -> Tensor:
            y = normalise(x, epsilon(module)) * gain(module)
            bias = getattr(module, "bias", None)
            return y if bias is None else y + bias

        replace_forward(module, forward)

    return put


def other_epsilon(times: float, *taps: str) -> Put:
    """A plant that multiplies epsilon."""

    def put(at: Planting) -> None:
        for tap in taps:
            module = at.module(tap)
            name = "variance_epsilon" if hasattr(module, "variance_epsilon") else "eps"
            setattr(module, name, getattr(module, name) * times)

    return put


def _outside(module: Any) -> Core:
    def normalise(x: Tensor, eps: float) -> Tensor:
        y = shifted(module, x)
        return y / (y.pow(2).mean(-1, keepdim=True).sqrt() + eps)

    return normalise


def _std(module: Any) -> Core:
    return lambda x, eps: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps)


def _mean(module: Any) -> Core:
    def normalise(x: Tensor, eps: float) -> Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps)

    return normalise


def _no_mean(module: Any) -> Core:
    return lambda x, eps: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _over(*axes: int) -> Callable[[Any], Core]:
    def change(module: Any) -> Core:
        def normalise(x: Tensor, eps: float) -> Tensor:
            y = shifted(module, x)
            return y * torch.rsqrt(y.pow(2).mean(axes, keepdim=True) + eps)

        return normalise

    return change


def _sum(module: Any) -> Core:
    def normalise(x: Tensor, eps: float) -> Tensor:
        y = shifted(module, x)
        return y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + eps)

    return normalise


def _unbiased(module: Any) -> Core:
    def normalise(x: Tensor, eps: float) -> Tensor:
        y = shifted(module, x)
        return y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) / (x.shape[-1] - 1) + eps)

    return normalise


def _swap_one(at: Planting) -> None:
    """Gemma's norm without its 1, any other with one."""
    module = at.module("attn_norm")
    if from_one(at.config):
        weight = module.weight
        replace_forward(module, lambda inner, x: _no_mean(module)(x, epsilon(module)) * weight)
    else:
        at.parameter("attn_norm", lambda weight: 1 + weight)


def _folded(at: Planting) -> None:
    at.parameter("attn_norm", lambda weight: weight + 1)


def _no_weight(at: Planting) -> None:
    def change(weight: Tensor) -> Tensor:
        return torch.zeros_like(weight) if from_one(at.config) else torch.ones_like(weight)

    at.parameter("mlp_norm", change)


def _bfloat16(at: Planting) -> None:
    def forward(inner: Any, x: Tensor) -> Tensor:
        y: Tensor = inner(x.bfloat16())
        return y.bfloat16().float()

    at.forward("attn_norm", forward)


def _half_input(at: Planting) -> None:
    at.forward("mlp_norm", lambda inner, x: inner(x.half().float()))


def _gain_in_float32(at: Planting) -> None:
    """The weight on the other side of the cast to the model's dtype."""
    module = at.module("attn_norm")

    def forward(inner: Any, x: Tensor) -> Tensor:
        y = _no_mean(module)(x.float(), epsilon(module))
        if from_one(at.config):
            return gain(module) * y.to(x.dtype)
        scaled: Tensor = module.weight.float() * y
        return scaled.to(x.dtype)

    replace_forward(module, forward)


def _rms_only(config: Any) -> str:
    return "its norms are LayerNorm" if is_layer_norm(config) else ""


def _layer_norm_only(config: Any) -> str:
    return "" if is_layer_norm(config) else "its norms are RMSNorm"


def _from_one_only(config: Any) -> str:
    return "" if from_one(config) else "weights of its norms are stored whole"


def _whole_only(config: Any) -> str:
    return _rms_only(config) or ("its norms add 1 themselves" if from_one(config) else "")


def _head_norms_only(config: Any) -> str:
    normed = ("qwen3", "qwen3_moe", "gemma3_text")
    return "" if config.model_type in normed else "queries and keys are not normed"


def _one_rounding(config: Any, dtype: str) -> str:
    if dtype == "float32":
        return "in float32 there is no cast"
    return "one more rounding in the model's dtype, which is within the bound of a norm"


PLANTS = (
    Plant(
        fault="norm-eps",
        name="a hundred times the config's epsilon",
        put=in_all_layers(other_epsilon(100, "attn_norm", "mlp_norm")),
        first="attn_norm",
        everywhere=True,
    ),
    Plant(
        fault="norm-eps",
        name="an epsilon of its own for the queries' norm",
        put=other_epsilon(123.4, "attn.q_norm"),
        first="attn.q_norm",
        reason=_head_norms_only,
    ),
    Plant(
        fault="norm-eps-outside",
        name="epsilon added to the root",
        put=in_all_layers(core("attn_norm", _outside)),
        first="attn_norm",
        everywhere=True,
    ),
    Plant(
        fault="norm-eps-outside",
        name="x.std() + eps",
        put=in_all_layers(core("attn_norm", _std)),
        first="attn_norm",
        everywhere=True,
        reason=_layer_norm_only,
    ),
    Plant(
        fault="norm-one-missing",
        name="weight in place of 1 + weight",
        put=_swap_one,
        first="attn_norm",
        reason=_from_one_only,
    ),
    Plant(
        fault="norm-one-added",
        name="1 + weight in place of weight",
        put=_swap_one,
        first="attn_norm",
        reason=_whole_only,
    ),
    Plant(
        fault="norm-one-added",
        name="1 folded into the weight, and added again",
        put=_folded,
        first="attn_norm",
        reason=_from_one_only,
    ),
    Plant(
        fault="norm-mean-subtracted",
        name="LayerNorm",
        put=core("attn_norm", _mean),
        first="attn_norm",
        reason=_rms_only,
    ),
    Plant(
        fault="norm-mean-subtracted",
        name="LayerNorm before the head",
        put=core("final_norm", _mean),
        first="final_norm",
        reason=_rms_only,
    ),
    Plant(
        fault="norm-mean-kept",
        name="RMSNorm with a bias",
        put=core("mlp_norm", _no_mean),
        first="mlp_norm",
        reason=_layer_norm_only,
    ),
    Plant(
        fault="norm-weight-missing",
        name="initial weight",
        put=_no_weight,
        first="mlp_norm",
    ),
    Plant(
        fault="norm-bias-missing",
        name="bias of 0",
        put=lambda at: at.parameter("attn_norm", torch.zeros_like, "bias"),
        first="attn_norm",
        reason=_layer_norm_only,
    ),
    Plant(
        fault="norm-cast-order",
        name="weight applied on the other side of the cast",
        put=_gain_in_float32,
        first="attn_norm",
        reason=_rms_only,
        equivalent=_one_rounding,
    ),
    Plant(
        fault="norm-low-precision",
        name="bfloat16",
        put=_bfloat16,
        first="attn_norm",
        reason=lambda config: _rms_only(config) and "LayerNorm's kernel takes one dtype",
        equivalent=float32_only,
    ),
    Plant(
        fault="norm-low-precision",
        name="its input in float16",
        put=_half_input,
        first="mlp_norm",
        equivalent=float32_only,
    ),
    Plant(
        fault="norm-axis",
        name="over the positions",
        put=core("mlp_norm", _over(-2)),
        first="mlp_norm",
    ),
    Plant(
        fault="norm-sum",
        name="the sum of squares",
        put=core("mlp_norm", _sum),
        first="mlp_norm",
    ),
    Plant(
        fault="norm-unbiased",
        name="n - 1",
        put=core("attn_norm", _unbiased),
        first="attn_norm",
    ),
)
