"""Mistakes in token ids and positions, in transformers models."""

from collections.abc import Callable
from typing import Any

import torch

from .attending import Put
from .plant import Plant, Planting, Tensor, rope_of

_EMBED: dict[str, Any] = {"first": "embed"}


def _ids(change: Callable[[Tensor, Any], Tensor], *, always: bool = False) -> Put:
    """A plant that feeds other ids [B, T], with the prompt alone if it is not said otherwise."""

    def put(at: Planting) -> None:
        def arguments(kwargs: dict[str, Any], cache: Any) -> None:
            if always or cache is None or cache.get_seq_length() == 0:
                kwargs["input_ids"] = change(kwargs["input_ids"], at.config)

        at.arguments(arguments)

    return put


def _with_bos(ids: Tensor, config: Any) -> Tensor:
    return torch.cat([torch.full_like(ids[:, :1], config.bos_token_id), ids], 1)


def _with_eos(ids: Tensor, config: Any) -> Tensor:
    return torch.cat([ids, torch.full_like(ids[:, :1], config.eos_token_id)], 1)


def _one_other(ids: Tensor, config: Any) -> Tensor:
    ids = ids.clone()
    ids[:, 7] = (ids[:, 7] + 11) % config.vocab_size
    return ids


def _other_side(at: Planting) -> None:
    """Each row begins where the mask says that pads are, and the other way around."""

    def arguments(kwargs: dict[str, Any], cache: Any) -> None:
        mask, ids = kwargs.get("attention_mask"), kwargs["input_ids"]
        if mask is None or ids.shape[1] == 1:
            return
        pads = (mask == 0).sum(1).tolist()
        rows = [row.roll(-n) for row, n in zip(ids, pads, strict=True)]
        kwargs["input_ids"] = torch.stack(rows)

    at.arguments(arguments)


def _columns(at: Planting) -> None:
    """Positions of the columns, for all rows the same."""

    def arguments(kwargs: dict[str, Any], cache: Any) -> None:
        if "position_ids" in kwargs:
            ids = kwargs["position_ids"]
            start = 0 if cache is None else cache.get_seq_length()
            columns = start + torch.arange(ids.shape[1])
            kwargs["position_ids"] = columns.expand(ids.shape).contiguous()

    at.arguments(arguments)


def _token(key: str) -> Callable[[Any], str]:
    def reason(config: Any) -> str:
        token = getattr(config, key, None)
        inside = isinstance(token, int) and 0 <= token < config.vocab_size
        return "" if inside else f"the config names no {key}"

    return reason


def _rotates(config: Any) -> str:
    return "" if rope_of(config) else f"{config.model_type} has no rotary embedding"


def _learned(config: Any) -> str:
    return "positions are rotated" if rope_of(config) else ""


def _others(fault: str, name: str, put: Put, **kwargs: Any) -> Plant:
    """Ids that a table with its rows moved would give as well."""
    return _input(fault, name, put, alike=("embed-other-token",), **kwargs)


def _input(fault: str, name: str, put: Put, **kwargs: Any) -> Plant:
    return Plant(fault=fault, name=name, put=put, **(_EMBED | kwargs))


PLANTS = (
    _input(
        *("input-bos-doubled", "the first id twice"),
        _ids(lambda ids, config: torch.cat([ids[:, :1], ids], 1)),
    ),
    _input("input-bos-added", "in front", _ids(_with_bos), reason=_token("bos_token_id")),
    _input(
        *("input-bos-missing", "without the first id"),
        _ids(lambda ids, config: ids[:, 1:] if ids.shape[1] > 1 else ids),
    ),
    _input("input-eos-added", "behind", _ids(_with_eos), reason=_token("eos_token_id")),
    _input(
        *("input-token-lost", "the ninth id is missing"),
        _ids(lambda ids, config: torch.cat([ids[:, :8], ids[:, 9:]], 1)),
    ),
    _input(
        *("input-token-lost", "the ninth id twice"),
        _ids(lambda ids, config: torch.cat([ids[:, :9], ids[:, 8:]], 1)),
    ),
    _others(
        *("input-shifted", "to the right"),
        _ids(lambda ids, config: ids.roll(1, 1)),
    ),
    _others(
        *("input-shifted", "to the left"),
        _ids(lambda ids, config: torch.cat([ids[:, 1:], torch.zeros_like(ids[:, :1])], 1)),
    ),
    _others("input-reversed", "last first", _ids(lambda ids, config: ids.flip(1))),
    _others(
        *("input-offset", "plus 1"),
        _ids(lambda ids, config: (ids + 1) % config.vocab_size, always=True),
    ),
    _others("input-tokens", "one other", _ids(_one_other)),
    _input("input-padding-side", "on the right", _other_side, padding="left"),
    _input(
        *("input-padding-positions", "of columns", _columns),
        first="attn.q_rope",
        everywhere=True,
        padding="left",
        reason=_rotates,
    ),
    _input(
        *("input-padding-positions", "of columns, learned", _columns),
        first="pos_embed",
        padding="left",
        reason=_learned,
    ),
)
