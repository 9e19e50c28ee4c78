"""Mistakes in the formula of a norm: epsilon, mean, weight, axis, precision.

Source of the formulas: :func:`references.ops.layer_norm`, :func:`references.ops.rms_norm` and
:func:`references.ops.rms_norm_from_one`; each variant names what it does otherwise. Where norms
stand, and what goes in, is in :mod:`harness.faults.norm_order`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from ..replay.call import Operand
from .fault import Fault, Instead, Site
from .stored import NARROW, comparable, grid, narrow

Array = NDArray[Any]

#: Normalises x [..., C] with an epsilon, before weight and bias.
Core = Callable[[Array, float], Array]

HEADS = ("attn.q_norm", "attn.k_norm")
NORMS = ("attn_norm", "attn_post_norm", *HEADS, "mlp_norm", "mlp_post_norm", "final_norm")

#: Defaults of classes and papers.
_EPSILONS = (1e-5, 1e-6, 0.0, 1e-12, 1e-8, 1e-7, 1e-4, 1e-3)


def gain(site: Site, weight: Array) -> Array:
    """What the weight multiplies by."""
    return 1 + weight if site.op is ops.rms_norm_from_one else weight


def _mean_square(x: Array) -> Array:
    square: Array = np.mean(x * x, axis=-1, keepdims=True)
    return square


def _centred(x: Array) -> Array:
    centred: Array = x - np.mean(x, axis=-1, keepdims=True)
    return centred


def _kept(x: Array) -> Array:
    return x


def _shift(site: Site) -> Callable[[Array], Array]:
    """What a norm subtracts before it divides."""
    return _centred if site.op is ops.layer_norm else _kept


def _otherwise(site: Site, core: Core, detail: str = "") -> Instead:
    """The norm with another way to normalise, and its own weight and bias."""

    def norm(x: Array, weight: Array, bias: Array | None = None, *, eps: float) -> Array:
        y = core(x, eps) * gain(site, weight)
        return y if bias is None else y + bias

    return site.instead(op=norm, detail=detail)


def _epsilon(site: Site) -> Iterator[Instead]:
    given = float(site.constant("eps"))
    fitted = _fitted_epsilon(site)
    for eps in (*_EPSILONS, *([] if fitted is None else [fitted])):
        if eps != given:
            yield site.instead(eps=eps, detail=f"eps {eps:.3g}, config says {given:.3g}")


def _fitted_epsilon(site: Site) -> float | None:
    """The epsilon that each row's length asks for, rows of small mean square counting most."""
    if not comparable(site) or site.found is None:
        return None
    weight = gain(site, site.value(1))
    bias = site.value(2) if site.op is ops.layer_norm else 0.0
    plain = _shift(site)(site.value(0))
    square = _mean_square(plain)
    scaled = plain * weight
    length = np.sum(scaled * scaled, axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        slope = np.sum((site.found - bias) * scaled, axis=-1, keepdims=True) / length
        fits = 1 / slope**2 - square
        eps = float(np.sum(fits / square**2) / np.sum(1 / square**2))
    return eps if np.isfinite(eps) and eps > 0.01 * float(site.constant("eps")) else None


def _outside(site: Site) -> Iterator[Instead]:
    shift = _shift(site)
    yield _otherwise(site, lambda x, eps: shift(x) / (np.sqrt(_mean_square(shift(x))) + eps))
    if site.op is ops.layer_norm:
        yield _otherwise(
            site,
            lambda x, eps: _centred(x) / (np.std(x, axis=-1, ddof=1, keepdims=True) + eps),
            "and the variance is divided by n - 1",
        )


def _one_missing(site: Site) -> Iterator[Instead]:
    if site.op is ops.rms_norm_from_one:
        yield site.instead(op=ops.rms_norm)


def _one_added(site: Site) -> Iterator[Instead]:
    if site.op is ops.rms_norm:
        yield site.instead(op=ops.rms_norm_from_one)
    elif site.op is ops.rms_norm_from_one:
        yield _with_weight(site, site.value(1) + 1, "1 is folded into the weight and added again")


def _with_weight(site: Site, weight: Array, detail: str = "") -> Instead:
    return site.instead(inputs={1: weight}, detail=detail)


def _mean_subtracted(site: Site) -> Iterator[Instead]:
    if site.op is not ops.layer_norm:
        x, weight = site.call.input(0), site.value(1)
        inputs = (x, Operand(gain(site, weight)), Operand(np.zeros_like(weight)))
        yield Instead(ops.layer_norm, inputs, site.call.constants)


def _mean_kept(site: Site) -> Iterator[Instead]:
    if site.op is ops.layer_norm:
        yield _otherwise(site, lambda x, eps: x / np.sqrt(_mean_square(x) + eps))
        yield Instead(ops.rms_norm, site.call.inputs[:2], site.call.constants, "nor a bias added")


def _weight_missing(site: Site) -> Iterator[Instead]:
    weight = site.value(1)
    yield _with_weight(site, np.full_like(weight, 0.0 if gain(site, weight) is not weight else 1.0))


def _bias_missing(site: Site) -> Iterator[Instead]:
    if site.op is ops.layer_norm:
        yield site.instead(inputs={2: np.zeros_like(site.value(2))})


def _cast_order(site: Site) -> Iterator[Instead]:
    if site.dtype == "float32" or site.op is ops.layer_norm:
        return

    def late(x: Array, weight: Array, *, eps: float) -> Array:
        return x / np.sqrt(_mean_square(x) + eps) * weight

    def early(x: Array, weight: Array, *, eps: float) -> Array:
        y = narrow(x / np.sqrt(_mean_square(x) + eps), site.dtype)
        scaled: Array = narrow(1 + weight, site.dtype) * y
        return scaled

    if site.op is ops.rms_norm:
        yield site.instead(op=late, detail="the weight is applied in float32, before the cast")
    else:
        yield site.instead(op=early, detail="1 + weight is formed in half precision")


def _low_precision(site: Site) -> Iterator[Instead]:
    if site.dtype != "float32":
        return
    for name in NARROW:
        rounded = {i: narrow(site.value(i), name) for i in range(len(site.call.inputs))}
        yield site.instead(inputs={0: rounded[0]}, detail=f"its input is rounded to {name}")
        yield site.instead(inputs={**rounded}, detail=f"input and weight are rounded to {name}")
    if name := grid(site):
        yield site.instead(precision=name, detail=f"every value is a {name} number")


def _axis(site: Site) -> Iterator[Instead]:
    shift = _shift(site)

    def over(axes: tuple[int, ...]) -> Core:
        def core(x: Array, eps: float) -> Array:
            centred = shift(x)
            y: Array = centred / np.sqrt(np.mean(centred**2, axis=axes, keepdims=True) + eps)
            return y

        return core

    if site.kind in HEADS:
        yield _otherwise(site, over((1,)), "over the heads, for each element")
    yield _otherwise(site, over((-2,)), "over the positions")
    yield _otherwise(site, over((-2, -1)), "over positions and channels")


def _sum(site: Site) -> Iterator[Instead]:
    shift = _shift(site)
    yield _otherwise(
        site,
        lambda x, eps: shift(x) / np.sqrt(_mean_square(shift(x)) * x.shape[-1] + eps),
    )


def _unbiased(site: Site) -> Iterator[Instead]:
    shift = _shift(site)

    def core(x: Array, eps: float) -> Array:
        size = x.shape[-1]
        y: Array = shift(x) / np.sqrt(_mean_square(shift(x)) * (size / (size - 1)) + eps)
        return y

    yield _otherwise(site, core)


FAULTS = (
    Fault(
        id="norm-eps",
        title="The norm has another epsilon",
        topic="norm.eps",
        kinds=NORMS,
        variant=_epsilon,
        constant="eps",
        symptom="Perplexity is slightly worse; nothing shows where activations are large, most "
        "where they are small: in the first layers, for small models.",
        advice="Pass rms_norm_eps (layer_norm_epsilon, norm_epsilon) of the config to every norm; "
        "the default of the class is 1e-5 or 1e-6 or, in torch.nn.RMSNorm, the eps of the dtype. "
        "Look at norms inside attention too: they are built elsewhere and miss the argument.",
        distinguish="Tokens whose embedding is small: there the row is too long or too short by "
        "eps / (2 mean square), elsewhere it is right.",
        reports=(
            *("huggingface/candle#271", "ggml-org/llama.cpp#2373", "ggml-org/llama.cpp#2374"),
            *("huggingface/transformers#44261", "keras-team/keras-hub#642"),
            "simple-stories/simple_stories_train#6",
        ),
        common=5,
    ),
    Fault(
        id="norm-eps-outside",
        title="Epsilon is added to the root instead of under it",
        topic="norm.eps",
        kinds=NORMS,
        variant=_outside,
        symptom="As another epsilon: small activations come out too short.",
        advice="Divide by sqrt(mean(x**2) + eps), not by sqrt(mean(x**2)) + eps; x.std() + eps "
        "also divides the variance by n - 1.",
        distinguish="Rows of different length: the error goes with 1 / rms, that of another "
        "epsilon with its square.",
        common=2,
    ),
    Fault(
        id="norm-one-missing",
        title="1 is not added to the weight of a norm that is stored as its distance from 1",
        topic="norm.weight",
        kinds=NORMS,
        variant=_one_missing,
        symptom="Noise from the first norm on: weights around 0 blank out the stream.",
        advice="Gemma's and Qwen3-Next's norms multiply by 1 + weight; add 1 in the forward pass "
        "or when weights are loaded, in one of the two, and not to norms that are stored whole.",
        distinguish="Any prompt; the first norm is off by one normalised input exactly.",
        reports=("NeuraLegion/shainet#176",),
        common=4,
    ),
    Fault(
        id="norm-one-added",
        title="1 is added to the weight of a norm that is stored whole",
        topic="norm.weight",
        kinds=NORMS,
        variant=_one_added,
        symptom="Values come out up to twice as large; text is garbage.",
        advice="Llama's norms are stored whole. GGUF files of Gemma too: their converter has "
        "added 1 already. Add it in the loader or in the forward pass, never in both.",
        distinguish="Any prompt; the first norm is off by one normalised input exactly.",
        reports=("llmmanorg/llmman#245", "NeuraLegion/shainet#176"),
        common=4,
    ),
    Fault(
        id="norm-mean-subtracted",
        title="LayerNorm in place of RMSNorm: the mean is subtracted",
        topic="norm.kind",
        kinds=NORMS,
        variant=_mean_subtracted,
        symptom="Plausible at first, as means are small; it drifts with depth.",
        advice="Divide by sqrt(mean(x**2) + eps) without centring; take torch.nn.RMSNorm, not "
        "torch.nn.LayerNorm(bias=False).",
        distinguish="Activations whose mean is far from 0: embeddings of rare tokens.",
        common=4,
    ),
    Fault(
        id="norm-mean-kept",
        title="RMSNorm in place of LayerNorm: the mean is not subtracted",
        topic="norm.kind",
        kinds=NORMS,
        variant=_mean_kept,
        symptom="Plausible at first, as means are small; it drifts with depth.",
        advice="Subtract the mean before the square, divide by the standard deviation, and add "
        "the bias.",
        distinguish="Activations whose mean is far from 0.",
        common=3,
    ),
    Fault(
        id="norm-weight-missing",
        title="The norm's weight is not applied",
        topic="norm.weight",
        kinds=NORMS,
        variant=_weight_missing,
        symptom="Garbage, or nearly right for models whose weights lie close to 1.",
        advice="Look up why the weight kept its initial value: its name in the checkpoint was not "
        "found (ln_1, input_layernorm, attention_norm), strict loading was off, or the norm was "
        "built without an affine part.",
        distinguish="Any prompt; expected divided by found is the stored weight.",
        reports=("huggingface/transformers#42362",),
        common=3,
    ),
    Fault(
        id="norm-bias-missing",
        title="The norm's bias is not added",
        topic="norm.bias",
        kinds=NORMS,
        variant=_bias_missing,
        symptom="The same vector lacks at every position; text degrades, but stays on topic.",
        advice="Load <norm>.bias and add it after the weight; many ports of LayerNorm have none "
        "because the models they began with have none.",
        distinguish="Any prompt; the difference is the same at every position.",
        common=3,
    ),
    Fault(
        id="norm-cast-order",
        title="The norm's weight is applied on the wrong side of the cast to half precision",
        topic="norm.precision",
        kinds=NORMS,
        variant=_cast_order,
        symptom="Half precision alone: logits move by some tenths, less than other kernels do.",
        advice="Llama rounds the normalised values to the model's dtype and then multiplies; "
        "Gemma multiplies by 1 + weight in float32 and rounds once. It is one rounding, so that "
        "replay does not flag it: look at it where logits must be equal bit by bit.",
        distinguish="Run in float32: the difference is gone.",
        reports=("huggingface/transformers#29402", "vllm-project/vllm#3653"),
        common=2,
    ),
    Fault(
        id="norm-low-precision",
        title="The norm of a float32 model is computed in half precision",
        topic="norm.precision",
        kinds=NORMS,
        variant=_low_precision,
        symptom="Errors of 1e-3 relative that no longer prompt makes worse.",
        advice="Keep the norm's input, its sum of squares and its output in the model's dtype; "
        "autocast and fused kernels that return bfloat16 are the usual reasons.",
        distinguish="Values that all lie on the grid of a narrower dtype.",
        reports=("google/gemma_pytorch#37",),
        common=3,
    ),
    Fault(
        id="norm-axis",
        title="The norm is taken over another axis",
        topic="norm.kind",
        kinds=NORMS,
        variant=_axis,
        symptom="Plausible text that gets worse with depth; a token's values depend on its batch.",
        advice="Normalise the last axis of each token; look for a transpose between projection "
        "and norm, and for normalized_shape with more than one axis.",
        distinguish="One token alone: a norm over positions is nearly right there.",
        common=2,
    ),
    Fault(
        id="norm-sum",
        title="The norm divides by the root of the sum of squares, not of their mean",
        topic="norm.kind",
        kinds=NORMS,
        variant=_sum,
        symptom="Values come out too small by sqrt(C): nearly uniform attention, flat logits.",
        advice="Divide by sqrt(mean(x**2) + eps); functions named l2_norm or normalize divide by "
        "the length, which is sqrt(C) times as large.",
        distinguish="Any prompt; the ratio is sqrt(C) everywhere.",
        common=2,
    ),
    Fault(
        id="norm-unbiased",
        title="The norm's variance is divided by n - 1",
        topic="norm.kind",
        kinds=NORMS,
        variant=_unbiased,
        symptom="All values are too small by 1 / (2 C), a ten-thousandth: seen by comparison only.",
        advice="Take the biased variance: unbiased=False or correction=0 in torch.var and "
        "torch.std, whose default is n - 1.",
        distinguish="Any prompt; the ratio is sqrt((n - 1) / n) everywhere.",
        common=2,
    ),
)
