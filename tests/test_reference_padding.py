"""The reference on padded batches: laws of the mask, the cache and the whole model."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from harness.subject import load_subject
from references import ops
from references.cache import KVCache
from references.errors import InputError
from references.model import Model
from references.step import Compute

Tiny = Callable[..., Path]
PLAIN = Compute(lambda weight: np.asarray(weight.array, dtype=np.float64), np.float64)


@functools.cache
def model_of(path: Path) -> Model:
    return load_subject(path).model


def feed(model: Model, ids: Any, real: Any, sizes: list[int]) -> Any:
    """Logits [B, T, V] of a batch that is fed in passes."""
    cache, logits, at = KVCache(model.config.layers), [], 0
    for size in sizes:
        columns = slice(at, at + size)
        part = None if real is None else real[:, columns]
        logits.append(model.extend(PLAIN, ids[:, columns], cache, position=at, real=part))
        at += size
    return np.concatenate(logits, axis=1)


def test_visible_hides_padding_from_tokens() -> None:
    positions = np.array([[0, 0, 1, 2]])
    real = np.array([[False, True, True, True]])
    seen = ops.visible(queries=positions, keys=positions, real=real)
    assert seen[0, 1:].tolist() == [
        [False, True, False, False],
        [False, True, True, False],
        [False, True, True, True],
    ]


def test_visible_lets_a_query_that_would_see_nothing_see_all() -> None:
    nothing = np.array([[False, False]])
    seen = ops.visible(queries=np.zeros((1, 2)), keys=np.zeros((1, 2)), real=nothing)
    assert seen.all()
    assert np.isfinite(ops.masked_softmax(np.zeros((1, 1, 2, 2)), seen)).all()


def test_visible_goes_on_from_a_window() -> None:
    positions = np.arange(5)[None]
    windowed = ops.visible(queries=positions, keys=positions, window=2)
    real = np.ones((1, 5), dtype=bool)
    same = ops.visible(queries=positions, keys=positions, window=2, real=real)
    assert np.array_equal(windowed, same)


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_law_a_padded_row_is_the_row_alone(tiny: Tiny, data: st.DataObject) -> None:
    """Any pads in front, any passes, any window: tokens do not know of their neighbours."""
    family = data.draw(st.sampled_from(["llama", "qwen3", "gemma3_text", "gpt2"]))
    counts = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=5))
    length = sum(sizes)
    counts = [min(count, length - 1) for count in counts]
    ids = np.random.default_rng(length).integers(101, size=(len(counts), length))
    real = np.arange(length) >= np.array(counts)[:, None]
    model = model_of(tiny(family))
    found = feed(model, ids, real, sizes)
    for row, count, logits in zip(ids, counts, found, strict=True):
        alone = feed(model, row[None, count:], None, [length - count])[0]
        assert np.max(np.abs(logits[count:] - alone)) <= 1e-11 * np.max(np.abs(alone))


@settings(deadline=None, max_examples=15)
@given(pads=st.lists(st.booleans(), min_size=10, max_size=10))
def test_law_pads_may_be_anywhere_without_a_window(tiny: Tiny, pads: list[bool]) -> None:
    real = ~np.array([pads, [False] * 10])
    real[0, 0] |= not real[0].any()
    ids = np.random.default_rng(5).integers(101, size=(2, 10))
    model = model_of(tiny("llama"))
    found = feed(model, ids, real, [4, 6])[0][real[0]]
    alone = feed(model, ids[:1, real[0]], None, [int(real[0].sum())])[0]
    assert np.max(np.abs(found - alone)) <= 1e-11 * np.max(np.abs(alone))


def test_padding_that_is_all_tokens_changes_no_step(tiny: Tiny) -> None:
    """A step is then called with the constants that it always had."""
    model, constants = model_of(tiny("qwen3")), []

    def step(tap: str | None, op: Any, *inputs: Any, **given: Any) -> Any:
        constants.append(set(given))
        return PLAIN(tap, op, *inputs, **given)

    model.prefill(step, np.array([[1, 2, 3]]), real=np.ones((1, 3), dtype=bool))
    assert not any("real" in given for given in constants)


@pytest.mark.parametrize(
    "real",
    [np.ones((2, 3), dtype=bool), np.ones((1, 3)), np.ones(3, dtype=bool)],
    ids=["batch", "dtype", "axes"],
)
def test_padding_of_another_shape_is_refused(tiny: Tiny, real: Any) -> None:
    with pytest.raises(InputError) as caught:
        model_of(tiny("llama")).prefill(PLAIN, np.array([[1, 2, 3]]), real=real)
    assert caught.value.expected == "booleans of the shape of the token ids, [1, 3]"


def test_padding_between_tokens_and_a_window_is_refused(tiny: Tiny) -> None:
    model = model_of(tiny("qwen3"))
    real = np.ones((1, 9), dtype=bool)
    real[0, 4] = False
    with pytest.raises(InputError) as caught:
        model.prefill(PLAIN, np.zeros((1, 9), dtype=np.int64), real=real)
    assert caught.value.found == "padding between tokens"
