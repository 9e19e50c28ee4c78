"""Whole models against transformers: generated configs agree, and each key is seen to matter."""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, Phase, given, settings

from harness import HFEngine, ReferenceEngine, Verdict, check
from harness.contract import UNIT_LIMIT
from harness.engines.protocol import Engine
from harness.result import RunResult, TapStatus
from harness.subject import load_subject
from harness.taps import AXES_OF_TAP, split
from references.step import Compute, Weight

FUSED = {"attn.scores", "attn.probs", "attn.mask"}
HEADS_NORMED = {"attn.q_norm", "attn.k_norm"}
OUTER = {"embed", "final_norm", "logits"}


def save_model(path: Path, family: str, arguments: dict[str, Any], *, seed: int) -> None:
    """A model whose attention is far from uniform and whose biases are far from nothing."""
    config = transformers.CONFIG_MAPPING[family](**arguments)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.4, 1.6, generator=generator)
            else:
                parameter.normal_(0.0, 0.3, generator=generator)
    model.save_pretrained(path)


def draw_tokens(batch: int, length: int, *, vocab: int) -> list[list[int]]:
    rows: list[list[int]] = np.random.default_rng(3).integers(vocab, size=(batch, length)).tolist()
    return rows


def run(path: Path, tokens: list[list[int]], *, decode: int = 3) -> RunResult:
    subject = load_subject(path)
    engines: list[Engine] = [
        HFEngine.load(path, attention="eager"),
        HFEngine.load(path, attention="sdpa"),
        ReferenceEngine(subject.model),
    ]
    return check(engines, checkpoint=path, token_ids=tokens, decode=decode)


def require_healthy(result: RunResult, *, family: str, layers: int) -> None:
    """Agreement at every tap that there is, in every chunk, by every engine."""
    inner = set(AXES_OF_TAP) - OUTER - (HEADS_NORMED if family == "llama" else set())
    expected = OUTER | {f"layers.{n}.{kind}" for n in range(layers) for kind in inner}
    assert [v.candidate for v in result.candidates] == ["hf:eager", "hf:sdpa", "reference"]
    for verdict in result.candidates:
        assert verdict.verdict in (Verdict.PASS, Verdict.ROUNDING), verdict.reason
        assert verdict.worst_units is not None
        assert 0.3 < verdict.worst_units < UNIT_LIMIT / 2, (verdict.candidate, verdict.worst_tap)
        absent = FUSED if verdict.candidate == "hf:sdpa" else set()
        for chunk in range(len(result.prompts[0].chunks)):
            found = {
                c.tap: c.status
                for c in result.prompts[0].comparisons
                if (c.candidate, c.chunk) == (verdict.candidate, chunk)
            }
            assert set(found) == expected
            unavailable = {t for t in expected if split(t).kind in absent}
            assert {t for t in found if found[t] is TapStatus.UNAVAILABLE} == unavailable
            assert {t for t in found if found[t] is TapStatus.COMPARED} == expected - unavailable


# The law: whatever the config, within what the family knows.

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 2.5},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 0.5,
        "high_freq_factor": 2.0,
        "original_max_position_embeddings": 16,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.0},
    {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
        "beta_fast": 4.0,
        "mscale": 0.5,
        "mscale_all_dim": 2.0,
    },
]


@st.composite
def models(draw: st.DrawFn) -> tuple[str, dict[str, Any], int]:
    """Family, arguments of its config, and a seed for the weights."""
    family = draw(st.sampled_from(["llama", "qwen3"]))
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(2, 4))
    layers = draw(st.integers(2, 3))
    arguments: dict[str, Any] = {
        "vocab_size": 53,
        "hidden_size": heads * draw(st.sampled_from([6, 8])),
        "intermediate_size": draw(st.sampled_from([20, 50])),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from([4, 8, 10, 32])),
        "max_position_embeddings": 64,
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-5, 1e-2])),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "rope_parameters": {"rope_theta": draw(st.sampled_from([500.0, 1e4, 1e6]))}
        | draw(st.sampled_from(SCALINGS)),
    }
    if arguments["rope_parameters"]["rope_type"] == "dynamic":
        arguments["max_position_embeddings"] = 14  # passed while decoding
    if family == "llama":
        arguments["mlp_bias"] = draw(st.booleans())
    else:
        arguments |= {
            "use_sliding_window": True,
            "sliding_window": draw(st.integers(2, 15)),
            "max_window_layers": draw(st.integers(0, layers - 1)),
        }
    return family, arguments, draw(st.integers(0, 99))


# Not shrunk: a failing model is small as it is, and each try costs half a second.
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(models(), st.sampled_from([1, 2]))
def test_law_the_reference_agrees_with_transformers(
    drawn: tuple[str, dict[str, Any], int], batch: int
) -> None:
    family, arguments, seed = drawn
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), family, arguments, seed=seed)
        result = run(Path(folder), draw_tokens(batch, 12, vocab=53), decode=4)
        require_healthy(result, family=family, layers=arguments["num_hidden_layers"])


LONG = {
    "yarn": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 8},
    "dynamic": {"rope_type": "dynamic", "factor": 8.0},
}


@pytest.mark.parametrize("kind", LONG)
def test_prompts_far_beyond_the_trained_length_agree(tiny: Callable[..., Path], kind: str) -> None:
    """YaRN's slow pairs are mixed in float32 by transformers, which large factors amplify."""
    path = tiny(
        "llama",
        max_position_embeddings=320 if kind == "yarn" else 8,
        rope_parameters={"rope_theta": 1e4, **LONG[kind]},
    )
    result = run(path, draw_tokens(1, 250, vocab=101), decode=1)
    require_healthy(result, family="llama", layers=3)


# Each key matters: the same weights under a config that says something else fail at its op.


def change_config(path: Path, target: Path, changes: dict[str, Any]) -> None:
    shutil.copytree(path, target, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    for key, value in changes.items():
        *outer, last = key.split(".")
        inner = config
        for name in outer:
            inner = inner[name]
        inner[last] = value
    (target / "config.json").write_text(json.dumps(config))


YARN = SCALINGS[5] | {"rope_theta": 100.0}  # so that pairs 2 to 4 of 8 lie in the passage
LLAMA3 = SCALINGS[3] | {"rope_theta": 1e4}
LINEAR = SCALINGS[1] | {"rope_theta": 1e4}
FIRST_ROPE = "layers.0.attn.q_rope"


@pytest.mark.parametrize(
    ("family", "rope", "changes", "tap"),
    [
        ("llama", None, {"rope_parameters.rope_theta": 100100.0}, FIRST_ROPE),
        ("llama", None, {"rms_norm_eps": 1.2e-5}, "layers.0.attn_norm"),
        ("llama", LINEAR, {"rope_parameters.factor": 3.001}, FIRST_ROPE),
        ("llama", LLAMA3, {"rope_parameters.factor": 8.01}, FIRST_ROPE),
        ("llama", LLAMA3, {"rope_parameters.low_freq_factor": 0.51}, FIRST_ROPE),
        ("llama", LLAMA3, {"rope_parameters.high_freq_factor": 2.01}, FIRST_ROPE),
        ("llama", LLAMA3, {"rope_parameters.original_max_position_embeddings": 17}, FIRST_ROPE),
        ("llama", YARN, {"rope_parameters.factor": 2.001}, FIRST_ROPE),
        ("llama", YARN, {"rope_parameters.truncate": True}, FIRST_ROPE),
        ("llama", YARN, {"rope_parameters.beta_fast": 4.01}, FIRST_ROPE),
        ("llama", YARN, {"rope_parameters.beta_slow": 0.9}, FIRST_ROPE),
        ("llama", YARN, {"rope_parameters.mscale": 0.501}, FIRST_ROPE),
        ("llama", YARN, {"rope_parameters.mscale_all_dim": 2.001}, FIRST_ROPE),
        ("llama", YARN, {"rope_parameters.attention_factor": 1.0}, FIRST_ROPE),
        ("qwen3", None, {"rms_norm_eps": 1.2e-5}, "layers.0.attn_norm"),
        ("qwen3", None, {"sliding_window": 7}, "layers.1.attn.mask"),
        ("qwen3", None, {"layer_types": ["sliding_attention"] * 3}, "layers.0.attn.mask"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_another_value_of_a_key_fails_at_its_op(
    tiny: Callable[..., Path],
    load_model: Callable[..., Any],
    tmp_path: Path,
    family: str,
    rope: dict[str, Any] | None,
    changes: dict[str, Any],
    tap: str,
) -> None:
    path = tiny(family, **({} if rope is None else {"rope_parameters": rope}))
    change_config(path, tmp_path, changes)
    tokens = draw_tokens(1, 23, vocab=101)
    result = check(HFEngine(load_model(path)), checkpoint=tmp_path, token_ids=tokens)
    assert result.verdict is Verdict.FAIL
    assert result.first_divergence is not None
    assert result.first_divergence.tap == tap


def test_dynamic_scaling_fails_from_the_step_that_passes_the_trained_length(
    tiny: Callable[..., Path], load_model: Callable[..., Any], tmp_path: Path
) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    path = tiny("llama", rope_parameters=rope, max_position_embeddings=10)
    change_config(path, tmp_path, {"rope_parameters.factor": 3.0})
    tokens = draw_tokens(1, 8, vocab=101)
    result = check(HFEngine(load_model(path)), checkpoint=tmp_path, token_ids=tokens, decode=4)
    assert result.verdict is Verdict.FAIL
    first = result.first_divergence
    assert first is not None
    assert (first.chunk, first.tap) == (3, FIRST_ROPE)  # 8 + 3 positions are more than 10


# The same source on torch.


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.2)]
)
def test_a_model_runs_on_torch_as_on_numpy(
    tiny: Callable[..., Path], family: str, dtype: torch.dtype, bound: float
) -> None:
    model = load_subject(tiny(family)).model
    oracle = Compute(lambda weight: np.asarray(weight.array, dtype=np.float64), np.float64)
    taps: dict[str, Any] = {}

    def lift(weight: Weight) -> torch.Tensor:
        return torch.from_numpy(np.array(weight.array)).to(dtype)

    plain = Compute(lift, dtype)

    def step(tap: str | None, op: Any, *inputs: Any, **constants: Any) -> Any:
        taps[tap or ""] = plain(tap, op, *inputs, **constants)
        return taps[tap or ""]

    ids = np.array(draw_tokens(2, 9, vocab=101))
    found, cache = model.prefill(step, ids[:, :7])
    expected, truth = model.prefill(oracle, ids[:, :7])
    for at in (7, 8):
        found = model.extend(step, ids[:, at : at + 1], cache, position=at)
        expected = model.extend(oracle, ids[:, at : at + 1], truth, position=at)
    assert all(isinstance(x, torch.Tensor) for tap, x in taps.items() if not tap.endswith(".mask"))
    error = np.max(np.abs(found.to(torch.float64).numpy() - expected))
    assert 0 < error < bound * np.max(np.abs(expected))
