"""The reference's cache: windows, interruptions, batches and what dynamic scaling does to it."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from harness.subject import load_subject
from references.cache import KVCache
from references.errors import CacheError
from references.model import Model
from references.step import Compute

Tiny = Callable[..., Path]
IDS = np.random.default_rng(11).integers(101, size=(2, 30))
PLAIN = Compute(lambda weight: np.asarray(weight.array, dtype=np.float64), np.float64)


@functools.cache
def model_of(path: Path) -> Model:
    return load_subject(path).model


def feed(model: Model, sizes: list[int], step: Any = PLAIN) -> Any:
    cache, logits, at = KVCache(model.config.layers), [], 0
    for size in sizes:
        logits.append(model.extend(step, IDS[:, at : at + size], cache, position=at))
        at += size
    return np.concatenate(logits, axis=1)


def require_close(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    assert np.max(np.abs(found - expected)) <= 1e-12 * np.max(np.abs(expected))


class Breaking:
    """A step that raises in place of one tap, once, and notes the shape of every other."""

    def __init__(self, tap: str = "") -> None:
        self.tap = tap
        self.shapes: dict[str, tuple[int, ...]] = {}

    def __call__(self, tap: str | None, op: Any, *inputs: Any, **constants: Any) -> Any:
        if tap == self.tap:
            raise RuntimeError("broken off")
        result = PLAIN(tap, op, *inputs, **constants)
        self.shapes[tap or ""] = result.shape
        return result


# Windows.


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([1, 2, 3, 5, 8]), st.lists(st.integers(1, 6), min_size=2, max_size=5))
def test_law_chunks_add_up_under_any_window(tiny: Tiny, window: int, sizes: list[int]) -> None:
    path = tiny("qwen3", sliding_window=window, layer_types=["sliding_attention"] * 3)
    model = model_of(path)
    require_close(feed(model, sizes), feed(model, [sum(sizes)]))


@pytest.mark.parametrize("window", [1, 2, 6])
def test_a_sliding_layer_keeps_what_the_next_queries_can_read(tiny: Tiny, window: int) -> None:
    model, cache = model_of(tiny("qwen3", sliding_window=window)), KVCache(3)
    position = 0
    for size in (4, 1, 3, 1, 1, 7, 1):
        step = Breaking()
        tokens = IDS[:, position : position + size]
        model.extend(step, tokens, cache, position=position)
        kept = min(position, window - 1) + size  # layers 0 and 2 read everything, layer 1 slides
        position += size
        for layer, length in ((0, position), (1, kept), (2, position)):
            for kind in ("keys", "values"):
                assert step.shapes[f"layers.{layer}.attn.{kind}"] == (2, 2, length, 16)
            assert step.shapes[f"layers.{layer}.attn.mask"] == (2, size, length)
            assert step.shapes[f"layers.{layer}.attn.probs"] == (2, 6, size, length)
        assert cache.length == position


# Runs that break off.


@pytest.mark.parametrize("tap", ["embed", "layers.0.attn.keys", "layers.0.attn.values"])
def test_a_run_that_breaks_off_before_the_cache_grows_can_be_repeated(tiny: Tiny, tap: str) -> None:
    model = model_of(tiny("llama"))
    _, cache = model.prefill(PLAIN, IDS[:, :5])
    with pytest.raises(RuntimeError, match="broken off"):
        model.extend(Breaking(tap), IDS[:, 5:7], cache, position=5)
    assert cache.length == 5
    found = model.extend(PLAIN, IDS[:, 5:7], cache, position=5)
    require_close(found, feed(model, [7])[:, 5:])


@pytest.mark.parametrize("tap", ["layers.0.attn.out", "layers.1.attn.keys", "layers.2.attn.values"])
def test_a_run_that_breaks_off_between_layers_spoils_the_cache(tiny: Tiny, tap: str) -> None:
    model = model_of(tiny("llama"))
    _, cache = model.prefill(PLAIN, IDS[:, :5])
    with pytest.raises(RuntimeError, match="broken off"):
        model.extend(Breaking(tap), IDS[:, 5:7], cache, position=5)
    for position in (0, 5, 7):
        with pytest.raises(CacheError) as caught:
            model.extend(PLAIN, IDS[:, :1], cache, position=position)
        assert str(caught.value) == (
            "cache: expected the same number of positions in every layer, found between 5 and 7: "
            "an earlier run broke off half way: start the sequence again"
        )


@pytest.mark.parametrize("tap", ["layers.2.attn.out", "final_norm", "logits"])
def test_a_run_that_breaks_off_behind_the_last_cache_counts(tiny: Tiny, tap: str) -> None:
    model = model_of(tiny("llama"))
    _, cache = model.prefill(PLAIN, IDS[:, :5])
    with pytest.raises(RuntimeError, match="broken off"):
        model.extend(Breaking(tap), IDS[:, 5:7], cache, position=5)
    with pytest.raises(CacheError, match=r"expected 7, the number of positions .*, found 5"):
        model.extend(PLAIN, IDS[:, 5:7], cache, position=5)
    found = model.extend(PLAIN, IDS[:, 7:9], cache, position=7)
    require_close(found, feed(model, [9])[:, 7:])


# Positions and batches.


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("position", [1, 3, -1])
def test_an_empty_cache_starts_at_zero(tiny: Tiny, count: int, position: int) -> None:
    cache = KVCache(3)
    with pytest.raises(CacheError) as caught:
        model_of(tiny("llama")).extend(PLAIN, IDS[:, :count], cache, position=position)
    assert str(caught.value) == (
        f"position: expected 0, the number of positions that the cache holds, found {position}: "
        "count every token fed so far, or begin a new sequence with a new cache"
    )


@pytest.mark.parametrize("count", [1, 4])
def test_another_batch_is_refused(tiny: Tiny, count: int) -> None:
    model = model_of(tiny("llama"))
    _, cache = model.prefill(PLAIN, IDS[:, :5])
    with pytest.raises(CacheError) as caught:
        model.extend(PLAIN, IDS[:1, 5 : 5 + count], cache, position=5)
    assert str(caught.value) == (
        "batch: expected 2, the number of sequences that the cache holds, found 1: "
        "feed every sequence of the batch, or begin new ones with a new cache"
    )
    require_close(
        model.extend(PLAIN, IDS[:, 5 : 5 + count], cache, position=5),
        feed(model, [5 + count])[:, 5:],
    )


def test_sequences_of_one_model_do_not_touch(tiny: Tiny) -> None:
    """Two caches taken in turn give what each gives alone, and rows of a batch as well."""
    model = model_of(tiny("qwen3"))
    rows, caches = [IDS[:1, :8], IDS[1:, :8]], [KVCache(3), KVCache(3)]
    found: list[list[Any]] = [[], []]
    for at, size in ((0, 5), (5, 2), (7, 1)):
        for n in (0, 1):
            tokens = rows[n][:, at : at + size]
            found[n].append(model.extend(PLAIN, tokens, caches[n], position=at))
    whole = feed(model, [8])
    for n in (0, 1):
        require_close(np.concatenate(found[n], axis=1), whole[n : n + 1])
    assert np.max(np.abs(whole[0] - whole[1])) > 0.1


# Dynamic scaling: keys stay as they were rotated, so what was cached keeps an older base.


def test_dynamic_scaling_adds_up_within_the_trained_length_alone(tiny: Tiny) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    model = model_of(tiny("llama", max_position_embeddings=10, rope_parameters=rope))
    require_close(feed(model, [4, 6]), feed(model, [10]))
    apart = np.max(np.abs(feed(model, [4, 7]) - feed(model, [11])), axis=(0, 2))
    assert np.all(apart[4:] > 1e-6)  # positions 1 to 3 were scaled by the whole prompt's length
