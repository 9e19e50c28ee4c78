"""Mistakes in the scores: their scale, their soft cap, the precision that they are formed in."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..replay.precision import DTYPES
from .attending import already, attend, excerpt, fitted, hidden, parts, softmax
from .fault import Fault, Instead, Site, Variant

Array = NDArray[Any]

_SCORES = ("attn.scores",)
_ANYWHERE = ("attn.scores", "attn.context")
_CAPPED = ("attn.scores_capped",)

#: Caps of widely used models.
_CAPS = (50.0, 30.0, 20.0, 15.0, 5.0, 2.0)


def _dim(site: Site) -> int:
    return int(site.value(0).shape[-1])


def _heads(site: Site) -> int:
    return int(site.value(0).shape[1])


def _scaled(values: Callable[[Site], Iterator[tuple[float, str]]]) -> Variant:
    """Other scales than the configured one, each with words."""

    def variant(site: Site) -> Iterator[Instead]:
        right = float(site.constant("scale"))
        for scale, what in values(site):
            if abs(scale - right) > 1e-9 * right:
                yield site.instead(scale=scale, detail=f"{what}: {scale:.6g}, not {right:.6g}")

    return variant


def _none(site: Site) -> Iterator[tuple[float, str]]:
    yield 1.0, "not scaled"


def _twice(site: Site) -> Iterator[tuple[float, str]]:
    yield float(site.constant("scale")) ** 2, "scaled twice"
    yield 1 / _dim(site), "divided by head_dim, not by its root"


def _hidden_size(site: Site) -> Iterator[tuple[float, str]]:
    channels = site.config("hidden_size", "n_embd")
    if isinstance(channels, int) and not _by_layer(site):
        yield (channels / _heads(site)) ** -0.5, "1 / sqrt(hidden_size / heads)"
        yield channels**-0.5, "1 / sqrt(hidden_size)"


def _by_layer(site: Site) -> bool:
    return bool(site.config("scale_attn_by_inverse_layer_idx"))


def _default(site: Site) -> Iterator[tuple[float, str]]:
    if not _by_layer(site):
        yield _dim(site) ** -0.5, "1 / sqrt(head_dim)"


def _upside_down(site: Site) -> Iterator[tuple[float, str]]:
    yield 1 / float(site.constant("scale")), "multiplied by the divisor"


def _of_layer(site: Site) -> Iterator[tuple[float, str]]:
    layer, right = site.layer or 0, float(site.constant("scale"))
    if _by_layer(site):
        yield right * (layer + 1), "not divided by the number of the layer"
        if layer:
            yield right * (layer + 1) / layer, "divided by the number of the layer from 0"
    elif site.config("model_type") == "gpt2":
        yield right / (layer + 1), "divided by the number of the layer"


def _other_scale(site: Site) -> Iterator[Instead]:
    right, found = float(site.constant("scale") or 1.0), site.found
    if found is None or found.shape != site.call.output.value.shape:
        return
    if site.kind == "attn.scores":
        value = site.call.output.value
        power = float(np.sum(value**2))
        factor = float(np.sum(value * found)) / power if power else 1.0
        yield site.instead(scale=right * factor, detail=f"{right * factor:.6g}, not {right:.6g}")
        return
    whole = parts(site)
    if whole is None:
        return
    part, wanted = excerpt(whole, found)
    best = fitted(lambda f: attend(part, scale=part.scale * f), wanted)
    if best is not None:
        scale = whole.scale * best
        result = attend(whole, scale=scale)
        words = f"{scale:.6g}, not {whole.scale:.6g}"
        yield site.instead(op=already, result=result, detail=words)


def capped(scores: Array, visible: Array, *, cap: float) -> Array:
    """Softmax of capped scores."""
    return softmax(hidden(cap * np.tanh(scores / cap), visible))


def capped_after(scores: Array, visible: Array, *, cap: float) -> Array:
    """Softmax of scores that are capped when hidden ones are minus infinity already."""
    return softmax(hidden(cap * np.tanh(scores / cap), visible, -cap))


def _cap_lost(site: Site) -> Iterator[Instead]:
    yield site.instead(op=lambda x, cap: x, detail=f"no cap, not {site.constant('cap'):g}")


def _caps(site: Site) -> Iterator[float]:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        value = site.config(key)
        if isinstance(value, int | float):
            yield float(value)
    yield from _CAPS


def _cap_invented(site: Site) -> Iterator[Instead]:
    if site.config("attn_logit_softcapping") is not None:
        return
    for cap in _caps(site):
        if site.kind == "attn.probs":
            yield site.instead(op=capped, cap=cap, detail=f"capped at {cap:g}")
        else:
            yield site.instead(op=_capped_scores, cap=cap, detail=f"capped at {cap:g}")


def _capped_scores(q: Array, k: Array, *, scale: float, cap: float) -> Array:
    groups = k.shape[1]
    batch, heads, length, dim = q.shape
    grouped = q.reshape(batch, groups, heads // groups, length, dim)
    raw = np.matmul(grouped, np.swapaxes(k, -1, -2)[:, :, None]).reshape(batch, heads, length, -1)
    limited: Array = cap * np.tanh(raw * scale / cap)
    return limited


def _cap_after_mask(site: Site) -> Iterator[Instead]:
    """The scores that come in are capped already: those of hidden keys are minus the cap."""
    made = site.maker(0)
    cap = site.config("attn_logit_softcapping")
    if cap is None or (made is not None and "cap" not in made.call.constants):
        return
    yield site.instead(op=_filled, value=-float(cap), detail=f"hidden scores are -{cap:g}")


def _filled(scores: Array, visible: Array, *, value: float) -> Array:
    return softmax(hidden(scores, visible, value))


def _cap_before_scale(site: Site) -> Iterator[Instead]:
    """What comes in is scaled; the cap is put on what it was before."""
    scale = _scale_of(site)
    if scale is not None:
        yield site.instead(op=_early_cap, scale=scale, detail="capped, then scaled")


def _scale_of(site: Site) -> float | None:
    made = site.maker(0)
    if made is not None and "scale" in made.call.constants:
        return float(made.call.constants["scale"])
    scalar = site.config("query_pre_attn_scalar", "head_dim")
    return float(scalar) ** -0.5 if isinstance(scalar, int | float) else None


def _early_cap(x: Array, *, cap: float, scale: float) -> Array:
    limited: Array = scale * cap * np.tanh(x / scale / cap)
    return limited


def _other_cap(site: Site) -> Iterator[Instead]:
    right, found = float(site.constant("cap") or 0.0), site.found
    if site.kind == "attn.context":
        whole = parts(site)
        if whole is None or whole.cap is None or found is None:
            return
        cap = whole.cap
        part, wanted = excerpt(whole, found)
        best = fitted(lambda f: attend(part, cap=cap * f), wanted)
        if best is not None:
            result = attend(whole, cap=cap * best)
            yield site.instead(op=already, result=result, detail=f"{cap * best:.6g}, not {cap:g}")
        return
    if found is None or found.shape != site.call.output.value.shape:
        return
    x = site.value(0)
    best = fitted(lambda f: right * f * np.tanh(x / (right * f)), found)
    if best is not None:
        yield site.instead(cap=right * best, detail=f"{right * best:.6g}, not {right:g}")


def _narrow(site: Site) -> Iterator[Instead]:
    if site.dtype != "float32":
        return
    for name in ("bfloat16", "float16"):
        dtype = DTYPES[name]
        q, k = (site.value(i).astype(dtype).astype(np.float64) for i in (0, 1))
        yield site.instead(inputs={0: q, 1: k}, detail=f"of queries and keys in {name}")
        yield site.instead(inputs={0: q, 1: k}, detail=f"scores rounded to {name}", precision=name)
        yield site.instead(detail=f"scores rounded to {name}, operands are not", precision=name)


_SCALE_ADVICE = (
    "Llama, Qwen and GPT-2 multiply scores by head_dim ** -0.5; Gemma by query_pre_attn_scalar ** "
    "-0.5, Granite by attention_multiplier."
)
_CAP_ADVICE = (
    "cap * tanh(scores / cap), of scores that are scaled and not yet masked, with "
    "attn_logit_softcapping for the cap; null means none. Fused kernels without a cap must not be "
    "used."
)

FAULTS = (
    Fault(
        id="scale-missing",
        title="Scores are not scaled",
        topic="attention.scale",
        kinds=_SCORES,
        variant=_scaled(_none),
        constant="scale",
        symptom="Attention on few tokens, bad text.",
        advice=_SCALE_ADVICE + " Pass the scale to the kernel.",
        distinguish="Any prompt of two tokens or more.",
        reports=("InternLM/xtuner#873",),
        common=4,
    ),
    Fault(
        id="scale-twice",
        title="Scores are scaled twice",
        topic="attention.scale",
        kinds=_SCORES,
        variant=_scaled(_twice),
        constant="scale",
        symptom="Attention spread over all tokens, bad text.",
        advice=_SCALE_ADVICE + " Where the queries are scaled, tell the kernel scale=1.",
        distinguish="Any prompt of two tokens or more.",
        reports=("huggingface/transformers#38277", "pytorch/pytorch#155168"),
        common=5,
    ),
    Fault(
        id="scale-hidden-size",
        title="Scores are scaled by hidden_size where head_dim is another",
        topic="attention.scale",
        kinds=_SCORES,
        variant=_scaled(_hidden_size),
        constant="scale",
        symptom="A systematic error; right for models where heads times head_dim is hidden_size.",
        advice="Read head_dim from the config; hidden_size / heads is only its default.",
        distinguish="A model whose head_dim is not hidden_size / heads.",
        reports=("ggml-org/llama.cpp#8197", "ggml-org/llama.cpp#13951"),
        common=4,
    ),
    Fault(
        id="scale-head-dim",
        title="Scores are scaled by head_dim where the config names another scale",
        topic="attention.scale",
        kinds=_SCORES,
        variant=_scaled(_default),
        constant="scale",
        symptom="A small systematic error, larger at long context.",
        advice=_SCALE_ADVICE,
        distinguish="A model of a size where query_pre_attn_scalar is not head_dim.",
        reports=("huggingface/transformers#31891", "ggml-org/llama.cpp#8197"),
        common=4,
    ),
    Fault(
        id="scale-upside-down",
        title="Scores are multiplied by what should divide them",
        topic="attention.scale",
        kinds=_SCORES,
        variant=_scaled(_upside_down),
        constant="scale",
        symptom="Attention on one token, garbage.",
        advice=_SCALE_ADVICE,
        distinguish="Any prompt of two tokens or more.",
        common=2,
    ),
    Fault(
        id="scale-of-layer",
        title="The scale of each layer is not what the config says",
        topic="attention.scale",
        kinds=_SCORES,
        variant=_scaled(_of_layer),
        constant="scale",
        symptom="Layer 0 is right, later ones are worse and worse.",
        advice="With scale_attn_by_inverse_layer_idx scores of layer n are also divided by n + 1; "
        "without it they are not.",
        distinguish="The scores of layer 1 and up.",
        reports=("TransformerLensOrg/TransformerLens#27",),
        common=3,
    ),
    Fault(
        id="scale-other",
        title="Scores have another scale",
        topic="attention.scale",
        kinds=_ANYWHERE,
        variant=_other_scale,
        constant="scale",
        symptom="A systematic error in every token.",
        advice=_SCALE_ADVICE,
        distinguish="Any prompt of two tokens or more.",
        reports=("ml-explore/mlx-swift-examples#99",),
        common=1,
    ),
    Fault(
        id="softcap-missing",
        title="The soft cap of the scores is missing",
        topic="attention.softcap",
        kinds=_CAPPED,
        variant=_cap_lost,
        constant="softcap",
        symptom="Eager and fused kernels differ; a small error where scores are large.",
        advice=_CAP_ADVICE,
        distinguish="Scores as large as the cap.",
        reports=(
            "huggingface/transformers#32848",
            "huggingface/transformers#32390",
            "vllm-project/vllm-metal#665",
            "ml-explore/mlx-swift-examples#99",
        ),
        common=5,
    ),
    Fault(
        id="softcap-invented",
        title="Scores are capped although the config names no cap",
        topic="attention.softcap",
        kinds=("attn.scores", "attn.probs"),
        variant=_cap_invented,
        symptom="A small error where scores are large.",
        advice=_CAP_ADVICE + " Gemma 2 has one, Gemma 3 has none.",
        distinguish="Scores as large as the cap.",
        common=2,
    ),
    Fault(
        id="softcap-after-mask",
        title="Scores are capped after they are masked",
        topic="attention.softcap",
        kinds=("attn.probs",),
        variant=_cap_after_mask,
        symptom="The future leaks, more with a small cap.",
        advice=_CAP_ADVICE,
        distinguish="Change the last token: no earlier logit may move.",
        common=3,
    ),
    Fault(
        id="softcap-before-scale",
        title="Scores are capped before they are scaled",
        topic="attention.softcap",
        kinds=_CAPPED,
        variant=_cap_before_scale,
        symptom="Attention spread over all tokens where scores are large.",
        advice=_CAP_ADVICE,
        distinguish="Scores as large as the cap.",
        common=3,
    ),
    Fault(
        id="softcap-other",
        title="Scores are capped at another value",
        topic="attention.softcap",
        kinds=(*_CAPPED, "attn.context"),
        variant=_other_cap,
        constant="softcap",
        symptom="A small error where scores are large.",
        advice=_CAP_ADVICE,
        distinguish="Scores as large as the cap.",
        common=2,
    ),
    Fault(
        id="scores-narrow",
        title="Scores are formed in a narrower dtype",
        topic="attention.precision",
        kinds=_SCORES,
        variant=_narrow,
        symptom="Small errors everywhere, larger where scores are large.",
        advice="Keep queries, keys and their products in the model's dtype; look for an autocast "
        "or a kernel that takes half precision only.",
        distinguish="Scores that are numbers of the narrower dtype.",
        common=3,
    ),
)
