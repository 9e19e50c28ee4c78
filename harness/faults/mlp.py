"""Mistakes in MLPs: the activation, what it is applied to, gate and up, their product.

Source of the right formulas: :func:`references.blocks.gated_mlp` and the activations of
:mod:`references.ops`; each variant names what it does otherwise.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from .fault import Fault, Instead, Site, Variant
from .linear import Linear
from .stored import NARROW, comparable, grid, lift, named, narrow, short

Array = NDArray[Any]

GATED = ("mlp.gate", "mlp.up")

#: Elements that an activation is tried on before it is tried on all.
_SAMPLE = 256

#: A sample that is further off, relative to its largest input, rules an activation out.
_OFF = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}

_erf = np.frompyfunc(math.erf, 1, 1)


def _sigmoid(x: Array) -> Array:
    sigmoid: Array = 0.5 * (1 + np.tanh(x / 2))
    return sigmoid


def gelu_erf(x: Array) -> Array:
    """``x / 2 (1 + erf(x / sqrt 2))`` (Hendrycks and Gimpel 2016, section 2), the exact GELU."""
    erf: Array = np.asarray(_erf(x / math.sqrt(2)), dtype=np.float64)
    gelu: Array = 0.5 * x * (1 + erf)
    return gelu


def gelu_sigmoid(x: Array) -> Array:
    """``x sigmoid(1.702 x)`` (Hendrycks and Gimpel 2016, section 2), the quick GELU."""
    return x * _sigmoid(1.702 * x)


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _relu_squared(x: Array) -> Array:
    """So et al. 2021, Primer, section 4.1."""
    return np.maximum(x, 0) ** 2


def _identity(x: Array) -> Array:
    return x


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _gelu_tanh(x: Array) -> Array:
    """Not the op itself, so that all activations that are tried are judged by one bound."""
    gelu: Array = ops.gelu_tanh(x)
    return gelu


#: Ops that compute the same function.
_SAME: dict[Callable[[Array], Array], tuple[Any, ...]] = {
    _gelu_tanh: (ops.gelu_tanh, ops.gelu_new),
    _silu: (ops.silu,),
}


def _activation(function: Callable[[Array], Array]) -> Variant:
    """Another activation in place of the op."""

    def variant(site: Site) -> Iterator[Instead]:
        if site.op not in _SAME.get(function, ()) and _plausible(site, function, site.value(0)):
            yield site.instead(op=function)

    return variant


def _plausible(site: Site, function: Callable[[Array], Array], x: Array) -> bool:
    """Whether a function of x gives what the candidate has at some elements."""
    if not comparable(site) or site.found is None:
        return True
    some = slice(None, None, 1 + x.size // _SAMPLE)
    given, found = x.ravel()[some], site.found.ravel()[some]
    largest = float(np.abs(given).max())
    return bool(np.abs(function(given) - found).max() <= _OFF[site.dtype] * (largest + largest**2))


def _low_precision(site: Site) -> Iterator[Instead]:
    if site.dtype != "float32":
        return
    for name in NARROW:
        rounded = {n: narrow(site.value(n), name) for n in range(len(site.call.inputs))}
        yield site.instead(inputs={**rounded}, detail=f"what it is given is rounded to {name}")
    if name := grid(site):
        rounded = {n: narrow(site.value(n), name) for n in range(len(site.call.inputs))}

        def op(*inputs: Array) -> Array:
            return narrow(site.op(*inputs), name)

        detail = f"every value is a {name} number"
        yield site.instead(op=op, inputs={**rounded}, precision=name, detail=detail)
        yield site.instead(precision=name, detail=detail)


def _of_up(site: Site) -> Iterator[Instead]:
    up = site.nearby.get("mlp.up")
    if up is not None and up.value.shape == site.value(0).shape:
        yield site.instead(inputs={0: up})


def _product(site: Site) -> Iterator[Instead]:
    def act(x: Array, y: Array) -> Array:
        return x

    def up(x: Array, y: Array) -> Array:
        return y

    yield site.instead(op=act, detail="the activated gate alone goes on")
    yield site.instead(op=up, detail="up alone goes on")


def _sum(site: Site) -> Iterator[Instead]:
    yield site.instead(op=ops.add)


def _after(site: Site) -> Iterator[Instead]:
    gate, act = site.nearby.get("mlp.gate"), site.config("hidden_act", "hidden_activation")
    activations: dict[Any, Callable[[Array], Array]] = {
        **{"silu": _silu, "swish": _silu, "gelu_pytorch_tanh": ops.gelu_tanh},
        **{"gelu_new": ops.gelu_new, "gelu": gelu_erf, "relu": _relu},
    }
    if gate is None or act not in activations or gate.value.shape != site.value(1).shape:
        return

    def late(x: Array, y: Array) -> Array:
        return activations[act](x * y)

    yield site.instead(op=late, inputs={0: gate})


def _other_half(name: str) -> str:
    """Name of up for gate, and of gate for up."""
    pair = ("gate_proj", "up_proj") if "gate_proj" in name else ("up_proj", "gate_proj")
    return name.replace(*pair)


def _exchanged(site: Site) -> Iterator[Instead]:
    linear, name = Linear.at(site), named(site, 1)
    known, other = site.facts.parameters, _other_half(named(site, 1))
    if linear is None or other == name or other not in known:
        return
    bias = other.removesuffix("weight") + "bias"
    moved = lift(site, known[bias]) if bias in known and linear.bias is not None else None
    rows = linear.stored(other, linear.channels)
    if moved is not None and linear.plausible(rows):  # the bias stays where it is
        moved = None
    if linear.plausible(rows, bias=None if moved is None else moved[linear.channels]):
        yield linear.instead(
            weight=linear.stored(other), bias=moved, detail=f"it has {short(other)}"
        )


def _interleaved(site: Site) -> Iterator[Instead]:
    linear, name = Linear.at(site), named(site, 1)
    other = _other_half(name)
    if linear is None or other == name or other not in site.facts.parameters:
        return
    count, part = len(linear.weight), 0 if site.kind == "mlp.gate" else 1
    index = np.arange(count)
    # Rows of the fused matrix, gate ahead of up: every second one, or half of a mixed one.
    mixed = np.stack([index, index + count], axis=1).reshape(-1)
    for words, fused in (
        ("rows of gate and up are taken by turns, but lie one after the other", 2 * index + part),
        (
            "rows of gate and up are taken one after the other, but lie by turns",
            mixed[part * count : (part + 1) * count],
        ),
    ):
        pick = _Pick(linear, other, fused, own=part)
        if linear.plausible(pick.rows(linear.channels)):
            yield linear.instead(weight=pick.rows(index), detail=words)


class _Pick:
    """Rows of gate and up laid one after the other.

    Args:
        linear: The map of one of them.
        other: Name of the other's weight.
        fused: Row of both that each output has.
        own: 0 if the map is the gate, 1 if it is up.
    """

    def __init__(self, linear: Linear, other: str, fused: Array, *, own: int) -> None:
        self._linear, self._other, self._fused, self._own = linear, other, fused, own

    def rows(self, channels: Array) -> Array:
        """Weights [m, L] of some outputs."""
        count = len(self._fused)
        half, row = np.divmod(self._fused[channels], count)
        mine = (half == self._own)[:, None]
        theirs = self._linear.stored(self._other, row)
        picked: Array = np.where(mine, self._linear.weight[row], theirs)
        return picked


def _named_activation(
    fault: str, title: str, function: Callable[[Array], Array], common: int, **words: Any
) -> Fault:
    symptom = words.pop("symptom", "Fluent but worse; every block is a little off.")
    return Fault(
        id=fault,
        title=title,
        topic="mlp.activation",
        kinds=("mlp.act",),
        variant=_activation(function),
        symptom=symptom,
        common=common,
        **words,
    )


_EXACT = (
    *("huggingface/transformers#29402", "huggingface/transformers#29729", "vllm-project/vllm#3411"),
    *("ml-explore/mlx-examples#579", "huggingface/candle#1582"),
)

FAULTS = (
    _named_activation(
        *("mlp-gelu-exact", "The activation is the exact GELU, by erf", gelu_erf, 5),
        symptom="Differences of 1e-4 to 1e-3 in every block; text reads the same.",
        advice="Take the approximation by tanh where the config says gelu_new, gelu_pytorch_tanh "
        "or gelu_fast. torch.nn.GELU() is exact by default, jax.nn.gelu is not. Gemma's first "
        "configs said gelu and meant tanh.",
        distinguish="Gates near -2 and 2, where the two differ by 4e-4; half precision hides it.",
        reports=_EXACT,
    ),
    _named_activation(
        *("mlp-gelu-tanh", "The activation is GELU by tanh", _gelu_tanh, 4),
        advice="Read the activation from hidden_act, hidden_activation or activation_function: "
        "silu for Llama, gelu for the exact one by erf.",
        distinguish="Gates near -2: GELU is -0.045 there, SiLU -0.24.",
        reports=_EXACT,
    ),
    _named_activation(
        *(
            "mlp-gelu-quick",
            "The activation is the quick GELU, x sigmoid(1.702 x)",
            gelu_sigmoid,
            3,
        ),
        advice="Quick GELU belongs to CLIP and the first GPT; take what the config names.",
        distinguish="Gates near -2 and 2, where it is 0.02 off GELU.",
    ),
    _named_activation(
        *("mlp-silu", "The activation is SiLU", _silu, 4),
        advice="Read the activation from the config: Gemma and GPT-2 have GELU, Nemotron squared "
        "ReLU. silu is the default of ports that began with Llama.",
        distinguish="Gates near -2: SiLU is -0.24 there, GELU -0.045.",
    ),
    _named_activation(
        *("mlp-relu", "The activation is ReLU", _relu, 2),
        symptom="Garbage, or fluent but worse for models whose gates are mostly large.",
        advice="Read the activation from the config; OPT and T5 have ReLU, Llama and Gemma do not.",
        distinguish="Negative gates: they give exactly 0.",
    ),
    _named_activation(
        *("mlp-relu-squared", "The activation is the square of ReLU", _relu_squared, 2),
        symptom="Garbage.",
        advice="Read the activation from the config; Nemotron and Primer have squared ReLU.",
        distinguish="Large gates.",
    ),
    _named_activation(
        *("mlp-sigmoid", "The gate is the sigmoid alone, without its factor", _sigmoid, 2),
        symptom="Garbage.",
        advice="SiLU is x * sigmoid(x). The GLU of Dauphin et al. has sigmoid(gate), and "
        "torch.nn.functional.glu takes halves of one tensor, the gate second.",
        distinguish="Large gates: they give 1.",
    ),
    _named_activation(
        *("mlp-activation-missing", "No activation is applied", _identity, 3),
        symptom="Garbage.",
        advice="Apply the activation to the gate; look for a fused kernel that expects it to be "
        "applied, and a caller that expects the same of the kernel.",
        distinguish="Negative gates.",
    ),
    Fault(
        id="mlp-activation-low-precision",
        title="The activation of a float32 model is computed in half precision",
        topic="mlp.activation",
        kinds=("mlp.act", "mlp.prod"),
        variant=_low_precision,
        symptom="Errors of 1e-3 relative in every block.",
        advice="Keep gate and activation in the model's dtype; look for autocast, a lookup table "
        "indexed by float16 (ggml's GELU), or a kernel that returns bfloat16.",
        distinguish="Values on the grid of a narrower dtype.",
        common=3,
    ),
    Fault(
        id="mlp-activation-up",
        title="The activation is applied to up instead of to the gate",
        topic="mlp.order",
        kinds=("mlp.act",),
        variant=_of_up,
        symptom="Coherent at first glance, then garbage.",
        advice="Compute activation(gate(x)) * up(x). In a fused gate_up projection the gate is "
        "the first half in Hugging Face's checkpoints; w1 is the gate, w3 is up in Meta's.",
        distinguish="Any prompt; both projections are right.",
        reports=("nntrainer/nntrainer#4194", "vllm-project/vllm#35581", "sgl-project/sglang#9661"),
        common=4,
    ),
    Fault(
        id="mlp-gate-up-exchanged",
        title="Gate and up have each other's weights",
        topic="mlp.order",
        kinds=GATED,
        variant=_exchanged,
        symptom="Coherent at first glance, then garbage.",
        advice="Gate is w1 and up is w3 in Meta's names; in fused weights gate comes first in "
        "Hugging Face's layout, second in some others. Check the order where halves are cut and "
        "where they are joined.",
        distinguish="Any prompt; both projections are wrong.",
        reports=("nntrainer/nntrainer#4194", "vllm-project/vllm#35581", "sgl-project/sglang#9661"),
        common=4,
    ),
    Fault(
        id="mlp-gate-up-interleaved",
        title="Fused gate and up are cut by turns where they lie one after the other, or so stored",
        topic="mlp.order",
        kinds=GATED,
        variant=_interleaved,
        symptom="Garbage.",
        advice="Llama-like checkpoints have gate and up one after the other, gpt-oss by turns "
        "(gate_up[::2], gate_up[1::2]). Cut as the checkpoint is laid out, after shards are "
        "joined.",
        distinguish="Any prompt; row 0 of the gate is right.",
        common=3,
    ),
    Fault(
        id="mlp-product-missing",
        title="Activated gate and up are not multiplied",
        topic="mlp.order",
        kinds=("mlp.prod",),
        variant=_product,
        symptom="Garbage.",
        advice="Multiply the activated gate with up before the down projection; an MLP without a "
        "gate has two matrices only.",
        distinguish="Any prompt.",
        common=2,
    ),
    Fault(
        id="mlp-product-sum",
        title="Activated gate and up are added, not multiplied",
        topic="mlp.order",
        kinds=("mlp.prod",),
        variant=_sum,
        symptom="Garbage.",
        advice="Multiply activated gate and up; a sum belongs to residual streams alone.",
        distinguish="Any prompt.",
        common=1,
    ),
    Fault(
        id="mlp-activation-after",
        title="The activation is applied to the product of gate and up",
        topic="mlp.order",
        kinds=("mlp.prod",),
        variant=_after,
        symptom="Garbage.",
        advice="Apply the activation to the gate before it meets up.",
        distinguish="Any prompt.",
        common=2,
    ),
)
