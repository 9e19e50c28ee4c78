"""Small mistakes at one op: how much they move its result says whether an input shows them.

They are small or likely ones of each topic, not all that can happen: :mod:`harness.faults` has
those.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from ..references_seam import rope as rotary
from ..references_seam import step as seam
from ..replay.precision import DTYPES
from .traits import Traits

Array = NDArray[Any]

_NORMS = (ops.rms_norm, ops.rms_norm_from_one, ops.layer_norm)

#: Products with a weight and, perhaps, a bias.
LINEAR = (ops.linear, ops.linear_heads, ops.linear_merged, ops.affine, ops.affine_merged)

#: Epsilons that readers fall back to.
_EPSILONS = (1e-6, 1e-5)


@dataclass(frozen=True, slots=True)
class At:
    """An op with its inputs and its result, in float64.

    Attributes:
        kind: Kind of the tap.
        op: The op.
        inputs: Arrays; None where the op was given None.
        constants: Keyword arguments.
        result: What it makes.
        traits: The model.
    """

    kind: str
    op: seam.Op
    inputs: tuple[Array | None, ...]
    constants: Mapping[str, Any]
    result: Array
    traits: Traits

    def again(self, op: seam.Op | None = None, **constants: Any) -> Array:
        """The op, or another one, with other constants."""
        made: Array = (op or self.op)(*self.inputs, **{**self.constants, **constants})
        return made

    def input(self, index: int) -> Array:
        """An input that is there."""
        array = self.inputs[index]
        if array is None:
            raise TypeError(f"input {index} is None")
        return array


#: What the op would make with the mistake; None where it cannot be made.
Make = Callable[[At], Array | None]


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake at one op.

    Attributes:
        topic: Of the fault; see :mod:`harness.faults`.
        what: The mistake in words.
        ops: Where it can be made.
        make: Makes it.
    """

    topic: str
    what: str
    ops: tuple[seam.Op, ...]
    make: Make


def other_epsilon(eps: float) -> float:
    """The epsilon that a reader would take that does not read it."""
    return min(_EPSILONS, key=lambda other: abs(np.log(other / eps)) if other != eps else np.inf)


def _theta(at: At) -> Array:
    frequencies = np.asarray(at.constants["frequencies"])
    exponents = -np.arange(len(frequencies)) / len(frequencies)
    return at.again(frequencies=frequencies * 1.01**exponents)


def _pairing(at: At) -> Array | None:
    x, half = at.input(0), len(np.asarray(at.constants["frequencies"]))
    if half < 2:
        return None
    to_halves = np.concatenate([np.arange(0, 2 * half, 2), np.arange(1, 2 * half, 2)])
    made = at.result.copy()
    rotated: Array = at.op(x[..., to_halves], **at.constants)
    made[..., to_halves] = rotated
    return made


def _narrow_angles(at: At) -> Array:
    """The rotation of :func:`references.ops.rope` with angles rounded to bfloat16."""
    x, frequencies = at.input(0), np.asarray(at.constants["frequencies"])
    angles = np.asarray(at.constants["positions"])[:, None, :, None] * frequencies
    angles = angles.astype(DTYPES["bfloat16"]).astype(np.float64)
    factor, half = at.constants.get("attention_factor", 1.0), len(frequencies)
    cos, sin = factor * np.cos(angles), factor * np.sin(angles)
    first, second, rest = np.split(x, [half, 2 * half], axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin, rest]
    made: Array = np.concatenate(turned, axis=-1)
    return made


def _unscaled(at: At) -> Array | None:
    frequencies = np.asarray(at.constants["frequencies"])
    for rope in at.traits.ropes:
        same = [rope.at(n) for n in (1, _longest(at))]
        if rope.kind != "default" and any(_equal(r.frequencies, frequencies) for r in same):
            base = rotary.base_frequencies(rope.theta, 2 * len(frequencies))
            return at.again(frequencies=base, attention_factor=1.0)
    return None


def _longest(at: At) -> int:
    return int(np.max(np.asarray(at.constants["positions"]))) + 1


def _equal(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a, b))


def _interleaved_heads(at: At) -> Array | None:
    q, k = at.input(0), at.input(1)
    heads, groups = q.shape[1], k.shape[1]
    if groups in (1, heads):
        return None
    made: Array = at.op(q, k[:, np.arange(heads) % groups], **at.constants)
    return made


def _uncapped(kind: str) -> Make:
    def make(at: At) -> Array | None:
        return at.input(0) if at.kind.startswith(kind) else None

    return make


def _embedding_unscaled(at: At) -> Array | None:
    if at.op is ops.scaled_embedding:
        return np.asarray(ops.embedding(at.input(0), at.input(1)))
    return at.input(0) if at.kind == "embed_scaled" else None


def _other_activation(at: At) -> Array:
    if at.op is ops.silu:
        return at.again(ops.gelu_tanh)
    x = at.input(0)
    quick: Array = x / (1 + np.exp(-1.702 * x))
    return quick


def _without_bias(at: At) -> Array | None:
    if len(at.inputs) < 3 or at.inputs[2] is None:
        return None
    made: Array = at.op(*at.inputs[:2], **at.constants)
    return made


def _head_of_embedding(at: At) -> Array | None:
    traits = at.traits
    if not at.kind.startswith("logits") or traits.tied:
        return None
    table = np.asarray(traits.table.array)
    if table.shape != at.input(1).shape:
        return None
    made: Array = at.op(at.input(0), table.astype(np.float64), *at.inputs[2:], **at.constants)
    return made


def _wider_window(at: At) -> Array | None:
    window = at.constants.get("window")
    return None if window is None else at.again(window=window + 1)


def _router_normalised(at: At) -> Array:
    return at.again(normalised=not at.constants["normalised"])


MISTAKES = (
    Mistake(
        "norm.eps",
        "another usual epsilon",
        _NORMS,
        lambda at: at.again(eps=other_epsilon(at.constants["eps"])),
    ),
    Mistake("rope.theta", "theta 1 % larger", (ops.rope,), _theta),
    Mistake("rope.pairing", "neighbours rotated in place of halves", (ops.rope,), _pairing),
    Mistake("rope.precision", "angles in bfloat16", (ops.rope,), _narrow_angles),
    Mistake("rope.scaling", "frequencies without their scaling", (ops.rope,), _unscaled),
    Mistake(
        "attention.scale",
        "a scale 0.1 % larger",
        (ops.scores,),
        lambda at: at.again(scale=at.constants["scale"] * 1.001),
    ),
    Mistake("attention.gqa", "kv heads taken in turn", (ops.scores,), _interleaved_heads),
    Mistake("attention.softcap", "no cap of the scores", (ops.softcap,), _uncapped("attn.")),
    Mistake("head.softcap", "no cap of the logits", (ops.softcap,), _uncapped("logits")),
    Mistake("mask.window", "a window one wider", (ops.visible,), _wider_window),
    Mistake(
        "embedding.scale",
        "an embedding that is not scaled",
        (ops.scaled_embedding, ops.scale),
        _embedding_unscaled,
    ),
    Mistake(
        "mlp.activation",
        "an activation that looks like it",
        (ops.silu, ops.gelu_tanh, ops.gelu_new),
        _other_activation,
    ),
    Mistake(
        "mlp.router", "weights normalised otherwise", (ops.expert_weights,), _router_normalised
    ),
    Mistake("weights.bias", "biases left out", LINEAR, _without_bias),
    Mistake("head.tie", "the embedding as the head", (ops.linear,), _head_of_embedding),
)
