"""The `gemma3` architecture of GGUF: Gemma 3, the text decoder.

A file holds 1 + w where the Hugging Face layout holds the weight w of a norm. What it does not hold
is the same in every released checkpoint: the base of the sliding layers' rotation, the pattern of
layers, and the divisor of the scores, which is the head size but in the model of 62 layers (27B),
where it is embedding length / heads (Gemma 3 Technical Report 2025, section 2; the model cards).
"""

from typing import Any

import numpy as np

from .architecture import Architecture, Array, Keys, Rule, Sizes, Source
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

_GLOBAL_THETA, _LOCAL_THETA = 1e6, 1e4
_PATTERN = 6
_LAYERS_OF_27B = 62
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


def _make_config(source: Source) -> dict[str, Any]:
    facts = source.facts
    theta = facts.get("rope.freq_base", _GLOBAL_THETA)
    shared = decoder_config(source, rope_theta=theta)
    pattern = facts.get("attention.sliding_window_pattern", _PATTERN)
    layers, head_dim = shared["num_hidden_layers"], shared["head_dim"]
    wide = shared["hidden_size"] // shared["num_attention_heads"]
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        **{key: value for key, value in shared.items() if key != "hidden_act"},
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": wide if layers == _LAYERS_OF_27B else head_dim,
        "sliding_window": facts["attention.sliding_window"],
        "layer_types": [
            "sliding_attention" if (n + 1) % pattern else "full_attention" for n in range(layers)
        ],
        "rope_local_base_freq": facts.get("rope.freq_base_swa", _LOCAL_THETA),
        **{key: facts[key] for key in _CAPS if key in facts},
    }
    scaling = read_rope_scaling(source, theta=theta, head_dim=head_dim)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config


def _distance_from_one(array: Array, sizes: Sizes) -> Array:
    """Exact for values from 0.5 to 2; one rounding of the stored 1 + w elsewhere."""
    return array - np.float32(1)


def _norm(source: str, target: str, axis: str) -> Rule:
    return Rule(f"{source}.weight", f"{target}.weight", (axis,), transform=_distance_from_one)


_LAYER = "model.layers.{n}"
_NORMS = (
    _norm("output_norm", "model.norm", "C"),
    _norm("blk.{n}.attn_norm", f"{_LAYER}.input_layernorm", "C"),
    _norm("blk.{n}.post_attention_norm", f"{_LAYER}.post_attention_layernorm", "C"),
    _norm("blk.{n}.ffn_norm", f"{_LAYER}.pre_feedforward_layernorm", "C"),
    _norm("blk.{n}.post_ffw_norm", f"{_LAYER}.post_feedforward_layernorm", "C"),
    _norm("blk.{n}.attn_q_norm", f"{_LAYER}.self_attn.q_norm", "D"),
    _norm("blk.{n}.attn_k_norm", f"{_LAYER}.self_attn.k_norm", "D"),
)

GEMMA3 = Architecture(
    name="gemma3",
    keys=Keys(
        required={
            **REQUIRED_KEYS,
            "attention.key_length": int,
            "attention.sliding_window": int,
        },
        optional={
            **{k: v for k, v in OPTIONAL_KEYS.items() if k != "attention.key_length"},
            "attention.sliding_window_pattern": int,
            "rope.freq_base": float,
            "rope.freq_base_swa": float,
            **dict.fromkeys(_CAPS, float),
        },
        fixed=FIXED_KEYS,
        harmless=HARMLESS_KEYS,
    ),
    rules=(*(rule for rule in decoder_rules() if "norm" not in rule.source), *_NORMS),
    make_config=_make_config,
    measure=measure_decoder,
)
"""Its q and k rows are not permuted; the head is the embedding unless the file holds one."""
