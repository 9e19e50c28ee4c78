"""Llama: pre-norm decoder with RoPE, grouped-query attention and a gated MLP.

Source: Touvron et al. 2023, LLaMA, section 2.2; Llama 2, section 2.2 (grouped-query attention);
Grattafiori et al. 2024, The Llama 3 Herd of Models, section 3.2. Parameter names are those of
Hugging Face checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..blocks import ACTIVATIONS, Chunk, attend, gated_mlp, project_qkv, rotate
from ..config import ConfigReader
from ..llama_layout import Decoder, llama_layout_decoder, llama_layout_shapes, read_decoder
from ..rope import Rope
from ..rope_config import read_rope
from ..step import Handle, Step
from ..weights import Weights

#: Old checkpoints carry the rotary frequencies as a buffer of every layer.
DERIVED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)

BASE = "model."


@dataclass(frozen=True, slots=True)
class Config:
    """The config keys that Llama follows, under short names."""

    decoder: Decoder
    mlp_bias: bool
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
    """Read a Llama config.

    Raises:
        ConfigError: A key that is absent, unusable or unknown.
    """
    read = ConfigReader(raw, defaults)
    read.choice("rope_interleaved", {False}, default=False)
    decoder = read_decoder(read)
    config = Config(
        decoder=decoder,
        mlp_bias=read.flag("mlp_bias", default=False),
        rope=read_rope(read, dim=decoder.head_dim),
    )
    read.finish()
    return config


def parameters(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter."""
    return llama_layout_shapes(config.decoder, mlp_bias=config.mlp_bias)


def forward(
    step: Step, weights: Weights, config: Config, token_ids: Handle, chunk: Chunk
) -> Handle:
    """One forward pass: token ids [B, T] to logits [B, T, V]."""
    decoder, rotation = config.decoder, config.rope.at(chunk.reach)
    heads, kv_heads, eps = decoder.heads, decoder.kv_heads, decoder.eps
    activation = ACTIVATIONS[decoder.activation]

    def layer(x: Handle, index: int) -> Handle:
        tap, at = f"layers.{index}", f"model.layers.{index}"
        attn, proj = f"{tap}.attn", f"{at}.self_attn"

        norm = weights[f"{at}.input_layernorm.weight"]
        y = step(f"{tap}.attn_norm", ops.rms_norm, x, norm, eps=eps)
        q, k, v = project_qkv(step, attn, y, weights, proj, heads=heads, kv_heads=kv_heads)
        q = rotate(step, f"{attn}.q_rope", q, chunk, rotation)
        k = rotate(step, f"{attn}.k_rope", k, chunk, rotation)
        scale = decoder.head_dim**-0.5
        y = attend(step, attn, q, k, v, chunk=chunk, layer=index, scale=scale)
        y = step(f"{attn}.out", ops.linear_merged, y, *weights.linear(f"{proj}.o_proj"))
        x = step(f"{tap}.resid_mid", ops.add, x, y)

        norm = weights[f"{at}.post_attention_layernorm.weight"]
        y = step(f"{tap}.mlp_norm", ops.rms_norm, x, norm, eps=eps)
        y = gated_mlp(step, f"{tap}.mlp", y, weights, f"{at}.mlp", activation=activation)
        return step(f"{tap}.resid_post", ops.add, x, y)

    return llama_layout_decoder(step, weights, decoder, token_ids, layer)
