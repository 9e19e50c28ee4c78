"""Parts of heads in the tensors of a checkpoint: what belongs to one head, in any layout."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .checkpoint_edit import Tensors
from .law import LawBroken
from .sizes import Sizes

#: Parts of heads: queries and what goes with them (the weight of their norm where each head has
#: its own, the sink), keys, values, and what of the output projection reads a head.
QUERY, KEY, VALUE, OUTPUT = "q", "k", "v", "o"

_ATTENTION = r"(?:.*\.)?(?:layers|h)\.{layer}\.(?:self_attn|attn)\."


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where the heads of a part lie in a tensor.

    Attributes:
        name: Of the tensor.
        axis: Along which heads lie one behind the other.
        start: Of the first of them.
        each: Elements of a head along that axis.
    """

    name: str
    axis: int
    start: int
    each: int


def take(
    tensors: Tensors, sizes: Sizes, part: str, order: Sequence[int], *, layer: int | None = None
) -> None:
    """Let heads be others: the first becomes what ``order[0]`` was, and so on.

    Args:
        tensors: Changed in place.
        sizes: Of the model as it was.
        part: Which part of heads.
        order: Numbers of heads, any number of them.
        layer: In which layer; None for all.
    """
    count = _count(sizes, part)
    for n in _layers(sizes, layer):
        for slot in _slots(tensors, sizes, n, part):
            whole = np.moveaxis(tensors[slot.name], slot.axis, 0)
            end = slot.start + count * slot.each
            heads = whole[slot.start : end].reshape(count, slot.each, *whole.shape[1:])
            taken = heads[list(order)].reshape(-1, *whole.shape[1:])
            made = np.concatenate([whole[: slot.start], taken, whole[end:]])
            tensors[slot.name] = np.moveaxis(made, 0, slot.axis)
        _take_apart(tensors, n, part, order)


def scale(
    tensors: Tensors, sizes: Sizes, part: str, by: Sequence[float], *, layer: int | None = None
) -> None:
    """Multiply each head's part of a projection by a number of its own.

    Args:
        tensors: Changed in place.
        sizes: Of the model.
        part: Values or the output projection: neither goes through a norm of heads.
        by: A number for each head.
        layer: In which layer; None for all.
    """
    for n in _layers(sizes, layer):
        for slot in _slots(tensors, sizes, n, part):
            made = np.moveaxis(tensors[slot.name], slot.axis, 0).copy()
            end = slot.start + len(by) * slot.each
            factors = np.repeat(np.asarray(by, made.dtype), slot.each)
            made[slot.start : end] *= factors.reshape(-1, *[1] * (made.ndim - 1))
            tensors[slot.name] = np.moveaxis(made, 0, slot.axis)


def _layers(sizes: Sizes, layer: int | None) -> range:
    return range(sizes.layers) if layer is None else range(layer, layer + 1)


def _count(sizes: Sizes, part: str) -> int:
    return sizes.kv_heads if part in (KEY, VALUE) else sizes.heads


def _slots(tensors: Tensors, sizes: Sizes, layer: int, part: str) -> list[_Slot]:
    attention = re.compile(_ATTENTION.format(layer=layer) + r"(.+)")
    named = {m[1]: name for name in tensors if (m := attention.fullmatch(name))}
    size = sizes.head_dim
    if "c_attn.weight" in named:  # GPT-2: one projection, and matrices are [in, out]
        if part == OUTPUT:
            return [_Slot(named["c_proj.weight"], 0, 0, size)]
        start = (QUERY, KEY, VALUE).index(part) * sizes.channels
        both = (_Slot(named["c_attn.weight"], 1, start, size),)
        return [*both, _Slot(named["c_attn.bias"], 0, start, size)]
    places = {f"{part}_proj.weight": 1 if part == OUTPUT else 0}
    if part != OUTPUT:
        places[f"{part}_proj.bias"] = 0
    found = [_Slot(named[name], axis, 0, size) for name, axis in places.items() if name in named]
    if part == QUERY and "sinks" in named:
        found.append(_Slot(named["sinks"], 0, 0, 1))
    if not found:
        raise LawBroken(
            f"the checkpoint's layer {layer}",
            expected=f"a tensor {part}_proj.weight or c_attn.weight of attention",
            found=", ".join(sorted(named)) or "none",
            crashed=True,
        )
    return found


def _take_apart(tensors: Tensors, layer: int, part: str, order: Sequence[int]) -> None:
    """Weights of norms that are a tensor for each head, as StableLM has them."""
    pattern = _ATTENTION.format(layer=layer) + rf"({part}_layernorm\.norms\.)(\d+)(\..+)"
    apart = {name: m for name in tensors if (m := re.fullmatch(pattern, name))}
    kept = {name: tensors.pop(name) for name in apart}
    for name, match in apart.items():
        prefix, number = name[: match.start(2)], int(match[2])
        for new, old in enumerate(order):
            if old == number:
                tensors[f"{prefix}{new}{match[3]}"] = kept[name]
