"""Mistakes in how precisely weights are held and products are computed.

Formats of GGUF are those of its own package, which is only imported where one is tried; NF4's
levels are from Dettmers et al. 2023, QLoRA, appendix E; e4m3 is from Micikevicius et al. 2022, FP8
Formats for Deep Learning, section 3.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .fault import Fault, Instead, Site
from .linear import MAPS, Linear
from .stored import NARROW, grid, narrow

Array = NDArray[Any]

#: From weights [m, L] in float32, and the largest absolute value of the whole matrix, to what a
#: format keeps of them.
Keep = Callable[[Array, float], Array]

#: Quantisation changes outputs by so much of their size.
_LEAST_NOISE, _MOST_NOISE = 1e-4, 0.6

_GGUF = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")

_GROUPS = (32, 64, 128)

_NF4 = np.asarray(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    dtype=np.float32,
)

_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_E4M3_MAX = np.float32(448)


def _gguf(kind: str, rows: Array, largest: float) -> Array:
    from gguf import GGMLQuantizationType, quants

    kept = quants.quantize(np.ascontiguousarray(rows), GGMLQuantizationType[kind])
    values: Array = quants.dequantize(kept, GGMLQuantizationType[kind])
    return values


def _levels(rows: Array, scale: Array, least: int, most: int) -> Array:
    """Whole multiples of a scale."""
    steps = np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0)
    kept: Array = np.clip(np.rint(steps), least, most) * scale
    return kept


def _absmax(bits: int, rows: Array, largest: float) -> Array:
    """Symmetric integers, one scale for each row."""
    most = 2 ** (bits - 1) - 1
    return _levels(rows, np.abs(rows).max(axis=-1, keepdims=True) / np.float32(most), -most, most)


def _absmax_tensor(bits: int, rows: Array, largest: float) -> Array:
    most = 2 ** (bits - 1) - 1
    return _levels(rows, np.broadcast_to(np.float32(largest / most), (1, 1)), -most, most)


def _grouped(size: int, keep: Callable[[Array], Array], rows: Array, largest: float) -> Array:
    """A format of groups of one row."""
    groups = rows.reshape(-1, size)
    return keep(groups).reshape(rows.shape)


def _symmetric(groups: Array) -> Array:
    return _absmax(4, groups, 0.0)


def _asymmetric(groups: Array) -> Array:
    """Unsigned integers with a scale and a whole zero point."""
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    scale = np.maximum(high - low, np.float32(1e-9)) / np.float32(15)
    zero = np.clip(np.rint(-low / scale), 0, 15)
    kept: Array = (np.clip(np.rint(groups / scale) + zero, 0, 15) - zero) * scale
    return kept


def _nf4(groups: Array) -> Array:
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    share = np.divide(groups, largest, out=np.zeros_like(groups), where=largest > 0)
    nearest = np.searchsorted((_NF4[1:] + _NF4[:-1]) / 2, share)
    kept: Array = _NF4[nearest] * largest
    return kept


def _e4m3(rows: Array, scale: Array | np.float32) -> Array:
    kept: Array = (rows / scale).astype(_E4M3).astype(np.float32) * scale
    return kept


def _e4m3_tensor(rows: Array, largest: float) -> Array:
    return _e4m3(rows, np.float32(largest) / _E4M3_MAX)


def _e4m3_rows(rows: Array, largest: float) -> Array:
    return _e4m3(rows, np.abs(rows).max(axis=-1, keepdims=True) / _E4M3_MAX)


def _formats(inputs: int) -> Iterator[tuple[str, Keep]]:
    """Formats that rows of so many inputs fit into, by name."""
    if inputs % 32 == 0:
        for kind in _GGUF:
            yield kind, partial(_gguf, kind)
    yield "int8, a scale for each output", partial(_absmax, 8)
    yield "int8, one scale", partial(_absmax_tensor, 8)
    yield "int4, a scale for each output", partial(_absmax, 4)
    for size in _GROUPS:
        if inputs % size == 0:
            yield f"int4, symmetric groups of {size}", partial(_grouped, size, _symmetric)
            yield f"int4, groups of {size} with zero points", partial(_grouped, size, _asymmetric)
    if inputs % 64 == 0:
        yield "NF4", partial(_grouped, 64, _nf4)
    yield "float8 e4m3, one scale", _e4m3_tensor
    yield "float8 e4m3, a scale for each output", _e4m3_rows


def _quantised(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None or not _noisy(linear):
        return
    rows = linear.weight[linear.channels].astype(np.float32)
    largest = max(float(linear.weight.max()), -float(linear.weight.min()))
    for name, keep in _formats(linear.weight.shape[1]):
        if linear.plausible(linear.held(keep(rows, largest).astype(np.float64))):
            whole = keep(linear.weight.astype(np.float32), largest).astype(np.float64)
            yield linear.instead(weight=linear.held(whole), detail=name)


def _noisy(linear: Linear) -> bool:
    """Whether the error has a size that quantisation can give it."""
    some = linear.spread
    error = linear.found[:, some] - linear.expected[:, some]
    power = float(np.mean(linear.expected[:, some] ** 2))
    share = float(np.sqrt(np.mean(error**2) / power)) if power else 0.0
    return _LEAST_NOISE < share < _MOST_NOISE


def _rounded(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None:
        return
    names = NARROW if site.dtype == "float32" else ()
    keeps: dict[str, Callable[[Array], Array]] = {
        name: partial(narrow, dtype=name) for name in names
    }
    keeps["float8 e4m3"] = lambda rows: rows.astype(_E4M3).astype(np.float64)
    keeps["float8 e5m2"] = lambda rows: rows.astype(ml_dtypes.float8_e5m2).astype(np.float64)
    for name, keep in keeps.items():
        rows = linear.weight[linear.channels]
        biases = [None] if linear.bias is None else [None, keep(linear.bias)]
        for bias in biases:
            some = None if bias is None else bias[linear.channels]
            if linear.plausible(keep(rows), bias=some):
                yield linear.instead(weight=keep(linear.weight), bias=bias, detail=name)


def _tf32(x: Array) -> Array:
    """Rounded to the 10 bits of mantissa that TF32 keeps, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    bits = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    rounded: Array = (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return rounded


def _low_precision(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None or site.dtype != "float32":
        return
    some, at = linear.channels, linear.positions
    keeps: dict[str, Callable[[Array], Array]] = {"TF32": _tf32}
    for name in NARROW:
        keeps[f"{name}, but summed up in float32"] = partial(narrow, dtype=name)
    for words, keep in keeps.items():
        if linear.plausible(keep(linear.weight[some]), x=keep(linear.x[at])):
            x, weight = keep(site.value(0)), keep(site.value(1))
            yield site.instead(inputs={0: x, 1: weight}, detail=words)
    if name := grid(site):
        inputs = {
            index: narrow(operand.value, name)
            for index, operand in enumerate(site.call.inputs)
            if operand is not None
        }
        yield site.instead(inputs=inputs, precision=name, detail=name)


def _input_rounded(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None or site.dtype != "float32":
        return
    for name in NARROW:
        x = narrow(linear.x[linear.positions], name)
        if linear.plausible(linear.weight[linear.channels], x=x):
            detail = f"to {name}"
            yield site.instead(inputs={0: narrow(site.value(0), name)}, detail=detail)


def _dequantised(site: Site) -> Iterator[Instead]:
    linear = Linear.at(site)
    if linear is None or linear.sparse:
        return
    inputs = linear.weight.shape[1]
    some = linear.channels
    for size in (inputs, 256, 128, 64, 32):
        blocks = inputs // size if inputs % size == 0 else 0
        if not 0 < blocks <= len(linear.x) - 2:
            continue
        sums = linear.x.reshape(len(linear.x), blocks, size).sum(axis=-1)  # [N, blocks]
        error = linear.found[:, some] - linear.expected[:, some]
        offsets = np.linalg.lstsq(sums, error, rcond=None)[0]  # [blocks, m]
        if not linear.plausible(linear.weight[some] + np.repeat(offsets.T, size, axis=1)):
            continue
        offsets = np.linalg.lstsq(sums, linear.error, rcond=None)[0]
        weight = linear.weight + np.repeat(offsets.T, size, axis=1)
        yield linear.instead(weight=weight, detail=f"an offset for each {size} weights")
        return


FAULTS = (
    Fault(
        id="weights-quantised",
        title="A weight was quantised",
        topic="weights.quantised",
        kinds=MAPS,
        variant=_quantised,
        symptom="A little worse everywhere; perplexity is up by a few percent for 4 bits.",
        advice="Load both sides from the same file, or compare with the dequantised weights: a "
        "GGUF file, load_in_8bit or load_in_4bit, or a fake-quantised checkpoint on one side "
        "makes every projection differ.",
        distinguish="Any prompt; all projections are off by a similar share.",
        common=3,
    ),
    Fault(
        id="weights-dequantised",
        title="Blocks of a weight are dequantised with another offset",
        topic="weights.quantised",
        kinds=MAPS,
        variant=_dequantised,
        symptom="Small offsets up to garbage; files of other formats are right.",
        advice="Compare one block with the reference decoder of the format: a zero point that is "
        "stored less 1 (GPTQ), the 8 or 16 that is subtracted from unsigned steps (Q4_0, Q5_0), a "
        "high bit that counts when it is absent (Q5_K), minimum and scale exchanged (Q4_1).",
        distinguish="More positions than a row has blocks.",
        reports=("huggingface/candle#1569", "huggingface/transformers#31725"),
        common=2,
    ),
    Fault(
        id="weights-rounded",
        title="A weight of a float32 model was rounded to a narrower dtype",
        topic="weights.precision",
        kinds=MAPS,
        variant=_rounded,
        symptom="Errors of 1e-3 relative in every projection.",
        advice="Load with the dtype of the checkpoint: transformers 5 takes that of the config, "
        "earlier ones float32; converters often store float16. Compare engines on the same stored "
        "weights.",
        distinguish="Any prompt; weights that are exact in the narrower dtype are right.",
        common=3,
    ),
    Fault(
        id="linear-low-precision",
        title="A product of a float32 model is computed in a narrower dtype",
        topic="weights.precision",
        kinds=MAPS,
        variant=_low_precision,
        symptom="Errors of 1e-3 relative in every projection, norms and sums are right.",
        advice="Turn autocast off; torch.backends.cuda.matmul.allow_tf32 = False and "
        "torch.set_float32_matmul_precision('highest') keep float32 on GPUs.",
        distinguish="Run on a CPU.",
        common=3,
    ),
    Fault(
        id="linear-input-rounded",
        title="The input of a product is rounded to a narrower dtype",
        topic="weights.precision",
        kinds=MAPS,
        variant=_input_rounded,
        symptom="Errors of 1e-3 relative in every projection.",
        advice="Look for a cast before the projection, autocast in a fused kernel, or a cache of "
        "activations in half precision.",
        distinguish="Any prompt.",
        common=2,
    ),
)
