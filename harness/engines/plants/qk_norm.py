"""Mistakes in the norms of queries and keys, in transformers models."""

from collections.abc import Callable
from typing import Any

import torch

from .attending import Put
from .attention import turned
from .plant import Plant, Planting, Tensor, one_kv_head, replace_forward


def _has_norms(config: Any) -> str:
    names = ("qwen3", "qwen3_moe", "gemma3_text")
    return "" if config.model_type in names else f"{config.model_type} does not normalise queries"


def _without(tap: str) -> Put:
    return lambda at: at.forward(tap, lambda inner, x: x)


def _factor(module: Any) -> Tensor:
    weight: Tensor = module.weight
    return weight + 1 if "Gemma" in type(module).__name__ else weight


def _normed(x: Tensor, module: Any, axes: tuple[int, ...]) -> Tensor:
    eps = getattr(module, "variance_epsilon", None) or module.eps
    wide = x.float()
    square = wide.pow(2).mean(axes, keepdim=True)
    return (wide * torch.rsqrt(square + eps) * _factor(module).float()).to(x.dtype)


def _joint(tap: str) -> Put:
    """One mean square of a token; heads lie before or behind the positions."""

    def put(at: Planting) -> None:
        module = at.module(tap)
        heads = 2 if at.config.model_type != "gemma3_text" else 1

        def call(inner: Any, x: Tensor) -> Tensor:
            return _normed(x, module, (heads, 3))

        replace_forward(module, call)

    return put


def _after(at: Planting) -> None:
    """The norms are no modules of the layer any more: they follow the rotation."""
    module = at.attention_module()
    norms = module._modules.pop("q_norm"), module._modules.pop("k_norm")
    module.q_norm = module.k_norm = _same

    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        both = (turned(x, cos, sin) for x in (q, k))
        q, k = (_normed(x, norm, (-1,)) for x, norm in zip(both, norms, strict=True))
        return q, k

    at.rotation(apply)


def _same(x: Tensor) -> Tensor:
    return x


def _plant(fault: str, name: str, put: Callable[[Planting], None], first: str, **kw: Any) -> Plant:
    return Plant(fault=fault, name=name, put=put, first=first, reason=_has_norms, **kw)


_TAPS = {"queries": "attn.q_norm", "keys": "attn.k_norm"}

PLANTS = (
    *(
        _plant(
            *("qk-norm-missing", f"of {what}", _without(tap), tap),
            alike=("norm-skipped",),
        )
        for what, tap in _TAPS.items()
    ),
    *(
        _plant(
            *("qk-norm-joint", f"of {what}", _joint(tap), tap),
            alike=("norm-axis",),
            equivalent=one_kv_head if what == "keys" else lambda config, dtype: "",
        )
        for what, tap in _TAPS.items()
    ),
    _plant("qk-norm-after-rope", "both", _after, "attn.q_rope"),
)
