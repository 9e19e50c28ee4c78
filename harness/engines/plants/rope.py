"""Mistakes in rotary embeddings, in transformers models."""

from collections.abc import Callable
from typing import Any

import torch

from .plant import Plant, Planting, replace_forward, rope_of

Tensor = torch.Tensor
Put = Callable[[Planting], None]


def has_rope(config: Any) -> str:
    """A reason for a model without rotary embeddings."""
    return "" if rope_of(config) else f"{config.model_type} has no rotary embedding"


def unscaled(config: Any) -> str:
    """A reason for a model whose frequencies are not plain powers of theta."""
    kind = rope_of(config).get("rope_type", "default")
    return has_rope(config) or ("" if kind == "default" else "frequencies are scaled")


def fixed(config: Any) -> str:
    """A reason for a model that makes its frequencies anew in every forward pass."""
    kind = rope_of(config).get("rope_type", "default")
    return has_rope(config) or ("frequencies are made as it runs" if kind == "dynamic" else "")


def frequencies(change: Callable[[Tensor], Tensor]) -> Put:
    """A plant that replaces the rotary frequencies [R/2] of all layers."""

    def put(at: Planting) -> None:
        rotary = at.rotary()
        for name in [n for n, _ in rotary.named_buffers() if n.endswith("inv_freq")]:
            setattr(rotary, name, change(getattr(rotary, name).clone()))

    return put


def positions(change: Callable[[Tensor], Tensor]) -> Put:
    """A plant that rotates at other positions [B, T]."""

    def put(at: Planting) -> None:
        def call(inner: Any, x: Tensor, position_ids: Tensor, *args: Any, **kw: Any) -> Any:
            return inner(x, change(position_ids), *args, **kw)

        replace_forward(at.rotary(), call)

    return put


def tables(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Put:
    """A plant that changes cosines and sines [B, T, R] after they are made."""

    def put(at: Planting) -> None:
        def call(inner: Any, *args: Any, **kw: Any) -> Any:
            return change(*inner(*args, **kw))

        replace_forward(at.rotary(), call)

    return put


def rotation(rotate: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Put:
    """A plant that rotates the queries and keys of one layer by ``rotate(x, cos, sin)``."""

    def put(at: Planting) -> None:
        once = _pairs_once(at.config)

        def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
            cos, sin = (torch.cat([t, t], -1) if once else t for t in (cos, sin))
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
            return rotate(q, cos, sin), rotate(k, cos, sin)

        at.rotation(apply)

    return put


def _pairs_once(config: Any) -> bool:
    """Whether tables of cosines and sines hold each pair once, [B, T, R/2]."""
    return bool(config.model_type == "gpt_oss")


def _half_rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotation as it should be."""
    size = cos.shape[-1]
    part = x[..., :size]
    return torch.cat([part * cos + _half_rotated(part) * sin, x[..., size:]], dim=-1)


def _neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    size = cos.shape[-1]
    x, rest = x[..., :size], x[..., size:]
    c, s = cos[..., : size // 2], sin[..., : size // 2]
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([even * c - odd * s, odd * c + even * s], dim=-1).flatten(-2)
    return torch.cat([turned, rest], dim=-1)


def _laid_out_as_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    size = cos.shape[-1]
    x, rest = x[..., :size], x[..., size:]
    turned = x * cos + _half_rotated(x) * sin
    mixed = torch.stack(turned.chunk(2, dim=-1), dim=-1).flatten(-2)
    return torch.cat([mixed, rest], dim=-1)


def _without_minus(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    size = cos.shape[-1]
    x, rest = x[..., :size], x[..., size:]
    first, second = x.chunk(2, dim=-1)
    return torch.cat([x * cos + torch.cat([second, first], dim=-1) * sin, rest], dim=-1)


def _first_half_alone(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    size = x.shape[-1] // 2
    c, s = (torch.cat([t[..., : size // 2]] * 2, dim=-1) for t in (cos, sin))
    part = x[..., :size]
    return torch.cat([part * c + _half_rotated(part) * s, x[..., size:]], dim=-1)


def other_theta(theta: float) -> Put:
    """A plant that makes frequencies of another base."""

    def change(old: Tensor) -> Tensor:
        size = 2 * len(old)
        return (theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)).float()

    return frequencies(change)


def _is_theta(theta: float) -> Callable[[Any, str], str]:
    def equivalent(config: Any, dtype: str) -> str:
        return "the config has this theta" if rope_of(config).get("rope_theta") == theta else ""

    return equivalent


def _cached_step(change: Callable[[Tensor], Tensor]) -> Put:
    """A plant on the positions of forward passes behind the first."""
    return positions(lambda ids: change(ids) if int(ids.min()) > 0 else ids)


def _cast(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype).to(x.dtype)


def _narrow_angles(dtype: torch.dtype) -> Put:
    """Angles are formed in a narrow dtype, cosines and sines in float32."""

    def put(at: Planting) -> None:
        rotary = at.rotary()

        def call(
            inner: Any, x: Tensor, position_ids: Tensor, layer_type: str = "", **kw: Any
        ) -> Any:
            ids = position_ids
            name = f"{layer_type}_" if layer_type else ""
            scale = getattr(rotary, f"{name}attention_scaling", 1.0)
            frequency = getattr(rotary, f"{name}inv_freq").to(dtype)
            angles = (ids[..., None].to(dtype) * frequency).float()
            if not _pairs_once(at.config):
                angles = torch.cat([angles, angles], dim=-1)
            return (angles.cos() * scale).to(x.dtype), (angles.sin() * scale).to(x.dtype)

        replace_forward(rotary, call)

    return put


def _whole_head(config: Any) -> str:
    share = rope_of(config).get("partial_rotary_factor", 1.0)
    return has_rope(config) or ("" if share in (None, 1.0) else "only a part is rotated")


def _narrow_model(config: Any, dtype: str) -> str:
    return "" if dtype == "float32" else "a narrow model holds cosines and sines in its own dtype"


def _positions_exact(config: Any, dtype: str) -> str:
    return "positions up to 256 are bfloat16 numbers; this prompt has none beyond"


def _rope(fault: str, name: str, put: Put, **kwargs: Any) -> Plant:
    """A plant that shows at the rotated queries, of all layers if it is not said otherwise."""
    given: dict[str, Any] = {
        "first": "attn.q_rope",
        "everywhere": True,
        "reason": has_rope,
    } | kwargs
    return Plant(fault=fault, name=name, put=put, **given)


PLANTS = (
    _rope("rope-pairing", "neighbours", rotation(_neighbours), everywhere=False),
    _rope(
        "rope-output-layout", "as neighbours", rotation(_laid_out_as_neighbours), everywhere=False
    ),
    _rope(
        *("rope-theta", "theta 10,000", other_theta(1e4)),
        reason=unscaled,
        equivalent=_is_theta(1e4),
    ),
    _rope("rope-theta", "theta 1,000,000", other_theta(1e6), reason=unscaled),
    _rope("rope-theta", "theta 99,000", other_theta(99e3), reason=unscaled),
    _rope("rope-exponent", "i/D", frequencies(torch.sqrt), reason=unscaled, alike=("rope-theta",)),
    _rope("rope-frequencies-reversed", "reversed", frequencies(lambda f: f.flip(0)), reason=fixed),
    _rope(
        "rope-missing",
        "not rotated",
        rotation(lambda x, cos, sin: x),
        everywhere=False,
        alike=("rope-position-zero",),
    ),
    _rope(
        "rope-twice",
        "twice",
        rotation(lambda x, c, s: _turn(_turn(x, c, s), c, s)),
        everywhere=False,
        alike=("rope-linear-ignored",),
    ),
    _rope("rope-direction", "minus sine", tables(lambda cos, sin: (cos, -sin))),
    _rope("rope-sign", "plus", rotation(_without_minus), everywhere=False),
    _rope("rope-sin-cos", "exchanged", tables(lambda cos, sin: (sin, cos))),
    _rope(
        "rope-partial-applied",
        "first half alone",
        rotation(_first_half_alone),
        everywhere=False,
        reason=_whole_head,
    ),
    _rope("rope-offset", "one later", positions(lambda ids: ids + 1)),
    _rope("rope-offset", "two earlier", positions(lambda ids: ids - 2)),
    _rope("rope-position-zero", "0", positions(torch.zeros_like), alike=("rope-missing",)),
    _rope(
        "rope-position-restarted",
        "from 0",
        _cached_step(lambda ids: ids - ids.min()),
        chunk=1,
        alike=("rope-position-zero", "rope-missing"),
    ),
    _rope(
        "rope-position-stuck",
        "one earlier",
        _cached_step(lambda ids: ids - 1),
        chunk=1,
        alike=("rope-offset",),
    ),
    _rope("rope-table-short", "ends at 9", positions(lambda ids: ids.clamp(max=9))),
    _rope("rope-table-short", "begins again at 8", positions(lambda ids: ids % 8)),
    _rope(
        "rope-positions-narrow",
        "bfloat16",
        positions(_cast(torch.bfloat16)),
        equivalent=_positions_exact,
    ),
    _rope("rope-frequencies-narrow", "bfloat16", frequencies(_cast(torch.bfloat16)), reason=fixed),
    _rope("rope-frequencies-narrow", "float16", frequencies(_cast(torch.float16)), reason=fixed),
    _rope("rope-angles-narrow", "bfloat16", _narrow_angles(torch.bfloat16), reason=fixed),
    _rope("rope-angles-narrow", "float16", _narrow_angles(torch.float16), reason=fixed),
    _rope(
        *("rope-tables-narrow", "bfloat16"),
        tables(lambda cos, sin: (_cast(torch.bfloat16)(cos), _cast(torch.bfloat16)(sin))),
        equivalent=_narrow_model,
    ),
    _rope(
        *("rope-tables-narrow", "float16"),
        tables(lambda cos, sin: (_cast(torch.float16)(cos), _cast(torch.float16)(sin))),
        equivalent=_narrow_model,
    ),
)
