"""The `llama` architecture of GGUF: Llama, SmolLM, Mistral and others of the same build."""

from typing import Any

from .architecture import Architecture, Keys, Rule, Source
from .decoder import (
    FIXED_KEYS,
    HARMLESS_KEYS,
    OPTIONAL_KEYS,
    REQUIRED_KEYS,
    decoder_config,
    decoder_rules,
    measure_decoder,
    unpermute_rows,
)
from .rope_scaling import read_rope_scaling

# What both llama.cpp and Hugging Face take where nothing is written.
_DEFAULT_THETA = 10000.0


def _make_config(source: Source) -> dict[str, Any]:
    theta = source.facts.get("rope.freq_base", _DEFAULT_THETA)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **decoder_config(source, rope_theta=theta),
        "mlp_bias": "mlp_bias" in source.groups,
    }
    scaling = read_rope_scaling(source, theta=theta, head_dim=config["head_dim"])
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config


LLAMA = Architecture(
    name="llama",
    keys=Keys(
        required=REQUIRED_KEYS,
        optional={**OPTIONAL_KEYS, "rope.freq_base": float},
        fixed=FIXED_KEYS,
        harmless=HARMLESS_KEYS,
    ),
    rules=(
        *decoder_rules(q_transform=unpermute_rows("H"), k_transform=unpermute_rows("K")),
        Rule("blk.{n}.ffn_gate.bias", "model.layers.{n}.mlp.gate_proj.bias", ("F",), "mlp_bias"),
        Rule("blk.{n}.ffn_up.bias", "model.layers.{n}.mlp.up_proj.bias", ("F",), "mlp_bias"),
        Rule("blk.{n}.ffn_down.bias", "model.layers.{n}.mlp.down_proj.bias", ("C",), "mlp_bias"),
        Rule("rope_freqs.weight", None, ("R",), group="rope_freqs"),
    ),
    make_config=_make_config,
    measure=measure_decoder,
)
"""GGUF keeps q and k rows in the order of the interleaved RoPE; they are put back."""
