"""The caller's model is left as it was, whatever happens while it is tapped."""

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AttentionInterface

from harness import HFEngine, check
from harness.errors import EngineError
from harness.replay.source import EngineSource

TOKENS = np.array([[5, 17, 90, 3, 44, 61, 8]])

Load = Callable[..., Any]
Tiny = Callable[..., Path]


class Snapshot:
    """Everything about a model that a run could leave changed."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.modules = list(model.modules())
        self.attributes = [dict(vars(m)) for m in self.modules]
        self.hooks = [(*m._forward_hooks, *m._forward_pre_hooks) for m in self.modules]
        self.training = [m.training for m in self.modules]
        self.configs = [getattr(m, "config", None) for m in self.modules]
        self.settings = [copy.deepcopy(vars(c)) if c is not None else None for c in self.configs]
        self.buffers = [(b, b.clone()) for b in model.buffers()]
        self.parameters = [(p, p.detach().clone(), p.requires_grad) for p in model.parameters()]
        self.registered = dict(AttentionInterface._global_mapping)
        self.threads = torch.get_num_threads()
        self.grad = torch.is_grad_enabled()

    def assert_unchanged(self) -> None:
        model = self.model
        assert list(model.modules()) == self.modules
        for module, attributes in zip(self.modules, self.attributes, strict=True):
            assert vars(module).keys() == attributes.keys(), type(module).__name__
        assert [(*m._forward_hooks, *m._forward_pre_hooks) for m in self.modules] == self.hooks
        assert [m.training for m in self.modules] == self.training
        configs = [getattr(m, "config", None) for m in self.modules]
        assert all(a is b for a, b in zip(configs, self.configs, strict=True))
        assert [vars(c) if c is not None else None for c in configs] == self.settings
        for now, (was, values) in zip(model.buffers(), self.buffers, strict=True):
            assert now is was
            assert torch.equal(now, values)
        for now, (was, values, grad) in zip(model.parameters(), self.parameters, strict=True):
            assert now is was
            assert torch.equal(now, values)
            assert now.requires_grad == grad
        assert AttentionInterface._global_mapping == self.registered
        assert torch.get_num_threads() == self.threads
        assert torch.is_grad_enabled() == self.grad


def mixed(model: Any) -> Any:
    """A model as a caller may have it: partly training, some parameters frozen, hooks of theirs."""
    model.train()
    model.model.layers[1].eval()
    model.model.norm.training = False
    for parameter in model.model.layers[0].parameters():
        parameter.requires_grad = False
    model.model.layers[2].mlp.register_forward_hook(lambda module, args, output: None)
    model.model.norm.register_forward_pre_hook(lambda module, args: None)
    return model


@pytest.fixture(params=["eager", "sdpa"])
def attention(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tiny: Tiny, load_model: Load, attention: str) -> Any:
    return mixed(load_model(tiny(request.param), attention=attention))


def test_snapshot_sees_a_leftover(tiny: Tiny, load_model: Load) -> None:
    model = load_model(tiny())
    before = Snapshot(model)
    before.assert_unchanged()
    handle = model.model.norm.register_forward_hook(lambda module, args, output: None)
    with pytest.raises(AssertionError):
        before.assert_unchanged()
    handle.remove()
    attention = model.model.layers[1].self_attn
    attention.config = copy.copy(attention.config)
    with pytest.raises(AssertionError):
        before.assert_unchanged()


def test_open_leaves_the_model_as_it_was_after_a_run(model: Any) -> None:
    before = Snapshot(model)
    taps: list[str] = []
    with HFEngine(model, threads=1).open(cache=True) as session:
        session.feed(TOKENS, lambda tap, array: taps.append(tap))
        assert model._forward_hooks.keys() == set()
        session.feed(TOKENS[:, :1])
    assert len(taps) > 50
    before.assert_unchanged()


def test_open_taps_only_while_it_is_open(model: Any) -> None:
    norm = model.model.norm
    with HFEngine(model).open(cache=False):
        assert len(norm._forward_hooks) == 1
        assert not norm.training
    assert len(norm._forward_hooks) == 0


def test_open_leaves_the_model_as_it_was_after_an_exception_in_forward(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    original = mlp.forward

    def broken(x: torch.Tensor) -> torch.Tensor:
        original(x)
        raise ArithmeticError("in the middle of the layers")

    mlp.forward = broken
    before = Snapshot(model)
    seen: list[str] = []
    with (
        pytest.raises(ArithmeticError, match="in the middle"),
        HFEngine(model).open(cache=True) as session,
    ):
        session.feed(TOKENS, lambda tap, array: seen.append(tap))
    before.assert_unchanged()
    assert "layers.1.mlp.gate" in seen
    assert "layers.1.resid_post" not in seen


@pytest.mark.parametrize("at", ["layers.1.attn.q_rope", "layers.1.attn.context", "final_norm"])
def test_open_leaves_the_model_as_it_was_after_an_exception_in_a_tap(model: Any, at: str) -> None:
    before = Snapshot(model)

    def emit(tap: str, array: Any) -> None:
        if tap == at:
            raise ArithmeticError(tap)

    with pytest.raises(ArithmeticError), HFEngine(model).open(cache=True) as session:
        session.feed(TOKENS, emit)
    before.assert_unchanged()


def test_open_leaves_the_model_as_it_was_after_an_exception_of_the_caller(model: Any) -> None:
    before = Snapshot(model)
    with pytest.raises(KeyError), HFEngine(model, threads=1).open(cache=False):
        raise KeyError("not ours")
    before.assert_unchanged()


def test_open_leaves_the_model_as_it_was_when_attention_cannot_be_tapped(model: Any) -> None:
    config = model.config
    engine = HFEngine(model)
    name = config._attn_implementation_internal
    config._attn_implementation_internal = "no-such-attention"
    before = Snapshot(model)
    with pytest.raises(LookupError, match="no-such-attention"), engine.open(cache=False):
        raise AssertionError("opened")
    before.assert_unchanged()
    config._attn_implementation_internal = name


def test_source_leaves_the_model_as_it_was_when_abandoned(model: Any) -> None:
    before = Snapshot(model)
    with EngineSource(HFEngine(model, threads=1), [TOKENS, TOKENS[:, :1]]) as source:
        assert source.take(0, "layers.0.attn_norm") is not None
    before.assert_unchanged()


def test_check_leaves_the_model_as_it_was_also_in_grad_mode(tiny: Tiny, load_model: Load) -> None:
    path = tiny()
    model = mixed(load_model(path))
    before = Snapshot(model)
    with torch.enable_grad():
        result = check(HFEngine(model), checkpoint=path, token_ids=TOKENS.tolist(), decode=1)
    assert result.exit_code == 0
    before.assert_unchanged()


def test_open_puts_back_dynamic_rope(tiny: Tiny, load_model: Load) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    path = tiny("llama", rope_parameters=rope, max_position_embeddings=8)
    model = load_model(path)
    long = np.arange(20)[None]
    before, rotary = Snapshot(model), model.model.rotary_emb
    frequencies = rotary.inv_freq.clone()
    with HFEngine(model).open(cache=False) as session:
        session.feed(long)
        assert not torch.equal(rotary.inv_freq, frequencies)  # the state that must not stay
    before.assert_unchanged()
    assert rotary.max_seq_len_cached == 8


def test_feed_gives_the_logits_of_a_plain_call_bit_for_bit(model: Any) -> None:
    model.eval()
    with torch.no_grad():
        plain = model(input_ids=torch.as_tensor(TOKENS)).logits.numpy()
    with HFEngine(model).open(cache=False) as session:
        untapped = session.feed(TOKENS)
        taps: dict[str, Any] = {}
        tapped = session.feed(TOKENS, taps.__setitem__)
    assert np.array_equal(untapped, plain)
    assert np.array_equal(tapped, plain)
    assert np.array_equal(taps["logits"], plain)


def test_feed_gives_the_logits_of_plain_decoding_bit_for_bit(model: Any) -> None:
    model.eval()
    with torch.no_grad():
        first = model(input_ids=torch.as_tensor(TOKENS), use_cache=True)
        cache = {k: v for k, v in first.items() if k in ("cache", "past_key_values")}
        plain = model(input_ids=torch.as_tensor(TOKENS[:, :1]), **cache).logits.numpy()
    with HFEngine(model).open(cache=True) as session:
        session.feed(TOKENS)
        assert np.array_equal(session.feed(TOKENS[:, :1], lambda tap, array: None), plain)


def test_feed_hands_over_arrays_that_are_the_receivers_to_keep(model: Any) -> None:
    taps: dict[str, Any] = {}
    with HFEngine(model).open(cache=False) as session:
        session.feed(TOKENS, taps.__setitem__)
        kept = {name: array.copy() for name, array in taps.items()}
        for array in taps.values():
            if array.flags.writeable:
                array[...] = 0
        again: dict[str, Any] = {}
        session.feed(TOKENS, again.__setitem__)
    assert all(np.array_equal(again[name], kept[name]) for name in kept)


def test_two_engines_do_not_mix_when_they_run_at_once(
    tiny: Tiny, load_model: Load, twin: Callable[..., Any]
) -> None:
    model = load_model(tiny())
    copies = [twin(model, attention=a) for a in ("eager", "sdpa", "eager", "sdpa")]
    prompts = [np.roll(TOKENS, i, axis=1) for i in range(len(copies))]

    def trace(model: Any, tokens: Any) -> dict[str, Any]:
        taps: dict[str, Any] = {}
        with HFEngine(model).open(cache=False) as session:
            session.feed(tokens, taps.__setitem__)
        return taps

    alone = [trace(m, t) for m, t in zip(copies, prompts, strict=True)]
    together: list[dict[str, Any]] = [{} for _ in copies]
    barrier = threading.Barrier(len(copies))

    def run(index: int) -> None:
        barrier.wait()
        for _ in range(5):
            together[index] = trace(copies[index], prompts[index])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(copies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for once, again in zip(alone, together, strict=True):
        assert once.keys() == again.keys()
        assert all(np.array_equal(once[tap], again[tap]) for tap in once)
    assert "layers.0.attn.scores" in together[0]
    assert "layers.0.attn.scores" not in together[1]


def test_check_runs_eager_and_sdpa_in_lockstep(tiny: Tiny, load_model: Load) -> None:
    path = tiny("qwen3")
    engines = [HFEngine(load_model(path, attention=a)) for a in ("eager", "sdpa")]
    result = check(engines, checkpoint=path, token_ids=TOKENS.tolist(), decode=2)
    assert [c.verdict for c in result.candidates] == ["pass", "pass"], result.candidates
    assert {p.tap for p in result.prompts[0].pairs} >= {"embed", "layers.2.attn.context", "logits"}


def test_open_refuses_a_model_that_another_engine_is_running(model: Any) -> None:
    before = Snapshot(model)
    with HFEngine(model, name="first").open(cache=False) as session:
        with (
            pytest.raises(EngineError, match=r"no other engine is running.*model of its own"),
            HFEngine(model, name="second").open(cache=False),
        ):
            raise AssertionError("opened")
        taps: dict[str, Any] = {}
        session.feed(TOKENS, taps.__setitem__)
        assert "layers.2.attn.context" in taps  # the first run goes on
    before.assert_unchanged()
    with HFEngine(model, name="second").open(cache=False):
        pass
