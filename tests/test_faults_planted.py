"""Faults planted in transformers models are found, and at exactly the right tap.

The same five go into small random models and into SmolLM2 with its real weights. All faulty twins
of a model walk beside the healthy one, so that a model is compared once for each prompt.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import eager_attention_forward

from harness import HFEngine, RunResult, check
from harness.checkpoint import Checkpoint, encode
from harness.contract import UNIT_LIMIT
from harness.result import CandidateVerdict, Verdict

Load = Callable[..., Any]
Twin = Callable[..., Any]

ATTENTIONS = ("eager", "sdpa")
HEALTHY = (Verdict.PASS, Verdict.ROUNDING)

TEXT = """
The history of computing is older than the machines that we call computers. Merchants kept tallies
on clay, sailors carried tables of the tides, and astronomers spent their lives on sums that a
pocket calculator now finishes before the finger leaves the key. What changed in the nineteenth
century was the thought that a machine might follow a list of instructions.
"""


def plant_theta(model: Any, layer: int) -> None:
    rotary = model.model.rotary_emb
    config = type(model.config).from_dict(model.config.to_dict())
    config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
    model.model.rotary_emb = type(rotary)(config)


def plant_scale(model: Any, layer: int) -> None:
    model.model.layers[layer].self_attn.scaling *= 1.0001


def plant_weight(model: Any, layer: int) -> None:
    up = model.model.layers[layer].mlp.up_proj
    weight = up.weight.detach().clone()
    weight[3, 5] += 1e-4
    up.weight = torch.nn.Parameter(weight, requires_grad=False)


class NarrowSilu(torch.nn.Module):
    """SiLU that loses half of its digits on the way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x.bfloat16()).to(x.dtype)


class Gelu(torch.nn.Module):
    """Another activation than the config's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x)


def plant_activation(model: Any, layer: int, *, activation: type[torch.nn.Module]) -> None:
    model.model.layers[layer].mlp.act_fn = activation()


def plant_tiling(model: Any, layer: int) -> None:
    """KV heads 0 1 2 0 1 2 ... for 0 0 0 1 1 1 ..."""
    attention = model.model.layers[layer].self_attn
    name = attention.config._attn_implementation
    attention.config = type(attention.config).from_dict(attention.config.to_dict())
    attention.config._attn_implementation_internal = f"tiled-{name}"


@pytest.fixture(scope="module", autouse=True)
def tiled_attention() -> Iterator[None]:
    """Attention functions as somebody else may register them, gone after the tests."""
    inner = {"eager": eager_attention_forward, "sdpa": sdpa_attention_forward}
    for name, function in inner.items():
        AttentionInterface.register(f"tiled-{name}", partial(attend_tiled, function))
    yield
    for name in inner:
        AttentionInterface._global_mapping.pop(f"tiled-{name}")


def attend_tiled(
    inner: Callable[..., Any], module: Any, query: Any, key: Any, value: Any, *args: Any, **kw: Any
) -> Any:
    groups = query.shape[1] // key.shape[1]
    stand_in = SimpleNamespace(num_key_value_groups=1, training=False, is_causal=True)
    key, value = (x.repeat(1, groups, 1, 1) for x in (key, value))
    return inner(stand_in, query, key, value, *args, **kw)


@dataclass(frozen=True)
class Fault:
    """What to plant and which ops of the layer do not replay then, the first one first.

    Attributes:
        plant: Patches a model in one layer.
        eager: Failing taps with eager attention, without the layer.
        sdpa: The same with sdpa.
    """

    plant: Callable[[Any, int], None]
    eager: tuple[str, ...]
    sdpa: tuple[str, ...]

    def taps(self, attention: str, layer: int) -> list[str]:
        kinds = self.eager if attention == "eager" else self.sdpa
        return [f"layers.{layer}.{kind}" for kind in kinds]


NARROW = partial(plant_activation, activation=NarrowSilu)
IN_LAYER = {
    "scale": Fault(plant_scale, ("attn.scores",), ("attn.context",)),
    "weight": Fault(plant_weight, ("mlp.up",), ("mlp.up",)),
    "silu": Fault(NARROW, ("mlp.act",), ("mlp.act",)),
    # Keys and values are both tiled: two ops of eager attention read another head than they should.
    "tiling": Fault(plant_tiling, ("attn.scores", "attn.context"), ("attn.context",)),
}
ROTATED = ("attn.q_rope", "attn.k_rope")
FAULTS = {"theta": Fault(plant_theta, ROTATED, ROTATED), **IN_LAYER}


def expected_taps(name: str, attention: str, layer: int, layers: int) -> list[str]:
    """Failing taps in data-flow order; theta is the same in all layers."""
    everywhere = range(layers) if name == "theta" else [layer]
    return [tap for n in everywhere for tap in FAULTS[name].taps(attention, n)]


class WithoutParameters(HFEngine):
    """An engine that does not show the parameters it computes with: the numbers must tell."""

    @property
    def parameters(self) -> dict[str, Any]:
        return {}


def healthy_engines(model: Any, twin: Twin) -> list[HFEngine]:
    return [HFEngine(twin(model, attention=a), name=f"healthy {a}") for a in ATTENTIONS]


def faulty_engines(
    model: Any, twin: Twin, layer: int, engine: Callable[..., HFEngine]
) -> list[HFEngine]:
    """One engine for each fault and attention implementation."""
    made = []
    for attention in ATTENTIONS:
        for name, fault in FAULTS.items():
            copy = twin(model, attention=attention)
            fault.plant(copy, layer)
            made.append(engine(copy, name=f"{name} {attention}"))
    return made


def verdict(result: RunResult, name: str) -> CandidateVerdict:
    return next(c for c in result.candidates if c.candidate == name)


def assert_placed(result: RunResult, name: str, attention: str, layer: int) -> None:
    found = verdict(result, f"{name} {attention}")
    assert found.verdict is Verdict.FAIL, found.reason
    expected = expected_taps(
        name, attention, layer, int(str(result.model.config["num_hidden_layers"]))
    )
    first = found.first_divergence
    assert first is not None
    assert (first.tap, first.chunk, first.fresh) == (expected[0], 0, True)
    # Nothing that comes after is blamed for what it inherits.
    assert [tap for _, _, tap in found.failing] == expected


def assert_healthy(result: RunResult, attention: str) -> None:
    found = verdict(result, f"healthy {attention}")
    assert found.verdict in HEALTHY, found.reason
    assert found.failing == ()
    assert found.first_divergence is None
    assert found.replayed > found.compared / 2


def units_at(result: RunResult, name: str, tap: str) -> float:
    at = next(c for c in result.comparisons if (c.candidate, c.tap) == (name, tap))
    assert at.local is not None
    return at.local.units


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def tiny_result(
    request: pytest.FixtureRequest, tiny: Callable[..., Path], load_model: Load, twin: Twin
) -> RunResult:
    path = tiny(request.param)
    model = load_model(path)
    made = healthy_engines(model, twin) + faulty_engines(model, twin, 2, WithoutParameters)
    return check(made, checkpoint=path, token_ids=[list(range(3, 40))])


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_tiny_healthy_model_is_not_blamed(tiny_result: RunResult, attention: str) -> None:
    assert_healthy(tiny_result, attention)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", FAULTS)
def test_tiny_fault_is_placed(tiny_result: RunResult, name: str, attention: str) -> None:
    assert_placed(tiny_result, name, attention, 2)


@pytest.fixture(scope="module")
def smollm2_model(smollm2: Checkpoint, load_model: Load) -> Any:
    return load_model(smollm2.path)


@pytest.fixture(scope="module")
def five_tokens(smollm2_start: Checkpoint, load_model: Load, twin: Twin) -> RunResult:
    """Each fault in a model of its own."""
    model = load_model(smollm2_start.path)
    made = healthy_engines(model, twin)
    made += faulty_engines(model, twin, 7, HFEngine)
    tokens = encode(smollm2_start, "The capital of France is")
    assert len(tokens) == 5
    return check(made, checkpoint=smollm2_start.path, token_ids=[tokens])


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_smollm2_healthy_model_is_not_blamed(five_tokens: RunResult, attention: str) -> None:
    assert_healthy(five_tokens, attention)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", FAULTS)
def test_smollm2_fault_is_placed(five_tokens: RunResult, name: str, attention: str) -> None:
    assert_placed(five_tokens, name, attention, 7)


def test_smollm2_reason_names_the_weight_that_moved(five_tokens: RunResult) -> None:
    reason = verdict(five_tokens, "weight eager").reason
    assert "model.layers.7.mlp.up_proj.weight differs in 1 of 884736 elements" in reason
    assert "most at [3, 5]" in reason


#: All faults in one model, each in a layer of its own.
LAYERS = {"theta": 0, "scale": 4, "weight": 11, "silu": 17, "tiling": 23}


@pytest.fixture(scope="module")
def sixty_four_tokens(smollm2: Checkpoint, smollm2_model: Any, twin: Twin) -> RunResult:
    """All faults in one model: replay tells them apart, since nothing is inherited."""
    made = healthy_engines(smollm2_model, twin)
    for attention in ATTENTIONS:
        copy = twin(smollm2_model, attention=attention)
        for name, layer in LAYERS.items():
            FAULTS[name].plant(copy, layer)
        made.append(WithoutParameters(copy, name=f"all {attention}"))
    tokens = encode(smollm2, TEXT)[:64]
    assert len(tokens) == 64
    return check(made, checkpoint=smollm2.path, token_ids=[tokens])


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_smollm2_healthy_model_is_not_blamed_when_the_prompt_is_longer(
    sixty_four_tokens: RunResult, attention: str
) -> None:
    assert_healthy(sixty_four_tokens, attention)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_smollm2_faults_are_told_apart_when_one_model_has_them_all(
    sixty_four_tokens: RunResult, attention: str
) -> None:
    found = verdict(sixty_four_tokens, f"all {attention}")
    assert found.verdict is Verdict.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.tap == "layers.0.attn.q_rope"
    failing = [tap for _, _, tap in found.failing]
    for name, layer in LAYERS.items():
        placed = expected_taps(name, attention, layer, 30)
        assert [tap for tap in failing if tap in placed] == placed, name
        failing = [tap for tap in failing if tap not in placed]
    assert failing == []


def test_smollm2_moved_weight_shows_in_the_numbers_alone(sixty_four_tokens: RunResult) -> None:
    for attention in ATTENTIONS:
        units = units_at(sixty_four_tokens, f"all {attention}", "layers.11.mlp.up")
        healthy = units_at(sixty_four_tokens, f"healthy {attention}", "layers.11.mlp.up")
        assert units > UNIT_LIMIT > 2 * healthy


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_smollm2_in_half_precision_is_rounding_and_another_activation_is_placed(
    smollm2_start: Checkpoint, load_model: Load, twin: Twin, dtype: str
) -> None:
    model = load_model(smollm2_start.path, dtype=dtype)
    made = healthy_engines(model, twin)
    faulty = twin(model, attention="sdpa")
    plant_activation(faulty, 3, activation=Gelu)
    made.append(HFEngine(faulty, name="gelu"))
    tokens = encode(smollm2_start, TEXT)[:64]
    result = check(made, checkpoint=smollm2_start.path, token_ids=[tokens])
    for attention in ATTENTIONS:
        assert_healthy(result, attention)
        healthy = verdict(result, f"healthy {attention}")
        assert healthy.verdict is Verdict.ROUNDING
        assert healthy.worst_units is not None
        assert 0.5 < healthy.worst_units < UNIT_LIMIT / 2
        assert healthy.max_abs is not None
        assert healthy.max_abs > 1
    found = verdict(result, "gelu")
    assert found.verdict is Verdict.FAIL
    assert [tap for _, _, tap in found.failing] == ["layers.3.mlp.act"]
