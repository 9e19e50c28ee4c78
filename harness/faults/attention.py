"""Mistakes in which head reads what: grouped heads, their order, values, fused projections."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from .attending import already, attend, context_by, groups, parts, rotations, scores_by, turned
from .attending import start_of as _start
from .fault import Fault, Instead, Site, Variant

Array = NDArray[Any]

#: From the number of query heads and of kv heads to the kv head of each query head, with words.
Order = Callable[[int, int], Iterator[tuple[Array, str]]]

_GROUPED = ("attn.scores", "attn.context")
_KV = ("attn.k", "attn.v", "attn.k_norm", "attn.k_rope", "attn.keys", "attn.values")
_PROJECTED = ("attn.q", "attn.k", "attn.v")


def _tiled(heads: int, kv_heads: int) -> Iterator[tuple[Array, str]]:
    if 1 < kv_heads < heads:
        yield np.arange(heads) % kv_heads, f"query head h reads kv head h % {kv_heads}"


def _shuffled(heads: int, kv_heads: int) -> Iterator[tuple[Array, str]]:
    right = groups(heads, kv_heads)
    if kv_heads > 1:
        yield kv_heads - 1 - right, "kv heads in reverse order"
        for by in (1, -1) if kv_heads > 2 else ():
            yield (right + by) % kv_heads, f"kv heads {by:+d}"


def _single(heads: int, kv_heads: int) -> Iterator[tuple[Array, str]]:
    for head in range(kv_heads if kv_heads > 1 else 0):
        yield np.full(heads, head), f"all query heads read kv head {head}"


def _ordered(order: Order) -> Variant:
    """Query heads read other kv heads, for their keys, for their values or for both."""

    def variant(site: Site) -> Iterator[Instead]:
        heads, kv_heads = site.value(0).shape[1], site.value(1).shape[1]
        whole = parts(site) if site.kind == "attn.context" else None
        for kv, what in order(heads, kv_heads):
            if site.kind == "attn.scores":
                yield site.instead(op=scores_by, kv=kv, detail=f"{what}, for its keys")
                continue
            yield site.instead(op=context_by, kv=kv, detail=f"{what}, for its values")
            if whole is not None:
                result = attend(whole, keys_of=kv, values_of=kv)
                yield site.instead(op=already, result=result, detail=what)

    return variant


def _repeated(site: Site) -> Iterator[Instead]:
    heads = _heads(site)
    kv_heads = site.call.output.value.shape[1]
    if heads and kv_heads < heads:
        times = heads // kv_heads
        yield site.instead(op=partial(_repeat, site.op, times), detail=f"each {times} times")


def _repeat(op: Callable[..., Array], times: int, *inputs: Any, **constants: Any) -> Array:
    return np.repeat(op(*inputs, **constants), times, axis=1)


def _heads(site: Site) -> int:
    given = site.config("num_attention_heads", "n_head")
    return int(given) if isinstance(given, int) else 0


def _last_lost(site: Site) -> Iterator[Instead]:
    right = site.call.output.value
    for head, what in ((-1, "the last head is 0"), (0, "the first head is 0")):
        yield site.instead(op=partial(_without_head, site.op, head), detail=what)
    if right.shape[1] > 1:
        yield site.instead(op=partial(_one_head_fewer, site.op), detail="the last head is absent")


def _without_head(op: Callable[..., Array], head: int, *inputs: Any, **constants: Any) -> Array:
    result = op(*inputs, **constants).copy()
    result[:, head] = 0
    return result


def _one_head_fewer(op: Callable[..., Array], *inputs: Any, **constants: Any) -> Array:
    result: Array = op(*inputs, **constants)[:, :-1]
    return result


def _heads_moved(site: Site) -> Iterator[Instead]:
    heads, kv_heads = site.value(0).shape[1], site.value(1).shape[1]
    orders = {"in reverse order": np.arange(heads)[::-1]}
    orders["one further"] = np.roll(np.arange(heads), 1)
    orders["one back"] = np.roll(np.arange(heads), -1)
    if kv_heads < heads:
        mixed = np.arange(heads).reshape(kv_heads, -1).T.reshape(-1)
        orders["group by group, not kv head by kv head"] = mixed
    for what, order in orders.items():
        yield site.instead(op=partial(_reordered, site.op, order), detail=f"heads {what}")


def _reordered(op: Callable[..., Array], order: Array, *inputs: Any, **constants: Any) -> Array:
    result: Array = op(*inputs, **constants)[:, order]
    return result


def _merged_otherwise(site: Site) -> Iterator[Instead]:
    x = site.value(0)
    batch, heads, length, dim = x.shape

    def heads_of(merged: Array) -> Array:
        """[B, T, H * D] as the op wants it: [B, H, T, D]."""
        return merged.reshape(batch, length, heads, dim).transpose(0, 2, 1, 3)

    inner = np.transpose(x, (0, 2, 3, 1)).reshape(batch, length, -1)  # [B, T, D * H]
    yield site.instead(inputs={0: heads_of(inner)}, detail="element by element: [D, H]")


def _merged_unmoved(site: Site) -> Iterator[Instead]:
    x = site.value(0)
    batch, heads, length, dim = x.shape
    merged = x.reshape(batch, length, heads * dim)  # positions and heads are mixed
    moved = merged.reshape(batch, length, heads, dim).transpose(0, 2, 1, 3)
    yield site.instead(inputs={0: moved}, detail="[B, H, T, D] was taken for [B, T, H, D]")


def _split_otherwise(site: Site) -> Iterator[Instead]:
    heads = site.call.output.value.shape[1]
    if heads == 1 or site.op not in (ops.linear_heads, ops.part_heads):
        return
    yield site.instead(
        op=partial(_split_inside_out, site.op), detail="head h has rows h, h + H, ..."
    )


def _split_inside_out(op: Callable[..., Array], *inputs: Any, **constants: Any) -> Array:
    right = op(*inputs, **constants)
    batch, heads, length, dim = right.shape
    flat = right.transpose(0, 2, 1, 3).reshape(batch, length, dim, heads)
    return flat.transpose(0, 3, 1, 2)


def _values_rotated(site: Site) -> Iterator[Instead]:
    new = site.value(1)
    for rotation in rotations(site, new.shape[-1]):
        positions = _start(site) + np.arange(new.shape[2])
        other = turned(new, positions, rotation, site.call.precision.float32_ratio)
        yield site.instead(inputs={1: other}, detail="at their positions")


def _parts_exchanged(site: Site) -> Iterator[Instead]:
    if site.op is not ops.part_heads:
        return
    own = int(site.constant("part"))
    for part in range(int(site.constant("parts"))):
        if part != own:
            yield site.instead(part=part, detail=f"{'qkv'[own]} is where {'qkv'[part]} should be")


def _parts_interleaved(site: Site) -> Iterator[Instead]:
    if site.op is not ops.part_heads:
        return
    yield site.instead(op=interleaved_heads, detail="q, k and v of one head side by side")
    yield site.instead(op=interleaved_elements, detail="q, k and v of one element side by side")


def interleaved_heads(x: Array, *, part: int, parts: int, heads: int) -> Array:
    """Channels laid out as [H, parts, D], the layout of BLOOM's and GPT-NeoX's checkpoints."""
    batch, length, width = x.shape
    split = x.reshape(batch, length, heads, parts, width // parts // heads)
    return split[:, :, :, part].transpose(0, 2, 1, 3)


def interleaved_elements(x: Array, *, part: int, parts: int, heads: int) -> Array:
    """Channels laid out as [H, D, parts]."""
    batch, length, width = x.shape
    split = x.reshape(batch, length, heads, width // parts // heads, parts)
    return split[..., part].transpose(0, 2, 1, 3)


_GROUP_ADVICE = (
    "Query head h reads kv head h // (H / K): repeat_interleave(H / K, dim=1), or expand [B, K, "
    "1, S, D] to [B, K, H / K, S, D] before it is reshaped; not repeat or tile."
)

FAULTS = (
    Fault(
        id="gqa-tiled",
        title="Kv heads are tiled where each should be repeated",
        topic="attention.gqa",
        kinds=_GROUPED,
        variant=_ordered(_tiled),
        symptom="Subtly bad text from models with fewer kv heads than heads.",
        advice=_GROUP_ADVICE,
        distinguish="A model with 1 < K < H.",
        reports=("huggingface/transformers#37533",),
        common=5,
    ),
    Fault(
        id="gqa-order",
        title="Query heads read the wrong kv heads",
        topic="attention.gqa",
        kinds=_GROUPED,
        variant=_ordered(_shuffled),
        symptom="Bad text.",
        advice=_GROUP_ADVICE,
        distinguish="A model with K > 1; with K = 2 reversed and shifted heads are the same.",
        common=3,
    ),
    Fault(
        id="gqa-single",
        title="All query heads read one kv head",
        topic="attention.gqa",
        kinds=_GROUPED,
        variant=_ordered(_single),
        symptom="Bad text from models with several kv heads, right with one.",
        advice="Read num_key_value_heads; broadcast only where it is 1. " + _GROUP_ADVICE,
        distinguish="A model with K > 1.",
        common=2,
    ),
    Fault(
        id="gqa-repeated-early",
        title="Kv heads are repeated before the tap",
        topic="attention.gqa",
        kinds=_KV,
        variant=_repeated,
        symptom="No number is wrong; taps and cache are H / K times as large as they need to be.",
        advice="Tap and cache keys and values before they are repeated for the query heads.",
        distinguish="The number of heads in the tap's shape.",
        common=3,
    ),
    Fault(
        id="heads-lost",
        title="One head too few is computed",
        topic="attention.heads",
        kinds=("attn.context",),
        variant=_last_lost,
        symptom="A little worse than it should be.",
        advice="Run the loop or the grid of the kernel over all H heads.",
        distinguish="The heads that differ.",
        common=2,
    ),
    Fault(
        id="heads-order",
        title="Heads come out of the attention in another order",
        topic="attention.heads",
        kinds=("attn.context",),
        variant=_heads_moved,
        symptom="Garbage, although each head is right.",
        advice="Keep the order of query heads: group g holds heads g H / K to (g + 1) H / K - 1.",
        distinguish="Compare the heads as a set.",
        common=3,
    ),
    Fault(
        id="heads-merged-inside-out",
        title="Heads are merged element by element",
        topic="attention.heads",
        kinds=("attn.out",),
        variant=_merged_otherwise,
        symptom="Garbage.",
        advice="Before the output projection, lay the context out as [B, T, H, D] and flatten the "
        "last two axes.",
        distinguish="More than one head.",
        reports=("huggingface/transformers#29187",),
        common=3,
    ),
    Fault(
        id="heads-merged-unmoved",
        title="Heads are merged without being moved behind the positions",
        topic="attention.heads",
        kinds=("attn.out",),
        variant=_merged_unmoved,
        symptom="Garbage for prompts, right for one token at a time.",
        advice="Transpose [B, H, T, D] to [B, T, H, D] before it is reshaped to [B, T, H * D].",
        distinguish="Two tokens or more.",
        common=4,
    ),
    Fault(
        id="heads-split-inside-out",
        title="A projection is cut into heads element by element",
        topic="attention.heads",
        kinds=_PROJECTED,
        variant=_split_otherwise,
        symptom="Garbage.",
        advice="Reshape [B, T, H * D] to [B, T, H, D], in this order of H and D.",
        distinguish="More than one head.",
        reports=("huggingface/candle#2714",),
        common=2,
    ),
    Fault(
        id="values-rotated",
        title="Values are rotated like keys",
        topic="attention.values",
        kinds=("attn.values",),
        variant=_values_rotated,
        symptom="The first token is right, others are worse the later they are.",
        advice="Rotate queries and keys alone.",
        distinguish="Any prompt of two tokens or more.",
        common=3,
    ),
    Fault(
        id="qkv-order",
        title="The parts of a fused projection are taken in another order",
        topic="attention.layout",
        kinds=_PROJECTED,
        variant=_parts_exchanged,
        symptom="Garbage.",
        advice="Cut the output of the fused projection into queries, keys and values, in the order "
        "of the checkpoint.",
        distinguish="The tap of each part.",
        common=3,
    ),
    Fault(
        id="qkv-interleaved",
        title="A fused projection is read as if q, k and v of each head lay together",
        topic="attention.layout",
        kinds=_PROJECTED,
        variant=_parts_interleaved,
        symptom="Garbage.",
        advice="GPT-2 lays all queries before all keys before all values; BLOOM and GPT-NeoX lay "
        "the three of one head together. Follow the checkpoint's own layout.",
        distinguish="More than one head.",
        common=3,
    ),
)
