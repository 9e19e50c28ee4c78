"""GPT-OSS: attention with a sink for each head, windows in turn, clamped experts with biases.

Source: OpenAI 2025, gpt-oss-120b & gpt-oss-20b Model Card, section 2 (learned sinks in the
denominator of the softmax, banded and full layers in turn, YaRN, experts of which four are chosen
and whose weights are a softmax over those four, a clamped SwiGLU with a residual term); Xiao et al.
2023, Efficient Streaming Language Models with Attention Sinks, section 3. Measured, as config
fields do not tell it: gate and up are clamped from above, up from below as well, 1 is added to up,
and their rows stand in turn in one matrix. Parameter names are those of Hugging Face checkpoints in
which nothing is quantised; matrices of experts are [E, in, out].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..blocks import Chunk, attend, project_qkv, rotate
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
    """The config keys that GPT-OSS follows, under short names.

    Attributes:
        decoder: What it shares with Llama; its F is that of each expert.
        experts: E.
        chosen: How many of them a token goes to.
        alpha: Multiplies the gate inside its sigmoid.
        limit: Gate and up are clamped to it.
        windows: Size of each layer's sliding window, None for full attention.
        rope: The rotation.
    """

    decoder: Decoder
    experts: int
    chosen: int
    alpha: float
    limit: float
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
    """Read a GPT-OSS config.

    Raises:
        ConfigError: A key that is absent, unusable or unknown.
    """
    read = ConfigReader(raw, defaults)
    decoder = read_decoder(
        read, kv_heads=8, head_dim=64, eps=("rms_norm_eps", 1e-5), attention_bias=True
    )
    read.choice("hidden_act", {"silu"}, default="silu")  # experts have their own
    read.flag("output_router_logits", default=False)  # what is returned and trained on, no more
    read.get("router_aux_loss_coef")
    if not read.has("rope_parameters") and not read.has("rope_scaling"):
        raise unusable("rope_parameters", "the rotation, which engines take to be YaRN's", None)
    experts = read.integer("num_local_experts", 128, most=1 << 16)
    chosen = read.integer("num_experts_per_tok", 4)
    for key, value in (("num_experts", experts), ("experts_per_token", chosen)):
        if read.integer(key, value) != value:
            raise unusable(key, f"{value}, as another key says", read.get(key))
    if chosen > experts:
        raise unusable("num_experts_per_tok", f"at most the {experts} experts", chosen)
    config = Config(
        decoder=decoder,
        experts=experts,
        chosen=chosen,
        alpha=read.number("swiglu_alpha", 1.702),
        limit=read.number("swiglu_limit", 7.0),
        windows=_windows(read, decoder.layers),
        rope=read_rope(read, dim=decoder.head_dim, default_theta=150000.0),
    )
    read.finish()
    return config


def _windows(read: ConfigReader, layers: int) -> tuple[int | None, ...]:
    kinds = read_layer_types(read, [FULL if n % 2 else SLIDING for n in range(layers)])
    if SLIDING in kinds and read.is_null("sliding_window"):
        raise unusable("sliding_window", f"a number, as layers have {SLIDING}", None)
    size = read.integer("sliding_window", 128)
    return tuple(size if kind == SLIDING else None for kind in kinds)


def parameters(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter."""
    decoder, e = config.decoder, config.experts
    c, f = decoder.channels, decoder.mlp_channels
    shapes = llama_layout_shapes(decoder, mlp_bias=False)
    for layer in range(decoder.layers):
        at = f"model.layers.{layer}"
        for name in ("gate_proj", "up_proj", "down_proj"):
            del shapes[f"{at}.mlp.{name}.weight"]
        shapes[f"{at}.self_attn.sinks"] = (decoder.heads,)
        shapes[f"{at}.mlp.router.weight"] = (e, c)
        shapes[f"{at}.mlp.router.bias"] = (e,)
        shapes[f"{at}.mlp.experts.gate_up_proj"] = (e, c, 2 * f)
        shapes[f"{at}.mlp.experts.gate_up_proj_bias"] = (e, 2 * f)
        shapes[f"{at}.mlp.experts.down_proj"] = (e, f, c)
        shapes[f"{at}.mlp.experts.down_proj_bias"] = (e, c)
    return shapes


def forward(
    step: Step, weights: Weights, config: Config, token_ids: Handle, chunk: Chunk
) -> Handle:
    """One forward pass: token ids [B, T] to logits [B, T, V]."""
    decoder, rotation = config.decoder, config.rope.at(chunk.reach)
    heads, kv_heads, eps = decoder.heads, decoder.kv_heads, decoder.eps

    def layer(x: Handle, index: int) -> Handle:
        tap, at = f"layers.{index}", f"model.layers.{index}"
        attn, proj = f"{tap}.attn", f"{at}.self_attn"

        norm = weights[f"{at}.input_layernorm.weight"]
        y = step(f"{tap}.attn_norm", ops.rms_norm, x, norm, eps=eps)
        q, k, v = project_qkv(step, attn, y, weights, proj, heads=heads, kv_heads=kv_heads)
        y = attend(
            step,
            attn,
            rotate(step, f"{attn}.q_rope", q, chunk, rotation),
            rotate(step, f"{attn}.k_rope", k, chunk, rotation),
            v,
            chunk=chunk,
            layer=index,
            scale=decoder.head_dim**-0.5,
            window=config.windows[index],
            sink=weights[f"{proj}.sinks"],
        )
        y = step(f"{attn}.out", ops.linear_merged, y, *weights.linear(f"{proj}.o_proj"))
        x = step(f"{tap}.resid_mid", ops.add, x, y)

        norm = weights[f"{at}.post_attention_layernorm.weight"]
        y = step(f"{tap}.mlp_norm", ops.rms_norm, x, norm, eps=eps)
        y = _mlp(step, weights, config, y, index)
        return step(f"{tap}.resid_post", ops.add, x, y)

    return llama_layout_decoder(step, weights, decoder, token_ids, layer)


def _mlp(step: Step, weights: Weights, config: Config, x: Handle, index: int) -> Handle:
    """The experts of a layer: [B, T, C] to [B, T, C]."""
    mlp, at = f"layers.{index}.mlp", f"model.layers.{index}.mlp"
    logits = step(f"{mlp}.router", ops.linear, x, *weights.linear(f"{at}.router"))
    chosen = step(f"{mlp}.chosen", ops.top_experts, logits, count=config.chosen)
    shares = step(f"{mlp}.router_weights", ops.expert_weights, logits, chosen, normalised=True)
    matrices = (
        weights[f"{at}.experts.{name}"]
        for name in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
    )
    limits = {"alpha": config.alpha, "limit": config.limit}
    return step(f"{mlp}.out", ops.clamped_experts, x, shares, *matrices, **limits)
