"""Mistakes in scores and probabilities, in transformers models."""

import math
from collections.abc import Callable
from typing import Any

import torch

from .attending import Put, every, has_sinks, own, softmax
from .plant import Plant, Planting, Tensor

_SCORES: dict[str, Any] = {"first": "attn.scores", "fused": "attn.context"}
_PROBS: dict[str, Any] = {"first": "attn.probs", "fused": "attn.context"}
_CAPPED: dict[str, Any] = {
    "first": "attn.scores_capped",
    "fused": "attn.context",
    "everywhere": True,
}


def _scaling(change: Callable[[float, Any, Any], float]) -> Put:
    """A plant that gives the attention function another scale: of scale, config and module."""

    def put(at: Planting) -> None:
        def attention(inner: Any, module: Any, *args: Any, scaling: float, **kwargs: Any) -> Any:
            other = change(scaling, at.config, module)
            return inner(module, *args, scaling=other, **kwargs)

        at.attention(attention)

    return put


def _dim(config: Any) -> int:
    given = getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def _scale_of(config: Any) -> float:
    """The scale that a config names."""
    if config.model_type == "granite":
        return float(config.attention_multiplier)
    scalar = getattr(config, "query_pre_attn_scalar", None)
    return 1 / math.sqrt(scalar or _dim(config))


def _by_hidden_size(scale: float, config: Any, module: Any) -> float:
    return 1 / math.sqrt(config.hidden_size / config.num_attention_heads)


def _hidden_size_fits(config: Any) -> str:
    same = abs(_by_hidden_size(0, config, None) - _scale_of(config)) < 1e-9
    return "hidden_size / heads gives the configured scale" if same else ""


def _head_dim_fits(config: Any) -> str:
    same = abs(_dim(config) ** -0.5 - _scale_of(config)) < 1e-9
    return "the scale is that of head_dim" if same else ""


def _capped(cap: float) -> Callable[[Tensor, Any], Tensor]:
    return lambda scores, module: torch.tanh(scores / cap) * cap


def _cap_of(module: Any) -> float:
    return float(module.config.attn_logit_softcapping)


def _cap_raw(scores: Tensor, module: Any) -> Tensor:
    """Of scores that were scaled: what the cap makes of them before they are."""
    cap = _cap_of(module) * float(module.scaling)
    return torch.tanh(scores / cap) * cap


def _cap_at(share: float) -> Callable[[Tensor, Any], Tensor]:
    def cap(scores: Tensor, module: Any) -> Tensor:
        value = share * _cap_of(module)
        return torch.tanh(scores / value) * value

    return cap


def _cap_late(scores: Tensor, mask: Tensor) -> Tensor:
    """Of scores that are capped: hidden ones are capped as well."""
    seen = (scores + mask) > torch.finfo(scores.dtype).min / 2
    return torch.softmax(torch.where(seen, scores, -CAP).float(), -1)


#: The cap of the small models that plants are tried in.
CAP = 2.0


def _has_cap(config: Any) -> str:
    cap = getattr(config, "attn_logit_softcapping", None)
    return "" if cap == CAP else f"the config names no cap of {CAP:g}"


def _no_cap(config: Any) -> str:
    cap = getattr(config, "attn_logit_softcapping", None)
    return has_sinks(config) or ("" if cap is None else "the config names a cap")


def _in(dtype: torch.dtype, *, scores: bool, probs: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def weights(s: Tensor, mask: Tensor) -> Tensor:
        masked = s + mask
        seen = masked > torch.finfo(s.dtype).min / 2
        given = s.to(dtype).float() if scores else s.float()
        result = torch.softmax(given.masked_fill(~seen, float("-inf")), -1)
        return result.to(dtype).float() if probs else result

    return weights


def _over(axis: int) -> Callable[[Tensor, Tensor], Tensor]:
    def weights(s: Tensor, mask: Tensor) -> Tensor:
        masked = s + mask
        seen = masked > torch.finfo(s.dtype).min / 2
        return torch.softmax(masked.float(), axis) * seen

    return weights


def _undivided(s: Tensor, mask: Tensor) -> Tensor:
    masked = (s + mask).float()
    return torch.exp(masked - masked.amax(-1, keepdim=True))


def _plus_one(s: Tensor, mask: Tensor) -> Tensor:
    masked = (s + mask).float()
    more = torch.cat([masked, torch.zeros_like(masked[..., :1])], -1)
    return torch.softmax(more, -1)[..., :-1]


def _base_two(s: Tensor, mask: Tensor) -> Tensor:
    masked = (s + mask).float()
    powers = torch.exp2(masked - masked.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def _sigmoid(s: Tensor, mask: Tensor) -> Tensor:
    return torch.sigmoid((s + mask).float())


def _dropout(s: Tensor, mask: Tensor) -> Tensor:
    probs = torch.softmax((s + mask).float(), -1)
    kept = torch.rand(probs.shape, generator=torch.Generator().manual_seed(3)) >= 0.1
    return probs * kept / 0.9


def _unshifted(s: Tensor, mask: Tensor) -> Tensor:
    powers = torch.exp((s + mask).float())
    return powers / powers.sum(-1, keepdim=True)


def _narrow_scores(dtype: torch.dtype) -> Callable[[Tensor, Tensor, float, Any], Tensor]:
    def products(q: Tensor, k: Tensor, scale: float, module: Any) -> Tensor:
        product = torch.matmul(q.to(dtype).float(), k.to(dtype).float().transpose(2, 3))
        return (product * scale).to(q.dtype)

    return products


def _is_float32(config: Any, dtype: str) -> str:
    return "" if dtype == "float32" else "the model itself is narrow"


def _scale(fault: str, name: str, change: Any, **kwargs: Any) -> Plant:
    return Plant(fault=fault, name=name, put=_scaling(change), **(_SCORES | kwargs))


def _softmax(fault: str, name: str, probs: Any, **kwargs: Any) -> Plant:
    given = _PROBS | {"reason": has_sinks} | kwargs
    return Plant(fault=fault, name=name, put=own(probs=probs), **given)


def _gpt2(config: Any) -> str:
    return "" if config.model_type == "gpt2" else "scales of layers do not differ"


def _by_layer(config: Any) -> bool:
    return bool(getattr(config, "scale_attn_by_inverse_layer_idx", False))


PLANTS = (
    _scale("scale-missing", "1", lambda scale, config, module: 1.0),
    _scale("scale-twice", "its square", lambda scale, config, module: scale**2),
    _scale("scale-twice", "1 / D", lambda scale, config, module: 1 / _dim(config)),
    _scale("scale-hidden-size", "C / H", _by_hidden_size, reason=_hidden_size_fits),
    _scale(
        *("scale-head-dim", "1 / sqrt(D)"),
        lambda scale, config, module: _dim(config) ** -0.5,
        reason=_head_dim_fits,
        alike=("scale-hidden-size",),  # where C / H is the head dimension
    ),
    _scale("scale-upside-down", "1 / scale", lambda scale, config, module: 1 / scale),
    _scale(
        *("scale-of-layer", "applied"),
        lambda scale, config, module: scale / (module.layer_idx + 1),
        reason=lambda config: _gpt2(config) or ("it is" if _by_layer(config) else ""),
    ),
    _scale(
        *("scale-of-layer", "left out"),
        lambda scale, config, module: scale * (module.layer_idx + 1),
        reason=lambda config: "" if _by_layer(config) else "the config does not ask for it",
    ),
    _scale("scale-other", "1.1 times", lambda scale, config, module: scale * 1.1),
    _scale("scale-other", "0.999 times", lambda scale, config, module: scale * 0.999),
    Plant(
        fault="softcap-missing",
        name="as transformers leaves it out",
        put=lambda at: None,
        first="attn.probs",
        fused="attn.context",
        everywhere=True,
        reason=_has_cap,
    ),
    Plant(
        fault="softcap-before-scale",
        name="of raw scores",
        put=own(cap=_cap_raw, layers=every),
        reason=_has_cap,
        **_CAPPED,
    ),
    Plant(
        fault="softcap-other",
        name="half",
        put=own(cap=_cap_at(0.5), layers=every),
        reason=_has_cap,
        **_CAPPED,
    ),
    Plant(
        fault="softcap-after-mask",
        name="hidden scores capped",
        put=own(cap=_cap_at(1.0), probs=_cap_late, layers=every),
        reason=_has_cap,
        **(_CAPPED | {"first": "attn.probs"}),
    ),
    Plant(
        fault="softcap-invented",
        name="at 5",
        put=own(cap=_capped(5.0)),
        reason=_no_cap,
        **_PROBS,
    ),
    Plant(
        fault="scores-narrow",
        name="of bfloat16 operands",
        put=own(products=_narrow_scores(torch.bfloat16)),
        equivalent=_is_float32,
        **_SCORES,
    ),
    Plant(
        fault="scores-narrow",
        name="of float16 operands",
        put=own(products=_narrow_scores(torch.float16)),
        equivalent=_is_float32,
        **_SCORES,
    ),
    _softmax(
        *("softmax-narrow", "probabilities in bfloat16"),
        _in(torch.bfloat16, scores=False, probs=True),
        equivalent=_is_float32,
    ),
    _softmax(
        *("softmax-narrow", "all in bfloat16"),
        _in(torch.bfloat16, scores=True, probs=True),
        equivalent=_is_float32,
    ),
    _softmax(
        *("softmax-narrow", "all in float16"),
        _in(torch.float16, scores=True, probs=True),
        equivalent=_is_float32,
    ),
    _softmax("softmax-axis", "queries", _over(-2)),
    _softmax("softmax-axis", "heads", _over(1)),
    _softmax("softmax-undivided", "exp(x - max(x))", _undivided),
    _softmax("softmax-plus-one", "a key of score 0", _plus_one),
    _softmax("softmax-base-two", "exp2", _base_two),
    _softmax("softmax-sigmoid", "sigmoid", _sigmoid),
    _softmax(
        *("softmax-undivided", "exp(x), divided: no maximum is taken off"),
        _unshifted,
        equivalent=lambda config, dtype: "exp does not overflow below 88: the quotient is the same",
    ),
    Plant(
        fault="sinks-missing",
        name="a plain softmax",
        put=own(probs=softmax),
        reason=lambda config: "" if has_sinks(config) else "the softmax has no sinks",
        **_PROBS,
    ),
    _softmax("attention-dropout", "a tenth", _dropout, tapped=True),
)
