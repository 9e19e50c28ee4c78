"""Faults that need a model of a special make, planted in small random ones."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import HFEngine, RunResult, check
from harness.result import Comparison, TapStatus, Verdict

Load = Callable[..., Any]
Tiny = Callable[..., Path]

TOKENS = [[5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55]]


class WithoutParameters(HFEngine):
    """An engine that does not show the parameters it computes with: the numbers must tell."""

    @property
    def parameters(self) -> dict[str, Any]:
        return {}


@pytest.fixture(params=["eager", "sdpa"])
def attention(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["llama", "qwen3"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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


def failing(result: RunResult, *, chunk: int = 0) -> list[str]:
    return [tap for _, at, tap in result.candidates[0].failing if at == chunk]


def test_healthy_models_pass(tiny: Tiny, load_model: Load, family: str, attention: str) -> None:
    path = tiny(family)
    result = run(load_model(path, attention=attention), path, decode=3)
    assert result.verdict is Verdict.PASS, result.candidates[0].reason
    assert result.candidates[0].replayed > 100


@pytest.mark.parametrize("eps", [1e-6, 1.1e-5, 1e-3])
def test_other_epsilon_is_placed_where_the_mean_square_is_small(
    tiny: Tiny, load_model: Load, family: str, eps: float
) -> None:
    path = tiny(family)
    model = load_model(path)
    # Tokens of small norm, as the first layer of a real model has them.
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1e-2)
    scaled = path.parent / f"{family}-small"
    model.save_pretrained(scaled)
    model = load_model(scaled)
    model.model.layers[0].input_layernorm.variance_epsilon = eps
    result = run(model, scaled)
    assert_first(result, "layers.0.attn_norm")
    assert failing(result) == ["layers.0.attn_norm"]


def test_swapped_query_and_key_weights_are_placed(
    tiny: Tiny, load_model: Load, family: str, attention: str
) -> None:
    path = tiny(family, num_key_value_heads=6)
    model = load_model(path, attention=attention)
    layer = model.model.layers[1].self_attn
    layer.q_proj, layer.k_proj = layer.k_proj, layer.q_proj
    result = run(model, path)
    assert_first(result, "layers.1.attn.q")
    assert failing(result) == ["layers.1.attn.q", "layers.1.attn.k"]


def test_swapped_gate_and_up_weights_are_placed(tiny: Tiny, load_model: Load, family: str) -> None:
    path = tiny(family)
    model = load_model(path)
    mlp = model.model.layers[1].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj
    result = run(model, path)
    assert_first(result, "layers.1.mlp.gate")
    assert failing(result) == ["layers.1.mlp.gate", "layers.1.mlp.up"]


def test_final_norm_without_its_weight_is_placed(
    tiny: Tiny, load_model: Load, family: str, attention: str
) -> None:
    path = tiny(family)
    model = load_model(path, attention=attention)
    model.model.norm.weight = torch.nn.Parameter(torch.ones_like(model.model.norm.weight))
    assert failing(run(model, path)) == ["final_norm"]
    shown = check(HFEngine(model), checkpoint=path, token_ids=TOKENS)
    weights = assert_first(shown, "final_norm").weights
    assert [(w.name, w.differing) for w in weights] == [("model.norm.weight", 48)]


def test_final_norm_that_does_nothing_is_placed(tiny: Tiny, load_model: Load, family: str) -> None:
    path = tiny(family)
    model = load_model(path)
    model.model.norm.forward = lambda x: x
    assert_first(run(model, path), "final_norm")


def ignore_window(model: Any) -> None:
    model.config.layer_types = ["full_attention"] * model.config.num_hidden_layers
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None
    model.model.has_sliding_layers = False


def test_ignored_window_is_placed(tiny: Tiny, load_model: Load, attention: str) -> None:
    path = tiny("qwen3")
    model = load_model(path, attention=attention)
    ignore_window(model)
    result = run(model, path)
    eager = attention == "eager"
    at = assert_first(result, "layers.1.attn.mask" if eager else "layers.1.attn.context")
    assert at.local is not None
    # The window holds 6 positions: the seventh is the first that sees too much.
    assert at.local.worst.position is not None
    assert at.local.worst.position >= 6
    if eager:
        assert at.local.worst.index == (0, 6, 0)
        assert (at.local.worst.reference, at.local.worst.candidate) == (0.0, 1.0)
        assert at.local.over == 6 * 7 / 2


def test_window_that_is_one_too_wide_is_placed(tiny: Tiny, load_model: Load) -> None:
    path = tiny("qwen3")
    model = load_model(path)
    model.config.sliding_window = 7
    at = assert_first(run(model, path), "layers.1.attn.mask")
    assert at.local is not None
    assert at.local.over == 6


def test_ignored_window_in_decoding_never_passes(
    tiny: Tiny, load_model: Load, attention: str
) -> None:
    """A prompt within the window shows nothing; then the cache holds more keys than it should."""
    path = tiny("qwen3")
    model = load_model(path, attention=attention)
    ignore_window(model)
    engine = WithoutParameters(model)
    result = check(engine, checkpoint=path, token_ids=[TOKENS[0][:5]], decode=3)
    seen = [c for c in result.comparisons if c.status is not TapStatus.UNAVAILABLE]
    bad = [c for c in seen if c.status is not TapStatus.COMPARED]
    assert (bad[0].tap, bad[0].chunk) == ("layers.1.attn.keys", 2)
    assert bad[0].status is TapStatus.MISSHAPEN
    assert bad[0].note == "expected [B=1, K=2, S=6, D=16], found [B=1, K=2, S=7, D=16]"
    assert result.verdict in (Verdict.FAIL, Verdict.NOT_COMPARABLE)
    assert result.first_divergence is not None
    assert result.first_divergence.chunk == 2


def patched_forward(model: Any, change: Callable[[dict[str, Any], Any], None]) -> None:
    """Let ``change`` touch arguments and cache of every forward pass that goes on with a cache."""
    forward = model.forward

    @functools.wraps(forward)
    def patched(**kwargs: Any) -> Any:
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if cache is not None and cache.get_seq_length() > 0:
            change(kwargs, cache)
        return forward(**kwargs)

    model.forward = patched


def test_restarted_position_is_placed_in_the_first_decoding_step(
    tiny: Tiny, load_model: Load, family: str, attention: str
) -> None:
    path = tiny(family)
    model = load_model(path, attention=attention)

    def restart(kwargs: dict[str, Any], cache: Any) -> None:
        kwargs["position_ids"] = torch.zeros_like(kwargs["input_ids"])

    patched_forward(model, restart)
    result = run(model, path, decode=2)
    at = assert_first(result, "layers.0.attn.q_rope", chunk=1)
    assert at.local is not None
    assert at.local.worst.position == len(TOKENS[0])
    assert failing(result, chunk=0) == []
    rotated = [f"layers.{n}.attn.{x}_rope" for n in range(3) for x in "qk"]
    assert failing(result, chunk=1) == failing(result, chunk=2) == rotated
    assert "in decoding step 1" in result.candidates[0].reason


def test_position_off_by_one_is_placed(tiny: Tiny, load_model: Load, family: str) -> None:
    path = tiny(family)
    model = load_model(path)

    def late(kwargs: dict[str, Any], cache: Any) -> None:
        kwargs["position_ids"] = torch.full_like(kwargs["input_ids"], cache.get_seq_length() + 1)

    patched_forward(model, late)
    assert_first(run(model, path, decode=1), "layers.0.attn.q_rope", chunk=1)


@pytest.mark.parametrize("kind", ["keys", "values"])
def test_stale_cache_is_placed_at_what_was_cached(
    tiny: Tiny, load_model: Load, family: str, attention: str, kind: str
) -> None:
    path = tiny(family)
    model = load_model(path, attention=attention)
    other = torch.tensor([list(reversed(TOKENS[0]))])
    with torch.no_grad():
        output = model(input_ids=other, use_cache=True)
    stale = getattr(output.get("cache", output.get("past_key_values")).layers[1], kind)

    def reuse(kwargs: dict[str, Any], cache: Any) -> None:
        held = getattr(cache.layers[1], kind)
        setattr(cache.layers[1], kind, stale[:, :, -held.shape[2] :].clone())

    patched_forward(model, reuse)
    result = run(model, path, decode=1)
    assert_first(result, f"layers.1.attn.{kind}", chunk=1)
    assert failing(result, chunk=1) == [f"layers.1.attn.{kind}"]


def test_cache_in_half_precision_is_placed(tiny: Tiny, load_model: Load, family: str) -> None:
    path = tiny(family)
    model = load_model(path)

    def narrow(kwargs: dict[str, Any], cache: Any) -> None:
        layer = cache.layers[2]
        layer.keys = layer.keys.half().float()

    patched_forward(model, narrow)
    assert_first(run(model, path, decode=1), "layers.2.attn.keys", chunk=1)


@pytest.mark.parametrize("rope", ["linear", "dynamic", "llama3", "yarn"])
def test_ignored_rope_scaling_is_placed(tiny: Tiny, load_model: Load, rope: str) -> None:
    parameters: dict[str, Any] = {"rope_type": rope, "rope_theta": 10000.0, "factor": 2.0}
    limits: dict[str, Any] = {"max_position_embeddings": 8 if rope == "dynamic" else 64}
    if rope in ("llama3", "yarn"):
        parameters["original_max_position_embeddings"] = 16
    if rope == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    path = tiny("llama", rope_parameters=parameters, **limits)
    model = load_model(path)
    assert run(model, path).verdict is Verdict.PASS
    config = type(model.config).from_dict(model.config.to_dict())
    config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    assert_first(run(model, path), "layers.0.attn.q_rope")


def test_ignored_bias_is_placed(tiny: Tiny, load_model: Load) -> None:
    path = tiny("llama", attention_bias=True, mlp_bias=True)
    model = load_model(path)
    assert run(model, path).verdict is Verdict.PASS
    model.model.layers[1].mlp.down_proj.bias = None
    result = run(model, path)
    assert_first(result, "layers.1.mlp.out")
    assert failing(result) == ["layers.1.mlp.out"]


def test_interleaved_rotation_is_placed(tiny: Tiny, load_model: Load) -> None:
    """Neighbours rotated for halves: the way of GPT-J, and of GGUF files that nobody unpermuted."""
    path = tiny("llama")
    model = load_model(path)
    weight = model.model.layers[1].self_attn.q_proj.weight
    heads = weight.detach().reshape(6, 2, 8, 48).transpose(1, 2).reshape(96, 48)
    model.model.layers[1].self_attn.q_proj.weight = torch.nn.Parameter(heads.clone())
    result = run(model, path)
    assert_first(result, "layers.1.attn.q")
    assert failing(result) == ["layers.1.attn.q"]


def test_residual_that_is_left_out_is_placed(tiny: Tiny, load_model: Load, family: str) -> None:
    path = tiny(family)
    model = load_model(path)
    layer = model.model.layers[1]
    forward = layer.forward

    def without(hidden: torch.Tensor, **kwargs: Any) -> Any:
        return forward(hidden, **kwargs) - hidden

    layer.forward = without
    assert_first(run(model, path), "layers.1.resid_post")


def test_batch_rows_that_are_mixed_up_are_placed(tiny: Tiny, load_model: Load) -> None:
    path = tiny("llama")
    model = load_model(path)
    mlp = model.model.layers[1].mlp
    forward = mlp.down_proj.forward
    mlp.down_proj.forward = lambda x: forward(x).flip(0)
    tokens = [TOKENS[0], TOKENS[0][::-1]]
    result = check(WithoutParameters(model), checkpoint=path, token_ids=tokens)
    assert_first(result, "layers.1.mlp.out")
    assert failing(result) == ["layers.1.mlp.out"]


def test_nan_in_one_layer_is_not_finite(tiny: Tiny, load_model: Load, family: str) -> None:
    path = tiny(family)
    model = load_model(path)
    mlp = model.model.layers[1].mlp
    forward = mlp.act_fn.forward
    mlp.act_fn.forward = lambda x: forward(x).index_fill(1, torch.tensor([4]), float("nan"))
    result = run(model, path)
    assert result.verdict is Verdict.NOT_FINITE
    assert result.exit_code == 1
    assert result.first_divergence is not None
    assert result.first_divergence.tap == "layers.1.mlp.act"
    assert "80 of 960 values are not finite, first nan at [0, 4, 0]" in result.candidates[0].reason


def test_equivalent_fault_is_no_failure(tiny: Tiny, load_model: Load) -> None:
    """A window that no position of the prompt reaches changes nothing on this input."""
    path = tiny("qwen3")
    model = load_model(path)
    ignore_window(model)
    result = check(WithoutParameters(model), checkpoint=path, token_ids=[TOKENS[0][:6]])
    assert result.verdict is Verdict.PASS
