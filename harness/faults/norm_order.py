"""Mistakes in where norms stand and in what is added to the residual stream.

Source: the pre-norm block of :mod:`references.families`: ``x + block(norm(x))``, with a second norm
behind the block in Gemma (Gemma Team 2024, Gemma 2, section 2).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from .fault import Fault, Instead, Site
from .linear import Linear
from .norm import NORMS
from .stored import NARROW, comparable, grid, layer_of, lift, named, narrow, short, siblings

Array = NDArray[Any]

RESIDUALS = ("resid_mid", "resid_post")
_POST = ("attn_post_norm", "mlp_post_norm")
_HEADS = ("logits", "logits_uncapped", "logits_unscaled")

#: Block and its norm before a sum.
_NORM_OF = {"resid_mid": "attn_norm", "resid_post": "mlp_norm"}

#: What is added to the result of the block, by the norm behind it.
_STREAM_OF = {"attn_post_norm": "input", "mlp_post_norm": "resid_mid"}


#: A fitted multiplier that is nearer to another is that one.
_FITTED = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}


def _identity(x: Array, weight: Array, bias: Array | None = None, *, eps: float) -> Array:
    return x


def _weight_alone(x: Array, weight: Array, bias: Array | None = None, *, eps: float) -> Array:
    return x * weight


def _skipped(site: Site) -> Iterator[Instead]:
    yield site.instead(op=_identity)
    yield site.instead(op=_weight_alone, detail="its weight is applied all the same")


def _twice(site: Site) -> Iterator[Instead]:
    if site.kind in NORMS:

        def norm(x: Array, *parts: Array, eps: float) -> Array:
            once = site.op(x, *parts, eps=eps)
            again: Array = site.op(once, *parts, eps=eps)
            return again

        yield site.instead(op=norm)
    elif site.op is ops.linear:
        yield from _normed_again(site)


def _normed_again(site: Site) -> Iterator[Instead]:
    """The head on its input, normed once more."""
    final = _final_norm(site)
    eps = site.config("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps")
    if final and isinstance(eps, float):
        bias = [] if len(final) == 1 else [final[1]]
        op = ops.layer_norm if bias else ops.rms_norm
        if str(site.config("model_type")).startswith("gemma"):
            op = ops.rms_norm_from_one
        x = op(site.value(0), final[0], *bias, eps=eps)
        if site.dtype != "float32":  # rounded before and after the weight is applied
            if op is ops.rms_norm:
                x = (
                    narrow(op(site.value(0), np.ones_like(final[0]), eps=eps), site.dtype)
                    * final[0]
                )
            x = narrow(x, site.dtype)
        linear = Linear.at(site)
        if linear is None or linear.explained_by(x):
            yield site.instead(inputs={0: x})


def _final_norm(site: Site) -> list[Array]:
    """Weight, and bias if there is one, of the norm before the head."""
    size = site.value(0).shape[-1]
    outside = {
        name: array
        for name, array in site.facts.parameters.items()
        if layer_of(name) is None and array.shape == (size,)
    }
    weight = next((name for name in outside if name.endswith(".weight")), None)
    if weight is None:
        return []
    bias = weight.removesuffix("weight") + "bias"
    return [lift(site, outside[name]) for name in (weight, bias) if name in outside]


def _swapped(site: Site) -> Iterator[Instead]:
    name = named(site, 1)
    for other in siblings(site, name) if name else ():
        if not other.endswith(".weight"):
            continue
        inputs = {1: lift(site, site.facts.parameters[other])}
        bias = other.removesuffix("weight") + "bias"
        if len(site.call.inputs) > 2 and bias in site.facts.parameters:
            inputs[2] = lift(site, site.facts.parameters[bias])
        yield site.instead(inputs=inputs, detail=f"it has {short(other)}")


def _other_input(site: Site) -> Iterator[Instead]:
    """A norm before the MLP that reads something else of its layer."""
    size = site.value(0).shape
    for kind, words in (
        ("input", "what the layer is given, as in a parallel block"),
        ("attn_norm", "what the attention reads, already normed"),
        ("attn.out", "what the attention gives, without the residual stream"),
        ("attn_post_norm", "what the attention gives, without the residual stream"),
    ):
        other = site.nearby.get(kind)
        if other is not None and other.value.shape == size:
            yield site.instead(inputs={0: other}, detail=f"it reads {words}")


def _of_sum(site: Site) -> Iterator[Instead]:
    stream = site.nearby.get(_STREAM_OF[site.kind])
    if stream is not None and stream.value.shape == site.value(0).shape:
        yield site.instead(inputs={0: site.value(0) + stream.value})


def _sum(site: Site, x: float, y: float, detail: str = "") -> Instead:
    """Multiples of stream and block are added."""

    def added(stream: Array, block: Array) -> Array:
        return x * stream + y * block

    return site.instead(op=added, detail=detail, drop=("factor",))


def _factor(site: Site) -> float:
    return float(site.constant("factor") or 1.0)


def _stream_missing(site: Site) -> Iterator[Instead]:
    yield _sum(site, 0, _factor(site))
    if _factor(site) != 1.0:
        yield _sum(site, 0, 1, "nor is the block multiplied")


def _block_missing(site: Site) -> Iterator[Instead]:
    yield _sum(site, 1, 0)


def _added_twice(site: Site) -> Iterator[Instead]:
    yield _sum(site, 2, _factor(site), "the stream is counted twice")
    yield _sum(site, 1, 2 * _factor(site), "the block is counted twice")


def _normed_stream(site: Site) -> Iterator[Instead]:
    normed = site.nearby.get(_NORM_OF[site.kind])
    if normed is not None and normed.value.shape == site.value(0).shape:
        yield site.instead(inputs={0: normed})


def _layer_input(site: Site) -> Iterator[Instead]:
    given = site.nearby.get("input")
    if site.kind == "resid_post" and given is not None:
        yield site.instead(inputs={0: given})


def _multiplier(site: Site) -> Iterator[Instead]:
    factor = _factor(site)
    if factor != 1.0:
        yield _sum(site, 1, 1, f"no multiplier, config says {factor:.6g}")
        yield _sum(site, 1, 1 / factor, "the block is divided by the multiplier")
        yield _sum(site, factor, 1, "the stream is multiplied, not the block")
        yield _sum(site, factor, factor, "stream and block are both multiplied")
    if comparable(site) and site.found is not None:
        x, y = site.value(0), site.value(1)
        size = float(np.sum(y * y))
        fitted = float(np.sum((site.found - x) * y)) / size if size else 0.0
        if all(abs(fitted - other) > _FITTED[site.dtype] for other in (0, 1, factor, 2 * factor)):
            yield _sum(site, 1, fitted, f"the block is multiplied by {fitted:.6g}")


def _low_precision(site: Site) -> Iterator[Instead]:
    if site.dtype != "float32":
        return
    if name := grid(site):
        both = {index: narrow(site.value(index), name) for index in range(2)}
        for inputs in ({}, both):
            detail = f"every value is a {name} number"
            yield site.instead(inputs=inputs, precision=name, detail=detail)
    for name in NARROW:
        for index, words in enumerate(("stream", "block's result")):
            value = narrow(site.value(index), name)
            yield site.instead(inputs={index: value}, detail=f"the {words} is rounded to {name}")


FAULTS = (
    Fault(
        id="norm-skipped",
        title="A norm is left out",
        topic="norm.order",
        kinds=("attn_norm", "mlp_norm"),
        variant=_skipped,
        symptom="Activations grow from layer to layer; garbage, or infinities in float16.",
        advice="Apply the norm before the block; look for a flag that switches it off and for a "
        "name that was not found in the checkpoint.",
        distinguish="Any prompt.",
        common=3,
    ),
    Fault(
        id="norm-post-missing",
        title="The norm behind a block is left out",
        topic="norm.order",
        kinds=_POST,
        variant=_skipped,
        symptom="Activations are far too large from the first layer on.",
        advice="Gemma 2 and 3 have four norms in a layer. post_attention_layernorm stands behind "
        "the attention there, not before the MLP as in Llama; pre_feedforward_layernorm and "
        "post_feedforward_layernorm are around the MLP.",
        distinguish="Any prompt.",
        common=3,
    ),
    Fault(
        id="norm-final-missing",
        title="The norm before the head is left out",
        topic="norm.order",
        kinds=("final_norm",),
        variant=_skipped,
        symptom="The most likely token is often right, probabilities are far too sharp.",
        advice="Apply model.norm (transformer.ln_f) to the output of the last layer. In "
        "transformers hidden_states[-1] has it applied already, hidden_states[-2] has not.",
        distinguish="Any prompt; all layers agree.",
        common=4,
    ),
    Fault(
        id="norm-twice",
        title="A norm is applied twice",
        topic="norm.order",
        kinds=(*NORMS, *_HEADS),
        variant=_twice,
        symptom="Nearly right: normed rows stay normed, but the weight counts twice. Logits "
        "differ by some percent.",
        advice="Take the norm in one place. The usual double is a head that norms its input, fed "
        "with hidden_states[-1] of transformers, which is behind the final norm.",
        distinguish="Any prompt; channels whose weight is 1 are right.",
        common=4,
    ),
    Fault(
        id="norm-weights-swapped",
        title="Two norms of a layer have each other's weights",
        topic="norm.order",
        kinds=tuple(kind for kind in NORMS if kind != "final_norm"),
        variant=_swapped,
        symptom="Fluent but worse; loss a little too high.",
        advice="Compare the map of names: attention_norm and input_layernorm come before the "
        "attention, ffn_norm and post_attention_layernorm before the MLP, except in Gemma, where "
        "post_attention_layernorm comes behind the attention.",
        distinguish="Any prompt; both norms of the layer are wrong.",
        reports=("pytorch/torchtitan#1454",),
        common=4,
    ),
    Fault(
        id="norm-input",
        title="The norm before the MLP reads something else than the stream behind the attention",
        topic="norm.order",
        kinds=("mlp_norm",),
        variant=_other_input,
        symptom="Coherent for a few words, then garbage.",
        advice="In a sequential block the MLP's norm reads the stream after the attention was "
        "added; only parallel blocks (GPT-J, Falcon, Command-R, Phi) give both the layer's input.",
        distinguish="Any prompt.",
        reports=("Lightning-AI/litgpt#1089",),
        common=3,
    ),
    Fault(
        id="norm-post-of-sum",
        title="The norm behind a block is taken of the sum with the residual stream",
        topic="norm.order",
        kinds=_POST,
        variant=_of_sum,
        symptom="Activations stay bounded where they should grow; garbage.",
        advice="Norm the block's result and then add the stream: x + norm(block(x)), not norm(x + "
        "block(x)), which is the post-norm of the first Transformer.",
        distinguish="Any prompt.",
        common=2,
    ),
    Fault(
        id="residual-missing",
        title="The residual stream is not added to a block's result",
        topic="norm.residual",
        kinds=RESIDUALS,
        variant=_stream_missing,
        symptom="Garbage after the first layers.",
        advice="Add the value from before the norm to the block's result; look for a variable "
        "that is overwritten before the sum.",
        distinguish="Any prompt.",
        common=2,
    ),
    Fault(
        id="residual-block-missing",
        title="A block's result is not added to the residual stream",
        topic="norm.residual",
        kinds=RESIDUALS,
        variant=_block_missing,
        symptom="Fluent but much worse, as if the model had a layer less.",
        advice="Add the block's result to the stream; look for an early return, a layer that is "
        "skipped, or a kernel that writes the sum to a buffer nobody reads.",
        distinguish="Any prompt.",
        common=2,
    ),
    Fault(
        id="residual-twice",
        title="Something is added to the residual stream twice",
        topic="norm.residual",
        kinds=RESIDUALS,
        variant=_added_twice,
        symptom="Activations double from layer to layer.",
        advice="Add in one place: either the block or the layer adds the stream, and a fused "
        "add-and-norm kernel has added it already.",
        distinguish="Any prompt.",
        common=3,
    ),
    Fault(
        id="residual-normed",
        title="The residual is taken after the norm",
        topic="norm.residual",
        kinds=RESIDUALS,
        variant=_normed_stream,
        symptom="Activations stay small; garbage after a few layers.",
        advice="Keep the value from before the norm for the sum. BLOOM has a switch for the other "
        "way, apply_residual_connection_post_layernorm; a norm that works in place has the same "
        "effect.",
        distinguish="Any prompt.",
        common=3,
    ),
    Fault(
        id="residual-stale",
        title="The MLP's result is added to the layer's input: the attention's is lost",
        topic="norm.residual",
        kinds=("resid_post",),
        variant=_layer_input,
        symptom="Fluent but much worse.",
        advice="Renew the residual after the attention was added. Where both blocks are meant to "
        "be added to the layer's input, add both.",
        distinguish="Any prompt.",
        reports=("Lightning-AI/litgpt#1089",),
        common=2,
    ),
    Fault(
        id="residual-multiplier",
        title="The block is added with another multiplier",
        topic="norm.residual",
        kinds=RESIDUALS,
        variant=_multiplier,
        constant="residual_multiplier",
        symptom="Garbage where the config has a multiplier that is ignored (Granite: 0.22), mild "
        "loss of quality where it is a little off.",
        advice="Multiply the result of attention and MLP, not the stream, by residual_multiplier "
        "(Granite) or scale_depth / sqrt(layers) (MiniCPM), and by nothing in models without.",
        distinguish="Any prompt.",
        reports=("huggingface/transformers#38320",),
        common=3,
    ),
    Fault(
        id="residual-low-precision",
        title="The residual stream of a float32 model is kept in half precision",
        topic="norm.precision",
        kinds=RESIDUALS,
        variant=_low_precision,
        symptom="Errors of 1e-3 relative from the first layer on.",
        advice="Keep the stream in the model's dtype; look for autocast and for kernels that "
        "return their input's dtype.",
        distinguish="Values that all lie on the grid of a narrower dtype.",
        common=2,
    ),
)
