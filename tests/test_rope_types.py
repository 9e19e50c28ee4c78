"""Law: frequencies of every scaling type equal transformers' to float32 rounding."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import transformers
from hypothesis import given
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from references.config import ConfigReader
from references.errors import ConfigError
from references.rope import Rope
from references.rope_config import read_rope

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
thetas = st.floats(500.0, 2e6)
factors = st.floats(1.1, 40.0)
dims = st.sampled_from([8, 16, 64, 128])
betas = st.tuples(st.floats(8, 64), st.floats(0.5, 4))
trained = st.sampled_from([16, 64, 4096, 8192])


def read(raw: dict[str, Any], dim: int = 16) -> Rope:
    return read_rope(ConfigReader({"max_position_embeddings": 64} | raw), dim=dim)


def require_equal(parameters: dict[str, Any], dim: int, longest: int = 64) -> None:
    config = transformers.LlamaConfig(
        hidden_size=dim,
        head_dim=dim,
        num_attention_heads=1,
        max_position_embeddings=longest,
        rope_parameters=dict(parameters),
    )
    theirs = LlamaRotaryEmbedding(config)
    raw = {"max_position_embeddings": longest, "rope_parameters": parameters}
    ours = read(raw, dim).at(longest)
    np.testing.assert_allclose(theirs.inv_freq.numpy(), ours.frequencies, rtol=2e-6, atol=0)
    np.testing.assert_allclose(theirs.attention_scaling, ours.attention_factor, rtol=1e-12)


@given(thetas, dims)
def test_law_default_frequencies(theta: float, dim: int) -> None:
    require_equal({"rope_type": "default", "rope_theta": theta}, dim)


@given(thetas, dims, factors)
def test_law_linear_frequencies(theta: float, dim: int, factor: float) -> None:
    require_equal({"rope_type": "linear", "rope_theta": theta, "factor": factor}, dim)


@given(thetas, dims, factors, trained)
def test_law_llama3_frequencies(theta: float, dim: int, factor: float, length: int) -> None:
    scaling = {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": length}
    require_equal({"rope_theta": theta, **scaling, **LLAMA3}, dim, longest=2 * length)


@given(thetas, dims, factors, trained, betas, st.sampled_from([True, False]))
def test_law_yarn_frequencies(
    theta: float,
    dim: int,
    factor: float,
    length: int,
    betas: tuple[float, float],
    truncate: object,
) -> None:
    parameters = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": length,
        "truncate": truncate,
        "beta_fast": betas[0],
        "beta_slow": betas[1],
    }
    # The passage between fast and slow pairs is formed in float32 there: a tiny share of a large
    # frequency is lost beside a small one, so compare on the scale of the unscaled frequency.
    config = transformers.LlamaConfig(
        hidden_size=dim,
        head_dim=dim,
        num_attention_heads=1,
        max_position_embeddings=4 * length,
        rope_parameters=dict(parameters),
    )
    theirs = LlamaRotaryEmbedding(config).inv_freq.numpy()
    rope = read({"max_position_embeddings": 4 * length, "rope_parameters": parameters}, dim)
    scale = theta ** (-np.arange(0, dim, 2) / dim)
    assert np.max(np.abs(theirs - rope.at(length).frequencies) / scale) < 3e-6


@given(thetas, dims, factors, st.integers(1, 300))
def test_law_dynamic_frequencies_grow_with_the_sequence(
    theta: float, dim: int, factor: float, length: int
) -> None:
    import torch

    parameters = {"rope_type": "dynamic", "rope_theta": theta, "factor": factor}
    config = transformers.LlamaConfig(
        hidden_size=dim,
        head_dim=dim,
        num_attention_heads=1,
        max_position_embeddings=64,
        rope_parameters=dict(parameters),
    )
    module = LlamaRotaryEmbedding(config)
    module(torch.zeros(1), torch.arange(length)[None])
    ours = read({"rope_parameters": parameters}, dim).at(length)
    np.testing.assert_allclose(module.inv_freq.numpy(), ours.frequencies, rtol=3e-6)


def test_both_spellings_are_one_rope() -> None:
    flat = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    nested = {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}}
    assert read(flat) == read(nested)
    assert read(flat | nested) == read(nested)


def test_theta_is_found_where_transformers_5_writes_it() -> None:
    raw = {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}
    assert read(raw).theta == 100000.0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5}},
            "expected rope_theta and rope_parameters.rope_theta to say the same, "
            "found 10000.0 and 100000.0",
        ),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2.0},
                "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            },
            "expected rope_parameters and rope_scaling to say the same",
        ),
        ({"rope_scaling": {"type": "longrope"}}, "rope_type: expected one of default, linear"),
        ({"rope_scaling": {"type": "linear"}}, "rope factor: expected a positive number"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 3}},
            "found 'beta_fast'",
        ),
        ({"rope_theta": -1}, "rope_theta: expected a positive number, found -1"),
        ({"rope_theta": "1e4"}, "rope_theta: expected a positive number, found '1e4'"),
        ({"rope_scaling": [1]}, "rope_scaling: expected an object with rope_type"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor: expected 1.0, found 0.5",
        ),
    ],
)
def test_unusable_rope_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(raw)
    assert message in str(caught.value)
