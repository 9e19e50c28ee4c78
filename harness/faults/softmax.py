"""Mistakes between scores and probabilities."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from ..replay.precision import DTYPES
from .attending import hidden, masked_softmax, softmax
from .fault import Fault, Instead, Site

Array = NDArray[Any]

_PROBS = ("attn.probs",)

#: Of the probabilities that are 0 although they should not be, at least and at most.
_DROPPED = (0.005, 0.9)


def narrow_softmax(
    scores: Array, visible: Array, *, dtype: str, scores_too: bool, alone: bool
) -> Array:
    """Softmax with scores, probabilities or both rounded to a narrow dtype."""
    narrow = DTYPES[dtype]
    given = scores.astype(narrow).astype(np.float64) if scores_too else scores
    probs = masked_softmax(given, visible)
    return probs if alone else probs.astype(narrow).astype(np.float64)


def over_axis(scores: Array, visible: Array, *, axis: int) -> Array:
    """Softmax over another axis of [B, H, T, S]."""
    masked = hidden(scores, visible, -1e30)
    return hidden(softmax(masked, axis=axis), visible, 0.0)


def not_divided(scores: Array, visible: Array, *, shifted: bool) -> Array:
    """Exponentials that are not divided by their sum."""
    masked = hidden(scores, visible)
    top: Any = masked.max(axis=-1, keepdims=True) if shifted else 0.0
    exponentials: Array = np.exp(masked - top)
    return exponentials


def plus_one(scores: Array, visible: Array) -> Array:
    """``exp(x) / (1 + sum(exp(x)))``: softmax with one more key, whose score is 0."""
    masked = hidden(scores, visible)
    top = np.maximum(masked.max(axis=-1, keepdims=True), 0.0)
    exponentials = np.exp(masked - top)
    shares: Array = exponentials / (exponentials.sum(axis=-1, keepdims=True) + np.exp(-top))
    return shares


def with_base(scores: Array, visible: Array, *, base: float) -> Array:
    """Softmax of powers of another base."""
    return masked_softmax(scores * np.log(base), visible)


def sigmoid(scores: Array, visible: Array) -> Array:
    """Each score on its own."""
    return hidden(1 / (1 + np.exp(-scores)), visible, 0.0)


def _narrow(site: Site) -> Iterator[Instead]:
    for name in ("bfloat16", "float16"):
        if name == site.dtype or site.dtype != "float32":
            continue
        words = {
            (False, False): f"probabilities rounded to {name}",
            (True, False): f"scores and probabilities rounded to {name}",
            (True, True): f"scores rounded to {name}",
        }
        for (scores_too, alone), what in words.items():
            yield site.instead(
                op=narrow_softmax,
                dtype=name,
                scores_too=scores_too,
                alone=alone,
                detail=what,
                precision=name,
            )


def _axis(site: Site) -> Iterator[Instead]:
    for axis, name in ((-2, "queries"), (1, "heads")):
        yield site.instead(op=over_axis, axis=axis, detail=f"over the {name}")


def _not_divided(site: Site) -> Iterator[Instead]:
    yield site.instead(op=not_divided, shifted=True, detail="exp(x - max(x))")
    yield site.instead(op=not_divided, shifted=False, detail="exp(x)")


def _plus_one(site: Site) -> Iterator[Instead]:
    yield site.instead(op=plus_one, detail="as if one more key had score 0 and value 0")


def _no_sink(site: Site) -> Iterator[Instead]:
    if site.op is not ops.masked_softmax_sink:
        return
    yield site.instead(op=without_sink, detail="probabilities of a row sum to 1")
    silent = np.zeros_like(site.value(2))
    yield site.instead(inputs={2: silent}, detail="the sinks are 0")
    yield site.instead(inputs={2: -site.value(2)}, detail="the sinks are subtracted")


def without_sink(scores: Array, visible: Array, sink: Array) -> Array:
    """Softmax over the keys alone."""
    return masked_softmax(scores, visible)


def _base(site: Site) -> Iterator[Instead]:
    yield site.instead(op=with_base, base=2.0, detail="powers of 2, not of e")


def _sigmoid(site: Site) -> Iterator[Instead]:
    yield site.instead(op=sigmoid, detail="1 / (1 + exp(-x)) for each key")


def _dropout(site: Site) -> Iterator[Instead]:
    """Some probabilities are 0, the others are all larger by one factor."""
    right, found = site.call.output.value, site.found
    if found is None or found.shape != right.shape:
        return
    counted = right > 1e-6
    kept = counted & (found != 0)
    share = 1 - float(kept.sum()) / max(1.0, float(counted.sum()))
    if not kept.any() or not _DROPPED[0] < share < _DROPPED[1]:
        return
    factor = float(np.median(found[kept] / right[kept]))
    result = np.where(found != 0, right * factor, 0.0)

    def op(*inputs: Array, result: Array = result, **constants: Any) -> Array:
        return result

    rate = 1 - 1 / factor if factor > 1 else share
    yield site.instead(op=op, detail=f"about {rate:.2g} of the probabilities are dropped")


FAULTS = (
    Fault(
        id="softmax-narrow",
        title="The softmax is computed in a narrower dtype",
        topic="attention.softmax",
        kinds=_PROBS,
        variant=_narrow,
        symptom="Small errors everywhere, flipped tokens now and then.",
        advice="Form exponentials and their sum in float32, and round probabilities to the model's "
        "dtype alone; look for an autocast.",
        distinguish="Probabilities that are numbers of the narrower dtype.",
        common=4,
    ),
    Fault(
        id="softmax-axis",
        title="The softmax runs over the wrong axis",
        topic="attention.softmax",
        kinds=_PROBS,
        variant=_axis,
        symptom="Garbage; each row of probabilities sums to another number.",
        advice="Sum over the keys, the last axis of [B, H, T, S].",
        distinguish="Sum of the probabilities of each row.",
        common=3,
    ),
    Fault(
        id="softmax-undivided",
        title="Exponentials are not divided by their sum",
        topic="attention.softmax",
        kinds=_PROBS,
        variant=_not_divided,
        symptom="Residual streams that grow with the prompt.",
        advice="Divide by the sum over the keys; in a streaming kernel at the end, by the rescaled "
        "sum.",
        distinguish="Sum of the probabilities of each row.",
        common=2,
    ),
    Fault(
        id="softmax-plus-one",
        title="The softmax has a sink that the model was not trained with",
        topic="attention.sinks",
        kinds=_PROBS,
        variant=_plus_one,
        symptom="All heads are weaker than they should be, most for early tokens.",
        advice="Add 1 (or exp of a sink) to the sum only where the checkpoint has sinks.",
        distinguish="Sum of the probabilities of each row: less than 1.",
        reports=("huggingface/transformers#41026", "sgl-project/sglang#11634"),
        common=3,
    ),
    Fault(
        id="sinks-missing",
        title="The attention sinks are left out",
        topic="attention.sinks",
        kinds=_PROBS,
        variant=_no_sink,
        symptom="Heads that should be silent are not; bad text, worse with every layer.",
        advice="Add exp(sink) of each head to the sum of the softmax, in every kernel; where one "
        "cannot, rescale its output by the share of the sink.",
        distinguish="Sum of the probabilities of each row: it must be less than 1.",
        reports=("huggingface/transformers#41026", "sgl-project/sglang#11634"),
        common=4,
    ),
    Fault(
        id="softmax-base-two",
        title="The softmax takes powers of 2",
        topic="attention.softmax",
        kinds=_PROBS,
        variant=_base,
        symptom="Attention spread over more tokens than it should be.",
        advice="A kernel that uses exp2 must multiply scores by log2(e) first.",
        distinguish="A scale that is log(2) times as large gives the same numbers.",
        common=2,
    ),
    Fault(
        id="softmax-sigmoid",
        title="Each score goes through a sigmoid, not through a softmax",
        topic="attention.softmax",
        kinds=_PROBS,
        variant=_sigmoid,
        symptom="Residual streams that grow with the prompt.",
        advice="Take the softmax over the keys.",
        distinguish="Sum of the probabilities of each row.",
        common=1,
    ),
    Fault(
        id="attention-dropout",
        title="Dropout of the probabilities is left on",
        topic="attention.softmax",
        kinds=_PROBS,
        variant=_dropout,
        symptom="Two runs differ.",
        advice="Call model.eval(), and pass dropout_p=0 to the kernel outside of training.",
        distinguish="The same run twice.",
        common=4,
    ),
)
