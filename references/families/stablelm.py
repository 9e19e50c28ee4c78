"""StableLM: Llama's layout with LayerNorm and a rotation of part of each head.

Source: Bellagente et al. 2024, Stable LM 2 1.6B Technical Report, section 2 (LayerNorm with biases,
RoPE on the first quarter of a head, biases of queries, keys and values alone, SwiGLU); Black et al.
2022, GPT-NeoX-20B, section 2.1 (partial rotation; attention and MLP side by side); Dehghani et al.
2023, Scaling Vision Transformers to 22 Billion Parameters, section 2 (normalised queries and keys,
here with a weight for each head and no bias). Parameter names are those of Hugging Face
checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..blocks import ACTIVATIONS, Chunk, attend, gated_mlp, project_qkv, rotate
from ..config import ConfigReader, unusable
from ..llama_layout import Decoder, llama_layout_shapes, read_decoder
from ..rope import Rope
from ..rope_config import read_rope
from ..step import Handle, Step, Weight
from ..weights import Weights

#: Old checkpoints carry the rotary frequencies as a buffer of every layer.
DERIVED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)

BASE = "model."


@dataclass(frozen=True, slots=True)
class Config:
    """The config keys that StableLM follows, under short names.

    Attributes:
        decoder: What it shares with Llama.
        rope: The rotation, of the first ``rope.dim`` elements of a head.
        qkv_bias: Whether the projections of queries, keys and values have a bias.
        qk_norm: Whether queries and keys are normalised.
        parallel: Whether the MLP reads what attention reads, and both are added at once.
    """

    decoder: Decoder
    rope: Rope
    qkv_bias: bool
    qk_norm: bool
    parallel: bool

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
    """Read a StableLM config.

    Raises:
        ConfigError: A key that is absent, unusable or unknown.
    """
    read = ConfigReader(raw, defaults)
    decoder = read_decoder(read, kv_heads=32, eps=("layer_norm_eps", 1e-5))
    own = decoder.channels // decoder.heads
    if decoder.head_dim != own:
        raise unusable("head_dim", f"hidden_size / num_attention_heads, {own}", decoder.head_dim)
    if decoder.attention_bias:
        raise unusable("attention_bias", "false, as use_qkv_bias says it", decoder.attention_bias)
    config = Config(
        decoder=decoder,
        rope=read_rope(read, dim=decoder.head_dim, partial=0.25),
        qkv_bias=read.flag("use_qkv_bias", default=False),
        qk_norm=read.flag("qk_layernorm", default=False),
        parallel=read.flag("use_parallel_residual", default=False),
    )
    read.get("hidden_dropout")  # of training
    read.finish()
    return config


def parameters(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter."""
    decoder = config.decoder
    c, d = decoder.channels, decoder.head_dim
    shapes = llama_layout_shapes(decoder, mlp_bias=False) | {"model.norm.bias": (c,)}
    heads = {"q": decoder.heads, "k": decoder.kv_heads, "v": decoder.kv_heads}
    for layer in range(decoder.layers):
        at = f"model.layers.{layer}"
        shapes[f"{at}.input_layernorm.bias"] = (c,)
        if config.parallel:
            del shapes[f"{at}.post_attention_layernorm.weight"]
        else:
            shapes[f"{at}.post_attention_layernorm.bias"] = (c,)
        if config.qkv_bias:
            for name, count in heads.items():
                shapes[f"{at}.self_attn.{name}_proj.bias"] = (count * d,)
        if config.qk_norm:
            for name in _norm_names(config, f"{at}.self_attn", "q", "k"):
                shapes[name] = (d,)
    return shapes


def _norm_names(config: Config, prefix: str, *kinds: str) -> list[str]:
    """Names of the weights that normalise queries or keys, one a head."""
    heads = {"q": config.decoder.heads, "k": config.decoder.kv_heads}
    return [
        f"{prefix}.{kind}_layernorm.norms.{head}.weight"
        for kind in kinds
        for head in range(heads[kind])
    ]


def _norm_of_heads(weights: Weights, config: Config, prefix: str, kind: str) -> Weight:
    """The weights of all heads as one: [H, 1, D]."""
    arrays = [weights[name].array for name in _norm_names(config, prefix, kind)]
    return Weight(f"{prefix}.{kind}_layernorm.norms.*.weight", np.stack(arrays)[:, None, :])


def forward(
    step: Step, weights: Weights, config: Config, token_ids: Handle, chunk: Chunk
) -> Handle:
    """One forward pass: token ids [B, T] to logits [B, T, V]."""
    decoder, table = config.decoder, weights["model.embed_tokens.weight"]
    x = step("embed", ops.embedding, table, token_ids)
    for index in range(decoder.layers):
        x = _layer(step, weights, config, x, chunk, index)
    x = step("final_norm", ops.layer_norm, x, *weights.linear("model.norm"), eps=decoder.eps)
    return step("logits", ops.linear, x, table if decoder.tied else weights["lm_head.weight"])


def _layer(
    step: Step, weights: Weights, config: Config, x: Handle, chunk: Chunk, index: int
) -> Handle:
    """One decoder layer: the residual stream [B, T, C] to the stream after it."""
    decoder, tap, at = config.decoder, f"layers.{index}", f"model.layers.{index}"
    activation, eps = ACTIVATIONS[decoder.activation], decoder.eps

    norm = weights.linear(f"{at}.input_layernorm")
    normed = step(f"{tap}.attn_norm", ops.layer_norm, x, *norm, eps=eps)
    y = _attention(step, weights, config, normed, chunk, index)
    if config.parallel:
        z = gated_mlp(step, f"{tap}.mlp", normed, weights, f"{at}.mlp", activation=activation)
        x = step(None, ops.add, x, y)
        return step(f"{tap}.resid_post", ops.add, x, z)
    x = step(f"{tap}.resid_mid", ops.add, x, y)

    norm = weights.linear(f"{at}.post_attention_layernorm")
    y = step(f"{tap}.mlp_norm", ops.layer_norm, x, *norm, eps=eps)
    y = gated_mlp(step, f"{tap}.mlp", y, weights, f"{at}.mlp", activation=activation)
    return step(f"{tap}.resid_post", ops.add, x, y)


def _attention(
    step: Step, weights: Weights, config: Config, x: Handle, chunk: Chunk, index: int
) -> Handle:
    """Attention of one layer: [B, T, C] to [B, T, C]."""
    decoder, rotation = config.decoder, config.rope.at(chunk.reach)
    attn, proj = f"layers.{index}.attn", f"model.layers.{index}.self_attn"
    heads, kv_heads = decoder.heads, decoder.kv_heads
    q, k, v = project_qkv(step, attn, x, weights, proj, heads=heads, kv_heads=kv_heads)
    if config.qk_norm:
        zero = Weight("zero", np.zeros(decoder.head_dim, dtype=np.float32))
        q_norm, k_norm = (_norm_of_heads(weights, config, proj, kind) for kind in "qk")
        q = step(f"{attn}.q_norm", ops.layer_norm, q, q_norm, zero, eps=decoder.eps)
        k = step(f"{attn}.k_norm", ops.layer_norm, k, k_norm, zero, eps=decoder.eps)
    q = rotate(step, f"{attn}.q_rope", q, chunk, rotation)
    k = rotate(step, f"{attn}.k_rope", k, chunk, rotation)
    scale = decoder.head_dim**-0.5
    y = attend(step, attn, q, k, v, chunk=chunk, layer=index, scale=scale)
    return step(f"{attn}.out", ops.linear_merged, y, *weights.linear(f"{proj}.o_proj"))
