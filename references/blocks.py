"""Parts that several families share, in terms of steps.

A family that computes one of these otherwise writes its own instead of adding a flag here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from . import ops
from .cache import KVCache
from .rope import Rotation
from .step import Handle, Op, Step
from .weights import Weights

#: Activations by the name that configs give them.
ACTIVATIONS: dict[str, Op] = {"silu": ops.silu, "swish": ops.silu}


@dataclass(frozen=True, slots=True)
class Chunk:
    """One forward pass: some new positions, on top of what a cache holds.

    Attributes:
        cache: Holds the positions before; is extended.
        start: First new position.
        length: Number of new positions, T.
        batch: B.
    """

    cache: KVCache
    start: int
    length: int
    batch: int

    @property
    def positions(self) -> NDArray[np.int64]:
        """[B, T] positions of the new tokens."""
        return np.tile(np.arange(self.start, self.start + self.length), (self.batch, 1))

    def keys(self, window: int | None) -> NDArray[np.int64]:
        """[B, S] positions of the keys that :meth:`KVCache.extend` returns."""
        end = self.start + self.length
        first = 0 if window is None else max(0, self.start - window + 1)
        return np.tile(np.arange(first, end), (self.batch, 1))


class LlamaLayout(Protocol):
    """The config of a family whose checkpoints are laid out as Llama's."""

    @property
    def vocab(self) -> int:
        """V."""
        ...

    @property
    def channels(self) -> int:
        """C."""
        ...

    @property
    def mlp_channels(self) -> int:
        """F."""
        ...

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        ...

    @property
    def heads(self) -> int:
        """H."""
        ...

    @property
    def kv_heads(self) -> int:
        """K."""
        ...

    @property
    def head_dim(self) -> int:
        """D."""
        ...

    @property
    def eps(self) -> float:
        """Of all norms."""
        ...

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding table."""
        ...

    @property
    def attention_bias(self) -> bool:
        """Whether the four projections of attention have a bias."""
        ...


def llama_layout_shapes(config: LlamaLayout, *, mlp_bias: bool) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of a checkpoint laid out as Llama's."""
    c, f = config.channels, config.mlp_channels
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab, c),
        "model.norm.weight": (c,),
    }
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, c)
    attention = {"q_proj": (q, c), "k_proj": (kv, c), "v_proj": (kv, c), "o_proj": (c, q)}
    mlp = {"gate_proj": (f, c), "up_proj": (f, c), "down_proj": (c, f)}
    linears = {f"self_attn.{n}": (shape, config.attention_bias) for n, shape in attention.items()}
    linears |= {f"mlp.{n}": (shape, mlp_bias) for n, shape in mlp.items()}
    for layer in range(config.layers):
        at = f"model.layers.{layer}"
        shapes[f"{at}.input_layernorm.weight"] = (c,)
        shapes[f"{at}.post_attention_layernorm.weight"] = (c,)
        for name, (shape, bias) in linears.items():
            shapes[f"{at}.{name}.weight"] = shape
            if bias:
                shapes[f"{at}.{name}.bias"] = shape[:1]
    return shapes


def llama_layout_decoder(
    step: Step,
    weights: Weights,
    config: LlamaLayout,
    token_ids: Handle,
    layer: Callable[[Handle, int], Handle],
) -> Handle:
    """Embedding, layers, final norm and head: token ids [B, T] to logits [B, T, V].

    Args:
        step: Makes the taps embed, final_norm and logits.
        weights: The model's parameters.
        config: Sizes and epsilon.
        token_ids: [B, T].
        layer: From the residual stream [B, T, C] and the index of a layer to the stream after it.
    """
    table = weights["model.embed_tokens.weight"]
    x = step("embed", ops.embedding, table, token_ids)
    for index in range(config.layers):
        x = layer(x, index)
    x = step("final_norm", ops.rms_norm, x, weights["model.norm.weight"], eps=config.eps)
    return step("logits", ops.linear, x, table if config.tied else weights["lm_head.weight"])


def project_qkv(
    step: Step, at: str, x: Handle, weights: Weights, prefix: str, config: LlamaLayout
) -> tuple[Handle, Handle, Handle]:
    """Queries [B, H, T, D], keys and values [B, K, T, D] from x [B, T, C]; taps q, k and v."""
    q, k, v = (weights.linear(f"{prefix}.{name}_proj") for name in "qkv")
    return (
        step(f"{at}.q", ops.linear_heads, x, *q, heads=config.heads),
        step(f"{at}.k", ops.linear_heads, x, *k, heads=config.kv_heads),
        step(f"{at}.v", ops.linear_heads, x, *v, heads=config.kv_heads),
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
) -> Handle:
    """Causal grouped-query attention over the cache and the chunk.

    Args:
        step: Makes the taps keys, values, scores, mask, probs and context.
        at: Tap prefix, for example ``layers.3.attn``.
        q: [B, H, T, D], rotated.
        k: [B, K, T, D], rotated.
        v: [B, K, T, D].
        chunk: The forward pass that this is part of.
        layer: Index of the layer, for the cache.
        scale: Multiplies the scores.
        window: Size of the sliding window, None for full attention.

    Returns:
        [B, H, T, D].
    """
    keys, values = chunk.cache.extend(step, at, layer, k, v, length=chunk.length, window=window)
    mask = step(
        f"{at}.mask",
        ops.visible,
        queries=chunk.positions,
        keys=chunk.keys(window),
        window=window,
    )
    scores = step(f"{at}.scores", ops.scores, q, keys, scale=scale)
    probs = step(f"{at}.probs", ops.masked_softmax, scores, mask)
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
