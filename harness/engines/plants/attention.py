"""Mistakes in which head reads what, in transformers models."""

from collections.abc import Callable
from typing import Any

import torch

from .attending import Put, own, updates
from .plant import Plant, Planting, Tensor, one_kv_head, only, replace_forward, rope_of

#: From the number of query heads and of kv heads to the kv head of each query head.
Order = Callable[[int, int], Tensor]


def _grouped(config: Any) -> str:
    kv = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if kv == 1 or kv == config.num_attention_heads:
        return "kv heads are one, or as many as heads: each order of repeating is the same"
    return ""


def _right(heads: int, kv_heads: int) -> Tensor:
    return torch.arange(kv_heads).repeat_interleave(heads // kv_heads)


def _reading(order: Order, which: str) -> Put:
    def kv(k: Tensor, v: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        usual, other = (f(heads, k.shape[1]) for f in (_right, order))
        return k[:, other if "k" in which else usual], v[:, other if "v" in which else usual]

    return own(kv=kv)


def _gqa(fault: str, name: str, order: Order, which: str, **kwargs: Any) -> Plant:
    words = {"k": "keys", "v": "values", "kv": "keys and values"}[which]
    first = "attn.context" if which == "v" else "attn.scores"
    return Plant(
        fault=fault,
        name=f"{name}, {words}",
        put=_reading(order, which),
        first=first,
        fused="attn.context",
        equivalent=one_kv_head,
        **kwargs,
    )


def _repeated_early(at: Planting) -> None:
    module = at.attention_module()
    times = module.num_key_value_groups
    module.num_key_value_groups = 1

    def change(inner: Any, k: Tensor, v: Tensor, layer: int, cache: Any, at: Planting) -> Any:
        k, v = inner(k, v)
        if layer != at.layer:
            return k, v
        return k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)

    updates(change)(at)


def _no_last_head(x: Tensor, module: Any) -> Tensor:
    x = x.clone()
    x[:, -1] = 0
    return x


def _merging(merge: Callable[[Tensor], Tensor]) -> Put:
    """A plant that changes what goes into the output projection; given heads [B, T, H, D]."""

    def put(at: Planting) -> None:
        dim = at.head_dim

        def call(inner: Any, x: Tensor) -> Any:
            return inner(merge(x.reshape(*x.shape[:2], -1, dim)).reshape(x.shape))

        at.forward("attn.out", call)

    return put


def _splitting(tap: str) -> Put:
    """A plant that cuts what a projection gives into heads the other way around."""

    def put(at: Planting) -> None:
        dim = at.head_dim

        def call(inner: Any, x: Tensor) -> Tensor:
            y: Tensor = inner(x)
            return y.reshape(*y.shape[:2], dim, -1).transpose(2, 3).reshape(y.shape)

        at.forward(tap, call)

    return put


def _cos_sin(at: Planting) -> dict[str, Tensor]:
    """Cosines and sines of the forward pass that goes on, as the layer is given them."""
    held: dict[str, Tensor] = {}

    def call(inner: Any, *args: Any, **kwargs: Any) -> Any:
        held["cos"], held["sin"] = kwargs["position_embeddings"]
        return inner(*args, **kwargs)

    replace_forward(at.attention_module(), call)
    return held


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads [B, K, T, D] rotated by cosines and sines [B, T, R]."""
    cos, sin, size = cos[:, None], sin[:, None], cos.shape[-1]
    part, rest = x[..., :size], x[..., size:]
    first, second = part.chunk(2, -1)
    return torch.cat([part * cos + torch.cat([-second, first], -1) * sin, rest], -1)


def _values_rotated(at: Planting) -> None:
    held = _cos_sin(at)

    def change(inner: Any, k: Tensor, v: Tensor, layer: int, cache: Any, at: Planting) -> Any:
        if layer == at.layer:
            v = turned(v, held["cos"], held["sin"])
        return inner(k, v)

    updates(change)(at)


def _from_other(own_tap: str, other_tap: str) -> Put:
    def put(at: Planting) -> None:
        other = at.module(other_tap)
        call = type(other).forward
        at.forward(own_tap, lambda inner, x: call(other, x))

    return put


def _exchanged(at: Planting) -> None:
    k, v = at.module("attn.k"), at.module("attn.v")
    forwards = k.forward, v.forward
    k.forward, v.forward = forwards[1], forwards[0]


def _fused(change: Callable[[Tensor, int], Tensor]) -> Put:
    """A plant that lays the channels of queries, keys and values out otherwise, behind the tap."""

    def put(at: Planting) -> None:
        module = at.attention_module()
        heads = at.config.num_attention_heads

        class Cut(Tensor):
            """What the projection gives, cut otherwise."""

            @classmethod
            def __torch_function__(
                cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                plain = [x.as_subclass(Tensor) if isinstance(x, Cut) else x for x in args]
                if func is torch.Tensor.split and isinstance(args[0], Cut):
                    plain[0] = change(plain[0], heads)
                return func(*plain, **(kwargs or {}))

        module.c_attn.register_forward_hook(lambda m, args, y: y.as_subclass(Cut))

    return put


def _keys_first(y: Tensor, heads: int) -> Tensor:
    q, k, v = y.chunk(3, -1)
    return torch.cat([k, q, v], -1)


def _head_by_head(y: Tensor, heads: int) -> Tensor:
    split = y.reshape(*y.shape[:2], heads, 3, -1)
    return split.transpose(2, 3).reshape(y.shape)


def _not_fused(config: Any) -> str:
    return f"{config.model_type} has one projection" if config.model_type == "gpt2" else ""


def _unrotated(config: Any) -> str:
    if config.model_type == "gpt_oss":
        return "its tables of cosines and sines have another form"
    return "" if rope_of(config) else f"{config.model_type} has no rotary embedding"


_GPT2 = only("gpt2", why="queries, keys and values have projections of their own")
_CONTEXT: dict[str, Any] = {"first": "attn.context"}
_OUT: dict[str, Any] = {"first": "attn.out"}

PLANTS = (
    *(
        _gqa("gqa-tiled", "tiled", lambda h, k: torch.arange(h) % k, which, reason=_grouped)
        for which in ("k", "v", "kv")
    ),
    *(
        _gqa(
            *("gqa-order", "reversed"),
            lambda h, k: k - 1 - _right(h, k),
            which,
        )
        for which in ("k", "v", "kv")
    ),
    _gqa("gqa-order", "one further", lambda h, k: (_right(h, k) + 1) % k, "kv"),
    _gqa("gqa-single", "the first", lambda h, k: torch.zeros(h, dtype=torch.long), "kv"),
    Plant(
        fault="gqa-repeated-early",
        name="in the cache's result",
        put=_repeated_early,
        first="attn.keys",
        cached=True,
        reason=_grouped,
    ),
    Plant(fault="heads-lost", name="the last is 0", put=own(context=_no_last_head), **_CONTEXT),
    Plant(
        fault="heads-order",
        name="one further",
        put=own(context=lambda x, module: x.roll(1, 1)),
        **_CONTEXT,
    ),
    Plant(
        fault="heads-order",
        name="reversed",
        put=own(context=lambda x, module: x.flip(1)),
        **_CONTEXT,
    ),
    Plant(
        fault="heads-merged-inside-out",
        name="[D, H]",
        put=_merging(lambda x: x.transpose(2, 3)),
        alike=("weights-heads",),
        **_OUT,
    ),
    Plant(
        fault="heads-merged-unmoved",
        name="not transposed",
        put=_merging(lambda x: x.transpose(1, 2).contiguous()),
        **_OUT,
    ),
    *(
        Plant(
            fault="heads-split-inside-out",
            name=f"[D, H] of {name}",
            put=_splitting(f"attn.{name}"),
            first=f"attn.{name}",
            reason=_not_fused,
            equivalent=one_kv_head if name in "kv" else lambda config, dtype: "",
        )
        for name in "qkv"
    ),
    Plant(
        fault="values-rotated",
        name="like keys",
        put=_values_rotated,
        first="attn.values",
        cached=True,
        reason=_unrotated,
    ),
    Plant(
        fault="weights-exchanged",
        name="values by k_proj",
        put=_from_other("attn.v", "attn.k"),
        first="attn.v",
        reason=_not_fused,
    ),
    Plant(
        fault="weights-exchanged",
        name="keys and values exchanged",
        put=_exchanged,
        first="attn.k",
        reason=_not_fused,
    ),
    Plant(
        fault="qkv-order",
        name="keys before queries",
        put=_fused(_keys_first),
        first="attn.q",
        reason=_GPT2,
    ),
    Plant(
        fault="qkv-interleaved",
        name="head by head",
        put=_fused(_head_by_head),
        first="attn.q",
        reason=_GPT2,
    ),
)
