"""Attention in NumPy for the variants: its parts, and the pieces that mistakes are made of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import config as configs
from ..references_seam import errors, rope_config
from ..references_seam import rope as rotary
from ..replay.call import Operand
from .fault import Site

Array = NDArray[Any]

#: Elements of the scores to which a constant is fitted, at most.
_FITTED = 1 << 20

#: Layer types with the base that each has where the config names none.
_LAYER_TYPES = {"full_attention": 1e6, "sliding_attention": 1e4}


@dataclass(frozen=True, slots=True)
class Parts:
    """What one attention is made of, of a candidate that taps nothing between that and its result.

    Attributes:
        q: [B, H, T, D].
        keys: [B, K, S, D].
        values: [B, K, S, D].
        mask: Booleans [B, T, S].
        scale: Multiplies the scores.
        cap: Caps them, None for no cap.
    """

    q: Array
    keys: Array
    values: Array
    mask: Array
    scale: float
    cap: float | None

    @property
    def kv(self) -> Array:
        """[H] kv head that each query head reads."""
        return groups(self.q.shape[1], self.keys.shape[1])


def parts(site: Site) -> Parts | None:
    """The parts of the attention whose context is made here; None where scores are tapped."""
    probs = site.maker(0)
    if probs is None:
        return None
    mask, cap = probs.call.input(1).value, None
    made = probs.call.input(0).made
    if made is not None and "cap" in made.call.constants:
        cap = made.call.constants["cap"]
        made = made.call.input(0).made
    if made is None:
        return None
    q, keys = made.call.input(0).value, made.call.input(1).value
    return Parts(q, keys, site.value(1), mask, made.call.constants["scale"], cap)


def attend(
    given: Parts,
    *,
    keys_of: Array | None = None,
    values_of: Array | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Array:
    """Context [B, H, T, D] of an attention with some things changed.

    Args:
        given: The attention.
        keys_of: [H] kv head whose keys each query head reads.
        values_of: [H] kv head whose values it reads.
        scale: In place of the attention's.
        cap: The same.
    """
    factor = given.scale if scale is None else scale
    scores = scores_by(
        given.q, given.keys, scale=factor, kv=given.kv if keys_of is None else keys_of
    )
    limit = given.cap if cap is None else cap
    if limit is not None:
        scores = limit * np.tanh(scores / limit)
    probs = masked_softmax(scores, given.mask)
    return context_by(probs, given.values, kv=given.kv if values_of is None else values_of)


def groups(heads: int, kv_heads: int) -> Array:
    """[H] kv head of each query head: groups of neighbours."""
    kv: Array = np.arange(heads) // (heads // kv_heads)
    return kv


def scores_by(q: Array, k: Array, *, scale: float, kv: Array) -> Array:
    """Scores [B, H, T, S] where query head ``h`` reads kv head ``kv[h]``."""
    scores: Array = np.matmul(q, np.swapaxes(k[:, kv], -1, -2)) * scale
    return scores


def context_by(probs: Array, values: Array, *, kv: Array) -> Array:
    """Context [B, H, T, D] where query head ``h`` reads kv head ``kv[h]``."""
    context: Array = np.matmul(probs, values[:, kv])
    return context


def softmax(x: Array, axis: int = -1) -> Array:
    """Softmax along an axis."""
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    weights: Array = exponentials / exponentials.sum(axis=axis, keepdims=True)
    return weights


def hidden(scores: Array, visible: Array, value: float = -np.inf) -> Array:
    """Scores with a value in place of those of keys that are not seen."""
    return np.where(visible[:, None], scores, value)


def masked_softmax(scores: Array, visible: Array) -> Array:
    """Softmax over the keys that are seen."""
    return softmax(hidden(scores, visible))


def already(*inputs: Array | None, result: Array, **constants: Any) -> Array:
    """What was computed before; stands for an op whose inputs do not say enough."""
    return result


def fitted(compute: Callable[[float], Array], found: Array) -> float | None:
    """The factor for which ``compute(factor)`` is nearest to what was found, by Gauss-Newton.

    Args:
        compute: A smooth function of a positive factor, 1 for what should be.
        found: What it should give.
    """
    best, least = None, np.inf
    for start in (0.0, 1.5, -1.5):
        power = _descend(compute, found, start)
        left = float(np.sum((compute(float(np.exp(power))) - found) ** 2))
        if left < least:
            best, least = float(np.exp(power)), left
    return best


def _descend(compute: Callable[[float], Array], found: Array, power: float) -> float:
    step = 1e-4
    for _ in range(16):
        above, below = (compute(float(np.exp(power + h))) for h in (step, -step))
        slope = (above - below) / (2 * step)
        steep = float(np.sum(slope**2))
        if not steep > 0:
            return power
        move = float(np.sum(slope * (found - (above + below) / 2))) / steep
        power += float(np.clip(move, -1.0, 1.0))
        power = float(np.clip(power, -12.0, 12.0))
        if abs(move) < 1e-10:
            break
    return power


def excerpt(given: Parts, found: Array) -> tuple[Parts, Array]:
    """A part of an attention that is large enough to fit one number to: its last queries."""
    batch, heads, length, _ = given.q.shape
    rows = max(1, min(length, _FITTED // (batch * heads * given.keys.shape[2])))
    last = slice(length - rows, None)
    part = Parts(
        given.q[:, :, last],
        given.keys,
        given.values,
        given.mask[:, last],
        given.scale,
        given.cap,
    )
    return part, found[:, :, -rows:].astype(np.float64)


def rotations(site: Site, size: int) -> Iterator[rotary.Rotation]:
    """The rotations that the config names, for heads of a size."""
    raw = site.facts.config
    given = raw.get("rope_parameters") or {}
    if not (given or "rope_theta" in raw or "rope_scaling" in raw):
        return
    apart = any(kind in given for kind in _LAYER_TYPES) or "rope_local_base_freq" in raw
    read = configs.ConfigReader(raw)
    length = sum(tokens.shape[1] for tokens in site.facts.tokens[: site.chunk + 1])
    try:
        ropes = (
            rope_config.read_rope_of_layer_types(read, dim=size, default_thetas=_LAYER_TYPES)
            if apart
            else {"": rope_config.read_rope(read, dim=size, partial=1.0)}
        )
    except errors.RefusedError:
        return
    for rope in ropes.values():
        yield rope.at(length)


def turn(x: Array, positions: Array, rotation: rotary.Rotation) -> Array:
    """Rotate heads [B, K, S, D] at positions [S]; the halves of the rotated part are paired."""
    angles, factor = positions[:, None] * rotation.frequencies, rotation.attention_factor
    cos, sin, half = np.cos(angles) * factor, np.sin(angles) * factor, len(rotation.frequencies)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def turned(x: Array, positions: Array, rotation: rotary.Rotation, ratio: float) -> Operand:
    """Heads rotated, with the rounding that the angles bring.

    Args:
        x: [B, K, S, D].
        positions: [S].
        rotation: By what.
        ratio: Unit roundoff of float32 in units of the candidate's dtype.
    """
    frequencies, half = rotation.frequencies, len(rotation.frequencies)
    pair, rest = np.abs(x[..., :half]) + np.abs(x[..., half : 2 * half]), np.abs(x[..., 2 * half :])
    own = pair * (1 + ratio * np.abs(positions[:, None] * frequencies))
    bound = np.concatenate([own, own, rest], axis=-1).astype(np.float32)
    return Operand(turn(x, positions, rotation), bound)


def start_of(site: Site) -> int:
    """Position of the first token of this forward pass, where none is padding."""
    return sum(tokens.shape[1] for tokens in site.facts.tokens[: site.chunk])
