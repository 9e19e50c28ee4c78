"""Mistakes in the head: tied or not, soft cap, scale, order and kind of what it gives.

Source of the right formulas: the ends of :mod:`references.families` with
:func:`references.ops.softcap` and :func:`references.ops.divide`. Mistakes in the values of the
head's matrix are those of any weight; see :mod:`harness.faults.weights_values`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from ..replay.call import Operand
from .fault import Fault, Instead, Site
from .linear import Linear
from .stored import comparable, layer_of, named
from .weights_values import bias_added, bias_missing

Array = NDArray[Any]

_MATRIX = ("logits", "logits_uncapped", "logits_unscaled")
_LAST = ("logits",)

_CAPS = (15.0, 20.0, 30.0, 50.0)

#: Output channels that a function of the logits is tried on.
_SOME = 64


def _is_matrix(site: Site) -> bool:
    return site.op is ops.linear


def _tied(site: Site) -> Iterator[Instead]:
    linear, name = Linear.at(site), named(site, 1)
    if linear is None or not name.startswith("lm_head"):
        return
    for other, array in site.facts.parameters.items():
        if array.shape != linear.weight.shape or layer_of(other) is not None or other == name:
            continue
        if linear.plausible(linear.stored(other, linear.channels)):
            yield linear.instead(weight=linear.stored(other))


def _cap_missing(site: Site) -> Iterator[Instead]:
    if site.op is ops.softcap:
        yield site.instead(op=_identity, drop=("cap",))


def _identity(x: Array) -> Array:
    return x


def _cap_other(site: Site) -> Iterator[Instead]:
    if site.op is not ops.softcap:
        return
    given = float(site.constant("cap"))
    fitted = _fitted_cap(site)
    for cap in (*_CAPS, *([] if fitted is None else [fitted])):
        if cap != given:
            yield site.instead(cap=cap, detail=f"cap {cap:.6g}, config says {given:.6g}")
    x = site.call.input(0)
    twice = ops.softcap(x.value, cap=given)
    yield site.instead(inputs={0: twice}, detail="it is applied twice")


def _fitted_cap(site: Site) -> float | None:
    """The cap that gives what the largest logit has become, by bisection."""
    if not comparable(site) or site.found is None:
        return None
    x = site.value(0)
    at = np.unravel_index(int(np.argmax(np.abs(x))), x.shape)
    size, wanted = float(abs(x[at])), float(abs(site.found[at]))
    if not 0 < wanted < size:
        return None
    low, high = wanted, 1e6
    for _ in range(200):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if middle * np.tanh(size / middle) < wanted else (low, middle)
    return low


def _cap_added(site: Site) -> Iterator[Instead]:
    if not _is_matrix(site) or site.kind != "logits":
        return
    expected = site.call.output.value
    for cap in _CAPS:
        if _explains(site, ops.softcap(_few(expected), cap=cap)):

            def capped(logits: Array, cap: float = cap) -> Array:
                made: Array = ops.softcap(logits, cap=cap)
                return made

            yield site.behind(capped, detail=f"cap {cap:.6g}")


def _few(logits: Array) -> Array:
    """A few positions and channels."""
    return logits[..., :4, :_SOME]


def _explains(site: Site, few: Array) -> bool:
    """Whether a function gives the candidate's logits at a few channels."""
    if not comparable(site) or site.found is None:
        return True
    allowed = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}[site.dtype]
    found = _few(site.found)
    return bool(np.abs(few - found).max() <= allowed * max(1.0, float(np.abs(found).max())))


def _scale_missing(site: Site) -> Iterator[Instead]:
    if site.op is ops.divide:
        divisor = float(site.constant("divisor"))
        yield site.instead(divisor=1.0, detail=f"config says {divisor:.6g}")


def _scale_inverse(site: Site) -> Iterator[Instead]:
    if site.op is ops.divide:
        divisor = float(site.constant("divisor"))
        yield site.instead(divisor=1 / divisor, detail="they are multiplied by it")
        yield site.instead(divisor=divisor**2, detail="they are divided by it twice")


def _scale_other(site: Site) -> Iterator[Instead]:
    if not comparable(site) or site.found is None:
        return
    expected, found = site.call.output.value, site.found
    few, some = _few(expected), _few(found)
    power = float(np.sum(few * few))
    factor = float(np.sum(few * some)) / power if power else 1.0
    if not factor or abs(factor - 1) < 1e-6 or not _explains(site, few * factor):
        return
    root = 1 / float(site.value(0).shape[-1]) ** 0.5
    known = {root: "by the root of the number of channels, as T5's", 1 / root: "by its inverse"}
    words = next((w for k, w in known.items() if abs(factor / k - 1) < 1e-5), f"by {factor:.6g}")
    if site.op is ops.divide:
        divisor = float(site.constant("divisor"))
        if not any(abs(factor / k - 1) < 1e-6 for k in (divisor, divisor**2, 1 / divisor)):
            yield site.instead(divisor=divisor / factor, detail=words)
    elif _is_matrix(site):
        factor = float(np.sum(found * expected) / np.sum(expected * expected))

        yield site.behind(lambda logits: logits * factor, detail=words)


def _log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalised


def _softmax(x: Array) -> Array:
    exponentials: Array = np.exp(_log_softmax(x))
    return exponentials


def _probabilities(site: Site) -> Iterator[Instead]:
    if site.found is None or not comparable(site):
        return
    expected, found = site.call.output.value, site.found
    shift = expected[..., :4, :_SOME] - _few(found)
    near = 1e-2 if site.dtype == "float32" else 5e-2
    if np.ptp(shift, axis=-1).max() < near * max(1.0, float(np.abs(expected).max())):
        yield site.behind(_log_softmax, detail="their logarithms")
    elif float(found.min()) >= 0 and float(found.max()) <= 1:
        yield site.behind(_softmax)


def _shifted(site: Site) -> Iterator[Instead]:
    x = site.value(0)
    if not comparable(site) or site.found is None or x.shape[1] < 3:
        return
    expected, found = site.call.output.value[..., :_SOME], site.found[..., :_SOME]
    largest = 1e-2 * float(np.abs(expected).max())
    for shift, words in ((1, "those of the position before"), (-1, "those of the next position")):
        inner = slice(1, None) if shift > 0 else slice(None, -1)
        moved = np.roll(expected, shift, axis=1)
        if np.abs(moved - found)[:, inner].max() > largest:
            continue
        rolled = np.roll(x, shift, axis=1)
        edge = slice(0, 1) if shift > 0 else slice(-1, None)
        for last, also in ((rolled, ""), (_kept_edge(rolled, x, edge), "")):
            yield site.instead(inputs={0: last}, detail=words + also)


def _kept_edge(rolled: Array, x: Array, edge: slice) -> Array:
    kept = rolled.copy()
    kept[:, edge] = x[:, edge]
    return kept


def _padded(site: Site) -> Iterator[Instead]:
    expected, found = site.call.output.value, site.found
    if not _is_matrix(site) or found is None or found.ndim != expected.ndim:
        return
    more = found.shape[-1] - expected.shape[-1]
    if found.shape[:-1] != expected.shape[:-1] or more <= 0:
        return
    x = site.value(0).reshape(-1, site.value(0).shape[-1])
    beyond = found[..., expected.shape[-1] :].reshape(len(x), more)
    rows = (
        np.linalg.lstsq(x, beyond, rcond=None)[0].T
        if beyond.any()
        else np.zeros((more, x.shape[1]))
    )
    weight = np.concatenate([site.value(1), rows])
    words = "they are 0" if not beyond.any() else "they have values"
    size = f"{found.shape[-1]} for {expected.shape[-1]}"
    yield site.instead(inputs={1: Operand(weight)}, detail=f"{size}; {words}")


FAULTS = (
    Fault(
        id="head-tied",
        title="The head is the table of embeddings, although the checkpoint has its own",
        topic="head.tie",
        kinds=_MATRIX,
        variant=_tied,
        symptom="All layers agree, logits are garbage, or plausible but wrong.",
        advice="Tie only where tie_word_embeddings is true; its default differs among families "
        "and versions. Look for lm_head.weight under its whole name: a look-up of lm_head alone "
        "finds nothing and falls back to the table.",
        distinguish="Any prompt; the norm before the head agrees.",
        reports=(
            "huggingface/candle#2445",
            "huggingface/candle#903",
            "huggingface/transformers#44358",
        ),
        common=5,
    ),
    Fault(
        id="head-cap-missing",
        title="Logits are not soft-capped",
        topic="head.softcap",
        kinds=_LAST,
        variant=_cap_missing,
        constant="softcap",
        symptom="The most likely token is right, probabilities are too sharp.",
        advice="Apply cap * tanh(logits / cap) with final_logit_softcapping (Gemma 2) behind the "
        "head.",
        distinguish="Logits beyond half the cap.",
        common=4,
    ),
    Fault(
        id="head-cap-other",
        title="Logits are soft-capped by another value, or twice",
        topic="head.softcap",
        kinds=_LAST,
        variant=_cap_other,
        constant="softcap",
        symptom="The most likely token is right, probabilities are off.",
        advice="final_logit_softcapping caps logits (30 in Gemma 2), attn_logit_softcapping "
        "scores (50); do not exchange them.",
        distinguish="Logits beyond half the cap.",
        common=3,
    ),
    Fault(
        id="head-cap-added",
        title="Logits are soft-capped although the config has no cap",
        topic="head.softcap",
        kinds=_LAST,
        variant=_cap_added,
        symptom="The most likely token is right, probabilities are too flat.",
        advice="Read final_logit_softcapping: null in Gemma 3, 30 in Gemma 2.",
        distinguish="Large logits.",
        common=3,
    ),
    Fault(
        id="head-scale-missing",
        title="Logits are not divided by the config's constant",
        topic="head.scale",
        kinds=_LAST,
        variant=_scale_missing,
        constant="logits_scale",
        symptom="Greedy text is right, probabilities are ten times too confident.",
        advice="Divide by logits_scaling (Granite), multiply by logit_scale (Command-R), divide "
        "by hidden_size / dim_model_base (MiniCPM).",
        distinguish="Any prompt; the ratio is the same everywhere.",
        reports=("vllm-project/vllm#52158", "Lightning-AI/litgpt#1089", "ggml-org/llama.cpp#6033"),
        common=4,
    ),
    Fault(
        id="head-scale-inverse",
        title="Logits are multiplied by the constant that divides them, or divided twice",
        topic="head.scale",
        kinds=_LAST,
        variant=_scale_inverse,
        constant="logits_scale",
        symptom="Greedy text is right, probabilities are all but certain, or all but equal.",
        advice="Granite divides by logits_scaling, Command-R multiplies by logit_scale.",
        distinguish="Any prompt; the ratio is the same everywhere.",
        reports=("vllm-project/vllm#52158",),
        common=3,
    ),
    Fault(
        id="head-scale-other",
        title="Logits are multiplied by a constant",
        topic="head.scale",
        kinds=_LAST,
        variant=_scale_other,
        constant="logits_scale",
        symptom="Greedy text is right, probabilities are too flat or too sharp.",
        advice="Scale nothing where the config has no constant: a temperature that is left on, or "
        "hidden_size**-0.5 of T5's tied head.",
        distinguish="Any prompt; the ratio is the same everywhere.",
        reports=("ggml-org/llama.cpp#6033",),
        common=3,
    ),
    Fault(
        id="head-probabilities",
        title="Probabilities, or their logarithms, are handed over as logits",
        topic="head.kind",
        kinds=_LAST,
        variant=_probabilities,
        symptom="Greedy text is right; each position is off by its own constant.",
        advice="Hand over logits from before softmax and before any sampler; servers' logprobs "
        "are logits less their log-sum-exp.",
        distinguish="Any prompt; the difference is the same for all tokens of a position.",
        common=4,
    ),
    Fault(
        id="head-shifted",
        title="Logits are shifted by one position",
        topic="head.position",
        kinds=_MATRIX,
        variant=_shifted,
        symptom="Perplexity is absurd, greedy text is right.",
        advice="Row t of the logits is what follows token t; APIs for prompt logprobs and losses "
        "shift by one.",
        distinguish="Three positions or more.",
        common=4,
    ),
    Fault(
        id="head-padded-vocabulary",
        title="Logits are those of a vocabulary that is padded",
        topic="head.vocab",
        kinds=_MATRIX,
        variant=_padded,
        symptom="More logits than tokens; sampling may give ids that no token has.",
        advice="Cut logits at vocab_size: matrices are padded to a multiple of 64 or of the "
        "number of shards.",
        distinguish="The shape of the logits.",
        common=4,
    ),
    Fault(
        id="head-bias-missing",
        title="The head's bias is not added",
        topic="head.bias",
        kinds=_MATRIX,
        variant=bias_missing,
        symptom="All layers agree; each token's logit is off by its own constant.",
        advice="Load lm_head.bias (output.bias in GGUF; Phi and models like RoBERTa have one) and "
        "add it, also where the head is tied: a loader that skips what begins with lm_head loses "
        "it.",
        distinguish="Any prompt; the difference is the same at every position.",
        reports=("vllm-project/vllm#46835", "antonellof/ferrox#237"),
        common=4,
    ),
    Fault(
        id="head-bias-added",
        title="The head adds a bias that the checkpoint does not have",
        topic="head.bias",
        kinds=_MATRIX,
        variant=bias_added,
        symptom="All layers agree; each token's logit is off by its own constant.",
        advice="Build the head with bias=False, and switch off logit_bias and penalties of the "
        "sampler: logits are compared as the model gives them.",
        distinguish="Two positions or more; the difference is the same at each.",
        common=3,
    ),
)
