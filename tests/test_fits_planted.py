"""Constants that are a little wrong are caught in every dtype, placed, named and valued.

In half precision the worst element of such a fault is within the limit: only the trend shows it.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import HFEngine, RunResult, check
from harness.checkpoint import Checkpoint, encode
from harness.contract import UNIT_LIMIT
from harness.result import Comparison, Diagnosis, Fit, Verdict
from harness.taps import split
from harness.verdict import excluded

Load = Callable[..., Any]
Twin = Callable[..., Any]
Plant = Callable[[Any], None]

HEALTHY = (Verdict.PASS, Verdict.ROUNDING)
ATTENTIONS = ("eager", "sdpa")
LAYER = 11

TEXT = """
The history of computing is older than the machines that we call computers. Merchants kept tallies
on clay, sailors carried tables of the tides, and astronomers spent their lives on sums that a
pocket calculator now finishes before the finger leaves the key. What changed in the nineteenth
century was the thought that a machine might follow a list of instructions, and that the list could
be written down, read by the machine, and changed by the person who had written it.
"""


class WithoutParameters(HFEngine):
    """An engine that does not show the parameters it computes with: the numbers must tell."""

    @property
    def parameters(self) -> dict[str, Any]:
        return {}


def rotary_of(model: Any, theta: float) -> Any:
    config = type(model.config).from_dict(model.config.to_dict())
    config.rope_parameters = {"rope_type": "default", "rope_theta": theta}
    return type(model.model.rotary_emb)(config)


def theta_everywhere(theta: float) -> Plant:
    def plant(model: Any) -> None:
        model.model.rotary_emb = rotary_of(model, theta)

    return plant


def rotation_of_layer(*, theta: float = 1e5, offset: int = 0) -> Plant:
    """Another base, or other positions, in one layer alone."""

    def plant(model: Any) -> None:
        rotary = rotary_of(model, theta)
        attention = model.model.layers[LAYER].self_attn
        inner = attention.forward

        def forward(*args: Any, hidden_states: Any, **kwargs: Any) -> Any:
            ids = torch.arange(hidden_states.shape[1])[None] + offset
            kwargs["position_embeddings"] = rotary(hidden_states, ids)
            return inner(*args, hidden_states=hidden_states, **kwargs)

        attention.forward = forward

    return plant


def scale_of_layer(factor: float) -> Plant:
    def plant(model: Any) -> None:
        model.model.layers[LAYER].self_attn.scaling *= factor

    return plant


def first_epsilon(eps: float) -> Plant:
    def plant(model: Any) -> None:
        model.model.layers[0].input_layernorm.variance_epsilon = eps

    return plant


Engine = tuple[str, Plant | None, str]


def run(
    path: Path, model: Any, twin: Twin, engines: list[Engine], tokens: list[int], *, decode: int = 0
) -> RunResult:
    made = []
    for name, plant, attention in engines:
        copy = twin(model, attention=attention)
        if plant is not None:
            plant(copy)
        made.append(WithoutParameters(copy, name=f"{name} {attention}"))
    return check(made, checkpoint=path, token_ids=[tokens], decode=decode)


def of(result: RunResult, name: str) -> list[Comparison]:
    return [c for c in result.comparisons if c.candidate == name]


def trends(result: RunResult, name: str) -> list[tuple[str, Fit]]:
    return [(c.tap, fit) for c in of(result, name) for fit in excluded(c)]


def first_diagnosis(result: RunResult, name: str) -> Diagnosis:
    return next(d for d in result.diagnoses if d.candidate == name)


def assert_healthy(result: RunResult) -> None:
    for verdict in result.candidates:
        if verdict.candidate.startswith("healthy"):
            assert verdict.verdict in HEALTHY, verdict.reason
            assert trends(result, verdict.candidate) == []
            compared = of(result, verdict.candidate)
            layers = {split(c.tap).layer for c in compared} - {None}
            assert sum(len(c.fits) for c in compared) > 5 * len(layers)


HEALTHY_PAIR: list[Engine] = [("healthy", None, attention) for attention in ATTENTIONS]
NARROW: list[Engine] = [
    *HEALTHY_PAIR,
    ("theta everywhere", theta_everywhere(99000.0), "eager"),
    ("theta", rotation_of_layer(theta=99000.0), "sdpa"),
    *(("scale 1.01", scale_of_layer(1.01), attention) for attention in ATTENTIONS),
    ("scale 1.05", scale_of_layer(1.05), "sdpa"),
]


@pytest.fixture(scope="module")
def bfloat16(smollm2_start: Checkpoint, load_model: Load, twin: Twin) -> RunResult:
    model = load_model(smollm2_start.path, dtype="bfloat16")
    return run(smollm2_start.path, model, twin, NARROW, encode(smollm2_start, TEXT)[:64])


#: Name, first tap and all failing taps of it in its layer, constant, right value, value in the
#: model, fault that must be named first.
EXPECTED = {
    "theta everywhere": ("layers.0.attn.q_rope", "rope_theta", 99000.0, "rope-theta"),
    "theta": ("layers.11.attn.q_rope", "rope_theta", 99000.0, "rope-theta"),
    "scale 1.01": ("layers.11.attn.scores", "scale", 0.12625, "scale-other"),
    "scale 1.05": ("layers.11.attn.scores", "scale", 0.13125, "scale-other"),
}


def test_smollm2_in_bfloat16_is_healthy(bfloat16: RunResult) -> None:
    assert_healthy(bfloat16)


@pytest.mark.parametrize(("name", "attention"), [(n, a) for n, plant, a in NARROW if plant])
def test_smollm2_in_bfloat16_a_trend_is_caught_placed_named_and_valued(
    bfloat16: RunResult, name: str, attention: str
) -> None:
    tap, constant, value, fault = EXPECTED[name]
    if attention == "sdpa":
        tap = tap.replace("attn.scores", "attn.context")  # which the kernel does not show
    candidate = f"{name} {attention}"
    verdict = next(c for c in bfloat16.candidates if c.candidate == candidate)
    assert verdict.verdict is Verdict.FAIL
    assert verdict.worst_units is not None
    assert verdict.worst_units < UNIT_LIMIT  # no element shows it
    assert verdict.first_divergence is not None
    assert verdict.first_divergence.tap == tap
    found = trends(bfloat16, candidate)
    assert len(found) == {"theta everywhere": 2 * 12, "theta": 2}.get(name, 1)
    for _, fit in found:
        assert fit.constant == constant
        assert fit.fitted == pytest.approx(value, rel=2e-3)
        assert abs(fit.fitted - value) < 6 * fit.error
    diagnosis = first_diagnosis(bfloat16, candidate)
    assert (diagnosis.tap, len(diagnosis.places)) == (tap, len(found))
    assert diagnosis.causes[0].fault == fault


def test_the_cause_says_value_error_config_and_key(bfloat16: RunResult) -> None:
    detail = first_diagnosis(bfloat16, "theta sdpa").causes[0].detail
    said = r"rope_theta = (98,99\d|99,00\d) \+- \d, configured 100,000 \(rope_theta \(top level\)\)"
    assert re.fullmatch(said, detail), detail
    detail = first_diagnosis(bfloat16, "scale 1.01 sdpa").causes[0].detail
    assert "scale = 0.1262" in detail
    assert detail.endswith("configured 0.125 (head_dim ** -0.5 = 64 ** -0.5)")


WIDE: list[Engine] = [
    ("theta", rotation_of_layer(theta=99990.0), "eager"),
    ("offset", rotation_of_layer(offset=1), "eager"),
    ("eps", first_epsilon(1.01e-5), "sdpa"),
    ("scale", scale_of_layer(1.00001), "sdpa"),
]


@pytest.fixture(scope="module")
def float32(smollm2_start: Checkpoint, load_model: Load, twin: Twin) -> RunResult:
    model = load_model(smollm2_start.path)
    return run(smollm2_start.path, model, twin, WIDE, encode(smollm2_start, TEXT)[:64])


@pytest.mark.parametrize(
    ("candidate", "tap", "constant", "value", "near", "fault"),
    [
        ("theta eager", "layers.11.attn.q_rope", "rope_theta", 99990.0, 1.0, "rope-theta"),
        ("offset eager", "layers.11.attn.q_rope", "position_offset", 1.0, 1e-5, "rope-offset"),
        ("eps sdpa", "layers.0.attn_norm", "eps", 1.01e-5, 1e-8, "norm-eps"),
        ("scale sdpa", "layers.11.attn.context", "scale", 0.12500125, 1e-7, "scale-other"),
    ],
)
def test_smollm2_in_float32_a_constant_is_placed_named_and_valued(
    float32: RunResult,
    candidate: str,
    tap: str,
    constant: str,
    value: float,
    near: float,
    fault: str,
) -> None:
    verdict = next(c for c in float32.candidates if c.candidate == candidate)
    assert verdict.verdict is Verdict.FAIL
    assert verdict.first_divergence is not None
    assert verdict.first_divergence.tap == tap
    fits = excluded(verdict.first_divergence.comparison)
    assert [fit.constant for fit in fits] == [constant]
    assert fits[0].fitted == pytest.approx(value, abs=near, rel=0)
    diagnosis = first_diagnosis(float32, candidate)
    assert diagnosis.tap == tap
    assert diagnosis.causes[0].fault == fault
    assert "+-" in diagnosis.causes[0].detail


def test_smollm2_in_float16_is_healthy_at_another_length(
    smollm2_start: Checkpoint, load_model: Load, twin: Twin
) -> None:
    tokens = (encode(smollm2_start, TEXT) * 2)[:100]
    assert len(tokens) == 100
    model = load_model(smollm2_start.path, dtype="float16")
    assert_healthy(run(smollm2_start.path, model, twin, HEALTHY_PAIR, tokens, decode=1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tiny_cap_of_the_logits_is_caught_and_valued(
    tiny: Callable[..., Path], load_model: Load, twin: Twin, dtype: str
) -> None:
    path = tiny("gemma3_text", final_logit_softcapping=3.0)

    def plant(model: Any) -> None:
        model.config.final_logit_softcapping = 3.03

    engines: list[Engine] = [*HEALTHY_PAIR, ("cap", plant, "eager")]
    tokens = [(7 * n * n + n) % 101 for n in range(60)]
    result = run(path, load_model(path, dtype=dtype), twin, engines, tokens)
    for verdict in result.candidates[:2]:
        assert verdict.verdict in HEALTHY, verdict.reason
    found = trends(result, "cap eager")
    assert [(tap, fit.constant) for tap, fit in found] == [("logits", "softcap")]
    assert found[0][1].fitted == pytest.approx(3.03, rel=2e-3)
    assert found[0][1].written == "final_logit_softcapping"
    assert result.first_divergence is not None
    assert result.first_divergence.tap == "logits"
    assert result.diagnoses[0].causes[0].fault == "head-cap-other"


#: What is planted in a small model, with the first tap and the constant.
TINY: dict[str, tuple[str, dict[str, Any], Plant, str, str, float]] = {
    "embedding": (
        "granite",
        {},
        lambda model: setattr(model.model, "embedding_multiplier", 12.5),
        "embed_scaled",
        "embedding_multiplier",
        12.5,
    ),
    "residual": (
        "granite",
        {},
        lambda model: setattr(model.model.layers[1], "residual_multiplier", 0.225),
        "layers.1.resid_mid",
        "residual_multiplier",
        0.225,
    ),
    "attention factor": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        lambda model: setattr(model.model.rotary_emb, "attention_scaling", 1.15),
        "layers.0.attn.q_rope",
        "attention_factor",
        1.15,
    ),
    "factor": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}},
        lambda model: setattr(
            model.model.rotary_emb, "inv_freq", model.model.rotary_emb.inv_freq * 3.0 / 3.1
        ),
        "layers.0.attn.q_rope",
        "factor",
        3.1,
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TINY)
def test_tiny_constant_is_caught_and_valued(
    tiny: Callable[..., Path], load_model: Load, twin: Twin, name: str, dtype: str
) -> None:
    family, overrides, plant, tap, constant, value = TINY[name]
    path = tiny(family, **overrides)
    engines: list[Engine] = [*HEALTHY_PAIR, ("faulty", plant, "eager")]
    tokens = [(7 * n * n + n) % 101 for n in range(60)]
    result = run(path, load_model(path, dtype=dtype), twin, engines, tokens)
    for verdict in result.candidates[:2]:
        assert verdict.verdict in HEALTHY, verdict.reason
    first = trends(result, "faulty eager")[0]
    assert (first[0], first[1].constant) == (tap, constant)
    assert first[1].fitted == pytest.approx(value, rel=2e-3)


@pytest.mark.parametrize("window", [4, 9])
def test_tiny_window_is_counted_where_nobody_taps_the_mask(
    tiny: Callable[..., Path], load_model: Load, twin: Twin, window: int
) -> None:
    path = tiny("qwen3")  # a window of 6 in layer 1

    def plant(model: Any) -> None:
        attention = model.model.layers[1].self_attn
        inner = attention.forward

        def forward(*args: Any, hidden_states: Any, **kwargs: Any) -> Any:
            at = torch.arange(hidden_states.shape[1])
            distance = at[:, None] - at
            kwargs["attention_mask"] = ((distance >= 0) & (distance < window))[None, None]
            return inner(*args, hidden_states=hidden_states, **kwargs)

        attention.forward = forward

    model = twin(load_model(path), attention="sdpa")
    plant(model)
    tokens = [(7 * n * n + n) % 101 for n in range(40)]
    result = check(WithoutParameters(model, name="faulty"), checkpoint=path, token_ids=[tokens])
    assert result.first_divergence is not None
    assert result.first_divergence.tap == "layers.1.attn.context"
    fit = next(f for f in excluded(result.first_divergence.comparison) if f.constant == "window")
    assert (fit.configured, fit.fitted, fit.written) == (6, window, "sliding_window")
    assert result.diagnoses[0].causes[0].fault == "mask-window-size"
    assert f"window = {window}" in result.diagnoses[0].causes[0].detail
