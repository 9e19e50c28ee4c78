"""Mistakes in the KV cache, in transformers models."""

from collections.abc import Callable
from typing import Any

import torch

from .attending import Put, Seen, both, has_window, masks, sliding, updates, window_of
from .attention import turned
from .plant import Plant, Planting, Tensor, rope_of

_KEYS: dict[str, Any] = {"first": "attn.keys", "chunk": 1}

#: Of keys or values [B, K, S, D] that are read, the number of new ones and the layer: others.
Reading = Callable[[Tensor, int, int], Tensor]


def _reading(change: Reading, which: str = "kv", *, all_layers: bool = False) -> Put:
    """A plant that changes what a cache gives, and not what it holds."""

    def changed(inner: Any, k: Tensor, v: Tensor, layer: int, cache: Any, at: Planting) -> Any:
        new = k.shape[2]
        keys, values = inner(k, v)
        if layer != at.layer and not all_layers:
            return keys, values
        return (
            change(keys, new, layer) if "k" in which else keys,
            change(values, new, layer) if "v" in which else values,
        )

    return updates(changed)


def _of_past(change: Callable[[Tensor], Tensor]) -> Reading:
    """Changes what was stored by earlier forward passes."""

    def reading(x: Tensor, new: int, layer: int) -> Tensor:
        past = x.shape[2] - new
        return torch.cat([change(x[:, :, :past]), x[:, :, past:]], 2) if past else x

    return reading


def _resized(change: Callable[[Tensor, Seen], Tensor]) -> Put:
    """The mask made to fit another number of keys."""
    return masks(change)


def _stale(at: Planting) -> None:
    """Four positions of another sequence are in front of this one's."""

    def reading(x: Tensor, new: int, layer: int) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        shape = (*x.shape[:2], 4, x.shape[3])
        return torch.cat([torch.randn(shape, generator=generator).to(x.dtype), x], 2)

    def mask(seen: Tensor, at: Seen) -> Tensor:
        return torch.cat([torch.ones_like(seen[..., :1]).expand(*seen.shape[:3], 4), seen], -1)

    both(_reading(reading), _resized(mask))(at)


def _past_of(seen: Tensor, at: Seen) -> int:
    length, keys = at.distance.shape
    return keys - length


def _lost(x: Tensor, new: int, layer: int) -> Tensor:
    past = x.shape[2] - new
    return torch.cat([x[:, :, : past - 1], x[:, :, past:]], 2) if past else x


def _mask_of_lost(seen: Tensor, at: Seen) -> Tensor:
    return seen[..., 1:] if _past_of(seen, at) else seen


def _alone(x: Tensor, new: int, layer: int) -> Tensor:
    return x[:, :, -new:]


def _mask_alone(seen: Tensor, at: Seen) -> Tensor:
    return seen[..., -at.distance.shape[0] :]


def _early(x: Tensor, new: int, layer: int) -> Tensor:
    past = x.shape[2] - new
    return x[:, :, :past] if past else x


def _mask_early(seen: Tensor, at: Seen) -> Tensor:
    past = _past_of(seen, at)
    return seen[..., :past] if past else seen


def _empty_slot(past: Tensor) -> Tensor:
    past = past.clone()
    past[:, :, -1] = 0
    return past


def _in_front(x: Tensor, new: int, layer: int) -> Tensor:
    return torch.cat([x[:, :, -new:], x[:, :, :-new]], 2)


def _rotated(direction: int) -> Put:
    """Cached keys are rotated once more, or back, at the positions that they came from."""

    def put(at: Planting) -> None:
        held: dict[str, int] = {}
        rotary = at.rotary()
        kinds = getattr(at.config, "layer_types", None)
        apart = at.config.model_type == "gemma3_text"

        def changed(inner: Any, k: Tensor, v: Tensor, layer: int, cache: Any, at: Planting) -> Any:
            start = cache.get_seq_length() if layer == 0 else held.get("start", 0)
            held["start"] = start
            new = k.shape[2]
            keys, values = inner(k, v)
            past = keys.shape[2] - new
            if layer != at.layer or not past:
                return keys, values
            ids = (start - past + torch.arange(past))[None]
            more = (kinds[layer],) if apart and kinds else ()
            cos, sin = rotary(keys, ids, *more)
            again = turned(keys[:, :, :past], cos, sin * direction)
            return torch.cat([again, keys[:, :, past:]], 2), values

        updates(changed)(at)

    return put


def _window_short(x: Tensor, new: int, layer: int) -> Tensor:
    return x[:, :, 1:] if x.shape[2] > new else x


def _window_long(at: Planting) -> None:
    """One position more is held than the window has."""

    def changed(inner: Any, k: Tensor, v: Tensor, layer: int, cache: Any, at: Planting) -> Any:
        slot = cache.layers[layer]
        before = getattr(slot, "planted_past", None)
        keys, values = inner(k, v)
        if layer == at.layer:
            slot.planted_past = (
                keys[:, :, : -slot.keys.shape[2]],
                values[:, :, : -slot.keys.shape[2]],
            )
            if before is not None:
                keys = torch.cat([before[0][:, :, -1:], keys], 2)
                values = torch.cat([before[1][:, :, -1:], values], 2)
        return keys, values

    def mask(seen: Tensor, at: Seen) -> Tensor:
        return torch.cat([seen[..., :1], seen], -1) if at.past else seen

    both(updates(changed), masks(mask))(at)


def _cast(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype).to(x.dtype)


def _all(change: Callable[[Tensor], Tensor]) -> Reading:
    """What is new goes through the cache as well."""
    return lambda x, new, layer: change(x)


def _integers(axes: tuple[int, ...], most: int) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        wide = x.float()
        scale = wide.abs().amax(axes, keepdim=True) / most
        return (torch.round(wide / scale).to(torch.int8) * scale).to(x.dtype)

    return change


def _of_other_layer(at: Planting) -> None:
    """The layer reads what the layer before it stored."""

    def changed(inner: Any, k: Tensor, v: Tensor, layer: int, cache: Any, at: Planting) -> Any:
        keys, values = inner(k, v)
        if layer != at.layer or keys.shape[2] == k.shape[2]:
            return keys, values
        past = keys.shape[2] - k.shape[2]
        other = cache.layers[layer - 1].values
        wrong = other[:, :, other.shape[2] - k.shape[2] - past : other.shape[2] - k.shape[2]]
        if wrong.shape[2] != past:
            wrong = values[:, :, :past].flip(1)
        return keys, torch.cat([wrong, v], 2)

    updates(changed)(at)


def _places(change: Callable[[Tensor], Tensor]) -> Put:
    """A plant on the learned positions."""

    def put(at: Planting) -> None:
        at.forward("pos_embed", lambda inner, ids: inner(change(ids)))

    return put


def _cached(change: Callable[[Tensor], Tensor]) -> Put:
    return _places(lambda ids: change(ids) if int(ids.min()) > 0 else ids)


def _learned(config: Any) -> str:
    return "" if config.model_type == "gpt2" else f"{config.model_type} learns no positions"


def _rotates(config: Any) -> str:
    if config.model_type == "gpt_oss":
        return "its tables of cosines and sines have another form"
    return "" if rope_of(config) else f"{config.model_type} has no rotary embedding"


def _wide(config: Any, dtype: str) -> str:
    return "" if dtype == "float32" else "the model itself is narrow"


def _full(config: Any, layer: int) -> int:
    return next((n for n in (layer, 0, 1, 2) if window_of(config, n) is None), layer)


def _cache(fault: str, name: str, put: Put, **kwargs: Any) -> Plant:
    given = _KEYS | {"at": _full, "cached": True} | kwargs
    return Plant(fault=fault, name=name, put=put, **given)


def _narrow(name: str, put: Put, **kwargs: Any) -> Plant:
    return _cache("cache-narrow", name, put, equivalent=_wide, **kwargs)


PLANTS = (
    _cache("cache-stale", "four positions in front", _stale, chunk=0),
    _cache(
        *("cache-step-lost", "the last one is gone"),
        both(_reading(_lost), masks(_mask_of_lost)),
    ),
    _cache("cache-step-lost", "the last one is 0", _reading(_of_past(_empty_slot))),
    _cache(
        *("cache-not-extended", "new ones alone"),
        both(_reading(_alone), masks(_mask_alone)),
    ),
    _cache(
        *("cache-read-early", "old ones alone"),
        both(_reading(_early), masks(_mask_early)),
    ),
    _cache("cache-prepended", "in front", _reading(_in_front)),
    _cache("cache-rotated-again", "by their positions", _rotated(1), reason=_rotates),
    _cache("cache-unrotated", "rotated back", _rotated(-1), reason=_rotates),
    _cache(
        *("cache-window", "W - 1"),
        both(_reading(_window_short), masks(_mask_of_lost)),
        at=sliding,
        reason=has_window,
    ),
    _cache("cache-window", "W + 1", _window_long, at=sliding, reason=has_window),
    _narrow("all in bfloat16", _reading(_all(_cast(torch.bfloat16))), chunk=0),
    _narrow("all in float16", _reading(_all(_cast(torch.float16))), chunk=0),
    _narrow("the past in float16", _reading(_of_past(_cast(torch.float16)))),
    _narrow("the past in float8", _reading(_of_past(_cast(torch.float8_e4m3fn)))),
    _narrow(
        *("values in bfloat16", _reading(_all(_cast(torch.bfloat16)), "v")),
        first="attn.values",
        chunk=0,
    ),
    _cache(
        *("cache-integers", "int8, token and head"),
        _reading(_of_past(_integers((3,), 127))),
    ),
    _cache(
        *("cache-integers", "int8, all of it"),
        _reading(_all(_integers((1, 2, 3), 127))),
        chunk=0,
    ),
    _cache(
        "cache-rows", "moved by one", _reading(_of_past(lambda x: x.roll(1, 0))), padding="left"
    ),
    _cache(
        *("cache-foreign", "values of the layer before", _of_other_layer),
        first="attn.values",
        at=None,
    ),
    _cache(
        *("cache-foreign", "other numbers"),
        _reading(_of_past(lambda x: x.flip(-1))),
    ),
    _cache(
        *("position-restarted", "from 0", _cached(lambda ids: ids - ids.min())),
        first="pos_embed",
        reason=_learned,
    ),
    _cache(
        *("position-shifted", "one later", _places(lambda ids: ids + 1)),
        first="pos_embed",
        chunk=0,
        reason=_learned,
    ),
    _cache(
        *("position-shifted", "one later with a cache", _cached(lambda ids: ids + 1)),
        first="pos_embed",
        reason=_learned,
    ),
    _cache(
        *(
            "position-stuck",
            "at the prompt's length",
            _cached(lambda ids: torch.full_like(ids, 19)),
        ),
        first="pos_embed",
        reason=_learned,
        alike=("position-shifted",),
    ),
)
