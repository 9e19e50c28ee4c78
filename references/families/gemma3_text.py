"""Gemma 3, the text decoder: norms on both sides of each block, two rotations, sliding windows.

Source: Gemma Team 2025, Gemma 3 Technical Report, section 2 (five sliding layers to one full one,
the base of full layers raised to 1M, QK-norm in place of soft-capping); Gemma Team 2024, Gemma 2,
section 2 (norms before and after each block, soft-capping, GeGLU); Gemma Team 2024, Gemma, section
2. Parameter names are those of Hugging Face checkpoints.

The embedding is multiplied by the root of C. As in every engine that runs these checkpoints the
root is a constant of the model's own dtype: 25.25 for C = 640 in bfloat16, not 25.2982.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import ops
from ..blocks import ACTIVATIONS, Chunk, attend, gated_mlp, project_qkv, rotate
from ..config import ConfigReader, unusable
from ..llama_layout import (
    FULL,
    SLIDING,
    Decoder,
    llama_layout_shapes,
    read_decoder,
    read_layer_types,
)
from ..rope import Rope
from ..rope_config import read_rope_of_layer_types
from ..step import Handle, Step, Weight
from ..weights import Weights

DERIVED: tuple[str, ...] = ()

BASE = "model."

#: Every so many-th layer has full attention where the config does not say which.
_PATTERN = 6


@dataclass(frozen=True, slots=True)
class Config:
    """The config keys that Gemma 3 follows, under short names.

    Attributes:
        decoder: What it shares with Llama.
        scale: Multiplies the scores.
        scores_cap: Soft cap of the scores, None for none.
        logits_cap: Soft cap of the logits, None for none.
        kinds: Layer type of each layer.
        window: Size of the sliding layers' window.
        ropes: The rotation of each layer type.
    """

    decoder: Decoder
    scale: float
    scores_cap: float | None
    logits_cap: float | None
    kinds: tuple[str, ...]
    window: int
    ropes: Mapping[str, Rope]

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
        return self.ropes[FULL].longest


def read_config(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> Config:
    """Read a Gemma 3 text config.

    Raises:
        ConfigError: A key that is absent, unusable or unknown.
    """
    read = ConfigReader(raw, defaults)
    decoder = read_decoder(
        read,
        kv_heads=4,
        head_dim=256,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
        tied=True,
    )
    read.choice("use_bidirectional_attention", {False}, default=False)
    kinds = _kinds(read, decoder.layers)
    if SLIDING in kinds and read.is_null("sliding_window"):
        raise unusable("sliding_window", f"a number, as layers have {SLIDING}", None)
    config = Config(
        decoder=decoder,
        scale=read.number("query_pre_attn_scalar", 256) ** -0.5,
        scores_cap=_cap(read, "attn_logit_softcapping"),
        logits_cap=_cap(read, "final_logit_softcapping"),
        kinds=kinds,
        window=read.integer("sliding_window", 4096),
        ropes=read_rope_of_layer_types(
            read, dim=decoder.head_dim, default_thetas={FULL: 1e6, SLIDING: 1e4}
        ),
    )
    read.finish()
    return config


def _kinds(read: ConfigReader, layers: int) -> tuple[str, ...]:
    """Each layer's type: ``layer_types``, or every so many-th full.

    ``_sliding_window_pattern`` is a note that transformers leaves beside ``layer_types``; where
    those are absent it must not say anything else than ``sliding_window_pattern``, as nobody reads
    it.
    """
    pattern = read.integer("sliding_window_pattern", _PATTERN)
    noted = read.integer("_sliding_window_pattern", pattern)
    if noted != pattern and not read.has("layer_types"):
        raise unusable("_sliding_window_pattern", f"sliding_window_pattern, {pattern}", noted)
    implied = [SLIDING if (n + 1) % pattern else FULL for n in range(layers)]
    return tuple(read_layer_types(read, implied))


def _cap(read: ConfigReader, key: str) -> float | None:
    return read.number(key) if read.has(key) else None


def parameters(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter."""
    decoder = config.decoder
    shapes = llama_layout_shapes(decoder, mlp_bias=False)
    for layer in range(decoder.layers):
        at = f"model.layers.{layer}"
        for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            shapes[f"{at}.{name}.weight"] = (decoder.channels,)
        for name in ("q_norm", "k_norm"):
            shapes[f"{at}.self_attn.{name}.weight"] = (decoder.head_dim,)
    return shapes


def forward(
    step: Step, weights: Weights, config: Config, token_ids: Handle, chunk: Chunk
) -> Handle:
    """One forward pass: token ids [B, T] to logits [B, T, V]."""
    decoder, table = config.decoder, weights["model.embed_tokens.weight"]
    # In float32 as the model is made, and from there in the dtype of the run, as a parameter is.
    root = Weight("embed_scale", np.asarray(decoder.channels**0.5, dtype=np.float32))
    x = step("embed", ops.scaled_embedding, table, token_ids, root)
    for index in range(decoder.layers):
        x = _layer(step, weights, config, x, chunk, index)
    norm = weights["model.norm.weight"]
    x = step("final_norm", ops.rms_norm_from_one, x, norm, eps=decoder.eps)
    head = table if decoder.tied else weights["lm_head.weight"]
    if config.logits_cap is None:
        return step("logits", ops.linear, x, head)
    x = step("logits_uncapped", ops.linear, x, head)
    return step("logits", ops.softcap, x, cap=config.logits_cap)


def _layer(
    step: Step, weights: Weights, config: Config, x: Handle, chunk: Chunk, index: int
) -> Handle:
    """One decoder layer: the residual stream [B, T, C] to the stream after it."""
    decoder, kind = config.decoder, config.kinds[index]
    rotation = config.ropes[kind].at(chunk.reach)
    tap, at = f"layers.{index}", f"model.layers.{index}"
    attn, proj = f"{tap}.attn", f"{at}.self_attn"
    normed = partial(_norm, step, weights, eps=decoder.eps)

    y = normed(f"{tap}.attn_norm", x, f"{at}.input_layernorm")
    heads, kv_heads = decoder.heads, decoder.kv_heads
    q, k, v = project_qkv(step, attn, y, weights, proj, heads=heads, kv_heads=kv_heads)
    q = normed(f"{attn}.q_norm", q, f"{proj}.q_norm")
    k = normed(f"{attn}.k_norm", k, f"{proj}.k_norm")
    y = attend(
        step,
        attn,
        rotate(step, f"{attn}.q_rope", q, chunk, rotation),
        rotate(step, f"{attn}.k_rope", k, chunk, rotation),
        v,
        chunk=chunk,
        layer=index,
        scale=config.scale,
        window=config.window if kind == SLIDING else None,
        softcap=config.scores_cap,
    )
    y = step(f"{attn}.out", ops.linear_merged, y, *weights.linear(f"{proj}.o_proj"))
    y = normed(f"{tap}.attn_post_norm", y, f"{at}.post_attention_layernorm")
    x = step(f"{tap}.resid_mid", ops.add, x, y)

    y = normed(f"{tap}.mlp_norm", x, f"{at}.pre_feedforward_layernorm")
    activation = ACTIVATIONS[decoder.activation]
    y = gated_mlp(step, f"{tap}.mlp", y, weights, f"{at}.mlp", activation=activation)
    y = normed(f"{tap}.mlp_post_norm", y, f"{at}.post_feedforward_layernorm")
    return step(f"{tap}.resid_post", ops.add, x, y)


def _norm(step: Step, weights: Weights, tap: str, x: Handle, prefix: str, *, eps: float) -> Handle:
    return step(tap, ops.rms_norm_from_one, x, weights[f"{prefix}.weight"], eps=eps)
