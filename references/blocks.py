"""Parts that several families share, in terms of steps.

A family that computes one of these otherwise writes its own instead of adding a flag here.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import ops
from .cache import KVCache
from .errors import InputError
from .rope import Rotation
from .step import Handle, Op, Step
from .weights import Weights

#: Activations by the name that configs give them.
ACTIVATIONS: dict[str, Op] = {
    "silu": ops.silu,
    "swish": ops.silu,
    "gelu_new": ops.gelu_new,
    "gelu_pytorch_tanh": ops.gelu_tanh,
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """One forward pass: some new columns of a batch, on top of what a cache holds.

    Attributes:
        cache: Holds the columns before; is extended.
        start: First new column.
        length: Number of new columns, T.
        batch: B.
        real: [B, start + T], false where a column is padding; None where none is.
    """

    cache: KVCache
    start: int
    length: int
    batch: int
    real: NDArray[np.bool_] | None = None

    @property
    def positions(self) -> NDArray[np.int64]:
        """[B, T] positions of the new tokens: the number of tokens before them."""
        return self._everywhere()[:, self.start :]

    @property
    def reach(self) -> int:
        """One more than the last position of this pass, over all rows: what scalings go by."""
        return int(self.positions.max()) + 1

    def keys(self, window: int | None) -> NDArray[np.int64]:
        """[B, S] positions of the keys that :meth:`KVCache.extend` returns."""
        return self._everywhere()[:, self._first(window) :]

    def real_keys(self, window: int | None) -> NDArray[np.bool_] | None:
        """[B, S], false where such a key is padding; None where none is.

        Raises:
            InputError: Tokens on both sides of padding, and a window shorter than all of it.
        """
        if self.real is None:
            return None
        if window is not None and window < self.real.shape[1] and _has_gap(self.real):
            raise InputError(
                "padding",
                expected=f"padding before all tokens, as a window of {window} slides over them",
                found="padding between tokens",
                advice="pad on the left to decode, or decode nothing: caches with a window count "
                "columns, and padding in between pushes tokens out",
            )
        return self.real[:, self._first(window) :]

    def _everywhere(self) -> NDArray[np.int64]:
        """[B, start + T] positions of all columns so far."""
        first = self.cache.first
        if self.real is None:
            return np.tile(np.arange(self.start + self.length) + first, (self.batch, 1))
        before: NDArray[np.int64] = np.cumsum(self.real, axis=1) - 1
        return np.maximum(before, 0, out=before) + first

    def _first(self, window: int | None) -> int:
        """First column whose key is still held."""
        return 0 if window is None else max(0, self.start - window + 1)


def _has_gap(real: NDArray[np.bool_]) -> bool:
    """Whether a row has padding between tokens."""
    begins = real[:, 1:] & ~real[:, :-1]
    return bool(np.any(np.count_nonzero(begins, axis=1) + real[:, 0] > 1))


def project_qkv(
    step: Step,
    at: str,
    x: Handle,
    weights: Weights,
    prefix: str,
    *,
    heads: int,
    kv_heads: int,
) -> tuple[Handle, Handle, Handle]:
    """Queries [B, H, T, D], keys and values [B, K, T, D] from x [B, T, C]; taps q, k and v."""
    q, k, v = (weights.linear(f"{prefix}.{name}_proj") for name in "qkv")
    return (
        step(f"{at}.q", ops.linear_heads, x, *q, heads=heads),
        step(f"{at}.k", ops.linear_heads, x, *k, heads=kv_heads),
        step(f"{at}.v", ops.linear_heads, x, *v, heads=kv_heads),
    )


def rotate(step: Step, tap: str, x: Handle, chunk: Chunk, rotation: Rotation) -> Handle:
    """Rotate queries or keys at the positions of the chunk."""
    return step(
        tap,
        ops.rope,
        x,
        positions=chunk.positions,
        frequencies=rotation.frequencies,
        attention_factor=rotation.attention_factor,
    )


def attend(
    step: Step,
    at: str,
    q: Handle,
    k: Handle,
    v: Handle,
    *,
    chunk: Chunk,
    layer: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sink: Handle | None = None,
) -> Handle:
    """Causal grouped-query attention over the cache and the chunk.

    Args:
        step: Makes the taps keys, values, scores, mask, probs and context, and scores_capped
            where there is a cap.
        at: Tap prefix, for example ``layers.3.attn``.
        q: [B, H, T, D], rotated where the family rotates.
        k: [B, K, T, D], as q.
        v: [B, K, T, D].
        chunk: The forward pass that this is part of.
        layer: Index of the layer, for the cache.
        scale: Multiplies the scores.
        window: Size of the sliding window, None for full attention.
        softcap: Caps the scores smoothly, None for no cap.
        sink: [H], a score of each head that takes probability and gives nothing; None for none.

    Returns:
        [B, H, T, D].
    """
    keys, values = chunk.cache.extend(step, at, layer, k, v, length=chunk.length, window=window)
    real = chunk.real_keys(window)
    mask = step(
        f"{at}.mask",
        ops.visible,
        queries=chunk.positions,
        keys=chunk.keys(window),
        window=window,
        **({} if real is None else {"real": real}),
    )
    scores = step(f"{at}.scores", ops.scores, q, keys, scale=scale)
    if softcap is not None:
        scores = step(f"{at}.scores_capped", ops.softcap, scores, cap=softcap)
    if sink is None:
        probs = step(f"{at}.probs", ops.masked_softmax, scores, mask)
    else:
        probs = step(f"{at}.probs", ops.masked_softmax_sink, scores, mask, sink)
    return step(f"{at}.context", ops.context, probs, values)


def gated_mlp(
    step: Step, at: str, x: Handle, weights: Weights, prefix: str, *, activation: Op
) -> Handle:
    """``down(activation(gate(x)) * up(x))`` (Shazeer 2020, GLU Variants, equation 6).

    Args:
        step: Makes the taps gate, up, act, prod and out.
        at: Tap prefix, for example ``layers.3.mlp``.
        x: [B, T, C].
        weights: The model's parameters.
        prefix: Name of the MLP in the checkpoint.
        activation: Applied to the gate.

    Returns:
        [B, T, C].
    """
    gate = step(f"{at}.gate", ops.linear, x, *weights.linear(f"{prefix}.gate_proj"))
    up = step(f"{at}.up", ops.linear, x, *weights.linear(f"{prefix}.up_proj"))
    act = step(f"{at}.act", activation, gate)
    prod = step(f"{at}.prod", ops.multiply, act, up)
    return step(f"{at}.out", ops.linear, prod, *weights.linear(f"{prefix}.down_proj"))
