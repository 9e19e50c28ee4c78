"""Which taps a transformers model gives, and that each of them is what it says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from harness import HFEngine, RunResult, check
from harness.engines.hf import to_numpy
from harness.errors import EngineError, UsageError
from harness.result import Comparison, TapStatus, Verdict
from harness.taps import axes_of, split
from references import families

TOKENS = np.array([[5, 17, 90, 3, 44, 61, 8]])
SIZES = {"B": 1, "T": 7, "S": 7, "H": 6, "K": 2, "D": 16, "C": 48, "F": 80, "V": 101}
FUSED = {"attn.scores", "attn.probs", "attn.mask"}

Load = Callable[..., Any]
Tiny = Callable[..., Path]


def trace(engine: HFEngine, tokens: Any = TOKENS) -> dict[str, Any]:
    taps: dict[str, Any] = {}
    with engine.open(cache=False) as session:
        session.feed(tokens, taps.__setitem__)
    return taps


def kinds(taps: dict[str, Any]) -> set[str]:
    return {split(tap).kind for tap in taps}


def comparison(result: RunResult, tap: str) -> Comparison:
    return next(c for c in result.comparisons if c.tap == tap)


@pytest.mark.parametrize(
    ("attention", "lacking"), [("eager", set()), ("sdpa", FUSED)], ids=["eager", "sdpa"]
)
@pytest.mark.parametrize(
    "family", ["llama", "qwen3", "gemma3_text", "gpt2", "granite", "qwen3_moe", "stablelm"]
)
def test_engine_gives_every_tap_that_it_does_not_declare_unavailable(
    tiny: Tiny,
    load_model: Load,
    family_taps: Callable[[str, int], set[str]],
    family: str,
    attention: str,
    lacking: set[str],
) -> None:
    engine = HFEngine(load_model(tiny(family), attention=attention))
    taps = trace(engine)
    assert set(taps) == {t for t in family_taps(family, 3) if split(t).kind not in lacking}
    assert set(engine.unavailable) == lacking
    own = {"gpt2": {"P": 3 * 48, "K": 6, "D": 8}, "qwen3_moe": {"E": 8}, "stablelm": {"D": 8}}
    sizes = SIZES | own.get(family, {})
    for tap, array in taps.items():
        assert array.shape == tuple(sizes[axis] for axis in axes_of(tap)), tap


def test_taps_come_with_a_cache_as_without(tiny: Tiny, load_model: Load) -> None:
    engine = HFEngine(load_model(tiny("qwen3")))
    alone = trace(engine)
    cached: dict[str, Any] = {}
    step: dict[str, Any] = {}
    with engine.open(cache=True) as session:
        session.feed(TOKENS[:, :6], cached.__setitem__)
        session.feed(TOKENS[:, 6:], step.__setitem__)
    assert cached.keys() == step.keys() == alone.keys()
    assert step["layers.0.attn.k_rope"].shape == (1, 2, 1, 16)  # the new key alone
    assert step["layers.0.attn.keys"].shape == (1, 2, 7, 16)
    assert np.array_equal(step["layers.0.attn.keys"][:, :, 6:], step["layers.0.attn.k_rope"])
    last = alone["layers.0.attn.keys"][:, :, 6:]
    assert np.allclose(step["layers.0.attn.k_rope"], last, atol=1e-5)


def test_taps_inside_attention_belong_together(tiny: Tiny, load_model: Load) -> None:
    taps = trace(HFEngine(load_model(tiny())))
    scores, mask = taps["layers.1.attn.scores"], taps["layers.1.attn.mask"]
    assert np.isfinite(scores).all()
    assert np.abs(scores).max() < 1e3  # before the mask is added
    assert np.array_equal(mask[0], np.tril(np.ones((7, 7), dtype=bool)))
    q, k = taps["layers.1.attn.q_rope"], np.repeat(taps["layers.1.attn.keys"], 3, axis=1)
    assert np.allclose(scores, q @ k.swapaxes(2, 3) / 4, atol=1e-4)
    assert np.allclose(taps["layers.1.attn.probs"].sum(-1), 1, atol=1e-6)


class Gate(torch.nn.Module):
    """SiLU as a module object of ours."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x)


def test_taps_land_on_their_layers_when_layers_share_a_module(tiny: Tiny, load_model: Load) -> None:
    path = tiny()
    own = trace(HFEngine(load_model(path)))
    model = load_model(path)
    shared = Gate()
    for layer in model.model.layers:
        layer.mlp.act_fn = shared
    engine = HFEngine(model)
    taps = trace(engine)
    assert taps.keys() == own.keys()
    assert all(np.array_equal(taps[tap], own[tap]) for tap in own)
    assert not np.array_equal(taps["layers.0.mlp.act"], taps["layers.1.mlp.act"])
    result = check(engine, checkpoint=path, token_ids=TOKENS.tolist(), decode=2)
    assert result.verdict is Verdict.PASS, result.candidates[0].reason


def test_shared_module_keeps_its_layers_when_one_layer_does_not_call_it(
    tiny: Tiny, load_model: Load
) -> None:
    path = tiny()
    model = load_model(path)
    shared = Gate()
    for layer in model.model.layers:
        layer.mlp.act_fn = shared
    mlp = model.model.layers[1].mlp
    mlp.forward = lambda x: mlp.down_proj(silu(mlp.gate_proj(x)) * mlp.up_proj(x))
    taps = trace(HFEngine(model))
    assert "layers.1.mlp.act" not in taps
    own = trace(HFEngine(load_model(path)))
    for tap in ("layers.0.mlp.act", "layers.2.mlp.act"):
        assert np.array_equal(taps[tap], own[tap])


def test_taps_tell_two_norms_of_a_layer_apart_when_they_are_one_module(
    tiny: Tiny, load_model: Load
) -> None:
    model = load_model(tiny())
    for layer in model.model.layers:
        layer.post_attention_layernorm = layer.input_layernorm
    taps = trace(HFEngine(model))
    norm = model.model.layers[1].input_layernorm
    into = {"attn_norm": "layers.0.resid_post", "mlp_norm": "layers.1.resid_mid"}
    for kind, stream in into.items():
        expected = norm(torch.from_numpy(taps[stream])).detach().numpy()
        assert np.array_equal(taps[f"layers.1.{kind}"], expected)


def test_taps_are_those_of_the_first_call_when_a_layer_calls_a_module_twice(
    tiny: Tiny, load_model: Load
) -> None:
    path = tiny()
    model = load_model(path)
    mlp = model.model.layers[1].mlp

    def twice(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = mlp.down_proj(mlp.act_fn(mlp.act_fn(mlp.gate_proj(x))) * mlp.up_proj(x))
        return out

    mlp.forward = twice
    result = check(HFEngine(model), checkpoint=path, token_ids=TOKENS.tolist())
    assert result.verdict is Verdict.FAIL
    assert result.first_divergence is not None
    assert result.first_divergence.tap == "layers.1.mlp.prod"


def silu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x)


@pytest.mark.parametrize(
    ("function", "expected"), [(silu, Verdict.NOT_COMPARABLE), (gelu, Verdict.FAIL)]
)
def test_check_never_passes_a_tap_that_is_missing_as_its_module_is_not_called(
    tiny: Tiny, load_model: Load, function: Callable[..., torch.Tensor], expected: Verdict
) -> None:
    path = tiny()
    model = load_model(path)
    mlp = model.model.layers[1].mlp

    def fused(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = mlp.down_proj(function(mlp.gate_proj(x)) * mlp.up_proj(x))
        return out

    mlp.forward = fused
    result = check(HFEngine(model), checkpoint=path, token_ids=TOKENS.tolist())
    found = comparison(result, "layers.1.mlp.act")
    assert found.status is TapStatus.MISSING
    assert found.note == "the engine did not hand it over and did not declare so"
    assert result.verdict is expected
    assert result.first_divergence is not None
    first = {Verdict.NOT_COMPARABLE: "layers.1.mlp.act", Verdict.FAIL: "layers.1.mlp.prod"}
    assert result.first_divergence.tap == first[expected]
    after = comparison(result, "layers.1.mlp.prod").local
    assert after is not None
    assert after.inherited_bound


def test_check_never_passes_when_a_whole_part_is_replaced(tiny: Tiny, load_model: Load) -> None:
    path = tiny()
    model = load_model(path)
    mlp = model.model.layers[2].mlp

    def replaced(x: torch.Tensor) -> torch.Tensor:
        gate, up = x @ mlp.gate_proj.weight.T, x @ mlp.up_proj.weight.T
        out: torch.Tensor = (silu(gate) * up) @ mlp.down_proj.weight.T
        return out

    mlp.forward = replaced
    result = check(HFEngine(model), checkpoint=path, token_ids=TOKENS.tolist())
    missing = [c.tap for c in result.comparisons if c.status is TapStatus.MISSING]
    assert missing == [f"layers.2.mlp.{kind}" for kind in ("gate", "up", "act", "prod", "out")]
    assert result.verdict is Verdict.NOT_COMPARABLE


def test_engine_declares_modules_that_the_model_does_not_have(tiny: Tiny, load_model: Load) -> None:
    model = load_model(tiny())
    model.config.model_type = "qwen3"  # a Llama has no query and key norms
    engine = HFEngine(model)
    assert engine.unavailable.keys() == {"attn.q_norm", "attn.k_norm"}
    assert "has no module model.layers.2.self_attn.q_norm" in engine.unavailable["attn.q_norm"]


def test_attention_function_sees_the_modules_own_config(tiny: Tiny, load_model: Load) -> None:
    seen: list[str] = []

    def recording(module: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(module.config._attn_implementation)
        return sdpa_attention_forward(module, *args, **kwargs)

    path = tiny()
    model = load_model(path)
    AttentionInterface.register("recording", recording)
    try:
        attention = model.model.layers[1].self_attn
        attention.config = type(attention.config).from_dict(attention.config.to_dict())
        attention.config._attn_implementation_internal = "recording"
        taps = trace(HFEngine(model))
    finally:
        AttentionInterface._global_mapping.pop("recording")
    assert seen == ["recording"]
    assert "layers.1.attn.context" in taps
    assert "layers.1.attn.probs" not in taps
    assert "layers.0.attn.probs" in taps


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_engine_gives_narrow_taps_bit_for_bit(tiny: Tiny, load_model: Load, dtype: str) -> None:
    model = load_model(tiny(), dtype=dtype)
    engine = HFEngine(model)
    assert engine.dtype == dtype
    taps = trace(engine)
    assert {str(array.dtype) for array in taps.values()} == {dtype, "bool"}
    with torch.no_grad():
        logits = model(input_ids=torch.as_tensor(TOKENS)).logits
    assert np.array_equal(taps["logits"].astype(np.float32), logits.float().numpy())


@pytest.mark.parametrize(
    ("dtype", "counterpart"),
    [(torch.bfloat16, ml_dtypes.bfloat16), (torch.float16, np.float16)],
)
def test_to_numpy_keeps_every_bit_pattern_of_a_narrow_dtype(
    dtype: torch.dtype, counterpart: Any
) -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    array = to_numpy(bits.view(dtype))
    assert array.dtype == np.dtype(counterpart)
    assert np.array_equal(array.view(np.int16), bits.numpy())
    values = bits.view(dtype).float().numpy()
    assert np.array_equal(array.astype(np.float32), values, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_to_numpy_copies_strided_tensors(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    array = to_numpy(tensor.transpose(1, 2))
    assert array.shape == (2, 4, 3)
    assert np.array_equal(
        array.astype(np.float32), tensor.transpose(1, 2).to(torch.float32).numpy()
    )
    tensor.zero_()
    assert array.astype(np.float32).any()


def test_parameters_are_those_of_the_model_and_not_copied(tiny: Tiny, load_model: Load) -> None:
    model = load_model(tiny())
    parameters = HFEngine(model).parameters
    assert parameters.keys() == dict(model.named_parameters()).keys()
    weight = model.model.layers[1].mlp.up_proj.weight
    held = parameters["model.layers.1.mlp.up_proj.weight"]
    assert held.__array_interface__["data"][0] == weight.data_ptr()


def test_load_says_what_to_install_when_attention_is_not_installed(tiny: Tiny) -> None:
    with pytest.raises(EngineError, match=r"engine hf:flash_attention_2: .*pip install flash-attn"):
        HFEngine.load(tiny(), attention="flash_attention_2")


def test_load_names_alternatives_when_attention_is_unknown(tiny: Tiny) -> None:
    with pytest.raises(EngineError, match=r"engine hf:no-such.*hf:eager or hf:sdpa") as caught:
        HFEngine.load(tiny(), attention="no-such")
    assert "pip install" not in caught.value.advice


def test_load_refuses_an_unknown_dtype(tiny: Tiny) -> None:
    with pytest.raises(UsageError, match="expected float32 or bfloat16 or float16, found int8"):
        HFEngine.load(tiny(), dtype="int8")


def test_load_refuses_a_directory_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"engine hf:eager.*model_type"):
        HFEngine.load(tmp_path)


def test_engine_refuses_a_model_type_without_a_map(tiny: Tiny, load_model: Load) -> None:
    model = load_model(tiny())
    model.config.model_type = "mamba"
    with pytest.raises(
        EngineError,
        match=rf"expected a model_type of {', '.join(families.names())}, found 'mamba'",
    ):
        HFEngine(model)


def test_info_says_what_ran(tiny: Tiny, load_model: Load) -> None:
    engine = HFEngine(load_model(tiny(), attention="sdpa"))
    info = engine.info()
    assert (info.name, info.kind, info.dtype) == ("hf:sdpa", "transformers", "float32")
    assert info.detail["class"] == "LlamaForCausalLM"
    assert info.detail["attention"] == "sdpa"
    assert info.detail["torch"] == torch.__version__
    assert HFEngine(engine.model, name="mine").name == "mine"
