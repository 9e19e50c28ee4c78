"""Mistakes in the values of parameters: biases, factors, zeros, a few values, additions."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import UNIT_LIMIT
from ..references_seam import ops
from ..replay.bounds import unit
from .fault import Fault, Instead, Site
from .linear import MAPS, Linear
from .norm import NORMS, gain
from .stored import comparable, layers_of, lift, named, short, siblings

Array = NDArray[Any]

#: Relative error of a fit that is rounding.
_ROUNDING = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 6e-2}

#: Maps inside the layers; the head's bias is in :mod:`harness.faults.head`.
_INNER = tuple(kind for kind in MAPS if not kind.startswith("logits"))

#: A mean error is no chance beyond so many standard errors, in so many of the outputs.
_FAR, _MANY = 5.0, 0.3

#: At most this share of the output channels are a few.
_FEW = 0.05


def bias_missing(site: Site) -> Iterator[Instead]:
    """A linear map without its bias."""
    linear = Linear.at(site)
    if linear is not None and linear.bias is not None and linear.bias.any():
        none = np.zeros_like(linear.bias)
        if linear.plausible(linear.weight[linear.channels], bias=none[linear.channels]):
            yield linear.instead(bias=none)


def _bias_other(site: Site) -> Iterator[Instead]:
    linear, name = Linear.at(site), named(site, 2)
    if linear is None or not name:
        return
    others = {f"it has {short(other)}": other for other in siblings(site, name)}
    others |= {f"it has that of layer {n}": other for n, other in layers_of(site, name)}
    for words, other in others.items():
        bias = lift(site, site.facts.parameters[other])
        if linear.plausible(linear.weight[linear.channels], bias=bias[linear.channels]):
            yield linear.instead(bias=bias, detail=words)


def bias_added(site: Site) -> Iterator[Instead]:
    """A linear map with the bias that the mean error asks for."""
    linear = Linear.at(site)
    if linear is None or len(linear.x) < 2 or not _everywhere(linear):
        return
    own = np.zeros(len(linear.weight)) if linear.bias is None else linear.bias
    some = linear.channels
    added = _constant(linear.expected[:, some], linear.found[:, some])
    if np.allclose(added, -own[some], rtol=1e-2, atol=1e-6) and own.any():
        return  # it is missing
    if linear.plausible(linear.weight[some], bias=own[some] + added):
        bias = own + _constant(linear.expected, linear.found)
        yield linear.instead(bias=bias, detail=f"between {bias.min():.4g} and {bias.max():.4g}")


def _constant(expected: Array, found: Array) -> Array:
    """The mean difference [M] over positions; small values, which round little, count most."""
    certain = 1 / (expected**2 + found**2 + 1e-30)
    mean: Array = np.sum(certain * (found - expected), axis=0) / np.sum(certain, axis=0)
    return mean


def _everywhere(linear: Linear) -> bool:
    """Whether the mean error of many outputs is far from 0, on the scale of its own deviation."""
    error = linear.found[:, linear.spread] - linear.expected[:, linear.spread]
    deviation = error.std(axis=0) / np.sqrt(len(error))
    return bool(np.mean(np.abs(error.mean(axis=0)) > _FAR * deviation) > _MANY)


def _scaled(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None:
        return
    some = linear.channels
    shift = 0.0 if linear.bias is None else linear.bias[some]
    plain, found = linear.expected[:, some] - shift, linear.found[:, some] - shift
    squares = np.sum(plain**2, axis=0)
    if not squares.all():
        return
    factors = np.sum(found * plain, axis=0) / squares
    factor = float(np.sum(found * plain) / squares.sum())
    if abs(factor) < 1e-6 or abs(factor - 1) < 1e-6:
        return
    same = f"it is multiplied by {factor:.6g}"
    if linear.plausible(linear.weight[some] * factor):
        yield linear.instead(weight=linear.weight * factor, detail=same)
    elif len(linear.x) > 2 and linear.plausible(linear.weight[some] * factors[:, None]):
        whole = linear.expected - (0.0 if linear.bias is None else linear.bias)
        rest = linear.found - (0.0 if linear.bias is None else linear.bias)
        factors = np.sum(rest * whole, axis=0) / np.maximum(np.sum(whole**2, axis=0), 1e-300)
        detail = f"each output by a factor of its own, {factors.min():.4g} to {factors.max():.4g}"
        yield linear.instead(weight=linear.weight * factors[:, None], detail=detail)
    if site.dtype != "float32":  # products were rounded: only the factor itself gives the same
        for near in sorted({float(f"{factor:.{digits}g}") for digits in (1, 2, 3)}):
            detail = f"it is multiplied by {near:.6g}"
            yield from linear.screened(partial(_times, linear.weight, near), detail)


def _times(weight: Array, factor: float, rows: Array | slice) -> Array:
    product: Array = weight[rows] * factor
    return product


def _zeroed(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None:
        return
    biases = [None] if linear.bias is None else [linear.bias, None]
    for bias in biases:
        left = np.zeros(len(linear.weight)) if bias is None else bias
        if not (linear.found[0] == left).any():
            continue
        empty = (linear.found == left).all(axis=0)
        if not empty.any():
            continue
        words = "all of it" if empty.all() else f"outputs {_ranges(np.flatnonzero(empty))}"
        weight = np.where(empty[:, None], 0.0, linear.weight)
        moved = None if linear.bias is None else np.where(empty, left, linear.bias)
        also = ", but not the bias" if bias is not None else ""
        yield linear.instead(weight=weight, bias=moved, detail=words + also)


def _other_values(site: Site) -> Iterator[Instead]:
    if site.kind in NORMS:
        yield from _other_norm(site)
    elif site.op in (ops.embedding, ops.scaled_embedding):
        yield from _other_rows(site)
    else:
        yield from _other_elements(site)


def _other_norm(site: Site) -> Iterator[Instead]:
    """The weight that each channel's ratio of found to expected asks for."""
    if not comparable(site) or site.found is None:
        return
    weight = site.value(1)
    bias = site.value(2) if site.op is ops.layer_norm else 0.0
    plain, found = site.call.output.value - bias, site.found - bias
    axes = tuple(range(plain.ndim - 1))
    squares = np.sum(plain**2, axis=axes)
    if not squares.all() or squares.shape != weight.shape or plain.size < 2 * weight.size:
        return
    ratio = np.sum(plain * found, axis=axes) / squares
    wrong = np.flatnonzero(np.abs(ratio - 1) > 2 * UNIT_LIMIT * site.call.precision.unit_roundoff)
    if not len(wrong):
        return
    changed = gain(site, weight) * ratio - (0.0 if gain(site, weight) is weight else 1.0)
    changed = np.where(np.isin(np.arange(len(weight)), wrong), changed, weight)
    detail = f"channels {_ranges(wrong)} of {len(weight)} have another weight"
    yield site.instead(inputs={1: changed}, detail=detail)


def _other_rows(site: Site) -> Iterator[Instead]:
    """Other rows of the table for a few tokens."""
    if not comparable(site) or site.found is None:
        return
    tokens, found, expected = site.value(1), site.found, site.call.output.value
    wrong = (np.abs(found - expected) > _ROUNDING[site.dtype] * np.abs(expected)).any(axis=-1)
    bad = np.unique(tokens[wrong])
    if not len(bad) or len(bad) > max(1, len(np.unique(tokens)) // 3):
        return
    if np.isin(tokens[~wrong], bad).any():
        return  # the same token is right elsewhere
    table = site.value(0).copy()
    scale = site.value(2) if len(site.call.inputs) > 2 else 1.0
    for token in bad:
        table[token] = found[tokens == token][0] / scale
    yield site.instead(inputs={0: table}, detail=f"rows of tokens {_ranges(bad)}")


def _other_elements(site: Site) -> Iterator[Instead]:
    """Other weights of a few output channels, or of one input."""
    linear = Linear.at(site)
    if linear is None:
        return
    if not linear.sparse:
        yield from _one_input(linear)
        return
    size = linear.rows(unit(site.op, site.call)) * site.call.precision.unit_roundoff
    wrong = np.flatnonzero((np.abs(linear.error) > UNIT_LIMIT * size).any(axis=0))
    if not 0 < len(wrong) <= max(1, _FEW * len(linear.weight)):
        return
    weight, bias = linear.weight.copy(), linear.bias
    words = []
    for channel in map(int, wrong):
        row, word = _other_row(linear, channel)
        weight[channel] += row
        words.append(word)
    several = f"outputs {_ranges(wrong)} of {len(weight)} have other weights"
    detail = words[0] if len(words) == 1 else several
    yield linear.instead(weight=weight, detail=detail)
    if bias is not None:
        moved = bias.copy()
        moved[wrong] += linear.error[:, wrong].mean(axis=0)
        yield linear.instead(bias=moved, detail=f"entries {_ranges(wrong)} of its bias differ")


def _other_row(linear: Linear, channel: int) -> tuple[Array, str]:
    """What must be added to the weights of one output: to one of them if that explains it."""
    x, error = linear.x, linear.error[:, channel]
    squares = np.maximum(np.sum(x * x, axis=0), 1e-300)
    steps = x.T @ error / squares
    left = float(error @ error) - steps**2 * squares
    best = int(np.argmin(left))
    row = np.zeros(x.shape[1])
    if len(x) > 2 and left[best] <= _ROUNDING[linear.site.dtype] * float(error @ error):
        row[best] = steps[best]
        return row, f"element [{channel}, {best}] is {steps[best]:+.6g} off"
    return np.linalg.lstsq(x, error, rcond=None)[0], f"output {channel} has other weights"


def _one_input(linear: Linear) -> Iterator[Instead]:
    """Other weights of one input in all outputs."""
    best = _input_of(linear)
    if best is not None:
        x, weight = linear.x[:, best], linear.weight.copy()
        weight[:, best] += x @ linear.error / float(x @ x)
        yield linear.instead(weight=weight, detail=f"input {best} has other weights")


def _input_of(linear: Linear) -> int | None:
    """The one input that all of the error is a multiple of, None if there is none."""
    some = linear.channels
    error, x = linear.found[:, some] - linear.expected[:, some], linear.x
    squares = np.maximum(np.sum(x * x, axis=0), 1e-300)
    left = np.sum(error**2) - np.sum((x.T @ error) ** 2, axis=1) / squares
    best = int(np.argmin(left))
    alone = len(x) > 2 and left[best] <= _ROUNDING[linear.site.dtype] * np.sum(error**2)
    return best if alone else None


def _low_rank(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None or linear.sparse or len(linear.x) < 3:
        return
    some = linear.error[:, linear.spread]
    if np.std(some, axis=0).max() <= _ROUNDING[site.dtype] * np.abs(some).max():
        return  # a bias
    if _input_of(linear) is not None:
        return
    error = linear.error
    if error.shape[1] > 4096:
        error = error[:, :: error.shape[1] // 4096]
    sizes, vectors = np.linalg.eigh(error @ error.T)
    noise = (8 * site.call.precision.unit_roundoff) ** 2 * np.sum(linear.expected**2)
    noise *= error.shape[1] / linear.error.shape[1]
    rank = int(np.count_nonzero(sizes > max(sizes[-1] * 1e-13, noise)))
    if not 0 < rank <= min(len(linear.x), *linear.weight.shape) // 3:
        return
    left = vectors[:, -rank:]  # [N, r]
    right = left.T @ linear.error  # [r, M]
    back = np.linalg.pinv(linear.x) @ left  # [L, r]
    if linear.plausible(linear.weight[linear.channels] + (back @ right[:, linear.channels]).T):
        detail = f"the error has rank {rank} over {len(linear.x)} positions"
        yield linear.instead(weight=linear.weight + (back @ right).T, detail=detail)


def _ranges(indices: Array) -> str:
    """Indices as ranges: ``0 to 3, 7``; the first few of many."""
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    words = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:4]]
    return ", ".join(words) + (" and others" if len(runs) > 4 else "")


FAULTS = (
    Fault(
        id="weights-bias-missing",
        title="A bias of the checkpoint is not added",
        topic="weights.bias",
        kinds=_INNER,
        variant=bias_missing,
        symptom="The same vector lacks at every position; quality drops, more so for keys and "
        "queries with large biases (Qwen2).",
        advice="Load <projection>.bias and add it: models that are read as Llama have none "
        "(Qwen2, Phi, StarCoder2). Fused kernels for quantised weights often leave it off.",
        distinguish="Any prompt; the difference is the same at every position.",
        reports=("vllm-project/vllm#46835", "antonellof/ferrox#237"),
        common=4,
    ),
    Fault(
        id="weights-bias-other",
        title="A projection has the bias of another one",
        topic="weights.bias",
        kinds=_INNER,
        variant=_bias_other,
        symptom="The same vector is added at every position; quality drops.",
        advice="Compare the map of names for biases, which is often written by hand beside that "
        "of weights.",
        distinguish="Any prompt; the difference is the same at every position.",
        common=3,
    ),
    Fault(
        id="weights-bias-added",
        title="A bias is added that the checkpoint does not have, or another one",
        topic="weights.bias",
        kinds=_INNER,
        variant=bias_added,
        symptom="The same vector is added at every position.",
        advice="Build the projection with bias=False where the config says so (attention_bias, "
        "mlp_bias); one that stays as it was initialised is small and random. Row-parallel shards "
        "must not all add it.",
        distinguish="Two positions or more; the difference is the same at each.",
        common=2,
    ),
    Fault(
        id="weights-scaled",
        title="A weight is multiplied by a constant",
        topic="weights.scale",
        kinds=MAPS,
        variant=_scaled,
        symptom="Attention too flat or too sharp, or a block that counts too much or too little.",
        advice="Look for a scale that is applied once too often or not at all: weight_scale of "
        "fp8 checkpoints, a LoRA's alpha / r, a multiplier of the config that was folded into the "
        "weight, D**-0.5 in the queries.",
        distinguish="Any prompt; the ratio is the same everywhere, or for each output.",
        common=2,
    ),
    Fault(
        id="weights-zeroed",
        title="A weight, or some of its outputs, is zero",
        topic="weights.missing",
        kinds=MAPS,
        variant=_zeroed,
        symptom="A block that does nothing, or logits that are all equal.",
        advice="Look at the list of missing keys: a weight that was not found, a shard that was "
        "not read, or a buffer that was allocated and never filled.",
        distinguish="Any prompt.",
        reports=("vec2text/vec2text#94", "huggingface/transformers#42362"),
        common=3,
    ),
    Fault(
        id="weights-other-values",
        title="A parameter has other values",
        topic="weights.values",
        kinds=(*MAPS, *NORMS, "embed", "pos_embed"),
        variant=_other_values,
        symptom="Anything from invisible to garbage, by how many values differ.",
        advice="Compare the parameter with the checkpoint: another revision, a damaged file, a "
        "training step or an adapter that was merged, a value that an optimiser or an "
        "initialisation touched.",
        distinguish="A prompt with more tokens than the parameter has inputs tells which values.",
        reports=("huggingface/transformers#42362", "intel/auto-round#1926"),
        fallback=True,
        common=1,
    ),
    Fault(
        id="weights-low-rank",
        title="Something of low rank is added to a weight, as by an adapter",
        topic="weights.adapter",
        kinds=MAPS,
        variant=_low_rank,
        symptom="Fluent, with another style or other knowledge.",
        advice="An adapter (LoRA) is merged, or active, on one side alone. Unload it, or merge it "
        "on both; look at alpha / r if its size is wrong.",
        distinguish="Three times as many different tokens as the adapter's rank.",
        common=1,
        fallback=True,
    ),
)
