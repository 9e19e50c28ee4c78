"""Granite: Llama with four multipliers, of the embedding, the scores, the residuals and the logits.

Source: Granite Team 2024, Granite 3.0 Language Models (grouped-query attention, SwiGLU, RMSNorm,
RoPE, tied embeddings); the multipliers are those of Yang et al. 2022, Tensor Programs V. What each
of them multiplies is measured: the rows of the embedding table, the scores in place of the root of
the head dimension, what attention and MLP add to the residual stream; the logits are divided.
Parameter names are those of Hugging Face checkpoints.

The multipliers are numbers of the config, not of the model's dtype: 0.22 stays 0.22 in bfloat16.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..blocks import ACTIVATIONS, Chunk, attend, gated_mlp, project_qkv, rotate
from ..config import ConfigReader
from ..llama_layout import Decoder, llama_layout_shapes, read_decoder
from ..rope import Rope
from ..rope_config import read_rope
from ..step import Handle, Step
from ..weights import Weights

DERIVED: tuple[str, ...] = ()

BASE = "model."


@dataclass(frozen=True, slots=True)
class Config:
    """The config keys that Granite follows, under short names.

    Attributes:
        decoder: What it shares with Llama.
        mlp_bias: Whether the projections of the MLP have a bias.
        rope: The rotation.
        embedding_multiplier: Multiplies the rows of the embedding table.
        scale: Multiplies the scores.
        residual_multiplier: Multiplies what a block adds to the residual stream.
        logits_divisor: Divides the logits.
    """

    decoder: Decoder
    mlp_bias: bool
    rope: Rope
    embedding_multiplier: float
    scale: float
    residual_multiplier: float
    logits_divisor: float

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
    """Read a Granite config.

    Raises:
        ConfigError: A key that is absent, unusable or unknown.
    """
    read = ConfigReader(raw, defaults)
    decoder = read_decoder(read)
    config = Config(
        decoder=decoder,
        mlp_bias=read.flag("mlp_bias", default=False),
        rope=read_rope(read, dim=decoder.head_dim),
        embedding_multiplier=read.number("embedding_multiplier", 1.0),
        scale=read.number("attention_multiplier", 1.0),
        residual_multiplier=read.number("residual_multiplier", 1.0),
        logits_divisor=read.number("logits_scaling", 1.0),
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
    decoder, table = config.decoder, weights["model.embed_tokens.weight"]
    x = step("embed", ops.embedding, table, token_ids)
    x = step("embed_scaled", ops.scale, x, factor=config.embedding_multiplier)
    for index in range(decoder.layers):
        x = _layer(step, weights, config, x, chunk, index)
    x = step("final_norm", ops.rms_norm, x, weights["model.norm.weight"], eps=decoder.eps)
    head = table if decoder.tied else weights["lm_head.weight"]
    x = step("logits_unscaled", ops.linear, x, head)
    return step("logits", ops.divide, x, divisor=config.logits_divisor)


def _layer(
    step: Step, weights: Weights, config: Config, x: Handle, chunk: Chunk, index: int
) -> Handle:
    """One decoder layer: the residual stream [B, T, C] to the stream after it."""
    decoder, rotation = config.decoder, config.rope.at(chunk.reach)
    heads, kv_heads, eps = decoder.heads, decoder.kv_heads, decoder.eps
    activation, factor = ACTIVATIONS[decoder.activation], config.residual_multiplier
    tap, at = f"layers.{index}", f"model.layers.{index}"
    attn, proj = f"{tap}.attn", f"{at}.self_attn"

    norm = weights[f"{at}.input_layernorm.weight"]
    y = step(f"{tap}.attn_norm", ops.rms_norm, x, norm, eps=eps)
    q, k, v = project_qkv(step, attn, y, weights, proj, heads=heads, kv_heads=kv_heads)
    q = rotate(step, f"{attn}.q_rope", q, chunk, rotation)
    k = rotate(step, f"{attn}.k_rope", k, chunk, rotation)
    y = attend(step, attn, q, k, v, chunk=chunk, layer=index, scale=config.scale)
    y = step(f"{attn}.out", ops.linear_merged, y, *weights.linear(f"{proj}.o_proj"))
    x = step(f"{tap}.resid_mid", ops.add_scaled, x, y, factor=factor)

    norm = weights[f"{at}.post_attention_layernorm.weight"]
    y = step(f"{tap}.mlp_norm", ops.rms_norm, x, norm, eps=eps)
    y = gated_mlp(step, f"{tap}.mlp", y, weights, f"{at}.mlp", activation=activation)
    return step(f"{tap}.resid_post", ops.add_scaled, x, y, factor=factor)
