"""The `qwen3` architecture of GGUF: Qwen 3, dense. Its q and k rows are not permuted."""

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
)
from .rope_scaling import read_rope_scaling


def _make_config(source: Source) -> dict[str, Any]:
    theta = source.facts["rope.freq_base"]
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **decoder_config(source, rope_theta=theta),
        "use_sliding_window": False,
    }
    scaling = read_rope_scaling(source, theta=theta, head_dim=config["head_dim"])
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config


QWEN3 = Architecture(
    name="qwen3",
    keys=Keys(
        required={**REQUIRED_KEYS, "attention.key_length": int, "rope.freq_base": float},
        optional={k: v for k, v in OPTIONAL_KEYS.items() if k != "attention.key_length"},
        fixed=FIXED_KEYS,
        harmless=HARMLESS_KEYS,
    ),
    rules=(
        *decoder_rules(),
        Rule("blk.{n}.attn_q_norm.weight", "model.layers.{n}.self_attn.q_norm.weight", ("D",)),
        Rule("blk.{n}.attn_k_norm.weight", "model.layers.{n}.self_attn.k_norm.weight", ("D",)),
    ),
    make_config=_make_config,
    measure=measure_decoder,
)
"""Qwen 3 normalises q and k per head; its head size is not hidden size / heads."""
