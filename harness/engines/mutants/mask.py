"""Mutants that break laws of masks, padding and windows."""

from collections.abc import Callable
from typing import Any

import torch

from ..plants.attending import window_of
from ..plants.plant import Planting, Tensor
from .mutant import Mutant, Put, plant


def _given(change: Callable[[Tensor, dict[str, Any], int], Tensor]) -> Put:
    """A mistake about the mask that a caller hands over: ``change(mask, kwargs, columns)``."""

    def arguments(kwargs: dict[str, Any], cache: Any) -> None:
        mask = kwargs.get("attention_mask")
        if mask is None:
            return
        columns = kwargs["input_ids"].shape[1] + (0 if cache is None else cache.get_seq_length())
        if isinstance(mask, dict):
            changed: Any = {kind: change(one, kwargs, columns) for kind, one in mask.items()}
        else:
            changed = change(mask, kwargs, columns)
        kwargs["attention_mask"] = changed

    return lambda at: at.arguments(arguments)


def _softened(mask: Tensor, kwargs: dict[str, Any], columns: int) -> Tensor:
    return mask.clamp(min=-5.0) if mask.is_floating_point() else mask


def _as_number(mask: Tensor, kwargs: dict[str, Any], columns: int) -> Tensor:
    return mask.float() if mask.dtype == torch.bool else mask


def _alone(mask: Tensor, kwargs: dict[str, Any], columns: int) -> Tensor:
    """A mask over columns without the causal one."""
    if mask.dim() > 2:
        return mask
    batch, length = kwargs["input_ids"].shape
    return torch.zeros(batch, 1, length, columns)


def _packing_ignored(at: Planting) -> None:
    """A mask over columns is made where there is none: then positions separate nothing."""

    def arguments(kwargs: dict[str, Any], cache: Any) -> None:
        if kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = torch.ones_like(kwargs["input_ids"])

    at.arguments(arguments)


def _keys_of_first_row(at: Planting) -> None:
    def attention(inner: Any, module: Any, q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> Any:
        return inner(module, q, k[:1].expand(k.shape), *args, **kwargs)

    at.attention(attention)


def _blind(at: Planting) -> None:
    """What is hidden is minus infinity, and a query that sees nothing is left so."""

    def attention(
        inner: Any, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        if mask is not None:
            mask = mask.masked_fill(mask < -1e30, float("-inf"))
        return inner(module, q, k, v, mask, **kwargs)

    at.attention(attention)


def _in_windows(put: Put) -> Put:
    """A mistake in layers with a window alone."""

    def windows(at: Planting) -> None:
        if window_of(at.config, at.layer) is not None:
            put(at)

    return windows


def _window(name: str, says: str, put: Put) -> Mutant:
    return Mutant(name=name, says=says, put=_in_windows(put), family="qwen3", everywhere=True)


MUTANTS = (
    Mutant(
        name="mask-softened",
        says="of a mask that is added nothing below -5 is left",
        put=_given(_softened),
    ),
    Mutant(
        name="mask-added-as-number",
        says="a mask of booleans is added to the scores as 0 and 1",
        put=_given(_as_number),
        attention="sdpa",
    ),
    Mutant(
        name="mask-replaces-causal",
        says="a mask over columns stands in the place of the causal one",
        put=_given(_alone),
    ),
    Mutant(
        name="mask-ahead",
        says="a query sees the next token",
        put=plant("mask-late", "one ahead").put,
    ),
    Mutant(
        name="mask-missing",
        says="a query sees all tokens",
        put=plant("mask-missing", "all keys").put,
    ),
    Mutant(
        name="packing-ignored",
        says="sequences in a row see those before them",
        put=_packing_ignored,
    ),
    Mutant(
        name="padding-ignored",
        says="pads are seen",
        put=plant("mask-padding-ignored", "no padding mask").put,
    ),
    Mutant(
        name="padding-mask-flipped",
        says="the mask of pads is of the other side",
        put=plant("mask-padding-flipped", "the other side").put,
    ),
    Mutant(
        name="padding-positions",
        says="pads count in positions",
        put=plant("input-padding-positions", "of columns, learned").put,
        family="gpt2",
    ),
    Mutant(
        name="keys-of-first-row",
        says="all rows of a batch read the keys of the first",
        put=_keys_of_first_row,
    ),
    Mutant(
        name="mask-blind",
        says="a query that sees nothing has a softmax over nothing",
        put=_blind,
    ),
    _window("window-narrow", "W - 1", plant("mask-window-narrow", "W - 1").put),
    _window("window-wide", "W + 1", plant("mask-window-wide", "W + 1").put),
    _window("window-missing", "full attention", plant("mask-window-missing", "full causal").put),
)
