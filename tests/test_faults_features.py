"""Faults of what few families have, planted in small random models.

Granite's multipliers, mixtures of experts, a rotation of part of each head, and attention sinks.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from harness import HFEngine, RunResult, check
from harness.faults.catalogue import collect
from harness.faults.fault import Facts, Fault, Instead, Site
from harness.replay.call import Call, Operand
from harness.replay.precision import precision
from harness.result import Comparison, Verdict
from references import ops

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


# Mixtures of experts: the routers of transformers give logits, weights and indices.


def routed(change: Callable[..., Any]) -> Plant:
    """What the router of layer 1 hands over, changed."""

    def plant(model: Any) -> None:
        router = model.model.layers[1].mlp.gate
        forward = router.forward
        router.forward = lambda x: change(*forward(x))

    return plant


def weights_not_normalised(logits: Any, weights: Any, indices: Any) -> Any:
    probs = torch.softmax(logits.float(), dim=-1).gather(-1, indices)
    return logits, probs.to(weights.dtype), indices


def sigmoid_for_softmax(logits: Any, weights: Any, indices: Any) -> Any:
    scores = torch.sigmoid(logits).gather(-1, indices)
    return logits, scores / scores.sum(-1, keepdim=True), indices


def weights_in_another_order(logits: Any, weights: Any, indices: Any) -> Any:
    return logits, weights.flip(-1), indices


def smallest_chosen(logits: Any, weights: Any, indices: Any) -> Any:
    return logits, weights, logits.topk(indices.shape[-1], largest=False).indices


def one_less_chosen(logits: Any, weights: Any, indices: Any) -> Any:
    weights, indices = weights[:, :-1], indices[:, :-1]
    return logits, weights / weights.sum(-1, keepdim=True), indices


def one_token_sent_elsewhere(logits: Any, weights: Any, indices: Any) -> Any:
    indices = indices.clone()
    indices[7, -1] = logits[7].argmin()
    return logits, weights, indices


def logits_scaled(logits: Any, weights: Any, indices: Any) -> Any:
    return logits * 1.0001, weights, indices


def in_experts(change: Callable[[Any], None]) -> Plant:
    def plant(model: Any) -> None:
        change(model.model.layers[1].mlp.experts)

    return plant


def replaced(experts: Any, name: str, value: torch.Tensor) -> None:
    setattr(experts, name, torch.nn.Parameter(value, requires_grad=False))


def gate_and_up_exchanged(experts: Any) -> None:
    replaced(experts, "gate_up_proj", experts.gate_up_proj.roll(24, dims=1))


def experts_in_another_order(experts: Any) -> None:
    for name in ("gate_up_proj", "down_proj"):
        replaced(experts, name, getattr(experts, name).roll(1, dims=0))


def one_element_moved(experts: Any) -> None:
    value = experts.down_proj.detach().clone()
    value[:, 5, 7] += 1e-3
    replaced(experts, "down_proj", value)


def gelu_for_silu(experts: Any) -> None:
    experts.act_fn = torch.nn.GELU(approximate="tanh")


def weight_on_the_way_in(experts: Any) -> None:
    """Tokens are multiplied by their weight before the expert, not behind it."""
    forward = experts.forward

    def patched(x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        for k in range(indices.shape[-1]):
            one = torch.ones_like(weights[:, :1])
            total += forward(x * weights[:, k, None], indices[:, k, None], one)
        return total

    experts.forward = patched


MOE: list[tuple[Plant, str]] = [
    (routed(logits_scaled), "router"),
    (routed(smallest_chosen), "chosen"),
    (routed(one_less_chosen), "chosen"),
    (routed(one_token_sent_elsewhere), "chosen"),
    (routed(weights_not_normalised), "router_weights"),
    (routed(sigmoid_for_softmax), "router_weights"),
    (routed(weights_in_another_order), "router_weights"),
    (in_experts(gate_and_up_exchanged), "out"),
    (in_experts(experts_in_another_order), "out"),
    (in_experts(one_element_moved), "out"),
    (in_experts(gelu_for_silu), "out"),
    (in_experts(weight_on_the_way_in), "out"),
]


@pytest.mark.parametrize(
    ("plant", "kind"), MOE, ids=[f"{kind}-{n}" for n, (_, kind) in enumerate(MOE)]
)
def test_fault_of_a_mixture_is_placed(
    tiny: Tiny, load_model: Load, plant: Plant, kind: str
) -> None:
    tap = f"layers.1.mlp.{kind}"
    require_placed(tiny, load_model, "qwen3_moe", "eager", plant, tap, "")


def test_bfloat16_faults_of_a_mixture_are_placed(tiny: Tiny, load_model: Load) -> None:
    path = tiny("qwen3_moe")
    for plant, kind in MOE[1:9]:
        model = load_model(path, dtype="bfloat16")
        plant(model)
        assert_first(run(model, path), f"layers.1.mlp.{kind}")


def test_a_weight_of_an_expert_is_held_against_the_checkpoint(tiny: Tiny, load_model: Load) -> None:
    """Packed in the model and single in the file: one element of one expert, by its name there."""
    path = tiny("qwen3_moe")
    model = load_model(path)
    with torch.no_grad():
        packed = model.model.layers[2].mlp.experts.gate_up_proj
        packed[3, 24 + 5, 7] += 1e-6
    result = check(HFEngine(model), checkpoint=path, token_ids=TOKENS)
    weights = assert_first(result, "layers.2.mlp.out").weights
    assert [(w.name, w.differing, w.index) for w in weights] == [
        ("model.layers.2.mlp.experts.3.up_proj.weight", 1, (5, 7))
    ]


def test_equal_experts_may_be_exchanged(tiny: Tiny, load_model: Load, tmp_path: Path) -> None:
    """Two rows of the router are equal, so that each token ties: either choice is healthy."""
    path = tiny("qwen3_moe")
    model = load_model(path)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight[6] = layer.mlp.gate.weight[1]
    model.save_pretrained(tmp_path)
    assert run(model, tmp_path).verdict is Verdict.PASS

    def exchanged(logits: Any, weights: Any, indices: Any) -> Any:
        one, other = indices == 1, indices == 6
        alone = (one.any(-1, keepdim=True)) ^ (other.any(-1, keepdim=True))
        assert alone.any()  # one of the two is chosen, the other is not
        swapped = torch.where(one, 6, torch.where(other, 1, indices))
        return logits, weights, torch.where(alone, swapped, indices)

    routed(exchanged)(model)
    result = run(model, tmp_path)
    assert result.verdict is Verdict.ROUNDING, result.candidates[0].reason
    chosen = [c for c in result.comparisons if c.tap == "layers.1.mlp.chosen"]
    assert chosen[0].difference is not None
    assert chosen[0].difference.max_abs == 1.0  # the choice is another, and is told so
    assert chosen[0].local is not None
    assert 0 < chosen[0].local.units < 0.1


# StableLM: 4 of the 8 elements of a head are rotated.


class _Rotating(TorchFunctionMode):
    """Sees the rotated part of queries and keys on its way back to the rest of the head."""

    def __init__(self, change: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self._change = change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        joined = args[0] if func is torch.cat and args else ()
        if [x.shape[-1] for x in joined] == [4, 4]:
            args = (self._change(*joined), *args[1:])
        return func(*args, **(kwargs or {}))


def rotating(change: Callable[[torch.Tensor, torch.Tensor], Any]) -> Plant:
    """The rotated and the passed part of heads in layer 1, changed."""

    def plant(model: Any) -> None:
        layer = model.model.layers[1].self_attn
        forward = layer.forward

        def patched(*args: Any, **kwargs: Any) -> Any:
            with _Rotating(change):
                return forward(*args, **kwargs)

        layer.forward = patched

    return plant


def rest_first(rotated: torch.Tensor, rest: torch.Tensor) -> Any:
    return rest, rotated


def rest_scaled(rotated: torch.Tensor, rest: torch.Tensor) -> Any:
    return rotated, rest * 1.0001


def rest_lost(rotated: torch.Tensor, rest: torch.Tensor) -> Any:
    return rotated, torch.zeros_like(rest)


def frequencies_of_the_whole_head(model: Any) -> None:
    """As if the exponents were divided by D and not by R."""
    model.model.rotary_emb.inv_freq = 1000.0 ** -(torch.arange(0, 4, 2) / 8)


def quarter_rotated(model: Any) -> None:
    """The second pair does not turn."""
    model.model.rotary_emb.inv_freq[1] = 0.0


def norm_without_mean(model: Any) -> None:
    norm = model.model.layers[1].input_layernorm

    def forward(x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps)
        return scaled.mul(norm.weight).add(norm.bias)

    norm.forward = forward


STABLELM: list[tuple[Plant, str]] = [
    (rotating(rest_first), "layers.1.attn.q_rope"),
    (rotating(rest_scaled), "layers.1.attn.q_rope"),
    (rotating(rest_lost), "layers.1.attn.q_rope"),
    (frequencies_of_the_whole_head, "layers.0.attn.q_rope"),
    (quarter_rotated, "layers.0.attn.q_rope"),
    (norm_without_mean, "layers.1.attn_norm"),
]


@pytest.mark.parametrize(
    ("plant", "tap"), STABLELM, ids=[f"{tap}-{n}" for n, (_, tap) in enumerate(STABLELM)]
)
def test_stablelm_fault_is_placed(
    tiny: Tiny, load_model: Load, attention: str, plant: Plant, tap: str
) -> None:
    require_placed(tiny, load_model, "stablelm", attention, plant, tap, "")


def weights_of_heads_in_another_order(model: Any) -> None:
    norm = model.model.layers[1].self_attn.q_layernorm
    norm.norms = torch.nn.ModuleList(reversed(list(norm.norms)))


def test_a_weight_of_one_head_is_held_against_the_checkpoint(tiny: Tiny, load_model: Load) -> None:
    path = tiny("stablelm", qk_layernorm=True)
    model = load_model(path)
    with torch.no_grad():
        model.model.layers[2].self_attn.k_layernorm.norms[1].weight[5] += 1e-6
    result = check(HFEngine(model), checkpoint=path, token_ids=TOKENS)
    weights = assert_first(result, "layers.2.attn.k_norm").weights
    name = "model.layers.2.self_attn.k_layernorm.norms.*.weight"
    assert [(w.name, w.differing, w.index) for w in weights] == [(name, 1, (1, 0, 5))]


def one_after_the_other(model: Any) -> None:
    """The MLP reads the norm of what attention has made, in a layer that has them side by side."""
    layer = model.model.layers[1]
    made: dict[str, torch.Tensor] = {}
    layer.self_attn.register_forward_hook(lambda m, a, out: made.__setitem__("attn", out[0]))
    layer.mlp.register_forward_pre_hook(lambda m, args: (args[0] + made["attn"],))


def attention_added_twice(model: Any) -> None:
    layer = model.model.layers[1]
    made: dict[str, torch.Tensor] = {}
    layer.self_attn.register_forward_hook(lambda m, a, out: made.__setitem__("attn", out[0]))
    layer.register_forward_hook(
        lambda m, a, out: (
            (out[0] + made["attn"], *out[1:]) if isinstance(out, tuple) else out + made["attn"]
        )
    )


PARALLEL: list[tuple[Plant, str]] = [
    (weights_of_heads_in_another_order, "layers.1.attn.q_norm"),
    (one_after_the_other, "layers.1.mlp.gate"),
    (attention_added_twice, "layers.1.resid_post"),
]


@pytest.mark.parametrize(("plant", "tap"), PARALLEL, ids=[tap for _, tap in PARALLEL])
def test_fault_of_parallel_layers_is_placed(
    tiny: Tiny, load_model: Load, plant: Plant, tap: str
) -> None:
    path = tiny("stablelm", use_parallel_residual=True, qk_layernorm=True)
    model = load_model(path)
    assert run(model, path).verdict in (Verdict.PASS, Verdict.ROUNDING)
    plant(model)
    assert_first(run(model, path), tap)


# GPT-OSS: sinks, and experts whose gate and up stand in turn and are clamped.


def sinks_as(change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    def plant(model: Any) -> None:
        attention = model.model.layers[1].self_attn
        attention.sinks = torch.nn.Parameter(change(attention.sinks.detach()))

    return plant


def gate_and_up_as(change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """Columns of gate and up in turn, in the matrix and in its bias."""

    def change_experts(experts: Any) -> None:
        for name in ("gate_up_proj", "gate_up_proj_bias"):
            replaced(experts, name, change(getattr(experts, name).detach()))

    return in_experts(change_experts)


def halves_in_turn(x: torch.Tensor) -> torch.Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.stack([first, second], dim=-1).flatten(-2)


def neighbours_exchanged(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)


def without_expert_bias(experts: Any) -> None:
    replaced(experts, "down_proj_bias", torch.zeros_like(experts.down_proj_bias))


def router_without_bias(model: Any) -> None:
    router = model.model.layers[1].mlp.router
    router.bias = torch.nn.Parameter(torch.zeros_like(router.bias))


def softmax_over_all(model: Any) -> None:
    """Weights that are not divided by the sum of those chosen."""
    router = model.model.layers[1].mlp.router
    forward = router.forward

    def patched(x: torch.Tensor) -> Any:
        logits, _, indices = forward(x)
        return logits, torch.softmax(logits, dim=-1).gather(-1, indices), indices

    router.forward = patched


GPT_OSS: list[tuple[Plant, str]] = [
    (sinks_as(lambda x: x - 1e9), "layers.1.attn.probs"),
    (sinks_as(torch.zeros_like), "layers.1.attn.probs"),
    (sinks_as(lambda x: x.flip(0)), "layers.1.attn.probs"),
    (sinks_as(lambda x: x + 1e-4), "layers.1.attn.probs"),
    (router_without_bias, "layers.1.mlp.router"),
    (softmax_over_all, "layers.1.mlp.router_weights"),
    (gate_and_up_as(halves_in_turn), "layers.1.mlp.out"),
    (gate_and_up_as(neighbours_exchanged), "layers.1.mlp.out"),
    (in_experts(without_expert_bias), "layers.1.mlp.out"),
    (in_experts(lambda experts: setattr(experts, "limit", 1e9)), "layers.1.mlp.out"),
    (in_experts(lambda experts: setattr(experts, "alpha", 1.0)), "layers.1.mlp.out"),
]


@pytest.mark.parametrize(
    ("plant", "tap"), GPT_OSS, ids=[f"{tap}-{n}" for n, (_, tap) in enumerate(GPT_OSS)]
)
def test_gpt_oss_fault_is_placed(tiny: Tiny, load_model: Load, plant: Plant, tap: str) -> None:
    require_placed(tiny, load_model, "gpt_oss", "eager", plant, tap, "")


def test_ways_whose_op_takes_other_inputs_are_passed_over() -> None:
    """A mistake written for a softmax of two inputs says nothing of one that has a sink too."""
    two = Operand(np.ones((1, 2)))

    def variant(site: Site) -> Iterator[Instead]:
        yield site.instead(op=lambda x: x, detail="one input")
        yield site.instead(op=lambda x, y: x, detail="two inputs")
        yield site.instead(op=lambda x, y: x, detail="a constant that it does not have", eps=1.0)
        yield site.instead(op=np.add, detail="an op that does not tell")

    call = Call(two, (two, two), {}, precision("float32"))
    site = Site("layers.0.resid_mid", ops.add, call, None, Facts({}, {}))
    fault = Fault(
        id="x",
        title="x",
        topic="mlp.x",
        kinds=("resid_mid",),
        variant=variant,
        symptom="x",
        advice="x",
    )
    held = collect([fault]).faults["x"]
    assert [way.detail for way in held.variant(site)] == ["two inputs", "an op that does not tell"]
