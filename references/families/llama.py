"""Llama: pre-norm decoder with RoPE, grouped-query attention and a gated MLP.

Source: Touvron et al. 2023, LLaMA, section 2.2; Llama 2, section 2.2 (grouped-query attention);
Grattafiori et al. 2024, The Llama 3 Herd of Models, section 3.2. Parameter names are those of
Hugging Face checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..blocks import (
    ACTIVATIONS,
    Chunk,
    attend,
    gated_mlp,
    llama_layout_decoder,
    llama_layout_shapes,
    project_qkv,
    rotate,
)
from ..config import ConfigReader, unusable
from ..rope import Rope, read_rope
from ..step import Handle, Step
from ..weights import Weights

#: Old checkpoints carry the rotary frequencies as a buffer of every layer.
DERIVED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)


@dataclass(frozen=True, slots=True)
class Config:
    """The config keys that Llama follows, under short names."""

    vocab: int
    channels: int
    mlp_channels: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    activation: str
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    rope: Rope

    @property
    def max_positions(self) -> int | None:
        """Length that the model was made for, None if it takes any."""
        return self.rope.longest


def read_config(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> Config:
    """Read a Llama config.

    Raises:
        ConfigError: A key that is absent, unusable or unknown.
    """
    read = ConfigReader(raw, defaults)
    channels, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    kv_heads = read.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise unusable("num_key_value_heads", f"a divisor of the {heads} heads", kv_heads)
    head_dim = read.integer("head_dim", channels // heads)
    read.choice("rope_interleaved", {False}, default=False)
    config = Config(
        vocab=read.integer("vocab_size"),
        channels=channels,
        mlp_channels=read.integer("intermediate_size"),
        layers=read.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=read.number("rms_norm_eps", 1e-6),
        activation=read.choice("hidden_act", ACTIVATIONS, default="silu"),
        tied=read.flag("tie_word_embeddings", default=False),
        attention_bias=read.flag("attention_bias", default=False),
        mlp_bias=read.flag("mlp_bias", default=False),
        rope=read_rope(read, dim=head_dim),
    )
    read.finish()
    return config


def parameters(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter."""
    return llama_layout_shapes(config, mlp_bias=config.mlp_bias)


def forward(
    step: Step, weights: Weights, config: Config, token_ids: Handle, chunk: Chunk
) -> Handle:
    """One forward pass: token ids [B, T] to logits [B, T, V]."""
    rotation = config.rope.at(chunk.start + chunk.length)
    activation = ACTIVATIONS[config.activation]

    def layer(x: Handle, index: int) -> Handle:
        tap, at = f"layers.{index}", f"model.layers.{index}"
        attn, proj = f"{tap}.attn", f"{at}.self_attn"

        norm = weights[f"{at}.input_layernorm.weight"]
        y = step(f"{tap}.attn_norm", ops.rms_norm, x, norm, eps=config.eps)
        q, k, v = project_qkv(step, attn, y, weights, proj, config)
        q = rotate(step, f"{attn}.q_rope", q, chunk, rotation)
        k = rotate(step, f"{attn}.k_rope", k, chunk, rotation)
        scale = config.head_dim**-0.5
        y = attend(step, attn, q, k, v, chunk=chunk, layer=index, scale=scale)
        y = step(f"{attn}.out", ops.linear_merged, y, *weights.linear(f"{proj}.o_proj"))
        x = step(f"{tap}.resid_mid", ops.add, x, y)

        norm = weights[f"{at}.post_attention_layernorm.weight"]
        y = step(f"{tap}.mlp_norm", ops.rms_norm, x, norm, eps=config.eps)
        y = gated_mlp(step, f"{tap}.mlp", y, weights, f"{at}.mlp", activation=activation)
        return step(f"{tap}.resid_post", ops.add, x, y)

    return llama_layout_decoder(step, weights, config, token_ids, layer)
