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

DERIVED: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """The config keys that Qwen3 follows, under short names.

    Attributes:
        windows: Size of each layer's sliding window, None for full attention.
    """

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
    windows: tuple[int | None, ...]
    rope: Rope

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
    heads, layers = read.integer("num_attention_heads"), read.integer("num_hidden_layers")
    kv_heads = read.integer(
        "num_key_value_heads", heads if read.is_null("num_key_value_heads") else 32
    )
    if heads % kv_heads:
        raise unusable("num_key_value_heads", f"a divisor of the {heads} heads", kv_heads)
    head_dim = read.integer("head_dim", 128)
    config = Config(
        vocab=read.integer("vocab_size"),
        channels=read.integer("hidden_size"),
        mlp_channels=read.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=read.number("rms_norm_eps", 1e-6),
        activation=read.choice("hidden_act", ACTIVATIONS, default="silu"),
        tied=read.flag("tie_word_embeddings", default=False),
        attention_bias=read.flag("attention_bias", default=False),
        windows=_windows(read, layers),
        rope=read_rope(read, dim=head_dim),
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
    implied = [
        "sliding_attention" if sliding and sized and n >= first else "full_attention"
        for n in range(layers)
    ]
    kinds = read.get("layer_types", implied)
    known = {"sliding_attention", "full_attention"}
    if not isinstance(kinds, list) or len(kinds) != layers or set(map(str, kinds)) - known:
        raise unusable("layer_types", f"{layers} of {' or '.join(sorted(known))}", kinds)
    if "sliding_attention" in kinds and not sliding:
        raise unusable("use_sliding_window", "true, as layer_types has sliding_attention", sliding)
    if "sliding_attention" in kinds and not sized:
        raise unusable("sliding_window", "a number, as layer_types has sliding_attention", None)
    return tuple(size if kind == "sliding_attention" else None for kind in kinds)


def parameters(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter."""
    shapes = llama_layout_shapes(config, mlp_bias=False)
    for layer in range(config.layers):
        for name in ("q_norm", "k_norm"):
            shapes[f"model.layers.{layer}.self_attn.{name}.weight"] = (config.head_dim,)
    return shapes


def forward(
    step: Step, weights: Weights, config: Config, token_ids: Handle, chunk: Chunk
) -> Handle:
    """One forward pass: token ids [B, T] to logits [B, T, V]."""
    rotation = config.rope.at(chunk.start + chunk.length)
    activation = ACTIVATIONS[config.activation]
    eps, scale = config.eps, config.head_dim**-0.5

    def layer(x: Handle, index: int) -> Handle:
        tap, at = f"layers.{index}", f"model.layers.{index}"
        attn, proj = f"{tap}.attn", f"{at}.self_attn"

        norm = weights[f"{at}.input_layernorm.weight"]
        y = step(f"{tap}.attn_norm", ops.rms_norm, x, norm, eps=eps)
        q, k, v = project_qkv(step, attn, y, weights, proj, config)
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

    return llama_layout_decoder(step, weights, config, token_ids, layer)
