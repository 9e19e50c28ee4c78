"""Configs as they are found: what transformers writes is read, the rest is refused."""

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import transformers
from hypothesis import given, settings

from harness.checkpoint.json_files import read_json_object
from harness.engines.hf_defaults import default_config
from references.config import INERT, ConfigReader
from references.errors import ConfigError
from references.families import llama, qwen3

FAMILIES = {"llama": llama, "qwen3": qwen3}
DEFAULTS = {family: default_config(family) for family in FAMILIES}
SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


def read(family: str, **changes: Any) -> Any:
    raw = {k: v for k, v in (SIZES | changes).items() if v != "absent"}
    return FAMILIES[family].read_config(raw, DEFAULTS[family])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config")


@st.composite
def configs(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Arguments of a transformers config."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    kv_heads, groups = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    heads, layers = kv_heads * groups, draw(st.integers(2, 5))
    factor = draw(st.sampled_from([1.5, 4.0, 8]))
    scalings: list[dict[str, Any]] = [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": factor},
        {"rope_type": "dynamic", "factor": factor},
        {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1, "high_freq_factor": 4},
        {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": 16},
    ]
    # Heads of two elements have no dynamic scaling, so they have four and more here.
    arguments: dict[str, Any] = {
        "vocab_size": draw(st.integers(10, 99)),
        "hidden_size": heads * 2 * draw(st.integers(2, 9)),
        "intermediate_size": draw(st.integers(8, 99)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": draw(st.sampled_from([64, 8192])),
        "rms_norm_eps": draw(st.sampled_from([1e-5, 1e-6])),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "initializer_range": draw(st.floats(0.01, 0.5)),
        "bos_token_id": draw(st.none() | st.integers(0, 9)),
        "eos_token_id": draw(st.none() | st.integers(0, 9) | st.just([1, 2])),
        "rope_parameters": {"rope_theta": draw(st.floats(1e3, 1e6))}
        | draw(st.sampled_from(scalings)),
    }
    if family == "llama":
        arguments["mlp_bias"] = draw(st.booleans())
        if draw(st.booleans()):
            arguments["head_dim"] = 2 * draw(st.integers(2, 9))
    else:
        arguments["head_dim"] = 2 * draw(st.integers(2, 9))
        arguments["use_sliding_window"] = draw(st.booleans())
        arguments["sliding_window"] = draw(st.none() | st.integers(1, 9))
        arguments["max_window_layers"] = draw(st.integers(0, layers + 1))
    return family, arguments


@settings(deadline=None)
@given(configs())
def test_law_what_transformers_writes_is_read_as_it_is_meant(
    written: Path, drawn: tuple[str, dict[str, Any]]
) -> None:
    family, arguments = drawn
    config: Any = transformers.CONFIG_MAPPING[family](**arguments)
    config.save_pretrained(written)
    raw = read_json_object(written / "config.json")
    found: Any = FAMILIES[family].read_config(raw, DEFAULTS[family])
    assert (found.vocab, found.decoder.channels) == (config.vocab_size, config.hidden_size)
    assert (found.decoder.mlp_channels, found.layers) == (
        config.intermediate_size,
        config.num_hidden_layers,
    )
    assert (found.decoder.heads, found.decoder.kv_heads) == (
        config.num_attention_heads,
        config.num_key_value_heads,
    )
    assert (found.decoder.head_dim, found.decoder.eps) == (config.head_dim, config.rms_norm_eps)
    assert (found.decoder.tied, found.decoder.attention_bias) == (
        config.tie_word_embeddings,
        config.attention_bias,
    )
    assert found.rope.theta == config.rope_parameters["rope_theta"]
    assert found.rope.kind == config.rope_parameters["rope_type"]
    if family == "llama":
        assert found.mlp_bias == config.mlp_bias
    else:
        windows = {"full_attention": None, "sliding_attention": config.sliding_window}
        assert list(found.windows) == [windows[kind] for kind in config.layer_types]
    # Whatever was left at transformers' default may be absent as well.
    default = {k for k, v in DEFAULTS[family].items() if k in raw and raw[k] == v}
    required = set(SIZES) - {"rms_norm_eps"}
    short = {k: v for k, v in raw.items() if k not in default or k in required}
    assert FAMILIES[family].read_config(short, DEFAULTS[family]) == found


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_one_key_of_a_default_config_is_accepted_as_a_default_alone(family: str) -> None:
    FAMILIES[family].read_config(DEFAULTS[family], DEFAULTS[family])
    with pytest.raises(ConfigError, match=r"found is_encoder_decoder=False: remove the keys"):
        FAMILIES[family].read_config(DEFAULTS[family], {})


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    ],
)
@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("absent", "nothing"),
        (None, "nothing"),
        (0, "0"),
        (-3, "-3"),
        (48.0, "48.0"),
        ("48", "'48'"),
        (True, "True"),
        ([48], "[48]"),
    ],
)
def test_sizes_must_be_there_and_positive(family: str, key: str, value: Any, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(family, **{key: value})
    expected = f"config.json: {key}: expected a positive integer, found {found}: correct the config"
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps: expected a positive number, found '1e-5'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: expected a positive number, found 0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false, found 1"),
        ({"attention_bias": "yes"}, "attention_bias: expected true or false, found 'yes'"),
        (
            {"hidden_act": ["silu"]},
            "hidden_act: expected 'gelu_new' or 'gelu_pytorch_tanh' or 'silu' or 'swish',"
            " found ['silu']",
        ),
        ({"num_key_value_heads": 4}, "num_key_value_heads: expected a divisor of the 6 heads"),
        ({"head_dim": 7}, "head_dim: expected an even number, as pairs of elements are rotated"),
        ({"is_encoder_decoder": True}, "found is_encoder_decoder=True, default False"),
        ({"add_cross_attention": True}, "found add_cross_attention=True"),
        ({"num_atention_heads": 3}, "num_atention_heads=3 (near the known key num_attention_heads"),
        ({"logit_scale": 2.0, "final_cap": 9}, "found final_cap=9; logit_scale=2.0: remove"),
    ],
)
def test_what_is_not_followed_is_refused(
    family: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(family, **changes)
    assert message in str(caught.value)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_keys_of_another_family_are_refused(family: str) -> None:
    foreign = {"llama": {"use_sliding_window": True}, "qwen3": {"mlp_bias": True}}
    with pytest.raises(ConfigError, match=f"found {next(iter(foreign[family]))}=True"):
        read(family, **foreign[family])


@pytest.mark.parametrize("key", sorted(INERT))
def test_inert_keys_change_nothing(key: str) -> None:
    assert read("llama", **{key: "anything"}) == read("llama")


def test_a_default_is_no_default_by_another_type() -> None:
    reader = ConfigReader({"a": True, "b": 1, "c": 2}, {"a": 1, "b": 1.0, "c": 2})
    with pytest.raises(ConfigError, match="found a=True, default 1: remove"):
        reader.finish()


# Null is not absence everywhere: transformers hands it to the config.


def test_null_kv_heads_mean_as_many_as_heads() -> None:
    for family in FAMILIES:
        assert read(family, num_key_value_heads=None).decoder.kv_heads == 6
    assert transformers.Qwen3Config(num_attention_heads=6, num_key_value_heads=None).to_dict()[
        "num_key_value_heads"
    ] == (6)
    assert read("llama", num_key_value_heads="absent").decoder.kv_heads == 6
    absent = read("qwen3", num_key_value_heads="absent", num_attention_heads=64)
    assert absent.decoder.kv_heads == 32


def test_null_head_dim_is_derived() -> None:
    assert read("llama", head_dim=None).decoder.head_dim == 8
    assert read("llama", head_dim="absent").decoder.head_dim == 8
    assert read("qwen3", head_dim="absent").decoder.head_dim == 128


SLIDING: dict[str, Any] = {"use_sliding_window": True, "max_window_layers": 1}


def test_layers_from_the_first_window_layer_on_slide() -> None:
    assert read("qwen3", **SLIDING, sliding_window=5).windows == (None, 5, 5)
    assert read("qwen3", **SLIDING).windows == (None, 4096, 4096)
    deep = read("qwen3", use_sliding_window=True, num_hidden_layers=30)
    assert deep.windows == (*[None] * 28, 4096, 4096)
    assert read("qwen3", sliding_window=5, max_window_layers=1).windows == (None, None, None)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert read("qwen3", **SLIDING, sliding_window=5, layer_types=kinds).windows == (5, None, 5)


def test_a_null_window_means_no_window() -> None:
    theirs = transformers.Qwen3Config(num_hidden_layers=3, sliding_window=None, **SLIDING)
    assert theirs.to_dict()["layer_types"] == ["full_attention"] * 3
    assert read("qwen3", **SLIDING, sliding_window=None).windows == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types: expected 3 of full_attention or"),
        ({"layer_types": "full_attention"}, "layer_types: expected 3 of"),
        ({"layer_types": ["full_attention", "mamba", [1]]}, "layer_types: expected 3 of"),
        (
            {"layer_types": ["sliding_attention"] * 3, "sliding_window": None},
            "sliding_window: expected a number, as layer_types has sliding_attention, found noth",
        ),
        (
            {"layer_types": ["sliding_attention"] * 3, "use_sliding_window": False},
            "use_sliding_window: expected true, as layer_types has sliding_attention, found False",
        ),
        ({"max_window_layers": -1}, "max_window_layers: expected a number of layers, found -1"),
        ({"max_window_layers": True}, "max_window_layers: expected a number of layers"),
        ({"sliding_window": 0}, "sliding_window: expected a positive integer, found 0"),
    ],
)
def test_windows_that_cannot_be_followed_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read("qwen3", **(SLIDING | changes))
    assert message in str(caught.value)
