"""Qwen3-MoE: Qwen3 whose MLPs are mixtures of experts, all of them or some.

Source: Yang et al. 2025, Qwen3 Technical Report, section 2: attention as in the dense models, no
shared expert, a softmax over all experts of which a few are chosen. Measured, as config fields do
not tell it: ``norm_topk_prob`` divides the chosen weights by their sum; a layer has experts if it
is not in ``mlp_only_layers`` and its number, from 1, is a multiple of ``decoder_sparse_step``; with
``use_sliding_window`` all layers have the window. Parameter names are those of Hugging Face
checkpoints, which have three matrices for each expert.
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

#: The matrices of an expert, in the order in which :func:`references.ops.experts` takes them.
_MATRICES = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Mixture:
    """The experts of a layer.

    Attributes:
        experts: E.
        channels: F of each expert.
        chosen: How many of them a token goes to.
        normalised: Whether the weights of those are divided by their sum.
        layers: Of each layer, whether it has experts.
    """

    experts: int
    channels: int
    chosen: int
    normalised: bool
    layers: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """The config keys that Qwen3-MoE follows, under short names.

    Attributes:
        decoder: What it shares with Llama; its F is that of layers without experts.
        mixture: The experts.
        window: Size of the sliding window of all layers, None for full attention.
        rope: The rotation.
    """

    decoder: Decoder
    mixture: Mixture
    window: int | None
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
    """Read a Qwen3-MoE config.

    Raises:
        ConfigError: A key that is absent, unusable or unknown.
    """
    read = ConfigReader(raw, defaults)
    decoder = read_decoder(read, kv_heads=4)
    read.flag("output_router_logits", default=False)  # what is returned and trained on, no more
    read.get("router_aux_loss_coef")
    config = Config(
        decoder=decoder,
        mixture=_mixture(read, decoder.layers),
        window=_window(read, decoder.layers),
        rope=read_rope(read, dim=decoder.head_dim),
    )
    read.finish()
    return config


def _mixture(read: ConfigReader, layers: int) -> Mixture:
    experts = read.integer("num_experts", read.integer("num_local_experts", 128), most=1 << 16)
    if read.integer("num_local_experts", experts) != experts:
        found = read.get("num_local_experts")
        raise unusable("num_local_experts", f"num_experts, {experts}", found)
    chosen = read.integer("num_experts_per_tok", 8)
    if chosen > experts:
        raise unusable("num_experts_per_tok", f"at most the {experts} experts", chosen)
    step, dense = read.integer("decoder_sparse_step", 1), read.get("mlp_only_layers", [])
    if not isinstance(dense, list) or any(type(n) is not int or n < 0 for n in dense):
        raise unusable("mlp_only_layers", "a list of layers", dense)
    return Mixture(
        experts=experts,
        channels=read.integer("moe_intermediate_size", 768),
        chosen=chosen,
        normalised=read.flag("norm_topk_prob", default=False),
        layers=tuple(n not in dense and (n + 1) % step == 0 for n in range(layers)),
    )


def _window(read: ConfigReader, layers: int) -> int | None:
    """The window of all layers; keys that give some of them another are followed by nobody."""
    sliding = read.flag("use_sliding_window", default=False) and not read.is_null("sliding_window")
    size, first = read.integer("sliding_window", 4096), read.get("max_window_layers", 0)
    if sliding and (isinstance(first, bool) or first != 0):
        raise unusable("max_window_layers", "0 or nothing, as all layers have the window", first)
    kinds = [SLIDING if sliding else FULL] * layers
    if read_layer_types(read, kinds) != kinds:
        raise unusable("layer_types", f"{kinds[0]} for all layers", read.get("layer_types"))
    return size if sliding else None


def parameters(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter."""
    decoder, mixture = config.decoder, config.mixture
    c, f = decoder.channels, mixture.channels
    shapes = llama_layout_shapes(decoder, mlp_bias=False)
    for layer, mixed in enumerate(mixture.layers):
        at = f"model.layers.{layer}"
        for name in ("q_norm", "k_norm"):
            shapes[f"{at}.self_attn.{name}.weight"] = (decoder.head_dim,)
        if not mixed:
            continue
        for name in _MATRICES:
            del shapes[f"{at}.mlp.{name}.weight"]
        shapes[f"{at}.mlp.gate.weight"] = (mixture.experts, c)
        for expert in range(mixture.experts):
            for name in _MATRICES:
                shape = (c, f) if name == "down_proj" else (f, c)
                shapes[f"{at}.mlp.experts.{expert}.{name}.weight"] = shape
    return shapes


def forward(
    step: Step, weights: Weights, config: Config, token_ids: Handle, chunk: Chunk
) -> Handle:
    """One forward pass: token ids [B, T] to logits [B, T, V]."""
    decoder, rotation = config.decoder, config.rope.at(chunk.reach)
    heads, kv_heads = decoder.heads, decoder.kv_heads
    eps, scale, window = decoder.eps, decoder.head_dim**-0.5, config.window

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
        y = attend(step, attn, q, k, v, chunk=chunk, layer=index, scale=scale, window=window)
        y = step(f"{attn}.out", ops.linear_merged, y, *weights.linear(f"{proj}.o_proj"))
        x = step(f"{tap}.resid_mid", ops.add, x, y)

        norm = weights[f"{at}.post_attention_layernorm.weight"]
        y = step(f"{tap}.mlp_norm", ops.rms_norm, x, norm, eps=eps)
        y = _mlp(step, weights, config, y, index)
        return step(f"{tap}.resid_post", ops.add, x, y)

    return llama_layout_decoder(step, weights, decoder, token_ids, layer)


def _mlp(step: Step, weights: Weights, config: Config, x: Handle, index: int) -> Handle:
    """The MLP of a layer, with experts or without: [B, T, C] to [B, T, C]."""
    mixture, mlp, at = config.mixture, f"layers.{index}.mlp", f"model.layers.{index}.mlp"
    activation = ACTIVATIONS[config.decoder.activation]
    if not mixture.layers[index]:
        return gated_mlp(step, mlp, x, weights, at, activation=activation)
    logits = step(f"{mlp}.router", ops.linear, x, weights[f"{at}.gate.weight"])
    chosen = step(f"{mlp}.chosen", ops.top_experts, logits, count=mixture.chosen)
    normalised = mixture.normalised
    shares = step(
        f"{mlp}.router_weights", ops.expert_weights, logits, chosen, normalised=normalised
    )
    matrices = [
        weights[f"{at}.experts.{expert}.{name}.weight"]
        for expert in range(mixture.experts)
        for name in _MATRICES
    ]
    return step(f"{mlp}.out", ops.experts, x, shares, *matrices, activation=activation)
