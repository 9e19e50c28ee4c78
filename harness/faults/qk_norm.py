"""Mistakes in the norms of queries and keys."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from .fault import Fault, Instead, Site

Array = NDArray[Any]

_NORMS = ("attn.q_norm", "attn.k_norm")
_ROTATED = ("attn.q_rope", "attn.k_rope")


def _factor(site: Site, weight: Array) -> Array:
    """What the norm multiplies by: its weight, or one more than it."""
    return weight + 1 if site.op is ops.rms_norm_from_one else weight


def _absent(site: Site) -> Iterator[Instead]:
    yield site.instead(op=_identity, detail="as they come from the projection")


def _identity(x: Array, *inputs: Array, **constants: Any) -> Array:
    return x


def _joint(site: Site) -> Iterator[Instead]:
    """One mean square over all heads of a token."""
    factor = _factor(site, site.value(1))

    def op(x: Array, weight: Array, *, eps: float) -> Array:
        square = np.mean(x**2, axis=(1, 3), keepdims=True)
        normed: Array = x / np.sqrt(square + eps) * factor
        return normed

    yield site.instead(op=op, detail="one mean square over all heads")


def _after_rotation(site: Site) -> Iterator[Instead]:
    """Where the norm is not tapped: what the rotation gives is normalised."""
    made = site.maker(0)
    if made is None or made.op not in (ops.rms_norm, ops.rms_norm_from_one):
        return
    x, weight = made.call.input(0).value, made.call.input(1).value
    if made.op is ops.rms_norm_from_one:
        weight = weight + 1
    eps = made.call.constants["eps"]
    # The rotation keeps the mean square, so that only the weight comes too late.
    size = 1 / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)

    def op(_: Array, **constants: Any) -> Array:
        turned: Array = site.op(x * size, **constants) * weight
        return turned

    yield site.instead(op=op, detail="the weight multiplies rotated elements")


FAULTS = (
    Fault(
        id="qk-norm-missing",
        title="Queries or keys are not normalised",
        topic="attention.qk_norm",
        kinds=_NORMS,
        variant=_absent,
        symptom="Scores far too large or too small, bad text.",
        advice="Apply q_norm and k_norm between projection and rotation; look for weights that are "
        "loaded under another name, and so never.",
        distinguish="The tap of the norm.",
        reports=("vllm-project/vllm-metal#659", "ggml-org/llama.cpp#15852"),
        common=4,
    ),
    Fault(
        id="qk-norm-after-rope",
        title="Queries and keys are normalised after the rotation",
        topic="attention.qk_norm",
        kinds=_ROTATED,
        variant=_after_rotation,
        symptom="A small error that grows with the position.",
        advice="Qwen3 and Gemma 3 normalise before the rotation, Hunyuan after it: follow the "
        "model, as the weight of the norm differs between the elements of a pair.",
        distinguish="Positions beyond 0, and a norm whose weight is not constant.",
        reports=("meta-pytorch/torchtune#2809", "vllm-project/vllm-metal#660"),
        common=5,
    ),
    Fault(
        id="qk-norm-joint",
        title="Queries or keys are normalised over all heads at once",
        topic="attention.qk_norm",
        kinds=_NORMS,
        variant=_joint,
        symptom="Heads with small queries attend to too much.",
        advice="Take the mean square over the D elements of each head, not over the whole "
        "projection; OLMo 2 does the latter, with a weight of its size.",
        distinguish="Heads of different sizes.",
        common=3,
    ),
)
