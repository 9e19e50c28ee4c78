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
from harness.taps import split
from references.step import Compute, Weight

FUSED = {"attn.scores", "attn.probs", "attn.mask"}
Taps = Callable[[str, int], set[str]]


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


def require_healthy(result: RunResult, expected: set[str]) -> None:
    """Agreement at every tap that there is, in every chunk, by every engine."""
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
def models(draw: st.DrawFn, family: str) -> tuple[dict[str, Any], int]:
    """Arguments of the family's config, and a seed for the weights."""
    arguments = ARGUMENTS[family](draw)
    return arguments, draw(st.integers(0, 99))


def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """What all but GPT-2 name alike; more heads than kv heads, so that groups show."""
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(2, 4))
    return {
        "vocab_size": 53,
        "hidden_size": heads * draw(st.sampled_from([6, 8])),
        "intermediate_size": draw(st.sampled_from([20, 50])),
        "num_hidden_layers": draw(st.integers(2, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from([4, 8, 10, 32])),
        "max_position_embeddings": 64,
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-5, 1e-2])),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
    }


def rope(draw: st.DrawFn) -> dict[str, Any]:
    scaling: dict[str, Any] = draw(st.sampled_from(SCALINGS))
    return {"rope_theta": draw(st.sampled_from([500.0, 1e4, 1e6]))} | scaling


def rotating_arguments(draw: st.DrawFn) -> dict[str, Any]:
    """What families share that rotate all layers alike."""
    arguments = sizes(draw) | {"rope_parameters": rope(draw)}
    if arguments["rope_parameters"]["rope_type"] == "dynamic":
        arguments["max_position_embeddings"] = 14  # passed while decoding
    return arguments


def llama_arguments(draw: st.DrawFn) -> dict[str, Any]:
    return rotating_arguments(draw) | {"mlp_bias": draw(st.booleans())}


def granite_arguments(draw: st.DrawFn) -> dict[str, Any]:
    return llama_arguments(draw) | {
        "embedding_multiplier": draw(st.sampled_from([0.3, 12.0])),
        "attention_multiplier": draw(st.sampled_from([0.03, 0.7])),
        "residual_multiplier": draw(st.sampled_from([0.22, 1.0, 1.9])),
        "logits_scaling": draw(st.sampled_from([0.7, 8.0])),
    }


def qwen3_arguments(draw: st.DrawFn) -> dict[str, Any]:
    arguments = rotating_arguments(draw)
    return arguments | {
        "use_sliding_window": True,
        "sliding_window": draw(st.integers(2, 15)),
        "max_window_layers": draw(st.integers(0, arguments["num_hidden_layers"] - 1)),
    }


def gemma3_arguments(draw: st.DrawFn) -> dict[str, Any]:
    arguments = sizes(draw) | {
        "query_pre_attn_scalar": draw(st.sampled_from([4, 20, 64])),
        "sliding_window": draw(st.integers(2, 11)),  # of a prompt of 12
        "sliding_window_pattern": 2,
        "final_logit_softcapping": draw(st.sampled_from([None, 5.0, 30.0])),
    }
    scaled = rope(draw)
    scaled.pop("truncate", None)  # see docs/findings.md
    if scaled["rope_type"] == "dynamic":
        arguments["max_position_embeddings"] = 14
    local = draw(st.sampled_from([100.0, 1e4]))
    if draw(st.booleans()):
        theta = scaled.pop("rope_theta")
        flat = {"rope_theta": theta, "rope_scaling": scaled, "rope_local_base_freq": local}
        return arguments | flat
    sliding = {"rope_type": "default", "rope_theta": local}
    kinds = {"full_attention": scaled, "sliding_attention": sliding}
    return arguments | {"rope_parameters": kinds}


def stablelm_arguments(draw: st.DrawFn) -> dict[str, Any]:
    arguments = rotating_arguments(draw)
    for key in ("head_dim", "attention_bias"):
        arguments.pop(key)
    arguments["hidden_size"] = 8 * arguments["num_attention_heads"]
    arguments["layer_norm_eps"] = arguments.pop("rms_norm_eps")
    arguments["rope_parameters"]["partial_rotary_factor"] = draw(st.sampled_from([0.5, 0.75, 1.0]))
    return arguments | {"use_qkv_bias": draw(st.booleans())}


def gpt2_arguments(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.integers(2, 5))
    return {
        "vocab_size": 53,
        "n_positions": draw(st.sampled_from([17, 40])),  # of which 16 are used
        "n_embd": heads * draw(st.sampled_from([4, 6, 10])),
        "n_inner": draw(st.sampled_from([None, 20, 50])),
        "n_layer": draw(st.integers(2, 3)),
        "n_head": heads,
        "layer_norm_epsilon": draw(st.sampled_from([1e-6, 1e-5, 1e-2])),
        "activation_function": draw(st.sampled_from(["gelu_new", "gelu_pytorch_tanh", "silu"])),
        "tie_word_embeddings": draw(st.booleans()),
        "scale_attn_weights": draw(st.booleans()),
        "scale_attn_by_inverse_layer_idx": draw(st.booleans()),
        "reorder_and_upcast_attn": draw(st.booleans()),
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def qwen3_moe_arguments(draw: st.DrawFn) -> dict[str, Any]:
    experts = draw(st.integers(2, 9))
    arguments = rotating_arguments(draw) | {
        "moe_intermediate_size": draw(st.sampled_from([8, 24])),
        "num_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "norm_topk_prob": draw(st.booleans()),
        "use_sliding_window": draw(st.booleans()),
        "sliding_window": draw(st.integers(2, 15)),
    }
    arguments["hidden_size"] = 8 * arguments["num_attention_heads"]  # kernels of experts want it
    return arguments


ARGUMENTS: dict[str, Callable[[st.DrawFn], dict[str, Any]]] = {
    "gemma3_text": gemma3_arguments,
    "gpt2": gpt2_arguments,
    "granite": granite_arguments,
    "llama": llama_arguments,
    "qwen3": qwen3_arguments,
    "qwen3_moe": qwen3_moe_arguments,
    "stablelm": stablelm_arguments,
}


# Not shrunk: a failing model is small as it is, and each try costs a second.
@settings(
    max_examples=5 if settings.get_current_profile_name() == "fixed" else 40,  # `make fuzz`
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@pytest.mark.parametrize("family", ARGUMENTS)
@given(data=st.data(), batch=st.sampled_from([1, 2]))
def test_law_the_reference_agrees_with_transformers(
    family_taps: Taps, family: str, data: st.DataObject, batch: int
) -> None:
    arguments, seed = data.draw(models(family))
    layers = arguments.get("n_layer") or arguments["num_hidden_layers"]
    capped = arguments.get("final_logit_softcapping") is not None
    expected = family_taps(family, layers) | ({"logits_uncapped"} if capped else set())
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), family, arguments, seed=seed)
        result = run(Path(folder), draw_tokens(batch, 12, vocab=53), decode=4)
        require_healthy(result, expected)


LONG = {
    "yarn": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 8},
    "dynamic": {"rope_type": "dynamic", "factor": 8.0},
}


@pytest.mark.parametrize("kind", LONG)
def test_prompts_far_beyond_the_trained_length_agree(
    tiny: Callable[..., Path], family_taps: Taps, kind: str
) -> None:
    """YaRN's slow pairs are mixed in float32 by transformers, which large factors amplify."""
    path = tiny(
        "llama",
        max_position_embeddings=320 if kind == "yarn" else 8,
        rope_parameters={"rope_theta": 1e4, **LONG[kind]},
    )
    result = run(path, draw_tokens(1, 250, vocab=101), decode=1)
    require_healthy(result, family_taps("llama", 3))


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
        ("granite", None, {"embedding_multiplier": 12.3001}, "embed_scaled"),
        ("granite", None, {"attention_multiplier": 0.19001}, "layers.0.attn.scores"),
        ("granite", None, {"residual_multiplier": 0.22001}, "layers.0.resid_mid"),
        ("granite", None, {"logits_scaling": 7.7001}, "logits"),
        ("qwen3_moe", None, {"norm_topk_prob": False}, "layers.0.mlp.router_weights"),
        ("qwen3_moe", None, {"num_experts_per_tok": 2}, "layers.0.mlp.chosen"),
        ("qwen3_moe", None, {"num_experts_per_tok": 4}, "layers.0.mlp.chosen"),
        ("gpt_oss", None, {"swiglu_limit": 2.001}, "layers.0.mlp.out"),
        ("gpt_oss", None, {"swiglu_alpha": 1.7021}, "layers.0.mlp.out"),
        ("gpt_oss", None, {"sliding_window": 7}, "layers.0.attn.mask"),
        ("gpt_oss", None, {"num_experts_per_tok": 2}, "layers.0.mlp.chosen"),
        ("gpt_oss", None, {"rope_parameters.truncate": True}, FIRST_ROPE),
        ("stablelm", None, {"layer_norm_eps": 1.2e-5}, "layers.0.attn_norm"),
        ("stablelm", None, {"rope_parameters.partial_rotary_factor": 0.75}, FIRST_ROPE),
        ("stablelm", None, {"rope_parameters.partial_rotary_factor": 1.0}, FIRST_ROPE),
        ("qwen3", None, {"rms_norm_eps": 1.2e-5}, "layers.0.attn_norm"),
        ("qwen3", None, {"sliding_window": 7}, "layers.1.attn.mask"),
        ("qwen3", None, {"layer_types": ["sliding_attention"] * 3}, "layers.0.attn.mask"),
        ("gemma3_text", None, {"rms_norm_eps": 5e-5}, "layers.0.attn_norm"),
        ("gemma3_text", None, {"sliding_window": 7}, "layers.0.attn.mask"),
        ("gemma3_text", None, {"layer_types": ["full_attention"] * 3}, FIRST_ROPE),
        ("gemma3_text", None, {"query_pre_attn_scalar": 20.01}, "layers.0.attn.scores"),
        ("gemma3_text", None, {"rope_parameters.sliding_attention.rope_theta": 1001}, FIRST_ROPE),
        (
            "gemma3_text",
            None,
            {"rope_parameters.full_attention.rope_theta": 100100.0},
            "layers.1.attn.q_rope",
        ),
        (
            "gemma3_text",
            None,
            {"rope_parameters.full_attention.factor": 2.001},
            "layers.1.attn.q_rope",
        ),
        ("gpt2", None, {"layer_norm_epsilon": 1.2e-5}, "layers.0.attn_norm"),
        ("gpt2", None, {"scale_attn_weights": False}, "layers.0.attn.scores"),
        ("gpt2", None, {"scale_attn_by_inverse_layer_idx": True}, "layers.1.attn.scores"),
        ("gpt2", None, {"activation_function": "silu"}, "layers.0.mlp.act"),
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


@pytest.mark.parametrize("family", [*ARGUMENTS, "gpt_oss"])
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
