"""Configs of Granite, Qwen3-MoE, GPT-OSS and StableLM: what they mean, and what is refused."""

from typing import Any

import pytest

from harness.engines.hf_defaults import default_config
from references.errors import ConfigError
from references.families import load

COMMON = {
    "vocab_size": 11,
    "hidden_size": 32,
    "intermediate_size": 12,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}


def read(family: str, **changes: Any) -> Any:
    return load(family).read_config(COMMON | changes, default_config(family))


def test_granite_multiplies_by_one_where_nothing_is_said() -> None:
    config = read("granite")
    assert (config.embedding_multiplier, config.residual_multiplier) == (1.0, 1.0)
    assert (config.scale, config.logits_divisor) == (1.0, 1.0)


def test_qwen3_moe_config_of_a_released_model_is_read() -> None:
    """The keys that files of Qwen3-30B-A3B have beside the common ones."""
    config = read(
        "qwen3_moe",
        head_dim=128,
        decoder_sparse_step=1,
        max_window_layers=48,
        mlp_only_layers=[],
        moe_intermediate_size=768,
        norm_topk_prob=True,
        num_experts=128,
        num_experts_per_tok=8,
        output_router_logits=False,
        rope_scaling=None,
        rope_theta=1000000.0,
        router_aux_loss_coef=0.001,
        sliding_window=None,
        use_sliding_window=False,
    )
    assert (config.mixture.experts, config.mixture.chosen, config.window) == (128, 8, None)
    assert config.mixture.layers == (True,) * 4
    assert config.mixture.normalised


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"decoder_sparse_step": 2}, [False, True, False, True]),
        ({"decoder_sparse_step": 3}, [False, False, True, False]),
        ({"mlp_only_layers": [0, 3, 9]}, [False, True, True, False]),
        ({"mlp_only_layers": [1], "decoder_sparse_step": 2}, [False, False, False, True]),
    ],
)
def test_qwen3_moe_has_experts_in_the_layers_that_the_config_says(
    changes: dict[str, Any], layers: list[bool]
) -> None:
    assert list(read("qwen3_moe", **changes).mixture.layers) == layers


def test_qwen3_moe_experts_have_two_names() -> None:
    assert read("qwen3_moe", num_experts=16).mixture.experts == 16
    assert read("qwen3_moe", num_local_experts=16).mixture.experts == 16
    assert read("qwen3_moe", num_experts=16, num_local_experts=16).mixture.experts == 16


@pytest.mark.parametrize(
    ("changes", "rotated"),
    [
        ({}, 2),  # a quarter of 8
        ({"partial_rotary_factor": 0.5}, 4),
        ({"rope_parameters": {"partial_rotary_factor": 0.75}}, 6),
        ({"rope_parameters": {"partial_rotary_factor": 0.75}, "partial_rotary_factor": 0.75}, 6),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "partial_rotary_factor": 0.6}, 4),
        ({"partial_rotary_factor": 1}, 8),
    ],
)
def test_stablelm_rotates_the_part_that_the_config_says(
    changes: dict[str, Any], rotated: int
) -> None:
    rope = read("stablelm", **changes).rope
    assert rope.dim == rotated
    assert len(rope.at(5).frequencies) == rotated // 2


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("granite", {"logits_scaling": 0}, "logits_scaling: expected a positive number, found 0"),
        ("granite", {"embedding_multiplier": "12"}, "embedding_multiplier: expected a positive"),
        ("granite", {"residual_multiplier": -0.22}, "residual_multiplier: expected a positive"),
        ("granite", {"attention_multiplyer": 0.5}, "near the known key attention_multiplier"),
        ("granite", {"partial_rotary_factor": 0.5}, "found partial_rotary_factor=0.5"),
        (
            "granite",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor: expected 1.0, found 0.5",
        ),
        ("qwen3_moe", {"num_experts": 0}, "num_experts: expected a positive integer, found 0"),
        (
            "qwen3_moe",
            {"num_experts": 8, "num_local_experts": 16},
            "num_local_experts: expected num_experts, 8, found 16",
        ),
        (
            "qwen3_moe",
            {"num_experts": 4, "num_experts_per_tok": 5},
            "num_experts_per_tok: expected at most the 4 experts, found 5",
        ),
        ("qwen3_moe", {"mlp_only_layers": 1}, "mlp_only_layers: expected a list of layers"),
        ("qwen3_moe", {"mlp_only_layers": [True]}, "mlp_only_layers: expected a list of layers"),
        ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob: expected true or false, found 1"),
        ("qwen3_moe", {"shared_expert_intermediate_size": 4}, "shared_expert_intermediate_size=4"),
        (
            "qwen3_moe",
            {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
            "max_window_layers: expected 0 or nothing, as all layers have the window, found 2",
        ),
        (
            "qwen3_moe",
            {"layer_types": ["sliding_attention"] * 4},
            "layer_types: expected full_attention for all layers",
        ),
        ("gpt_oss", {}, "rope_parameters: expected the rotation, which engines take to be YaRN's"),
        ("gpt_oss", {"rope_parameters": {"rope_theta": 9.0}, "hidden_act": "gelu"}, "hidden_act: "),
        (
            "gpt_oss",
            {"rope_parameters": {"rope_theta": 9.0}, "experts_per_token": 2},
            "experts_per_token: expected 4, as another key says, found 2",
        ),
        (
            "gpt_oss",
            {"rope_parameters": {"rope_theta": 9.0}, "quantization_config": {"a": 1}},
            "found quantization_config={'a': 1}",
        ),
        (
            "gpt_oss",
            {"rope_parameters": {"rope_theta": 9.0}, "sliding_window": None},
            "sliding_window: expected a number, as layers have sliding_attention, found nothing",
        ),
        ("stablelm", {"head_dim": 16}, "head_dim: expected hidden_size / num_attention_heads, 8"),
        ("stablelm", {"attention_bias": True}, "attention_bias: expected false, as use_qkv_bias"),
        ("stablelm", {"rms_norm_eps": 1e-6}, "found rms_norm_eps=1e-06"),
        ("stablelm", {"rope_pct": 0.25}, "found rope_pct=0.25"),
        ("stablelm", {"partial_rotary_factor": 0.4}, "a head that is even, not 3, found 0.4"),
        ("stablelm", {"partial_rotary_factor": 0.1}, "a head that is even, not 0, found 0.1"),
        ("stablelm", {"partial_rotary_factor": 1.5}, "a head that is even, not 12, found 1.5"),
        ("stablelm", {"partial_rotary_factor": "half"}, "partial_rotary_factor: expected a posit"),
        (
            "stablelm",
            {
                "partial_rotary_factor": 0.5,
                "rope_parameters": {"partial_rotary_factor": 0.25, "rope_type": "default"},
            },
            "expected partial_rotary_factor and rope_parameters.partial_rotary_factor to say the "
            "same, found 0.5 and 0.25",
        ),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_followed_is_refused(
    family: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(family, **changes)
    assert message in str(caught.value)
