"""Rotary embeddings: generated parameters against transformers, and what one config may say."""

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from references.config import ConfigReader
from references.errors import ConfigError
from references.rope import SCALINGS, Rope, base_frequencies
from references.rope_config import read_rope

THETA = 50000.0
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def read(raw: dict[str, Any], *, dim: int = 16, longest: int = 128) -> Rope:
    return read_rope(ConfigReader({"max_position_embeddings": longest} | raw), dim=dim)


def theirs(raw: dict[str, Any], *, dim: int = 16, longest: int = 128) -> Any:
    config = transformers.LlamaConfig(
        hidden_size=4 * dim,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=dim,
        max_position_embeddings=longest,
        **{k: dict(v) if isinstance(v, dict) else v for k, v in raw.items()},
    )
    return LlamaRotaryEmbedding(config)


def require_equal(raw: dict[str, Any], *, dim: int = 16, longest: int = 128) -> None:
    """Frequencies within float32 rounding, on the scale of the unscaled frequency.

    transformers mixes fast and slow pairs in float32, so that a small share of a large frequency
    is lost beside a small one.
    """
    module, rope = theirs(raw, dim=dim, longest=longest), read(raw, dim=dim, longest=longest)
    ours = rope.at(longest)
    scale = base_frequencies(rope.theta, dim)
    error = np.abs(module.inv_freq.numpy().astype(np.float64) - ours.frequencies)
    assert np.max(error / scale) < 3e-6
    assert module.attention_scaling == pytest.approx(ours.attention_factor, rel=1e-12)


thetas = st.floats(500.0, 5e6)
factors = st.floats(1.0, 64.0)
dims = st.sampled_from([4, 6, 16, 64, 128])
lengths = st.sampled_from([16, 100, 4096, 32768])
magnitudes = st.one_of(st.none(), st.just(0.0), st.floats(0.1, 3.0))


@st.composite
def yarn(draw: st.DrawFn) -> dict[str, Any]:
    """YaRN with any of its options given or left out."""
    slow = draw(st.floats(0.25, 4.0))
    options = {
        "beta_slow": slow,
        "beta_fast": draw(st.floats(slow + 1, 64.0)),
        "truncate": draw(st.booleans()),
        "attention_factor": draw(st.one_of(st.none(), st.floats(0.2, 2.0))),
        "mscale": draw(magnitudes),
        "mscale_all_dim": draw(magnitudes),
    }
    given_ones = draw(st.sets(st.sampled_from(sorted(options))))
    chosen = {k: v for k, v in options.items() if k in given_ones}
    if "beta_fast" not in chosen or "beta_slow" not in chosen:
        chosen.pop("beta_fast", None), chosen.pop("beta_slow", None)
    return {"rope_type": "yarn", "factor": draw(factors)} | chosen


@settings(deadline=None)
@given(yarn(), thetas, dims, lengths)
def test_law_yarn_with_any_options_equals_transformers(
    scaling: dict[str, Any], theta: float, dim: int, trained: int
) -> None:
    scaling = scaling | {"rope_theta": theta, "original_max_position_embeddings": trained}
    require_equal({"rope_parameters": scaling}, dim=dim, longest=4 * trained)


@settings(deadline=None)
@given(thetas, st.floats(0.5, 8.0))
def test_law_yarn_without_a_passage_is_a_step(theta: float, beta: float) -> None:
    betas = {"beta_fast": beta, "beta_slow": beta, "truncate": False}
    raw = {"rope_theta": theta, "rope_scaling": YARN | betas}
    require_equal(raw, dim=64)
    ratio = read(raw, dim=64).at(1).frequencies / base_frequencies(theta, 64)
    assert np.sum((ratio > 0.2501) & (ratio < 0.9999)) <= 1


@settings(deadline=None)
@given(thetas, dims, lengths, factors, st.floats(0.2, 4.0), st.floats(0.1, 8.0))
def test_law_llama3_with_any_passage_equals_transformers(
    theta: float, dim: int, trained: int, factor: float, low: float, width: float
) -> None:
    scaling = LLAMA3 | {
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": low + width,
        "original_max_position_embeddings": trained,
    }
    require_equal({"rope_parameters": scaling}, dim=dim, longest=4 * trained)


@settings(deadline=None)
@given(thetas, st.sampled_from([4, 6, 16, 64]), factors, st.lists(st.integers(1, 400), min_size=1))
def test_law_dynamic_follows_a_sequence_that_grows(
    theta: float, dim: int, factor: float, grown: list[int]
) -> None:
    parameters = {"rope_type": "dynamic", "rope_theta": theta, "factor": factor}
    module = theirs({"rope_parameters": parameters}, dim=dim, longest=64)
    rope = read({"rope_parameters": parameters}, dim=dim, longest=64)
    for length in np.cumsum(grown).tolist():
        module(torch.zeros(1), torch.arange(length)[None])
        np.testing.assert_allclose(
            module.inv_freq.numpy(), rope.at(length).frequencies, rtol=2e-5 if dim < 16 else 4e-6
        )


@pytest.mark.parametrize("kind", sorted(set(SCALINGS) - {"default", "dynamic"}))
def test_scaling_changes_frequencies(kind: str) -> None:
    """So that the laws above are no comparison of the default with itself."""
    scaling = {"linear": {"rope_type": "linear", "factor": 4.0}, "llama3": LLAMA3, "yarn": YARN}
    plain = read({"rope_theta": THETA}).at(8).frequencies
    scaled = read({"rope_theta": THETA, "rope_scaling": scaling[kind]}).at(8).frequencies
    assert np.any(scaled < plain * 0.9)
    assert np.all(scaled <= plain)


def test_only_dynamic_depends_on_the_length() -> None:
    assert read({"rope_scaling": YARN}).at(5).frequencies.tolist() == (
        read({"rope_scaling": YARN}).at(5000).frequencies.tolist()
    )
    rope = read({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, longest=64)
    assert rope.at(1).frequencies.tolist() == rope.at(64).frequencies.tolist()
    assert np.all(rope.at(65).frequencies[1:] < rope.at(64).frequencies[1:])
    assert rope.longest is None
    assert read({"rope_scaling": YARN}).longest == 128


# Spellings. One rope, written as transformers wrote it over the years.

SCALED = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
}


@pytest.mark.parametrize("kind", SCALED)
def test_every_spelling_gives_one_rope(kind: str) -> None:
    scaling = SCALED[kind]
    old = {("type" if k == "rope_type" else k): v for k, v in scaling.items()}
    nested = {"rope_theta": THETA} | scaling
    spellings: list[dict[str, Any]] = [
        {"rope_theta": THETA, "rope_scaling": scaling or None},
        {"rope_theta": THETA, "rope_scaling": old or None},
        {"rope_theta": THETA, "rope_scaling": scaling | old},
        {"rope_theta": None, "rope_parameters": nested},
        {"rope_parameters": nested, "rope_scaling": nested},
        {"rope_theta": THETA, "rope_parameters": nested, "rope_scaling": old or None},
        {"rope_theta": THETA, "rope_parameters": scaling},
        {"rope_scaling": nested},
        {"rope_parameters": scaling, "rope_scaling": nested},
    ]
    ropes = [read(raw) for raw in spellings]
    assert ropes[0].kind == kind
    assert ropes[0].theta == THETA
    assert all(rope == ropes[0] for rope in ropes)
    for raw in spellings[:4]:
        require_equal(raw)


@pytest.mark.parametrize("kind", SCALED)
def test_what_transformers_writes_is_read_back(kind: str) -> None:
    nested = {"rope_theta": THETA, "rope_type": "default"} | SCALED[kind]
    config = transformers.LlamaConfig(max_position_embeddings=128, rope_parameters=dict(nested))
    written = {k: v for k, v in config.to_dict().items() if "rope" in k}
    assert read(written) == read({"rope_parameters": nested})


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_the_trained_length_may_stand_at_the_top(kind: str) -> None:
    name = "original_max_position_embeddings"
    scaling = {k: v for k, v in SCALED[kind].items() if k != name}
    inside = read({"rope_scaling": scaling | {name: 32}})
    assert read({"rope_scaling": scaling, name: 32}) == inside
    assert read({"rope_scaling": scaling}) == read({"rope_scaling": scaling | {name: 128}})
    assert inside != read({"rope_scaling": scaling})
    require_equal({"rope_scaling": scaling, name: 32})


ORIGINAL = "original_max_position_embeddings"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "rope_theta": 1e5}},
            "expected rope_theta and rope_scaling.rope_theta to say the same, "
            "found 10000.0 and 100000.0: remove the one that the model was not trained with",
        ),
        (  # transformers 5 takes rope_scaling, a reader of the new key the other
            {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"rope_theta": 5e5}},
            "expected rope_parameters.rope_theta and rope_scaling.rope_theta to say the same, "
            "found 10000.0 and 500000.0",
        ),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
            "expected rope_scaling.type and rope_scaling.rope_type to say the same, "
            "found 'linear' and 'yarn'",
        ),
        (
            {ORIGINAL: 64, "rope_scaling": YARN},
            f"expected {ORIGINAL} and rope_parameters.{ORIGINAL} to say the same, found 64 and 32",
        ),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": YARN},
            "expected rope_parameters and rope_scaling to say the same",
        ),
    ],
    ids=["flat and nested", "nested and nested", "type", "trained length", "scaling"],
)
def test_contradictions_name_both_sides(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(raw)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", sorted(set(SCALINGS) - {"default"}))
def test_every_required_parameter_is_missed(kind: str) -> None:
    assert SCALINGS[kind].required
    for name in SCALINGS[kind].required:
        scaling = {k: v for k, v in SCALED[kind].items() if k != name}
        with pytest.raises(ConfigError) as caught:
            read({"rope_scaling": scaling})
        expected = f"rope {name}: expected a positive number for rope type {kind}, found nothing"
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "su"}, "rope_type: expected one of default, linear, dynamic, llama3, yarn"),
        ({"type": ["linear"]}, "found ['linear']"),
        ({"factor": 2.0}, "only the parameters of rope type default"),
        (LLAMA3 | {"beta_fast": 4.0}, "found 'beta_fast'"),
        (YARN | {"low_freq_factor": 4.0}, "found 'low_freq_factor'"),
        (YARN | {"factor": "4"}, "rope factor: expected a positive number, found '4'"),
        (YARN | {"factor": True}, "rope factor: expected a positive number, found True"),
        (YARN | {"factor": math.inf}, "rope factor: expected a positive number, found inf"),
        (YARN | {"beta_fast": 0}, "rope beta_fast: expected a positive number, found 0"),
        (YARN | {"beta_slow": "1"}, "rope beta_slow: expected a positive number, found '1'"),
        (YARN | {"truncate": "no"}, "rope truncate: expected true or false, found 'no'"),
        (YARN | {"truncate": None}, "rope truncate: expected true or false, found nothing"),
        (YARN | {"mscale": -1.0}, "rope mscale: expected a positive number, found -1.0"),
        (YARN | {"attention_factor": 0}, "rope attention_factor: expected a positive number"),
        (
            LLAMA3 | {"low_freq_factor": 4.0},
            "rope high_freq_factor: expected more than low_freq_factor, 4.0, found 4.0",
        ),
        (YARN | {"partial_rotary_factor": 0.5}, "rope_scaling.partial_rotary_factor: expected 1.0"),
        ({"full_attention": {"rope_theta": 1e4}}, "found 'full_attention'"),
    ],
)
def test_scaling_that_cannot_be_followed_is_refused(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({"rope_scaling": scaling})
    assert message in str(caught.value)


def test_an_odd_head_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"head_dim: expected an even number, .*, found 15"):
        read({}, dim=15)
