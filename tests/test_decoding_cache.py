"""The reference's cache: chunks add up, and position and length cannot disagree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.subject import load_subject
from references.cache import KVCache
from references.errors import CacheError, InputError
from references.model import Model
from references.step import Compute, Weight

IDS = np.array([[5, 17, 3, 88, 41, 2, 60, 9, 33, 71, 12, 54]])


def compute(dtype: str = "float64") -> Compute:
    def lift(weight: Weight) -> Any:
        return np.asarray(weight.array, dtype=dtype)

    return Compute(lift, np.dtype(dtype))


def feed(model: Model, sizes: list[int], dtype: str) -> Any:
    step, position, logits = compute(dtype), 0, []
    cache = KVCache(model.config.layers)
    for size in sizes:
        ids = IDS[:, position : position + size]
        logits.append(model.extend(step, ids, cache, position=position))
        position += size
    assert cache.length == position
    return np.concatenate(logits, axis=1)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-4)])
@pytest.mark.parametrize("sizes", [[1] * 12, [5, 7], [3, 1, 1, 6, 1], [11, 1]])
def test_law_chunks_add_up(
    tiny: Callable[..., Path], family: str, dtype: str, bound: float, sizes: list[int]
) -> None:
    model = load_subject(tiny(family)).model
    whole = feed(model, [12], dtype)
    assert np.max(np.abs(feed(model, sizes, dtype) - whole)) <= bound * np.max(np.abs(whole))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_law_the_future_changes_nothing(tiny: Callable[..., Path], family: str) -> None:
    model, step = load_subject(tiny(family)).model, compute()
    other = IDS.copy()
    other[0, 7:] = 1
    a, b = (np.asarray(model.prefill(step, ids)[0]) for ids in (IDS, other))
    np.testing.assert_allclose(a[:, :7], b[:, :7], rtol=1e-12, atol=1e-12)
    assert np.max(np.abs(a[:, 7:] - b[:, 7:])) > 0.1


def test_law_a_window_ignores_exactly_what_is_outside(tiny: Callable[..., Path]) -> None:
    """With one sliding layer alone, the last of 12 tokens reads 6 and not 5."""
    path = tiny("qwen3", num_hidden_layers=1, layer_types=["sliding_attention"])
    model, step = load_subject(path).model, compute()
    last = np.asarray(model.prefill(step, IDS)[0])[:, -1]
    for changed, inside in ((5, False), (6, True)):
        other = IDS.copy()
        other[0, changed] = 1
        moved = np.max(np.abs(np.asarray(model.prefill(step, other)[0])[:, -1] - last))
        assert (moved > 1e-3) == inside, (changed, moved)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("position", [0, 4, 6])
def test_a_wrong_position_is_refused(tiny: Callable[..., Path], count: int, position: int) -> None:
    model = load_subject(tiny("llama")).model
    _, cache = model.prefill(compute(), IDS[:, :5])
    message = (
        f"position: expected 5, the number of positions that the cache holds, found {position}"
    )
    with pytest.raises(CacheError, match=message) as caught:
        model.extend(compute(), IDS[:, :count], cache, position=position)
    assert "begin a new sequence with a new cache" in str(caught.value)
    assert cache.length == 5


@pytest.mark.parametrize("count", [1, 4])
def test_a_used_cache_is_refused_for_a_second_prompt(tiny: Callable[..., Path], count: int) -> None:
    """A prompt begins at position 0, with one token as with several."""
    model = load_subject(tiny("llama")).model
    _, cache = model.prefill(compute(), IDS)
    with pytest.raises(CacheError, match=r"expected 12, .* found 0"):
        model.extend(compute(), IDS[:, :count], cache, position=0)


def test_a_half_extended_cache_is_refused(tiny: Callable[..., Path]) -> None:
    model = load_subject(tiny("llama")).model
    _, cache = model.prefill(compute(), IDS[:, :5])
    plain = compute()

    def breaking(tap: str | None, op: Any, *inputs: Any, **constants: Any) -> Any:
        if tap == "layers.1.attn.out":
            raise RuntimeError("half way")
        return plain(tap, op, *inputs, **constants)

    with pytest.raises(RuntimeError, match="half way"):
        model.extend(breaking, IDS[:, 5:6], cache, position=5)
    with pytest.raises(CacheError, match="an earlier run broke off half way"):
        model.extend(plain, IDS[:, 6:7], cache, position=6)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1, 101]], "expected 0 to 100, the rows of the embedding, found 101"),
        ([[-1, 4]], "expected 0 to 100, the rows of the embedding, found -1"),
        ([1, 2], r"found int64 of shape \[2\]"),
        ([[]], "with at least one token"),
        ([[0.5]], "expected integers"),
    ],
)
def test_unusable_token_ids_are_refused(tiny: Callable[..., Path], ids: Any, message: str) -> None:
    model = load_subject(tiny("llama")).model
    with pytest.raises(InputError, match=message):
        model.prefill(compute(), np.array(ids))


def test_a_step_that_changes_the_dtype_is_refused(tiny: Callable[..., Path]) -> None:
    """NumPy makes float64 of float32 and a float64 scalar; no step may let that pass."""
    model = load_subject(tiny("llama")).model
    step = Compute(lambda weight: np.asarray(weight.array, dtype=np.float64), np.dtype("float32"))
    with pytest.raises(TypeError, match="embed: computed float64, not float32"):
        model.prefill(step, IDS)
