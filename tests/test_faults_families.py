"""Faults that only Gemma 3 and GPT-2 can have, planted in small random models."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, GPT2Model

from harness import HFEngine, RunResult, check
from harness.checkpoint import load_checkpoint
from harness.errors import UsageError
from harness.result import Comparison, Verdict
from harness.subject import load_subject

Load = Callable[..., Any]
Tiny = Callable[..., Path]
Plant = Callable[[Any], None]

TOKENS = [[5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55]]
LOGITS_CAP = {"final_logit_softcapping": 3.0}
SCORES_CAP = {"attn_logit_softcapping": 2.0}


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


@pytest.fixture(params=["eager", "sdpa"])
def attention(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def norm_of_the_weight_alone(model: Any) -> None:
    norm = model.model.layers[1].input_layernorm

    def forward(x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps)
        return scaled.mul(norm.weight)

    norm.forward = forward


def local_rotation_everywhere(model: Any) -> None:
    rotary = model.model.rotary_emb
    rotary.full_attention_inv_freq = rotary.sliding_attention_inv_freq.clone()


def global_rotation_everywhere(model: Any) -> None:
    rotary = model.model.rotary_emb
    rotary.sliding_attention_inv_freq = rotary.full_attention_inv_freq.clone()


def global_rotation_unscaled(model: Any) -> None:
    model.model.rotary_emb.full_attention_inv_freq *= 2


def window_one_too_wide(model: Any) -> None:
    model.config.sliding_window = 7


def window_one_too_narrow(model: Any) -> None:
    model.config.sliding_window = 5


def embedding_unscaled(model: Any) -> None:
    model.model.embed_tokens.embed_scale = torch.tensor(1.0)


def embedding_scaled_by_channels(model: Any) -> None:
    model.model.embed_tokens.embed_scale = torch.tensor(48.0)


def scaled_by_head_dim(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling = 16**-0.5


def skipped(name: str) -> Plant:
    def plant(model: Any) -> None:
        model.model.layers[1].get_submodule(name).forward = lambda x: x

    return plant


def other_epsilon(model: Any) -> None:
    model.model.layers[1].self_attn.k_norm.eps = 1e-3


def exact_gelu(model: Any) -> None:
    model.model.layers[1].mlp.act_fn = torch.nn.GELU()


GEMMA3: list[tuple[Plant, str, str]] = [
    (norm_of_the_weight_alone, "layers.1.attn_norm", ""),
    (local_rotation_everywhere, "layers.1.attn.q_rope", ""),
    (global_rotation_everywhere, "layers.0.attn.q_rope", ""),
    (global_rotation_unscaled, "layers.1.attn.q_rope", ""),
    (window_one_too_wide, "layers.0.attn.mask", "layers.0.attn.context"),
    (window_one_too_narrow, "layers.0.attn.mask", "layers.0.attn.context"),
    (embedding_unscaled, "embed", ""),
    (embedding_scaled_by_channels, "embed", ""),
    (scaled_by_head_dim, "layers.0.attn.scores", "layers.0.attn.context"),
    (skipped("post_attention_layernorm"), "layers.1.attn_post_norm", ""),
    (skipped("pre_feedforward_layernorm"), "layers.1.mlp_norm", ""),
    (skipped("post_feedforward_layernorm"), "layers.1.mlp_post_norm", ""),
    (skipped("self_attn.q_norm"), "layers.1.attn.q_norm", ""),
    (other_epsilon, "layers.1.attn.k_norm", ""),
    (exact_gelu, "layers.1.mlp.act", ""),
]


@pytest.mark.parametrize(
    ("plant", "eager", "fused"), GEMMA3, ids=[f"{tap}-{n}" for n, (_, tap, _) in enumerate(GEMMA3)]
)
def test_gemma3_fault_is_placed(
    tiny: Tiny, load_model: Load, attention: str, plant: Plant, eager: str, fused: str
) -> None:
    path = tiny("gemma3_text")
    model = load_model(path, attention=attention)
    assert run(model, path).verdict in (Verdict.PASS, Verdict.ROUNDING)
    plant(model)
    assert_first(run(model, path), fused if fused and attention == "sdpa" else eager)


def test_ignored_cap_of_the_logits_is_placed(tiny: Tiny, load_model: Load, attention: str) -> None:
    path = tiny("gemma3_text", **LOGITS_CAP)
    model = load_model(path, attention=attention)
    model.config.final_logit_softcapping = 1e9
    assert_first(run(model, path), "logits")


def test_other_theta_in_decoding_alone_is_placed(tiny: Tiny, load_model: Load) -> None:
    """Full layers turn as sliding ones once there is a cache."""
    path = tiny("gemma3_text")
    model = load_model(path)
    forward, rotary = model.forward, model.model.rotary_emb

    @functools.wraps(forward)
    def patched(**kwargs: Any) -> Any:
        if kwargs["input_ids"].shape[1] == 1:
            local_rotation_everywhere(model)
        return forward(**kwargs)

    model.forward = patched
    assert rotary.full_attention_inv_freq is not rotary.sliding_attention_inv_freq
    assert_first(run(model, path, decode=1), "layers.1.attn.q_rope", chunk=1)


def capped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Eager attention that follows the cap, which transformers 5.24.0 does not."""
    key, value = (x.repeat_interleave(3, dim=1) for x in (key, value))
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    scores = torch.tanh(scores / 2.0) * 2.0
    assert attention_mask is not None
    probs = torch.nn.functional.softmax(scores + attention_mask, dim=-1)
    return torch.matmul(probs, value).transpose(1, 2), probs


def test_an_engine_that_caps_scores_is_healthy_and_gives_both_taps(
    tiny: Tiny, load_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny("gemma3_text", **SCORES_CAP)
    model = load_model(path)
    scope = "transformers.models.gemma3.modeling_gemma3.eager_attention_forward"
    monkeypatch.setattr(scope, capped_attention)
    result = run(model, path, decode=2)
    assert result.verdict in (Verdict.PASS, Verdict.ROUNDING), result.candidates[0].reason
    units = {c.tap: c.local.units for c in result.comparisons if c.local is not None}
    assert {"layers.0.attn.scores", "layers.0.attn.scores_capped"} <= units.keys()
    assert units["layers.0.attn.scores_capped"] > 0


def test_a_long_run_leaves_the_rotations_of_both_layer_types_as_they_were(
    tiny: Tiny, load_model: Load
) -> None:
    full = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    sliding = {"rope_type": "default", "rope_theta": 500.0}
    ropes = {"full_attention": full, "sliding_attention": sliding}
    path = tiny("gemma3_text", rope_parameters=ropes, max_position_embeddings=16)
    model = load_model(path)
    before = model.model.rotary_emb.full_attention_inv_freq.clone()
    attributes = set(vars(model.model.rotary_emb))
    with HFEngine(model).open(cache=False) as session:
        session.feed(torch.tensor([TOKENS[0] * 3]).numpy())
        assert not torch.equal(model.model.rotary_emb.full_attention_inv_freq, before)
    assert torch.equal(model.model.rotary_emb.full_attention_inv_freq, before)
    assert set(vars(model.model.rotary_emb)) == attributes
    assert run(model, path).verdict in (Verdict.PASS, Verdict.ROUNDING)


# GPT-2


def position_late_by_one(model: Any) -> None:
    forward = model.transformer.wpe.forward
    model.transformer.wpe.forward = lambda ids: forward(ids + 1)


def position_restarts_in_decoding(model: Any) -> None:
    forward = model.transformer.wpe.forward
    model.transformer.wpe.forward = lambda ids: forward(ids * (ids.shape[-1] > 1))


def positions_left_out(model: Any) -> None:
    model.transformer.drop.register_forward_pre_hook(
        lambda module, args: (args[0] - model.transformer.wpe.weight[: args[0].shape[1]],)
    )


def mean_not_subtracted(model: Any) -> None:
    norm = model.transformer.h[1].ln_1

    def forward(x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps)
        return scaled.mul(norm.weight).add(norm.bias)

    norm.forward = forward


def without_bias(name: str) -> Plant:
    def plant(model: Any) -> None:
        module = model.transformer.h[1].get_submodule(name)
        module.bias = torch.nn.Parameter(torch.zeros_like(module.bias))

    return plant


class _Reordered(TorchFunctionMode):
    """Keys are taken for queries."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return (result[1], result[0], result[2]) if func is torch.Tensor.split else result


def parts_in_another_order(model: Any) -> None:
    layer = model.transformer.h[1].attn
    forward = layer.forward

    def patched(*args: Any, **kwargs: Any) -> Any:
        with _Reordered():
            return forward(*args, **kwargs)

    layer.forward = patched


def weight_transposed(model: Any) -> None:
    module = model.transformer.h[1].attn.c_proj
    module.weight = torch.nn.Parameter(module.weight.detach().T.clone())


def gelu_exact(model: Any) -> None:
    model.transformer.h[1].mlp.act = torch.nn.GELU()


def epsilon_of_gpt2(model: Any) -> None:
    model.transformer.h[1].ln_2.eps = 1e-3


GPT2: list[tuple[Plant, str, int]] = [
    (position_late_by_one, "pos_embed", 0),
    (positions_left_out, "embed_sum", 0),
    (position_restarts_in_decoding, "pos_embed", 1),
    (mean_not_subtracted, "layers.1.attn_norm", 0),
    (without_bias("attn.c_attn"), "layers.1.attn.qkv", 0),
    (without_bias("attn.c_proj"), "layers.1.attn.out", 0),
    (without_bias("mlp.c_fc"), "layers.1.mlp.fc", 0),
    (without_bias("mlp.c_proj"), "layers.1.mlp.out", 0),
    (parts_in_another_order, "layers.1.attn.q", 0),
    (weight_transposed, "layers.1.attn.out", 0),
    (gelu_exact, "layers.1.mlp.act", 0),
    (epsilon_of_gpt2, "layers.1.mlp_norm", 0),
]


@pytest.mark.parametrize(
    ("plant", "tap", "chunk"), GPT2, ids=[f"{tap}-{n}" for n, (_, tap, _) in enumerate(GPT2)]
)
def test_gpt2_fault_is_placed(
    tiny: Tiny, load_model: Load, attention: str, plant: Plant, tap: str, chunk: int
) -> None:
    path = tiny("gpt2")
    model = load_model(path, attention=attention)
    assert run(model, path, decode=1).verdict is Verdict.PASS
    plant(model)
    assert_first(run(model, path, decode=1), tap, chunk=chunk)


@pytest.mark.parametrize("flag", ["scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"])
def test_ignored_scale_of_a_layer_is_placed(
    tiny: Tiny, load_model: Load, attention: str, flag: str
) -> None:
    path = tiny("gpt2", **{flag: True, "scale_attn_by_inverse_layer_idx": True})
    model = load_model(path, attention=attention)
    layer = model.transformer.h[1].attn
    layer.scaling *= 2
    layer.scale_attn_by_inverse_layer_idx = False
    tap = "layers.1.attn.scores" if attention == "eager" else "layers.1.attn.context"
    assert_first(run(model, path), tap)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_that_a_module_runs_itself_is_tapped_as_it_runs(
    tiny: Tiny, load_model: Load, dtype: str
) -> None:
    """GPT-2 with reorder_and_upcast_attn forms scores in float32, not by the attention function."""
    path = tiny("gpt2", reorder_and_upcast_attn=True)
    model = load_model(path, dtype=dtype)
    ids = torch.tensor(TOKENS)
    with torch.no_grad():
        plain = model(input_ids=ids).logits
    taps: dict[str, Any] = {}
    with HFEngine(model).open(cache=False) as session:
        session.feed(ids.numpy(), taps.__setitem__)
    assert torch.equal(torch.from_numpy(taps["logits"].astype("float32")), plain.float())
    # So they hold what bfloat16 cannot.
    scores = torch.from_numpy(taps["layers.1.attn.scores"].astype("float32"))
    assert not torch.equal(scores, scores.bfloat16().float())


def test_a_registered_function_is_not_passed_over_for_the_modules_own(
    tiny: Tiny, load_model: Load
) -> None:
    path = tiny("gpt2", reorder_and_upcast_attn=True)
    model = load_model(path, attention="sdpa")
    seen: list[str] = []

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append("called")
        return AttentionInterface._global_mapping["sdpa"](*args, **kwargs)

    AttentionInterface.register("spy", spy)
    try:
        model.set_attn_implementation("sdpa")
        model.config._attn_implementation_internal = "spy"
        with HFEngine(model).open(cache=False) as session:
            session.feed(torch.tensor(TOKENS).numpy(), lambda tap, array: None)
    finally:
        AttentionInterface._global_mapping.pop("spy")
    assert seen == ["called"] * 3


def test_a_file_that_was_saved_without_the_head_is_read(
    tiny: Tiny, load_model: Load, tmp_path: Path
) -> None:
    """Names then lack ``transformer.``; old files have buffers of the mask too."""
    path = tiny("gpt2")
    base = GPT2Model.from_pretrained(path)
    base.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert "h.0.attn.c_attn.weight" in tensors
    buffers = {f"h.{n}.attn.bias": torch.ones(1, 1, 8, 8).tril().bool() for n in range(3)}
    buffers |= {f"h.{n}.attn.masked_bias": torch.tensor(-1e4) for n in range(3)}
    save_file(tensors | buffers, file, metadata={"format": "pt"})
    assert "model_type" in json.loads((tmp_path / "config.json").read_text())
    assert "h.0.attn.c_attn.weight" in load_checkpoint(tmp_path).tensors
    assert "transformer.h.0.attn.c_attn.weight" in load_subject(tmp_path).checkpoint.tensors
    model = load_model(tmp_path)
    result = check(HFEngine(model), checkpoint=tmp_path, token_ids=TOKENS, decode=1)
    assert result.verdict is Verdict.PASS
    with torch.no_grad():  # the parameters are held against the file's under either name
        model.transformer.h[1].mlp.c_fc.bias[3] += 1e-6
    result = check(HFEngine(model), checkpoint=tmp_path, token_ids=TOKENS)
    weights = assert_first(result, "layers.1.mlp.fc").weights
    assert [(w.name, w.differing) for w in weights] == [("transformer.h.1.mlp.c_fc.bias", 1)]


def test_a_length_beyond_the_learned_positions_is_refused(tiny: Tiny, load_model: Load) -> None:
    path = tiny("gpt2", n_positions=12)
    with pytest.raises(UsageError, match=r"expected at most 12 positions.*found 13 tokens"):
        check(HFEngine(load_model(path)), checkpoint=path, token_ids=[[1] * 13])
