import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from harness.checkpoint import load_checkpoint
from harness.checkpoint.from_gguf.rope_scaling import llama3_divisors, recover_llama3
from harness.errors import CheckpointError

C, D, THETA = 32, 16, 500000.0


def write(path: Path, *, divisors: npt.NDArray[Any] | None = None, **scaling: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(1024)
    writer.add_embedding_length(C)
    writer.add_feed_forward_length(C)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(THETA)
    for key, value in scaling.items():
        name = f"llama.rope.scaling.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_float32(name, value)
    names = ["attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output"]
    names += ["ffn_gate", "ffn_up", "ffn_down"]
    shapes = {f"blk.0.{n}.weight": (C,) if n.endswith("norm") else (C, C) for n in names}
    shapes |= {"token_embd.weight": (C, C), "output_norm.weight": (C,)}
    for name, shape in shapes.items():
        writer.add_tensor(name, np.ones(shape, dtype=np.float32))
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read_scaling(tmp_path: Path, **given: Any) -> Any:
    path = write(tmp_path / "m.gguf", **given)
    return load_checkpoint(path, cache_dir=tmp_path / "cache").config.get("rope_scaling")


def rotate_like_transformers(scaling: dict[str, Any], *, pairs: int = D // 2) -> Any:
    config = LlamaConfig(
        head_dim=2 * pairs,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": THETA, **scaling},
    )
    kind = scaling["rope_type"]
    if kind == "default":
        return THETA ** -(torch.arange(pairs).double() / pairs)
    frequencies, _ = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies.double()


def test_no_scaling_is_none(tmp_path: Path) -> None:
    assert read_scaling(tmp_path) is None


def test_scaling_type_none_is_none(tmp_path: Path) -> None:
    assert read_scaling(tmp_path, type="none") is None


def test_linear_scaling_is_read(tmp_path: Path) -> None:
    assert read_scaling(tmp_path, type="linear", factor=4.1) == {
        "rope_type": "linear",
        "factor": 4.1,
    }


def test_yarn_scaling_is_read(tmp_path: Path) -> None:
    given = {"type": "yarn", "factor": 4.0, "original_context_length": 256, "yarn_beta_fast": 16.0}
    assert read_scaling(tmp_path, **given) == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 16.0,
    }


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "linear"}, r"rope\.scaling\.factor for linear scaling, found no such key"),
        ({"type": "yarn", "factor": 2.0}, r"original_context_length for yarn, found no such key"),
        ({"type": "longrope", "factor": 2.0}, "none, linear or yarn, found 'longrope'"),
        ({"factor": 2.0}, r"rope\.scaling\.type beside its parameters"),
        ({"type": "yarn", "attn_factor": 1.2}, r"attn_factor = 1\.2, not 1\.0"),
        ({"type": "linear", "alpha": 3.0}, r"unknown to the converter \(1\): .*scaling\.alpha"),
    ],
)
def test_scaling_that_cannot_be_told_is_refused(
    tmp_path: Path, scaling: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_scaling(tmp_path, **scaling)


USUAL = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("pairs", [8, 32, 64])
def test_llama3_divisors_are_those_of_transformers(pairs: int) -> None:
    plain = rotate_like_transformers({"rope_type": "default"}, pairs=pairs)
    scaled = rotate_like_transformers(USUAL, pairs=pairs)
    made = llama3_divisors(theta=THETA, pairs=pairs, factor=32.0, low=1.0, high=4.0, context=8192)
    assert made.max() == 32.0
    assert made.min() == 1.0
    np.testing.assert_allclose((plain / scaled).numpy(), made, rtol=1e-6)


def test_llama3_parameters_are_recovered_from_a_file(tmp_path: Path) -> None:
    divisors = llama3_divisors(
        theta=THETA, pairs=D // 2, factor=32.0, low=1.0, high=4.0, context=8192
    )
    assert read_scaling(tmp_path, divisors=divisors) == USUAL


@given(
    pairs=st.sampled_from([32, 64]),
    factor=st.floats(1.5, 64.0),
    high=st.integers(2, 8),
    context=st.sampled_from([512, 2048, 8192, 131072]),
)
def test_llama3_recovery_gives_back_the_divisors(
    pairs: int, factor: float, high: int, context: int
) -> None:
    theta = THETA if context > 4096 else 10000.0
    divisors = llama3_divisors(
        theta=theta, pairs=pairs, factor=factor, low=1.0, high=float(high), context=context
    )
    stored = divisors.astype(np.float32).astype(np.float64)
    found = recover_llama3(stored, theta=theta)
    between = int(((stored > 1.0) & (stored < stored.max())).sum())
    if found is None:
        # One interpolated frequency does not determine a line; nor does a ramp without an end.
        assert between < 2 or stored.max() < np.float32(factor)
        return
    again = llama3_divisors(
        theta=theta,
        pairs=pairs,
        factor=found["factor"],
        low=found["low_freq_factor"],
        high=found["high_freq_factor"],
        context=found["original_max_position_embeddings"],
    )
    np.testing.assert_allclose(again, stored, rtol=2e-6)


def test_llama3_recovery_of_other_parameters_than_the_usual_ones() -> None:
    divisors = llama3_divisors(theta=1e4, pairs=64, factor=8.0, low=2.0, high=6.0, context=4096)
    found = recover_llama3(divisors.astype(np.float32).astype(np.float64), theta=1e4)
    # Only ratios count: (2, 6, 4096) is (1, 3, 2048).
    assert found is not None
    assert (found["low_freq_factor"], found["high_freq_factor"]) == (1.0, 3.0)
    assert found["original_max_position_embeddings"] == 2048


@pytest.mark.parametrize("change", [1 + 1e-5, 1 - 1e-5, 2.0])
def test_llama3_recovery_refuses_one_altered_divisor(change: float) -> None:
    divisors = llama3_divisors(theta=THETA, pairs=64, factor=8.0, low=1.0, high=4.0, context=8192)
    assert recover_llama3(divisors, theta=THETA) is not None
    middle = int(np.argmin(np.abs(divisors - 4.0)))
    divisors[middle] *= change
    assert recover_llama3(divisors, theta=THETA) is None


def test_equal_divisors_are_linear_scaling(tmp_path: Path) -> None:
    found = read_scaling(tmp_path, divisors=np.full(D // 2, 4.0))
    assert found == {"rope_type": "linear", "factor": 4.0}


def test_divisors_of_one_are_no_scaling(tmp_path: Path) -> None:
    assert read_scaling(tmp_path, divisors=np.ones(D // 2)) is None


@pytest.mark.parametrize(
    ("divisors", "message"),
    [
        (np.arange(1, D // 2 + 1), "1 to 8, which no parameters reproduce"),
        (np.ones(D), r"rope_freqs\.weight of shape \[8\], found \[16\]"),
        (np.r_[0.0, np.ones(D // 2 - 1)], "positive divisors"),
        (np.r_[math.nan, np.ones(D // 2 - 1)], "positive divisors"),
    ],
)
def test_divisors_that_cannot_be_told_are_refused(
    tmp_path: Path, divisors: npt.NDArray[Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_scaling(tmp_path, divisors=divisors)


def test_two_kinds_of_scaling_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="both, the latter 'linear'"):
        read_scaling(tmp_path, divisors=np.full(D // 2, 2.0), type="linear", factor=2.0)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaling_reaches_transformers_with_its_theta(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "m.gguf", type=kind, factor=4.0, original_context_length=256)
    directory = load_checkpoint(path, cache_dir=tmp_path / "cache").path
    read = AutoConfig.from_pretrained(directory).rope_parameters
    assert (read["rope_type"], read["factor"], read["rope_theta"]) == (kind, 4.0, THETA)


def test_llama3_scaling_reaches_transformers(tmp_path: Path) -> None:
    divisors = llama3_divisors(
        theta=THETA, pairs=D // 2, factor=32.0, low=1.0, high=4.0, context=8192
    )
    path = write(tmp_path / "m.gguf", divisors=divisors)
    directory = load_checkpoint(path, cache_dir=tmp_path / "cache").path
    config = AutoConfig.from_pretrained(directory)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = THETA ** -(np.arange(D // 2) / (D // 2))
    np.testing.assert_allclose(frequencies.numpy(), plain / divisors, rtol=1e-6)
