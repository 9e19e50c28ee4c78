"""Qwen3: Llama's layout with normalised queries and keys and a free head dimension.

Source: Yang et al. 2025, Qwen3 Technical Report, section 2: grouped-query attention, SwiGLU, RoPE,
RMSNorm with pre-normalisation, QK-Norm in place of the QKV bias. The norm is taken over each
head's D elements, before the rotation, with one weight for all heads. Parameter names are those
of Hugging Face checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..blocks import ACTIVATIONS, Chunk, attend, gated_mlp, project_qkv, rotate
from ..config import ConfigReader, unusable
from ..llama_layout import (
    FULL,
    SLIDING,
    Decoder,
    llama_layout_decoder,
    llama_layout_shapes,
    read_decoder,
    read_layer_types,
)
from ..rope import Rope
from ..rope_config import read_rope
from ..step import Handle, Step
from ..weights import Weights

DERIVED: tuple[str, ...] = ()

BASE = "model."


@dataclass(frozen=True, slots=True)
class Config:
    """The config keys that Qwen3 follows, under short names.

    Attributes:
        windows: Size of each layer's sliding window, None for full attention.
    """

    decoder: Decoder
    windows: tuple[int | None, ...]
    rope: Rope

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return self.decoder.layers

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return self.decoder.vocab

    @property
    def max_positions(self) -> int | None:
        """Length that the model was made for, None if it takes any."""
        return self.rope.longest


def read_config(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> Config:
    """Read a Qwen3 config.

    Raises:
        ConfigError: A key that is absent, unusable or unknown.
    """
    read = ConfigReader(raw, defaults)
    decoder = read_decoder(read, kv_heads=32, head_dim=128)
    config = Config(
        decoder=decoder,
        windows=_windows(read, decoder.layers),
        rope=read_rope(read, dim=decoder.head_dim),
    )
    read.finish()
    return config


def _windows(read: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Each layer's window: those from ``max_window_layers`` on slide, if any do."""
    sliding = read.flag("use_sliding_window", default=False)
    sized = not read.is_null("sliding_window")
    size = read.integer("sliding_window", 4096)
    first = read.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise unusable("max_window_layers", "a number of layers", first)
    implied = [SLIDING if sliding and sized and n >= first else FULL for n in range(layers)]
    kinds = read_layer_types(read, implied)
    if SLIDING in kinds and not sliding:
        raise unusable("use_sliding_window", "true, as layer_types has sliding_attention", sliding)
    if SLIDING in kinds and not sized:
        raise unusable("sliding_window", "a number, as layer_types has sliding_attention", None)
    return tuple(size if kind == SLIDING else None for kind in kinds)


def parameters(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter."""
    shapes = llama_layout_shapes(config.decoder, mlp_bias=False)
    for layer in range(config.layers):
        for name in ("q_norm", "k_norm"):
            shapes[f"model.layers.{layer}.self_attn.{name}.weight"] = (config.decoder.head_dim,)
    return shapes


def forward(
    step: Step, weights: Weights, config: Config, token_ids: Handle, chunk: Chunk
) -> Handle:
    """One forward pass: token ids [B, T] to logits [B, T, V]."""
    decoder, rotation = config.decoder, config.rope.at(chunk.reach)
    heads, kv_heads = decoder.heads, decoder.kv_heads
    activation = ACTIVATIONS[decoder.activation]
    eps, scale = decoder.eps, decoder.head_dim**-0.5

    def layer(x: Handle, index: int) -> Handle:
        tap, at = f"layers.{index}", f"model.layers.{index}"
        attn, proj = f"{tap}.attn", f"{at}.self_attn"

        norm = weights[f"{at}.input_layernorm.weight"]
        y = step(f"{tap}.attn_norm", ops.rms_norm, x, norm, eps=eps)
        q, k, v = project_qkv(step, attn, y, weights, proj, heads=heads, kv_heads=kv_heads)
        q = step(f"{attn}.q_norm", ops.rms_norm, q, weights[f"{proj}.q_norm.weight"], eps=eps)
        k = step(f"{attn}.k_norm", ops.rms_norm, k, weights[f"{proj}.k_norm.weight"], eps=eps)
        q = rotate(step, f"{attn}.q_rope", q, chunk, rotation)
        k = rotate(step, f"{attn}.k_rope", k, chunk, rotation)
        window = config.windows[index]
        y = attend(step, attn, q, k, v, chunk=chunk, layer=index, scale=scale, window=window)
        y = step(f"{attn}.out", ops.linear_merged, y, *weights.linear(f"{proj}.o_proj"))
        x = step(f"{tap}.resid_mid", ops.add, x, y)

        norm = weights[f"{at}.post_attention_layernorm.weight"]
        y = step(f"{tap}.mlp_norm", ops.rms_norm, x, norm, eps=eps)
        y = gated_mlp(step, f"{tap}.mlp", y, weights, f"{at}.mlp", activation=activation)
        return step(f"{tap}.resid_post", ops.add, x, y)

    return llama_layout_decoder(step, weights, decoder, token_ids, layer)
