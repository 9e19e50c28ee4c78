"""Faults of what few families have, planted in small random models: multipliers of Granite."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import HFEngine, RunResult, check
from harness.result import Comparison, Verdict

Load = Callable[..., Any]
Tiny = Callable[..., Path]
Plant = Callable[[Any], None]

TOKENS = [[5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55]]


class WithoutParameters(HFEngine):
    """An engine that does not show the parameters it computes with: the numbers must tell."""

    @property
    def parameters(self) -> dict[str, Any]:
        return {}


def run(model: Any, path: Path, *, decode: int = 0) -> RunResult:
    engine = WithoutParameters(model)
    return check(engine, checkpoint=path, token_ids=TOKENS, decode=decode)


def assert_first(result: RunResult, tap: str, *, chunk: int = 0) -> Comparison:
    assert result.verdict is Verdict.FAIL, result.candidates[0].reason
    first = result.first_divergence
    assert first is not None
    assert (first.tap, first.chunk) == (tap, chunk)
    assert first.fresh
    return first.comparison


def require_placed(
    tiny: Tiny, load: Load, family: str, attention: str, plant: Plant, tap: str, fused: str
) -> None:
    """The model is healthy; with the fault it fails at the tap, or at another of a fused kernel."""
    path = tiny(family)
    model = load(path, attention=attention)
    assert run(model, path).verdict in (Verdict.PASS, Verdict.ROUNDING)
    plant(model)
    assert_first(run(model, path), fused if fused and attention == "sdpa" else tap)


@pytest.fixture(params=["eager", "sdpa"])
def attention(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Granite


def embedding_not_multiplied(model: Any) -> None:
    model.model.embedding_multiplier = 1.0


def scores_by_the_head_dim(model: Any) -> None:
    model.model.layers[1].self_attn.scaling = 16**-0.5


def residual_of_a_layer(value: float) -> Plant:
    def plant(model: Any) -> None:
        model.model.layers[1].residual_multiplier = value

    return plant


def mlp_added_whole(model: Any) -> None:
    """As if the multiplier were meant for attention alone."""
    layer = model.model.layers[1]
    forward = layer.mlp.forward
    layer.mlp.forward = lambda x: forward(x) / layer.residual_multiplier


def logits_multiplied(model: Any) -> None:
    model.config.logits_scaling = 1 / model.config.logits_scaling


def logits_left(model: Any) -> None:
    model.config.logits_scaling = 1.0


GRANITE: list[tuple[Plant, str, str]] = [
    (embedding_not_multiplied, "embed_scaled", ""),
    (scores_by_the_head_dim, "layers.1.attn.scores", "layers.1.attn.context"),
    (residual_of_a_layer(1.0), "layers.1.resid_mid", ""),
    (residual_of_a_layer(0.22001), "layers.1.resid_mid", ""),
    (mlp_added_whole, "layers.1.resid_post", ""),
    (logits_multiplied, "logits", ""),
    (logits_left, "logits", ""),
]


@pytest.mark.parametrize(
    ("plant", "tap", "fused"), GRANITE, ids=[f"{tap}-{n}" for n, (_, tap, _) in enumerate(GRANITE)]
)
def test_granite_fault_is_placed(
    tiny: Tiny, load_model: Load, attention: str, plant: Plant, tap: str, fused: str
) -> None:
    require_placed(tiny, load_model, "granite", attention, plant, tap, fused)


def test_a_multiplier_rounded_to_bfloat16_is_placed(tiny: Tiny, load_model: Load) -> None:
    """0.22 is 0.2197 there: an engine that stores it as a tensor computes something else."""
    path = tiny("granite", residual_multiplier=0.22265625 + 0.00048)  # as far off as can be
    model = load_model(path)
    rounded = torch.tensor(model.config.residual_multiplier, dtype=torch.bfloat16)
    for layer in model.model.layers:
        layer.residual_multiplier = float(rounded)
    assert_first(run(model, path), "layers.0.resid_mid")
