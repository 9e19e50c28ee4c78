"""Gemma 3 in GGUF: norms that hold 1 + w, and what a file leaves to the architecture."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from harness import HFEngine, check
from harness.checkpoint import Checkpoint, load_checkpoint
from harness.errors import CheckpointError
from harness.result import Verdict

Tiny = Callable[..., Path]

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

FACTS: dict[str, Any] = {
    "block_count": 3,
    "context_length": 256,
    "embedding_length": 48,
    "feed_forward_length": 80,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 6,
    "attention.sliding_window_pattern": 2,
    "rope.freq_base": 100000.0,
    "rope.freq_base_swa": 1000.0,
    "rope.scaling.type": "linear",
    "rope.scaling.factor": 2.0,
}
TOKENS = [[5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55]]


def write(source: Checkpoint, path: Path, facts: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "gemma3")
    add: dict[type, Callable[[str, Any], None]] = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    for key, value in facts.items():
        add[type(value)](f"gemma3.{key}", value)
    for name, array in source.tensors.items():
        outer, inner = name.rsplit(".", 1)
        layer = ""
        if outer.startswith("model.layers."):
            _, _, n, outer = outer.split(".", 3)
            layer = f"blk.{n}."
        stored = np.asarray(array) + np.float32(1) if "norm" in name else np.asarray(array)
        writer.add_tensor(f"{layer}{NAMES[outer]}.{inner}", stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def original(tiny: Tiny) -> Path:
    return tiny("gemma3_text", query_pre_attn_scalar=16)


@pytest.mark.parametrize("tied", [True, False])
def test_gemma3_round_trip(tiny: Tiny, tmp_path: Path, *, tied: bool) -> None:
    path = tiny("gemma3_text", query_pre_attn_scalar=16, tie_word_embeddings=tied)
    source = load_checkpoint(path)
    converted = load_checkpoint(write(source, tmp_path / "m.gguf", FACTS), cache_dir=tmp_path)
    assert set(converted.tensors) == set(source.tensors)
    for name, array in source.tensors.items():
        # 1 + w is rounded where it is stored, by at most half a unit of a number below 4.
        off = np.abs(np.asarray(converted.tensors[name], dtype=np.float64) - array)
        assert off.max() <= (2.0**-23 if "norm" in name else 0), name
    assert converted.config["tie_word_embeddings"] is tied


def test_converted_gemma3_computes_what_the_original_does(original: Path, tmp_path: Path) -> None:
    gguf_file = write(load_checkpoint(original), tmp_path / "m.gguf", FACTS)
    converted = load_checkpoint(gguf_file, cache_dir=tmp_path)
    engine = HFEngine.load(converted.path)
    result = check(engine, checkpoint=converted.path, token_ids=TOKENS, decode=2)
    assert result.verdict in (Verdict.PASS, Verdict.ROUNDING)
    ids = np.array(TOKENS)
    with engine.open(cache=False) as found, HFEngine.load(original).open(cache=False) as expected:
        logits = expected.feed(ids)
        assert np.allclose(found.feed(ids), logits, atol=1e-3 * np.abs(logits).max())


def test_what_a_file_leaves_out_is_what_released_checkpoints_have(
    original: Path, tmp_path: Path
) -> None:
    kept = {k: v for k, v in FACTS.items() if "pattern" not in k and "rope" not in k}
    path = write(load_checkpoint(original), tmp_path / "m.gguf", kept)
    config = load_checkpoint(path, cache_dir=tmp_path).config
    assert config["layer_types"] == ["sliding_attention"] * 3  # the sixth would be full
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1e6, 1e4)
    assert config["query_pre_attn_scalar"] == 16
    assert "rope_scaling" not in config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.sliding_window": None}, "missing (1): gemma3.attention.sliding_window"),
        ({"attention.shared_kv_layers": 2}, "unknown to the converter (1): gemma3.attention"),
        ({"attention.causal": 0}, "not convertible (1): gemma3.attention.causal = 0, not True"),
    ],
)
def test_what_cannot_be_told_is_refused(
    original: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    facts = {k: v for k, v in (FACTS | changes).items() if v is not None}
    path = write(load_checkpoint(original), tmp_path / "m.gguf", facts)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path, cache_dir=tmp_path)
    assert message in str(caught.value)
