"""Mistakes in mixtures of experts: which are chosen, how they are weighted, what they compute.

Source of the right formulas: :func:`references.ops.top_experts`,
:func:`references.ops.expert_weights` and :func:`references.ops.experts`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import UNIT_LIMIT
from ..references_seam import ops
from ..replay.bounds import unit
from .fault import Fault, Instead, Site
from .stored import comparable

Array = NDArray[Any]

#: From logits and booleans of the chosen experts, both [B, T, E], to weights of all.
Weigh = Callable[[Array, Array], Array]

_CHOSEN, _WEIGHTS, _OUT = ("mlp.chosen",), ("mlp.router_weights",), ("mlp.out",)


def _softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    softmax: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return softmax


def _count(site: Site) -> Iterator[Instead]:
    given, experts = int(site.constant("count")), site.value(0).shape[-1]
    counts = {given - 1, given + 1, 1, 2, 4, 8, experts} - {given}
    if comparable(site) and site.found is not None:
        counts &= set(np.unique(site.found.sum(axis=-1)).tolist())
    for count in sorted(counts):
        if 0 < count <= experts:
            yield site.instead(count=count, detail=f"{count} experts, config says {given}")


def _smallest(site: Site) -> Iterator[Instead]:
    yield site.instead(inputs={0: -site.value(0)})


def _shifted_choice(site: Site) -> Iterator[Instead]:
    for shift in (1, -1):
        yield site.instead(inputs={0: np.roll(site.value(0), shift, axis=-1)}, detail=f"by {shift}")


def _weights(site: Site, weigh: Weigh, detail: str = "", *, divided: bool = False) -> Instead:
    """Weights that are made otherwise of the logits, kept for the chosen experts."""

    def op(logits: Array, given: Array, *, normalised: bool) -> Array:
        chosen = given.astype(bool)
        made: Array = np.where(chosen, weigh(logits, chosen), 0.0)
        whole: Array = made.sum(axis=-1, keepdims=True) if divided else np.ones(1)
        return made / whole

    return site.instead(op=op, detail=detail)


def _either(site: Site, weigh: Weigh) -> Iterator[Instead]:
    """The same, divided by the sum over the chosen or not."""
    yield _weights(site, weigh, "and not divided by their sum")
    yield _weights(site, weigh, "and divided by their sum", divided=True)


def _normalised(site: Site) -> Iterator[Instead]:
    if not site.constant("normalised"):
        yield site.instead(normalised=True)


def _not_normalised(site: Site) -> Iterator[Instead]:
    if site.constant("normalised"):
        yield site.instead(normalised=False)


def _sigmoid(site: Site) -> Iterator[Instead]:
    yield from _either(site, lambda logits, chosen: 1 / (1 + np.exp(-logits)))


def _softmax_twice(site: Site) -> Iterator[Instead]:
    yield from _either(site, lambda logits, chosen: _softmax(_softmax(logits)))


def _uniform(site: Site) -> Iterator[Instead]:
    def ones(logits: Array, chosen: Array) -> Array:
        return np.ones_like(logits)

    yield _weights(site, ones, "each has weight 1")
    yield _weights(site, ones, "all have the same weight", divided=True)


def _reversed(site: Site) -> Iterator[Instead]:
    normalised = bool(site.constant("normalised"))

    def turned(logits: Array, chosen: Array) -> Array:
        weights = ops.expert_weights(logits, chosen, normalised=normalised)
        order = np.argsort(np.where(chosen, weights, -1.0), axis=-1, kind="stable")
        largest = order[..., -int(chosen.sum(axis=-1).max()) :]
        made: Array = np.zeros_like(weights)
        given = np.take_along_axis(weights, largest, axis=-1)[..., ::-1]
        np.put_along_axis(made, largest, given, axis=-1)
        return made

    yield _weights(site, turned)


def _scaled(site: Site) -> Iterator[Instead]:
    if not comparable(site) or site.found is None:
        return
    weights = site.call.output.value
    factor = float(np.sum(site.found * weights) / max(float(np.sum(weights**2)), 1e-300))
    normalised = bool(site.constant("normalised"))

    def scaled(logits: Array, chosen: Array) -> Array:
        made: Array = ops.expert_weights(logits, chosen, normalised=normalised) * factor
        return made

    if abs(factor - 1) > 1e-6 and factor:
        yield _weights(site, scaled, f"by {factor:.6g}")


def _probabilities(site: Site) -> Iterator[Instead]:
    if site.op is ops.linear:
        yield site.behind(_softmax)


def _is_mixture(site: Site) -> bool:
    return site.op is ops.experts


def _unweighted(site: Site) -> Iterator[Instead]:
    if _is_mixture(site):
        yield site.instead(inputs={1: (site.value(1) != 0).astype(np.float64)})


def _on_inputs(site: Site) -> Iterator[Instead]:
    if not _is_mixture(site):
        return

    def early(x: Array, weights: Array, *matrices: Array, activation: Any) -> Array:
        total = np.zeros_like(x)
        for expert in range(weights.shape[-1]):
            share = weights[..., expert, None]
            alone = np.zeros_like(weights)
            alone[..., expert] = weights[..., expert] != 0
            total += ops.experts(x * share, alone, *matrices, activation=activation)
        return total

    yield site.instead(op=early)


def _matrices(site: Site, order: Any, detail: str = "") -> Instead:
    """Matrices in another order: ``order`` takes and gives a list of [gate, up, down]."""
    operands = site.call.inputs[2:]
    grouped = [list(operands[n : n + 3]) for n in range(0, len(operands), 3)]
    flat = [operand for group in order(grouped) for operand in group]
    changed = {2 + n: operand for n, operand in enumerate(flat)}
    return site.instead(inputs=changed, detail=detail)


def _turned(shift: int, groups: list[Any]) -> list[Any]:
    return groups[-shift:] + groups[:-shift]


def _gate_up(site: Site) -> Iterator[Instead]:
    if _is_mixture(site):
        yield _matrices(site, lambda groups: [[up, gate, down] for gate, up, down in groups])


def _shifted(site: Site) -> Iterator[Instead]:
    if not _is_mixture(site):
        return
    for shift in (1, -1):
        detail = f"each has the weights of the one {'before' if shift > 0 else 'behind'}"
        yield _matrices(site, partial(_turned, shift), detail)


def _dropped(site: Site) -> Iterator[Instead]:
    """Experts that all wrong tokens go to, and no right one."""
    if not _is_mixture(site) or not comparable(site) or site.found is None:
        return
    size = unit(site.op, site.call) * site.call.precision.unit_roundoff
    wrong = (np.abs(site.found - site.call.output.value) > UNIT_LIMIT * size).any(axis=-1)
    sent = site.value(1) != 0
    for expert in np.flatnonzero((sent == wrong[..., None]).all(axis=(0, 1))):
        weights = site.value(1).copy()
        weights[..., expert] = 0
        yield site.instead(inputs={1: weights}, detail=f"expert {expert}")


FAULTS = (
    Fault(
        id="experts-count",
        title="Another number of experts is chosen for each token",
        topic="mlp.router",
        kinds=_CHOSEN,
        variant=_count,
        symptom="Fluent but worse.",
        advice="Read num_experts_per_tok (moe_top_k, num_experts_per_token); shared experts do "
        "not count among them.",
        distinguish="Any prompt.",
        reports=("ggml-org/llama.cpp#14939",),
        common=4,
    ),
    Fault(
        id="experts-smallest",
        title="The experts of the smallest logits are chosen",
        topic="mlp.router",
        kinds=_CHOSEN,
        variant=_smallest,
        symptom="Garbage.",
        advice="Sort in descending order: argsort is ascending.",
        distinguish="Any prompt.",
        common=2,
    ),
    Fault(
        id="experts-index",
        title="The index of chosen experts is off by one",
        topic="mlp.router",
        kinds=_CHOSEN,
        variant=_shifted_choice,
        symptom="Garbage.",
        advice="Count experts from 0; look for a shared expert at index 0 that is counted on one "
        "side alone.",
        distinguish="Any prompt.",
        common=2,
    ),
    Fault(
        id="router-normalised",
        title="Weights of the chosen experts are divided by their sum, or softmax is over them "
        "alone",
        topic="mlp.router",
        kinds=_WEIGHTS,
        variant=_normalised,
        symptom="The MLP counts too much; fluent but worse.",
        advice="Follow norm_topk_prob: where it is false the weights are those of the softmax "
        "over all experts (Qwen1.5-MoE, Qwen2-MoE). Softmax over the chosen logits is the same as "
        "dividing.",
        distinguish="Any prompt; a token's weights sum to 1.",
        reports=("TransformerLensOrg/TransformerLens#570",),
        common=5,
    ),
    Fault(
        id="router-not-normalised",
        title="Weights of the chosen experts are not divided by their sum",
        topic="mlp.router",
        kinds=_WEIGHTS,
        variant=_not_normalised,
        symptom="The MLP counts too little; fluent but worse.",
        advice="Follow norm_topk_prob: where it is true (Mixtral, Qwen3-MoE, DeepSeek-V3) divide "
        "the weights of the chosen experts by their sum.",
        distinguish="Any prompt; a token's weights sum to less than 1.",
        reports=("pytorch/torchtitan#1448",),
        common=5,
    ),
    Fault(
        id="router-sigmoid",
        title="Weights of experts are sigmoids where softmax is right",
        topic="mlp.router",
        kinds=_WEIGHTS,
        variant=_sigmoid,
        symptom="Fluent but worse; choices are the same, weights are not.",
        advice="Follow scoring_func: DeepSeek-V3 and GLM-4.5 have sigmoid, Mixtral and Qwen "
        "softmax.",
        distinguish="Any prompt.",
        common=3,
    ),
    Fault(
        id="router-softmax-twice",
        title="Softmax is applied to weights of experts twice",
        topic="mlp.router",
        kinds=_WEIGHTS,
        variant=_softmax_twice,
        symptom="All experts count nearly the same.",
        advice="Look whether what is called router logits is behind a softmax already.",
        distinguish="Any prompt.",
        reports=("huggingface/transformers#45120",),
        common=3,
    ),
    Fault(
        id="router-uniform",
        title="Chosen experts are not weighted by the router",
        topic="mlp.router",
        kinds=_WEIGHTS,
        variant=_uniform,
        symptom="Fluent but worse, or values too large by the number of experts.",
        advice="Multiply each expert's result by its weight.",
        distinguish="Any prompt.",
        common=2,
    ),
    Fault(
        id="router-order",
        title="Weights of the chosen experts are in another order than the experts",
        topic="mlp.router",
        kinds=_WEIGHTS,
        variant=_reversed,
        symptom="Fluent but worse.",
        advice="Take weights and indices from the same top-k; one that is sorted the other way "
        "pairs the largest weight with the last expert.",
        distinguish="Two experts or more for each token.",
        reports=("TransformerLensOrg/TransformerLens#570",),
        common=3,
    ),
    Fault(
        id="router-scale",
        title="Weights of experts are multiplied by a constant",
        topic="mlp.router",
        kinds=_WEIGHTS,
        variant=_scaled,
        constant="routed_scaling_factor",
        symptom="The MLP counts too much or too little.",
        advice="Multiply by routed_scaling_factor where the config has it (DeepSeek), after the "
        "division by the sum, and by nothing elsewhere.",
        distinguish="Any prompt.",
        common=3,
    ),
    Fault(
        id="router-probabilities",
        title="Router logits are behind a softmax already",
        topic="mlp.router",
        kinds=("mlp.router",),
        variant=_probabilities,
        symptom="Choices are right; the auxiliary loss, or weights, are not.",
        advice="Hand over what the router's matrix gives, before the softmax.",
        distinguish="Any prompt; rows sum to 1.",
        reports=("huggingface/transformers#45120",),
        common=3,
    ),
    Fault(
        id="experts-unweighted",
        title="Experts' results are added without their weights",
        topic="mlp.router",
        kinds=_OUT,
        variant=_unweighted,
        symptom="Activations are too large by about the number of experts.",
        advice="Multiply each expert's result by the weight that the router gives it before the "
        "sum.",
        distinguish="Any prompt.",
        common=2,
    ),
    Fault(
        id="experts-input-weighted",
        title="Weights multiply the inputs of experts, not their results",
        topic="mlp.router",
        kinds=_OUT,
        variant=_on_inputs,
        symptom="Fluent but much worse.",
        advice="Weight the results; only Llama 4 weights the inputs "
        "(apply_router_weight_on_input).",
        distinguish="Any prompt; a linear MLP would hide it.",
        common=3,
    ),
    Fault(
        id="experts-gate-up-exchanged",
        title="Gate and up of the experts are exchanged",
        topic="mlp.order",
        kinds=_OUT,
        variant=_gate_up,
        symptom="Garbage.",
        advice="Fused experts have gate first (gate_up_proj); w1 is the gate, w3 is up, w2 is "
        "down.",
        distinguish="Any prompt.",
        reports=("sgl-project/sglang#29659", "vllm-project/vllm#36997", "Lightning-AI/litgpt#2234"),
        common=4,
    ),
    Fault(
        id="experts-shifted",
        title="Experts have each other's weights, one further",
        topic="mlp.router",
        kinds=_OUT,
        variant=_shifted,
        symptom="Garbage; router and choice are right.",
        advice="Stack experts by their number, not in the order of the file or sorted as text (10 "
        "before 2), and count from 0.",
        distinguish="Any prompt.",
        common=3,
    ),
    Fault(
        id="experts-dropped",
        title="An expert's result is missing",
        topic="mlp.router",
        kinds=_OUT,
        variant=_dropped,
        symptom="Some tokens are wrong.",
        advice="Look for a capacity limit, an expert on another device whose result is not "
        "summed, or weights that were not loaded under their new packed names.",
        distinguish="Tokens that go to that expert alone are wrong.",
        reports=("huggingface/transformers#43201", "vllm-project/vllm#31849"),
        common=3,
    ),
)
