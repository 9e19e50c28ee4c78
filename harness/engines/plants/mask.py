"""Mistakes in masks, in transformers models."""

from typing import Any

import torch

from .attending import (
    Seen,
    every,
    full,
    has_both,
    has_sinks,
    has_window,
    masks,
    own,
    sliding,
    window_of,
)
from .plant import Plant, Planting, Tensor

_MASK: dict[str, Any] = {"first": "attn.mask", "fused": "attn.context"}
_PROBS: dict[str, Any] = {
    "first": "attn.probs",
    "fused": "attn.context",
    "reason": has_sinks,
}


def _full_layers(at: Planting) -> list[int]:
    return [n for n in every(at) if window_of(at.config, n) is None]


def _sliding_layers(at: Planting) -> list[int]:
    return [n for n in every(at) if window_of(at.config, n) is not None]


def _within(size: int | None) -> Any:
    def change(seen: Tensor, at: Seen) -> Tensor:
        return at.causal if size is None else at.causal & (at.distance < size)

    return change


def _changed_by(by: int) -> Any:
    def change(seen: Tensor, at: Seen) -> Tensor:
        return at.causal & (at.distance < (at.window or 0) + by)

    return change


def _reversed(seen: Tensor, at: Seen) -> Tensor:
    return (at.distance <= 0)[None, None]


def _strict(seen: Tensor, at: Seen) -> Tensor:
    past = seen & (at.distance > 0)
    blind = ~past.any(-1, keepdim=True)
    return past | (blind & (at.distance == 0))


def _late(seen: Tensor, at: Seen) -> Tensor:
    return seen | (at.distance == -1)


def _swapped(seen: Tensor, at: Seen) -> Tensor:
    if at.window is not None:
        return at.causal
    return at.causal & (at.distance < (at.widest or 0))


def _everywhere(seen: Tensor, at: Seen) -> Tensor:
    return at.causal & (at.distance < (at.widest or 0))


def _top_left(seen: Tensor, at: Seen) -> Tensor:
    length, keys = at.distance.shape
    return torch.ones(1, 1, length, keys, dtype=torch.bool).tril()


def _past_hidden(seen: Tensor, at: Seen) -> Tensor:
    length, keys = at.distance.shape
    return seen & (torch.arange(keys) >= keys - length)


def _no_padding(seen: Tensor, at: Seen) -> Tensor:
    now: Tensor = _within(at.window)(seen, at)
    return now.expand(seen.shape)


def _other_columns(seen: Tensor, at: Seen) -> Tensor:
    """What the last query sees says which columns are pads."""
    real = seen[:, :, -1:, :].flip(-1)
    mask = at.causal & real
    return mask | (~mask.any(-1, keepdim=True) & (at.distance == 0))


def _first_row(seen: Tensor, at: Seen) -> Tensor:
    first = seen[:1]
    blind = ~first.any(-1, keepdim=True)  # pads, which would have no softmax
    return (first | (blind & (at.distance == 0))).expand(seen.shape)


def _lowered(by: float) -> Any:
    def probs(scores: Tensor, mask: Tensor) -> Tensor:
        seen = (scores + mask) > torch.finfo(scores.dtype).min / 2
        return torch.softmax(torch.where(seen, scores, scores + by).float(), -1)

    return own(probs=probs)


def _filled(scores: Tensor, mask: Tensor) -> Tensor:
    seen = (scores + mask) > torch.finfo(scores.dtype).min / 2
    return torch.softmax((scores * seen).float(), -1)


def _as_number(scores: Tensor, mask: Tensor) -> Tensor:
    seen = (scores + mask) > torch.finfo(scores.dtype).min / 2
    return torch.softmax((scores + (~seen).to(scores.dtype)).float(), -1)


def _afterwards(scores: Tensor, mask: Tensor) -> Tensor:
    seen = (scores + mask) > torch.finfo(scores.dtype).min / 2
    return torch.softmax(scores.float(), -1) * seen


def _twice(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((scores + mask / 4 + mask / 2).float(), -1)


def _mask(fault: str, name: str, change: Any, **kwargs: Any) -> Plant:
    layers = kwargs.pop("layers", None)
    return Plant(fault=fault, name=name, put=masks(change, layers=layers), **(_MASK | kwargs))


PLANTS = (
    _mask("mask-missing", "all keys", lambda seen, at: torch.ones_like(seen), at=full),
    _mask(
        *("mask-missing", "the window's lower end alone"),
        lambda seen, at: (at.distance < at.window)[None, None],
        at=sliding,
        reason=has_window,
    ),
    _mask("mask-reversed", "upper triangle", _reversed),
    _mask("mask-strict", "not itself", _strict),
    _mask("mask-late", "one ahead", _late),
    _mask(
        *("mask-window-missing", "full causal", _within(None)),
        layers=_sliding_layers,
        at=lambda config, layer: sliding(config, 0),
        reason=has_window,
    ),
    _mask(
        *("mask-window-wide", "W + 1", _changed_by(1)),
        at=sliding,
        reason=has_window,
    ),
    _mask(
        *("mask-window-narrow", "W - 1", _changed_by(-1)),
        at=sliding,
        reason=has_window,
    ),
    _mask("mask-window-size", "W + 3", _changed_by(3), at=sliding, reason=has_window),
    _mask("mask-window-size", "9, of a full layer", _within(9), at=full),
    _mask(
        *("mask-window-everywhere", "all layers", _everywhere),
        layers=_full_layers,
        at=lambda config, layer: full(config, 0),
        reason=has_both,
    ),
    _mask(
        *("mask-window-swapped", "full for sliding", _swapped),
        layers=every,
        everywhere=True,
        reason=has_both,
    ),
    _mask("mask-corner", "top left", _top_left, at=full, chunk=1),
    _mask("mask-past-hidden", "new tokens alone", _past_hidden, chunk=1),
    _mask("mask-padding-ignored", "no padding mask", _no_padding, padding="left"),
    _mask("mask-padding-flipped", "the other side", _other_columns, at=full, padding="left"),
    _mask("mask-row-of-batch", "row 0 for all", _first_row, at=full, padding="left"),
    Plant(fault="mask-value", name="-5", put=_lowered(-5.0), **_PROBS),
    Plant(
        fault="mask-value",
        name="-10000",
        put=_lowered(-1e4),
        equivalent=lambda config, dtype: (
            "exp(-10000) is 0 in every dtype, and no row is all hidden"
        ),
        **_PROBS,
    ),
    Plant(
        fault="mask-value",
        name="added twice",
        put=own(probs=_twice),
        equivalent=lambda config, dtype: "what is hidden twice is hidden",
        **_PROBS,
    ),
    Plant(fault="mask-multiplied", name="times 0", put=own(probs=_filled), **_PROBS),
    Plant(fault="mask-multiplied", name="plus 1", put=own(probs=_as_number), **_PROBS),
    Plant(
        fault="mask-after-softmax",
        name="probabilities times 0",
        put=own(probs=_afterwards),
        **_PROBS,
    ),
)
