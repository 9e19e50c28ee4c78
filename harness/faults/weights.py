"""Mistakes in which weights a linear map has: layout, layer, order of rows and heads, parts.

The conventions that are broken are those of :func:`references.ops.linear_heads` and
:func:`references.ops.affine`; each variant names what it does otherwise.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from .fault import Fault, Instead, Site
from .linear import MAPS, Linear
from .norm import NORMS
from .stored import layers_of, lift, named, short, siblings

Array = NDArray[Any]

#: Two heads, or parts of heads, are the same if they differ by less, relative to the larger.
_SAME = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}

GATED = ("mlp.gate", "mlp.up")


def _transposed(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None:
        return
    outputs, inputs = linear.weight.shape
    buffer = np.ascontiguousarray(site.value(1))
    other = buffer.reshape(outputs, inputs) if linear.affine else buffer.reshape(inputs, outputs).T
    words = "it is transposed" if outputs == inputs else "its buffer is read as [in, out]"
    if linear.affine and outputs != inputs:
        words = "its buffer is read as [out, in]"
    yield from linear.screened(other.__getitem__, words)


def _other_layer(site: Site) -> Iterator[Instead]:
    name = named(site, 1)
    for layer, other in layers_of(site, name) if name else ():
        yield from _instead(site, other, f"it has the weight of layer {layer}")


def _exchanged(site: Site) -> Iterator[Instead]:
    name = named(site, 1)
    if name and site.kind not in GATED:
        for other in siblings(site, name):
            yield from _instead(site, other, f"it has {short(other)}")


def _instead(site: Site, other: str, detail: str) -> Iterator[Instead]:
    """The op with another stored weight, and with the bias that belongs to it or its own."""
    linear, bias = Linear.at(site), other.removesuffix("weight") + "bias"
    known = site.facts.parameters
    biases: list[Array | None] = [None]
    if linear is None and site.kind in NORMS:
        inputs = {1: lift(site, known[other])}
        if len(site.call.inputs) > 2 and bias in known:
            inputs[2] = lift(site, known[bias])
        yield site.instead(inputs=inputs, detail=detail)
    if linear is None:
        return
    if linear.bias is not None and bias in known and known[bias].shape == linear.bias.shape:
        biases.append(lift(site, known[bias]))
    rows = linear.stored(other, linear.channels)
    for given in biases:
        if linear.plausible(rows, bias=None if given is None else given[linear.channels]):
            yield linear.instead(weight=linear.stored(other), bias=given, detail=detail)


def _rope_rows(count: int, heads: int, *, back: bool) -> Array:
    """Where rows go when pairs of halves become neighbours in each of some heads, or back."""
    size = count // heads
    shape = (heads, size // 2, 2) if back else (heads, 2, size // 2)
    return np.arange(count).reshape(shape).swapaxes(1, 2).reshape(-1)


def _rope_permuted(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None or site.op is not ops.linear_heads:
        return
    count, own = len(linear.weight), int(site.constant("heads"))
    heads, kv_heads = site.config("num_attention_heads"), site.config("num_key_value_heads")
    others = {own, heads, kv_heads, heads // kv_heads if heads and kv_heads else None}
    for used in sorted((n for n in others if n), key=lambda n: n != own):
        if count % (2 * used):
            continue
        for back in (False, True):
            order = _rope_rows(count, used, back=back)
            words = "neighbours to halves" if back else "halves to neighbours"
            wrong = "" if used == own else f", by {used} heads instead of {own}"
            yield from _reordered(linear, order, f"rows are moved from {words}{wrong}")


def _reordered(linear: Linear, order: Array, detail: str) -> Iterator[Instead]:
    """The map with its outputs in another order, the bias's too or not."""
    some = linear.channels
    biases = [None] if linear.bias is None else [linear.bias[order], None]
    for bias in biases:
        moved = None if bias is None else bias[some]
        if linear.plausible(linear.weight[order[some]], bias=moved):
            yield linear.instead(weight=linear.weight[order], bias=bias, detail=detail)


def _heads_reordered(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None:
        return
    if site.op is ops.linear_heads:
        heads = int(site.constant("heads"))
        biases = [None] if linear.bias is None else [None, linear.bias]
        orders = (_assignment(linear, heads, _SAME[site.dtype], bias) for bias in biases)
        order = next((order for order in orders if order is not None), None)
        if order is not None:
            rows = np.arange(len(linear.weight)).reshape(heads, -1)[order].reshape(-1)
            words = f"head by head it has {_listed(order)}"
            yield from _reordered(linear, rows, words)
    elif site.value(0).ndim == 4:
        yield from _merged_reordered(site, linear)


def _assignment(linear: Linear, heads: int, same: float, bias: Array | None) -> Array | None:
    """Which of the expected heads each found one is, less a bias that stays where it is.

    None if one is none of them, or all agree.
    """
    at, stays = linear.positions, 0.0 if bias is None else bias
    found = (linear.found[at] - stays).reshape(len(at), heads, -1)
    expected = (linear.expected[at] - stays).reshape(found.shape)
    apart = np.abs(found[:, :, None] - expected[:, None]).max(axis=(0, 3))
    order = np.argmin(apart, axis=1)
    near = apart[np.arange(heads), order] <= same * np.abs(expected).max()
    permuted = np.array_equal(np.sort(order), np.arange(heads))
    moved = not np.array_equal(order, np.arange(heads))
    return order if near.all() and permuted and moved else None


def _merged_reordered(site: Site, linear: Linear) -> Iterator[Instead]:
    """A map of the merged heads whose columns are those of other heads."""
    heads, size = site.value(0).shape[1], site.value(0).shape[3]
    kv_heads = site.config("num_key_value_heads") or heads
    columns = np.arange(heads * size).reshape(heads, size)
    orders = {
        "heads are in reverse": columns[::-1],
        "elements are ahead of heads": columns.T,
        "heads are ahead of elements": columns.reshape(size, heads).T,
    }
    if 1 < kv_heads < heads:
        grouped = columns.reshape(kv_heads, heads // kv_heads, size)
        orders["heads of one kv head are apart"] = grouped.swapaxes(0, 1)
        grouped = columns.reshape(heads // kv_heads, kv_heads, size)
        orders["heads of one kv head are taken to be apart"] = grouped.swapaxes(0, 1)
    for words, order in orders.items():
        other = linear.weight[:, order.reshape(-1)]
        yield from linear.screened(other.__getitem__, words)


def _listed(order: Array) -> str:
    words = ", ".join(map(str, order[:8]))
    return words + (" and so on" if len(order) > 8 else "")


def _kept(weight: Array, kept: Array, rows: Array | slice) -> Array:
    """Rows of a weight, of which some inputs are left."""
    left: Array = weight[rows] * kept
    return left


def _shard(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None:
        return
    inputs = linear.weight.shape[1]
    for parts in (2, 4, 8):
        if inputs % parts:
            continue
        for part in range(parts):
            given = np.zeros(inputs)
            given[part * inputs // parts : (part + 1) * inputs // parts] = 1
            for kept, words in ((given, "is all that is summed"), (1 - given, "is not summed")):
                detail = f"part {part} of {parts} of its inputs {words}"
                yield from linear.screened(partial(_kept, linear.weight, kept), detail)


FAULTS = (
    Fault(
        id="weights-transposed",
        title="A weight is transposed, or its buffer is read in the other layout",
        topic="weights.layout",
        kinds=MAPS,
        variant=_transposed,
        symptom="Garbage from the first layer on; no error where the matrix is square.",
        advice="torch.nn.Linear stores [out, in], GPT-2's Conv1D, JAX and TensorFlow [in, out]. "
        "Transpose once, when the checkpoint is converted, and compare shapes of matrices that "
        "are not square: a reshape to the wanted shape hides the mistake.",
        distinguish="Any prompt.",
        reports=("huggingface/transformers#43201", "huggingface/transformers#43227"),
        common=4,
    ),
    Fault(
        id="weights-layer",
        title="A layer has the weight of another layer",
        topic="weights.layer",
        kinds=(*MAPS, *NORMS),
        variant=_other_layer,
        symptom="Fluent but worse; each layer works, together they do not fit.",
        advice="Look for an index that begins at 1, layers sorted as text (10 before 2), a first "
        "layer that is not counted, or one variable captured by all closures of a loop.",
        distinguish="Any prompt; the config must have layers whose weights differ.",
        common=3,
    ),
    Fault(
        id="weights-exchanged",
        title="A projection has the weight of another one of its layer",
        topic="weights.layout",
        kinds=tuple(kind for kind in MAPS if kind not in GATED),
        variant=_exchanged,
        symptom="Garbage; shapes agree, so that nothing complains.",
        advice="Compare the map of names: q, k and v, and o where shapes agree. Loaders that bind "
        "weights in the order of the file, or of creation, exchange them.",
        distinguish="Any prompt; the other projection is wrong as well.",
        reports=("nntrainer/nntrainer#4194", "intel/auto-round#1926"),
        common=3,
    ),
    Fault(
        id="weights-rope-permuted",
        title="Rows of queries or keys are in the order of the other RoPE pairing",
        topic="weights.layout",
        kinds=("attn.q", "attn.k"),
        variant=_rope_permuted,
        symptom="Some good tokens, then repetition; values agree, queries and keys do not.",
        advice="Meta's and GGUF's Llama weights pair neighbours, Hugging Face's pair halves. "
        "Permute rows when you convert, with the number of heads for q and of kv heads for k, and "
        "permute back in the other direction; architectures that GGUF runs in NEOX style (Qwen, "
        "Phi, Gemma) are not permuted at all.",
        distinguish="Any prompt; each head has the right elements in another order.",
        reports=(
            *("ggml-org/llama.cpp#3364", "ggml-org/llama.cpp#3018", "jzhang38/TinyLlama#24"),
            *("huggingface/transformers#31766", "pytorch/torchtitan#1441"),
            *("AI-Hypercomputer/maxtext#581", "karpathy/llama2.c#286"),
        ),
        common=5,
    ),
    Fault(
        id="weights-heads",
        title="Heads are in another order",
        topic="weights.heads",
        kinds=("attn.q", "attn.k", "attn.v", "attn.out"),
        variant=_heads_reordered,
        symptom="Garbage, or fluent but worse where only a few heads moved.",
        advice="Head h owns rows h * D to (h + 1) * D - 1, and query head h reads kv head h // (H "
        "/ K). Look for fused projections that lie group by group, for shards that are joined in "
        "the wrong order, and for repeat in place of repeat_interleave.",
        distinguish="Any prompt; more heads than one.",
        reports=("huggingface/transformers#37533", "elixir-nx/bumblebee#204"),
        common=3,
    ),
    Fault(
        id="weights-shard",
        title="Part of the inputs of a projection is missing in the sum",
        topic="weights.layout",
        kinds=MAPS,
        variant=_shard,
        symptom="Right on one device, garbage on several.",
        advice="Sum what the shards of a row-parallel projection (o_proj, down_proj) give: the "
        "all-reduce is missing, or a shard was loaded as zeros. Give the bias to one of them.",
        distinguish="Any prompt; run on one device.",
        common=2,
    ),
)
