"""A config is followed to the letter or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.engines.hf_defaults import default_config
from harness.errors import CheckpointError
from harness.subject import load_subject
from references.config import INERT
from references.errors import ConfigError
from references.families import llama, load, names

#: The keys of SmolLM2-135M-Instruct's own config.json, as transformers 4.42 wrote them.
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}


def read(**changes: Any) -> llama.Config:
    raw = {k: v for k, v in (SMOLLM2 | changes).items() if v != "absent"}
    return llama.read_config(raw, default_config("llama"))


def test_a_real_config_is_read() -> None:
    config = read()
    decoder = config.decoder
    assert (decoder.heads, decoder.kv_heads, decoder.head_dim) == (9, 3, 64)
    assert (decoder.eps, config.rope.theta, decoder.tied) == (1e-5, 100000.0, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_multiplier": 0.5}, "found attention_multiplier=0.5"),
        ({"rms_norm_epsilon": 1e-6}, "rms_norm_epsilon=1e-06 (near the known key rms_norm_eps)"),
        ({"rope_interleaved": True}, "rope_interleaved: expected False, found True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config={'bits': 4}"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map="),
        ({"hidden_act": "gelu"}, "'silu' or 'swish', found 'gelu'"),
        ({"hidden_size": "absent"}, "hidden_size: expected a positive integer, found nothing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a positive integer, found 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers: expected a positive integer"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: expected a positive number"),
        ({"num_key_value_heads": 4}, "num_key_value_heads: expected a divisor of the 9 heads"),
        ({"mlp_bias": "no"}, "mlp_bias: expected true or false, found 'no'"),
    ],
)
def test_what_the_reference_does_not_follow_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**changes)
    assert message in str(caught.value)


def test_an_unknown_key_is_accepted_at_its_default_alone() -> None:
    defaults = default_config("llama") | {"new_multiplier": 1.0}
    llama.read_config(SMOLLM2 | {"new_multiplier": 1.0}, defaults)
    with pytest.raises(ConfigError, match=r"new_multiplier=2\.0, default 1\.0"):
        llama.read_config(SMOLLM2 | {"new_multiplier": 2.0}, defaults)
    with pytest.raises(ConfigError, match="new_multiplier=True"):
        llama.read_config(SMOLLM2 | {"new_multiplier": True}, defaults)


def test_no_key_that_a_family_follows_is_called_inert() -> None:
    followed = {"hidden_size", "rope_theta", "rms_norm_eps", "head_dim", "tie_word_embeddings"}
    assert not followed & INERT


def test_an_unknown_family_is_refused() -> None:
    assert names() == [
        "gemma3_text",
        "gpt2",
        "gpt_oss",
        "granite",
        "llama",
        "qwen3",
        "qwen3_moe",
        "stablelm",
    ]
    with pytest.raises(
        ConfigError, match=f"model_type: expected one of {', '.join(names())}, found"
    ):
        load("x")


def test_the_harness_hands_a_refusal_on(tiny: Callable[..., Path], tmp_path: Path) -> None:
    source = tiny("llama")
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"logit_scale": 0.1}))
    with pytest.raises(CheckpointError, match=r"logit_scale=0\.1"):
        load_subject(tmp_path)
