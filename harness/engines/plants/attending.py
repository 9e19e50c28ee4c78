"""Attention in torch for the plants, and where masks and caches can be reached in a model."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..hf import cache_argument
from .plant import Planting, Tensor, replace_forward

Put = Callable[[Planting], None]

#: Booleans [B, 1, T, S] of what is seen, changed.
Sight = Callable[[Tensor, "Seen"], Tensor]


class Seen:
    """What a change of the mask may ask.

    Args:
        distance: [T, S], how far each key is behind each query, by columns.
        window: Of the layer, None for full attention.
        widest: Of any layer, None where none has one.
        past: Number of columns before this forward pass.
    """

    def __init__(self, distance: Tensor, window: int | None, widest: int | None, past: int) -> None:
        self.distance = distance
        self.window = window
        self.widest = widest
        self.past = past

    @property
    def causal(self) -> Tensor:
        """Booleans [1, 1, T, S] without a window."""
        return (self.distance >= 0)[None, None]


def window_of(config: Any, layer: int) -> int | None:
    """Size of a layer's window, None for full attention."""
    kinds = getattr(config, "layer_types", None)
    if not kinds or kinds[layer] != "sliding_attention":
        return None
    return int(config.sliding_window)


def sliding(config: Any, layer: int) -> int:
    """The next layer with a window, from the one that is asked for on."""
    return _next(config, layer, slides=True)


def full(config: Any, layer: int) -> int:
    """The next layer without a window, from the one that is asked for on."""
    return _next(config, layer, slides=False)


def _next(config: Any, layer: int, *, slides: bool) -> int:
    count = config.num_hidden_layers
    order = [*range(layer, count), *range(layer)]
    fit = [n for n in order if (window_of(config, n) is not None) == slides]
    return fit[0] if fit else layer


def has_window(config: Any) -> str:
    """A reason for models without a sliding layer."""
    slides = any(window_of(config, n) for n in range(config.num_hidden_layers))
    return "" if slides else "no layer has a window"


def has_both(config: Any) -> str:
    """A reason for models that do not have sliding and full layers."""
    kinds = {window_of(config, n) is None for n in range(config.num_hidden_layers)}
    return "" if len(kinds) == 2 else "all layers are of one type"


def every(at: Planting) -> list[int]:
    """All layers."""
    return list(range(at.config.num_hidden_layers))


def masks(change: Sight, *, layers: Callable[[Planting], Sequence[int]] | None = None) -> Put:
    """A plant that changes which keys are seen, in this layer or in some."""

    def put(at: Planting) -> None:
        name = cache_argument(at.model)
        fused = at.config._attn_implementation not in (None, "eager")
        for layer in [at.layer] if layers is None else layers(at):
            call = functools.partial(_masked, change, at.config, layer, name, fused=fused)
            replace_forward(at.attention_module(layer), call)

    return put


def _masked(
    change: Sight,
    config: Any,
    layer: int,
    name: str,
    inner: Callable[..., Any],
    *args: Any,
    fused: bool,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    x = args[0] if args else kwargs["hidden_states"]
    length, cache = x.shape[1], kwargs.get(name)
    keys = length if cache is None else cache.layers[layer].get_mask_sizes(length)[0]
    past = 0 if cache is None else cache.layers[layer].get_seq_length()
    rows, columns = torch.arange(length), torch.arange(keys)
    distance = (keys - length + rows)[:, None] - columns
    widest = getattr(config, "sliding_window", None)
    seen = Seen(distance, window_of(config, layer), widest, past)
    if attention_mask is None:
        now = seen.causal
    elif attention_mask.dtype == torch.bool:
        now = attention_mask
    else:
        now = attention_mask == 0
    changed = change(now, seen)
    if not fused:
        lowest = torch.finfo(x.dtype).min
        changed = torch.zeros(changed.shape, dtype=x.dtype).masked_fill(~changed, lowest)
    return inner(*args, attention_mask=changed, **kwargs)


def own(
    *,
    kv: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]] | None = None,
    products: Callable[[Tensor, Tensor, float, Any], Tensor] | None = None,
    probs: Callable[[Tensor, Tensor], Tensor] | None = None,
    context: Callable[[Tensor, Any], Tensor] | None = None,
    cap: Callable[[Tensor, Any], Tensor] | None = None,
    layers: Callable[[Planting], list[int]] | None = None,
) -> Put:
    """A plant that writes attention out, with some of its parts changed.

    Args:
        kv: Keys and values [B, K, S, D] to [B, H, S, D], H given.
        products: Queries [B, H, T, D], keys [B, H, S, D], the scale and the module to the scores.
        cap: Scores to capped scores.
        probs: Scores and an additive mask to probabilities.
        context: Context [B, H, T, D] to another.
        layers: In which layers; this one if None.
    """

    def attention(
        inner: Any,
        module: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> Any:
        scale = q.shape[-1] ** -0.5 if scaling is None else scaling
        keys, values = (repeat if kv is None else kv)(k, v, q.shape[1])
        make = _products if products is None else products
        scores = make(q, keys, scale, module)
        if cap is not None:
            scores = cap(scores, module)
        hide = additive(mask, q, keys)
        weights = probs(scores, hide) if probs is not None else _usual(scores, hide, module)
        result = torch.matmul(weights.to(values.dtype), values)
        if context is not None:
            result = context(result, module)
        return result.transpose(1, 2).contiguous(), weights.to(values.dtype)

    def put(at: Planting) -> None:
        at.attention(attention, layers=None if layers is None else layers(at))

    return put


def repeat(k: Tensor, v: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Each kv head for its group of query heads."""
    times = heads // k.shape[1]
    return k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)


def _products(q: Tensor, k: Tensor, scale: float, module: Any) -> Tensor:
    return torch.matmul(q, k.transpose(2, 3)) * scale


def softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Over the keys, in float32."""
    return torch.softmax(scores + mask, dim=-1, dtype=torch.float32)


def _usual(scores: Tensor, mask: Tensor, module: Any) -> Tensor:
    """The softmax of the model, with its sinks where it has some."""
    sinks = getattr(module, "sinks", None)
    if sinks is None:
        return softmax(scores, mask)
    last = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
    return softmax(torch.cat([scores + mask, last], -1), torch.zeros(()))[..., :-1]


def has_sinks(config: Any) -> str:
    """A reason for models whose softmax has a sink: the plants write it out without."""
    return "the softmax has sinks" if config.model_type == "gpt_oss" else ""


def additive(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor:
    """A mask that is added: what was given, where it is one; a causal one for none."""
    if mask is None:
        length, keys = q.shape[2], k.shape[2]
        rows = keys - length + torch.arange(length)
        mask = (rows[:, None] >= torch.arange(keys))[None, None]
    if mask.dtype != torch.bool:
        return mask
    lowest = torch.finfo(q.dtype).min
    return torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, lowest)


def updates(change: Callable[..., tuple[Tensor, Tensor]]) -> Put:
    """A plant that changes what caches take and give: ``change(inner, k, v, layer, cache, at)``.

    ``inner(k, v)`` stores new keys and values and returns all.
    """

    def put(at: Planting) -> None:
        def watch(kwargs: dict[str, Any], cache: Any) -> None:
            if cache is None or getattr(cache, "planted", False):
                return
            cache.planted = True
            update = cache.update

            def changed(k: Tensor, v: Tensor, layer: int, *args: Any, **kw: Any) -> Any:
                def inner(k: Tensor, v: Tensor) -> Any:
                    return update(k, v, layer, *args, **kw)

                return change(inner, k, v, layer, cache, at)

            cache.update = changed

        at.arguments(watch)

    return put


def both(*puts: Put) -> Put:
    """Several plants at once."""

    def put(at: Planting) -> None:
        for one in puts:
            one(at)

    return put
