"""Each family against transformers: every config option, prefill and decoding, every tap."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import HFEngine, ReferenceEngine, check
from harness.contract import UNIT_LIMIT
from harness.engines.protocol import Engine
from harness.errors import EngineError
from harness.result import RunResult, TapStatus, Verdict
from harness.subject import load_subject

THETA = 10000.0

LLAMA: dict[str, dict[str, Any]] = {
    "plain": {},
    "mha": {"num_key_value_heads": 6},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "narrow heads": {"head_dim": 4},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": THETA, "factor": 3.0}},
    "dynamic": {
        "max_position_embeddings": 16,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": THETA, "factor": 2.0},
    },
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": THETA,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": THETA,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "yarn with options": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": THETA,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
            "attention_factor": 0.8,
        }
    },
    "yarn with mscale": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": THETA,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
        }
    },
}

GRANITE: dict[str, dict[str, Any]] = {
    "multipliers": {},
    "no multipliers": dict.fromkeys(
        ["embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier"],
        1.0,
    ),
    "large multipliers": {
        "embedding_multiplier": 40.0,
        "attention_multiplier": 3.0,
        "residual_multiplier": 2.5,
        "logits_scaling": 0.01,
    },
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "free head dim": {"head_dim": 24},
    "yarn": LLAMA["yarn"],
    "dynamic": LLAMA["dynamic"],
}

QWEN3: dict[str, dict[str, Any]] = {
    "windows": {},
    "no windows": {
        "use_sliding_window": False,
        "layer_types": None,
        "max_window_layers": 28,
        "sliding_window": None,
    },
    "window of two": {"sliding_window": 2},
    "biases": {"attention_bias": True},
    "tied": {"tie_word_embeddings": True},
    "free head dim": {"head_dim": 24},
}

GPT2: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "wide mlp": {"n_inner": None},
    "other activation": {"activation_function": "gelu_pytorch_tanh"},
    "silu": {"activation_function": "silu"},
    "unscaled": {"scale_attn_weights": False},
    "scaled by layer": {"scale_attn_by_inverse_layer_idx": True},
    "upcast": {"reorder_and_upcast_attn": True},
    "upcast, scaled by layer": {
        "reorder_and_upcast_attn": True,
        "scale_attn_by_inverse_layer_idx": True,
    },
}

GEMMA3: dict[str, dict[str, Any]] = {
    "windows": {},
    "window of two": {"sliding_window": 2},
    "all full": {"layer_types": ["full_attention"] * 3},
    "pattern": {"layer_types": None, "sliding_window_pattern": 2},
    "untied": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True},
    "capped logits": {"final_logit_softcapping": 3.0},
    "flat rope": {
        "rope_parameters": None,
        "rope_theta": 20000.0,
        "rope_local_base_freq": 500.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "yarn": {
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": THETA,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        }
    },
    "dynamic": {
        "max_position_embeddings": 24,
        "rope_parameters": {
            "full_attention": {"rope_type": "dynamic", "rope_theta": THETA, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
}

QWEN3_MOE: dict[str, dict[str, Any]] = {
    "normalised": {},
    "not normalised": {"norm_topk_prob": False},
    "one of few": {"num_experts": 2, "num_experts_per_tok": 1},
    "all": {"num_experts": 4, "num_experts_per_tok": 4},
    "many": {"num_experts": 40, "num_experts_per_tok": 8},
    "windows": {"use_sliding_window": True, "sliding_window": 6},
    "windows that are not used": {"use_sliding_window": False, "sliding_window": 6},
    "biases": {"attention_bias": True},
    "tied": {"tie_word_embeddings": True},
    "free head dim": {"head_dim": 24},
    "yarn": LLAMA["yarn"],
}


def part(share: float, **scaling: Any) -> dict[str, Any]:
    """A config that rotates part of each head."""
    rope = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": share}
    return {"rope_parameters": rope | scaling}


STABLELM: dict[str, dict[str, Any]] = {
    "half": {},
    "quarter": part(0.25),
    "three quarters": part(0.75),
    "rounded down": part(0.6),
    "whole": part(1.0),
    "default part": {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    "flat": {"rope_parameters": None, "partial_rotary_factor": 0.75, "rope_theta": 500.0},
    "linear": part(0.5, rope_type="linear", factor=3.0),
    "dynamic": part(0.5, rope_type="dynamic", factor=2.0) | {"max_position_embeddings": 16},
    "llama3": part(0.5, **LLAMA["llama3"]["rope_parameters"]),
    "yarn": part(0.75, **LLAMA["yarn with options"]["rope_parameters"]),
    "no biases": {"use_qkv_bias": False},
    "normalised": {"qk_layernorm": True},
    "parallel": {"use_parallel_residual": True},
    "parallel and normalised": {"use_parallel_residual": True, "qk_layernorm": True},
    "mha": {"num_key_value_heads": 6},
    "tied": {"tie_word_embeddings": True},
    "epsilon": {"layer_norm_eps": 1e-2},
}

GPT_OSS: dict[str, dict[str, Any]] = {
    "low clamp": {},
    "clamp of released models": {"swiglu_limit": 7.0},
    "other alpha": {"swiglu_alpha": 0.5},
    "all full": {"layer_types": ["full_attention"] * 3},
    "all sliding": {"layer_types": ["sliding_attention"] * 3, "sliding_window": 2},
    "implied windows": {"layer_types": None},
    "no biases": {"attention_bias": False},
    "one of few": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "all chosen": {"num_local_experts": 3, "num_experts_per_tok": 3},
    "tied": {"tie_word_embeddings": True},
    "free head dim": {"head_dim": 8},
    "plain rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
}

FAMILIES = ["llama", "qwen3", "gemma3_text", "gpt2", "granite", "qwen3_moe", "stablelm"]


def run(path: Path, *, batch: int, length: int = 23, decode: int = 3) -> RunResult:
    subject = load_subject(path)
    draw = random.Random(length * batch)
    rows = [[draw.randrange(101) for _ in range(length)] for _ in range(batch)]
    engines: list[Engine] = [
        HFEngine.load(path, attention="eager"),
        HFEngine.load(path, attention="sdpa"),
        ReferenceEngine(subject.model),
    ]
    return check(engines, checkpoint=path, token_ids=rows, decode=decode)


Require = Callable[..., None]


@pytest.fixture
def require_healthy(family_taps: Callable[[str, int], set[str]]) -> Require:
    """Agreement at every tap of the family, in every chunk, by every engine."""

    def require(
        result: RunResult,
        family: str,
        *,
        more: set[str] | None = None,
        without: set[str] | None = None,
    ) -> None:
        for verdict in result.candidates:
            assert verdict.verdict in (Verdict.PASS, Verdict.ROUNDING), verdict.reason
            assert verdict.worst_units is not None
            assert verdict.worst_units < UNIT_LIMIT / 2, (verdict.candidate, verdict.worst_tap)
        allowed = (TapStatus.COMPARED, TapStatus.UNAVAILABLE)
        assert all(c.status in allowed for c in result.comparisons)
        eager = [c for c in result.comparisons if c.candidate == "hf:eager"]
        assert all(c.status is TapStatus.COMPARED for c in eager)
        for chunk in range(len(result.prompts[0].chunks)):
            taps = {c.tap for c in eager if c.chunk == chunk}
            assert taps == (family_taps(family, 3) | (more or set())) - (without or set())

    return require


@pytest.mark.parametrize("option", LLAMA)
def test_llama_agrees_with_transformers(
    tiny: Callable[..., Path], require_healthy: Require, option: str
) -> None:
    require_healthy(run(tiny("llama", **LLAMA[option]), batch=1), "llama")


@pytest.mark.parametrize("option", QWEN3)
def test_qwen3_agrees_with_transformers(
    tiny: Callable[..., Path], require_healthy: Require, option: str
) -> None:
    require_healthy(run(tiny("qwen3", **QWEN3[option]), batch=1), "qwen3")


@pytest.mark.parametrize("option", GRANITE)
def test_granite_agrees_with_transformers(
    tiny: Callable[..., Path], require_healthy: Require, option: str
) -> None:
    require_healthy(run(tiny("granite", **GRANITE[option]), batch=1), "granite")


@pytest.mark.parametrize("option", QWEN3_MOE)
def test_qwen3_moe_agrees_with_transformers(
    tiny: Callable[..., Path], require_healthy: Require, option: str
) -> None:
    require_healthy(run(tiny("qwen3_moe", **QWEN3_MOE[option]), batch=1), "qwen3_moe")


@pytest.mark.parametrize(
    ("option", "dense"),
    [
        ({"mlp_only_layers": [1]}, {1}),
        ({"decoder_sparse_step": 2}, {0, 2}),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, {0, 1, 2}),
        ({"mlp_only_layers": [0, 7]}, {0}),
    ],
    ids=str,
)
def test_layers_without_experts_agree_with_transformers(
    tiny: Callable[..., Path], require_healthy: Require, option: dict[str, Any], dense: set[int]
) -> None:
    result = run(tiny("qwen3_moe", **option), batch=2, length=9)
    inner = {f"layers.{n}.mlp.{kind}" for n in dense for kind in ("gate", "up", "act", "prod")}
    routed = {
        f"layers.{n}.mlp.{kind}" for n in dense for kind in ("router", "chosen", "router_weights")
    }
    require_healthy(result, "qwen3_moe", more=inner, without=routed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_every_way_to_compute_experts_agrees(
    tiny: Callable[..., Path], family: str, kernel: str, dtype: str
) -> None:
    path = tiny(family)
    engine = HFEngine.load(path, dtype=dtype)
    config: Any = engine.model.config
    config._experts_implementation = kernel
    rows = [[5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 99, 98]]
    result = check(engine, checkpoint=path, token_ids=rows, decode=2)
    assert result.verdict in (Verdict.PASS, Verdict.ROUNDING), result.candidates[0].reason
    kinds = ("experts", "clamped_experts")
    units = [c.local.units for c in result.comparisons if c.local and c.op in kinds]
    assert len(units) == 3 * 3
    assert 0.2 < max(units) < 2


def run_without_sdpa(path: Path, *, batch: int, dtype: str = "float32") -> RunResult:
    """GPT-OSS has no attention function but the eager one that torch alone can run."""
    draw = random.Random(batch)
    rows = [[draw.randrange(101) for _ in range(17)] for _ in range(batch)]
    engines: list[Engine] = [HFEngine.load(path, dtype=dtype)]
    if dtype == "float32":
        engines.append(ReferenceEngine(load_subject(path).model))
    return check(engines, checkpoint=path, token_ids=rows, decode=3)


@pytest.mark.parametrize("option", GPT_OSS)
def test_gpt_oss_agrees_with_transformers(
    tiny: Callable[..., Path], require_healthy: Require, option: str
) -> None:
    path = tiny("gpt_oss", **GPT_OSS[option])
    require_healthy(run_without_sdpa(path, batch=2), "gpt_oss")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gpt_oss_agrees_in_half_precision(
    tiny: Callable[..., Path], require_healthy: Require, dtype: str
) -> None:
    """In float16 transformers keeps weights of norms in float32, which is no fault."""
    require_healthy(run_without_sdpa(tiny("gpt_oss"), batch=2, dtype=dtype), "gpt_oss")


def test_gpt_oss_with_sdpa_is_refused(tiny: Callable[..., Path]) -> None:
    with pytest.raises(EngineError, match=r"hf:sdpa.*does not support an attention implementation"):
        HFEngine.load(tiny("gpt_oss"), attention="sdpa")


@pytest.mark.parametrize("option", STABLELM)
def test_stablelm_agrees_with_transformers(
    tiny: Callable[..., Path], require_healthy: Require, option: str
) -> None:
    given = STABLELM[option]
    more = {"q_norm", "k_norm"} if given.get("qk_layernorm") else set()
    less = {"resid_mid", "mlp_norm"} if given.get("use_parallel_residual") else set()
    require_healthy(
        run(tiny("stablelm", **given), batch=1),
        "stablelm",
        more={f"layers.{n}.attn.{kind}" for n in range(3) for kind in more},
        without={f"layers.{n}.{kind}" for n in range(3) for kind in less},
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_parallel_and_normalised_layers_agree_in_half_precision(
    tiny: Callable[..., Path], dtype: str
) -> None:
    path = tiny("stablelm", **STABLELM["parallel and normalised"])
    engine = HFEngine.load(path, dtype=dtype)
    assert not engine.unavailable
    rows = [[5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55]]
    verdict = check(engine, checkpoint=path, token_ids=rows, decode=3).candidates[0]
    assert verdict.verdict in (Verdict.PASS, Verdict.ROUNDING), verdict.reason
    assert verdict.worst_units is not None
    assert 0.3 < verdict.worst_units < UNIT_LIMIT / 2, verdict.worst_tap


@pytest.mark.parametrize("option", GPT2)
def test_gpt2_agrees_with_transformers(
    tiny: Callable[..., Path], require_healthy: Require, option: str
) -> None:
    require_healthy(run(tiny("gpt2", **GPT2[option]), batch=1), "gpt2")


@pytest.mark.parametrize("option", GEMMA3)
def test_gemma3_agrees_with_transformers(
    tiny: Callable[..., Path], require_healthy: Require, option: str
) -> None:
    result = run(tiny("gemma3_text", **GEMMA3[option]), batch=1)
    more = {"logits_uncapped"} if option == "capped logits" else None
    require_healthy(result, "gemma3_text", more=more)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_agrees_with_transformers(
    tiny: Callable[..., Path], require_healthy: Require, family: str
) -> None:
    require_healthy(run(tiny(family), batch=3, length=9), family)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_agrees_with_transformers(
    tiny: Callable[..., Path], family: str, attention: str, dtype: str
) -> None:
    path = tiny(family)
    engine = HFEngine.load(path, attention=attention, dtype=dtype)
    rows = [[5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55]]
    verdict = check(engine, checkpoint=path, token_ids=rows, decode=3).candidates[0]
    assert verdict.verdict in (Verdict.PASS, Verdict.ROUNDING), verdict.reason
    assert verdict.worst_units is not None
    assert 0.3 < verdict.worst_units < UNIT_LIMIT / 2, verdict.worst_tap


def test_a_long_prompt_agrees_with_transformers(
    tiny: Callable[..., Path], require_healthy: Require
) -> None:
    require_healthy(run(tiny("llama"), batch=1, length=200, decode=1), "llama")


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "granite", "qwen3_moe"])
def test_families_read_every_bias(tiny: Callable[..., Path], family: str) -> None:
    subject = load_subject(tiny(family, attention_bias=True))
    biases = [name for name in subject.model.shapes if name.endswith(".bias")]
    assert len(biases) == 3 * 4
    assert set(biases) <= set(subject.checkpoint.tensors)


def test_a_window_of_one_is_found_in_transformers_cache(tiny: Callable[..., Path]) -> None:
    """A fault of transformers 5.24.0, see docs/findings.md; a release without it fails here."""
    path = tiny("qwen3", sliding_window=1)
    result = check(HFEngine.load(path), checkpoint=path, token_ids=[[1, 2, 3, 4, 5]], decode=2)
    assert result.verdict is Verdict.FAIL
    assert result.first_divergence is not None
    assert result.first_divergence.tap == "layers.1.attn.keys"
    assert result.first_divergence.chunk == 1
    note = result.first_divergence.comparison.note
    assert note == "expected [B=1, K=2, S=1, D=16], found [B=1, K=2, S=6, D=16]"


def test_attention_caps_are_found_to_be_ignored_by_transformers(tiny: Callable[..., Path]) -> None:
    """A fault of transformers 5.24.0, see docs/findings.md; a release without it fails here."""
    path = tiny("gemma3_text", attn_logit_softcapping=2.0)
    tokens = [[5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55]]
    for attention, tap in (("eager", "layers.0.attn.probs"), ("sdpa", "layers.0.attn.context")):
        engine = HFEngine.load(path, attention=attention)
        result = check(engine, checkpoint=path, token_ids=tokens)
        assert result.verdict is Verdict.FAIL
        assert result.first_divergence is not None
        assert result.first_divergence.tap == tap


def test_yarn_without_truncation_is_found_to_be_ignored_by_transformers(
    tiny: Callable[..., Path],
) -> None:
    """A fault of transformers 5.24.0, see docs/findings.md; a release without it fails here."""
    yarn = {
        "rope_type": "yarn",
        "rope_theta": THETA,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
    }
    sliding = {"rope_type": "default", "rope_theta": 500.0}
    ropes = {"full_attention": yarn, "sliding_attention": sliding}
    path = tiny("gemma3_text", rope_parameters=ropes)
    result = check(HFEngine.load(path), checkpoint=path, token_ids=[[1, 2, 3, 4, 5]])
    assert result.verdict is Verdict.FAIL
    assert result.first_divergence is not None
    assert result.first_divergence.tap == "layers.1.attn.q_rope"
    plain = tiny("llama", rope_parameters=yarn)  # one rotation for all layers: healthy
    healthy = check(HFEngine.load(plain), checkpoint=plain, token_ids=[[1, 2, 3, 4, 5]])
    assert healthy.verdict in (Verdict.PASS, Verdict.ROUNDING)
