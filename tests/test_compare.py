"""Comparison of arrays and of logits, against plain formulas."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import compare
from harness.compare import (
    difference,
    kl_divergence,
    local_error,
    locate,
    log_softmax,
    pair_difference,
    weight_difference,
    worst_nonfinite,
)
from harness.contract import TOLERANCE, UNIT_LIMIT
from harness.logits import pairwise

Array = Any

#: Shapes from one element to several blocks.
SHAPES = [(1, 1, 1), (2, 3, 5), (1, 7, 4681), (2, 40, 1000)]
BLOCK = compare._BLOCK


def kl(a: Any, b: Any) -> Any:
    log_a, log_b = log_softmax(a), log_softmax(b)
    return kl_divergence(np.exp(log_a), log_a, log_b)


def pair(shape: tuple[int, ...], seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return x, x + 1e-5 * rng.standard_normal(shape)


def test_shapes_reach_beyond_one_block() -> None:
    assert math.prod(SHAPES[-1]) > 2 * BLOCK
    assert math.prod(SHAPES[-2]) % BLOCK


@pytest.mark.parametrize("shape", SHAPES)
def test_difference_is_that_of_the_whole_arrays(shape: tuple[int, ...]) -> None:
    x, y = pair(shape)
    y.flat[-1] += 1.0
    y.flat[x.size // 3] += 2e-4
    found = difference(x, y, "BTC")
    error = np.abs(x - y)
    assert found.max_abs == error.max()
    assert found.mean_abs == pytest.approx(error.mean(), rel=1e-12)
    assert found.magnitude == np.abs(x).max()
    assert found.over == np.count_nonzero(error > TOLERANCE)
    assert found.count == x.size
    assert found.worst.index == tuple(n - 1 for n in shape)
    assert found.worst.reference == x.flat[-1]
    assert found.worst.candidate == y.flat[-1]


def test_difference_of_equal_arrays_is_zero() -> None:
    x, _ = pair((2, 3, 5))
    found = difference(x, x.copy(), "BTC")
    assert (found.max_abs, found.mean_abs, found.over) == (0, 0, 0)
    assert found.worst.index == (0, 0, 0)


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 17, 79_999])
def test_difference_finds_its_worst_element_in_any_block(at: int) -> None:
    x, y = pair((2, 40, 1000))
    y.flat[at] -= 3.0
    found = difference(x, y, "BTC", start=100)
    b, t, c = (int(i) for i in np.unravel_index(at, x.shape))
    assert found.worst.index == (b, t, c)
    assert (found.worst.position, found.worst.head, found.worst.element) == (t + 100, None, c)


def test_difference_within_the_tolerance_is_not_over() -> None:
    x = np.zeros((1, 1, 3))
    y = np.array([[[TOLERANCE, -TOLERANCE, np.nextafter(TOLERANCE, 1)]]])
    assert difference(x, y, "BTC").over == 1


def test_difference_reads_arrays_that_lie_in_another_order() -> None:
    x, y = pair((2, 3, 4))
    y[1, 0, 2] += 1
    found = difference(x.transpose(2, 0, 1), y.transpose(2, 0, 1), "CBT")
    assert found.worst.index == (2, 1, 0)


@pytest.mark.parametrize("shape", SHAPES)
def test_local_error_is_that_of_the_whole_arrays(shape: tuple[int, ...]) -> None:
    x, y = pair(shape)
    unit = np.random.default_rng(1).uniform(1e-6, 1e-5, shape)
    y.flat[x.size // 2] += 1.0
    found = local_error(x, y, unit, "BTC")
    units = np.abs(x - y) / unit
    index = tuple(int(i) for i in np.unravel_index(x.size // 2, shape))
    assert found.units == units.max()
    assert found.worst.index == index
    assert found.error == abs(x[index] - y[index])
    assert found.bound == unit[index]
    assert found.over == np.count_nonzero(units > UNIT_LIMIT)
    assert found.median == pytest.approx(np.median(units), rel=0.1)
    assert not found.inherited_bound
    assert local_error(x, y, unit, "BTC", inherited_bound=True).inherited_bound


def test_local_error_is_largest_in_units_and_not_in_size() -> None:
    expected, found = np.zeros((1, 1, 2)), np.array([[[1.0, 0.5]]])
    unit = np.array([[[1.0, 0.01]]])
    local = local_error(expected, found, unit, "BTC")
    assert (local.units, local.worst.element, local.error, local.bound) == (50, 1, 0.5, 0.01)


def test_local_error_where_nothing_may_round_is_finite() -> None:
    expected, found = np.zeros((1, 1, 2)), np.array([[[5.0, 0.0]]])
    none = np.zeros((1, 1, 2), dtype=np.float32)
    local = local_error(expected, found, none, "BTC", underflow=2.0**-126)
    assert local.units == np.finfo(np.float32).max
    endless = local_error(expected, np.full((1, 1, 2), np.inf), none + 1, "BTC")
    assert not np.isfinite(endless.units)


def test_local_error_at_the_limit_is_not_over() -> None:
    found = np.array([[[UNIT_LIMIT, np.nextafter(UNIT_LIMIT, 99)]]])
    assert local_error(np.zeros((1, 1, 2)), found, np.ones((1, 1, 2)), "BTC").over == 1


@pytest.mark.parametrize(
    ("axes", "shape", "index", "position", "head"),
    [
        ("BTC", (2, 3, 4), (1, 2, 3), 12, None),
        ("BHTD", (2, 3, 4, 5), (1, 2, 3, 4), 13, 2),
        ("BKTD", (2, 3, 4, 5), (0, 1, 2, 3), 12, 1),
        ("BKSD", (2, 3, 4, 5), (0, 1, 2, 3), 2, 1),  # keys of a cache count from its start
        ("BHTS", (1, 2, 3, 4), (0, 1, 2, 3), 12, 1),
        ("BTS", (1, 3, 4), (0, 1, 3), 11, None),
        ("", (2, 3), (1, 2), None, None),
        ("BTC", (2, 3), (1, 2), None, None),  # axes of another tap: no guess
    ],
)
def test_locate_names_position_head_and_element(
    axes: str,
    shape: tuple[int, ...],
    index: tuple[int, ...],
    position: int | None,
    head: int | None,
) -> None:
    x = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    flat = int(np.ravel_multi_index(index, shape))
    found = locate(axes, flat, x, -x, start=10)
    assert (found.index, found.position, found.head) == (index, position, head)
    assert found.element == index[-1]
    assert (found.reference, found.candidate) == (flat, -flat)


def test_locate_has_no_value_for_what_is_not_finite() -> None:
    x = np.ones((1, 1, 2))
    assert locate("BTC", 1, x, np.array([[[1.0, np.inf]]])).candidate is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 17, 79_999])
def test_worst_nonfinite_finds_the_first(bad: float, at: int) -> None:
    x = np.ones((2, 40, 1000))
    assert worst_nonfinite(x) is None
    x.flat[at:] = bad
    assert worst_nonfinite(x) == at


def test_worst_nonfinite_is_none_for_finite_values_whose_sum_is_not() -> None:
    assert worst_nonfinite(np.full(4, 1e308)) is None
    assert worst_nonfinite(np.array([np.inf, -np.inf])) == 0
    assert worst_nonfinite(np.array([True, False])) is None


def test_weight_difference_is_none_for_equal_weights() -> None:
    w = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    assert weight_difference("w", w, w.copy()) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_weight_difference_counts_and_places(dtype: Any) -> None:
    w = np.zeros((3, 4), dtype=dtype)
    held = w.copy()
    held[1, 2], held[2, 3] = 0.25, -0.5
    found = weight_difference("w", w, held)
    assert found is not None
    assert (found.name, found.differing, found.count) == ("w", 2, 12)
    assert (found.max_abs, found.index) == (0.5, (2, 3))
    assert (found.reference, found.candidate) == (0.0, -0.5)


def test_weight_difference_sees_one_bit() -> None:
    w = np.ones((3, 4), dtype=np.float32)
    held = w.copy()
    held[2, 0] = np.nextafter(np.float32(1), np.float32(2))
    found = weight_difference("w", w, held)
    assert found is not None
    assert (found.differing, found.index, found.max_abs) == (1, (2, 0), 2.0**-23)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weight_difference_places_what_is_not_finite(bad: float) -> None:
    w = np.ones((3, 4), dtype=np.float32)
    held = w.copy()
    held[0, 1], held[1, 1] = 1e30, bad
    found = weight_difference("w", w, held)
    assert found is not None
    assert (found.differing, found.index) == (2, (1, 1))
    assert (found.max_abs, found.candidate) == (None, None)


def test_weight_difference_of_another_shape_is_all() -> None:
    found = weight_difference("w", np.ones((3, 4)), np.ones((4, 3)))
    assert found is not None
    assert (found.differing, found.count, found.candidate) == (12, 12, None)


def test_pair_difference_is_that_of_the_whole_arrays() -> None:
    x, y = pair((2, 40, 1000))
    y.flat[70_000] += 1
    found = pair_difference("a", x, "b", y, 3, "embed")
    assert (found.a, found.b, found.chunk, found.tap) == ("a", "b", 3, "embed")
    assert found.max_abs == np.abs(x - y).max()
    assert found.mean_abs == pytest.approx(np.abs(x - y).mean(), rel=1e-12)


def test_pair_difference_of_masks_is_one_where_they_differ() -> None:
    x = np.ones((1, 2, 2), dtype=bool)
    y = x.copy()
    y[0, 0, 1] = False
    found = pair_difference("a", x, "b", y, 0, "mask")
    assert (found.max_abs, found.mean_abs) == (1, 0.25)


def plain_kl(a: Array, b: Array) -> float:
    """Of one position, with Python's floats and no trick."""
    p, q = ([math.exp(x - max(row)) for x in row] for row in (a, b))
    p, q = [x / math.fsum(p) for x in p], [x / math.fsum(q) for x in q]
    return math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True))


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(2, 50), spread=st.floats(0.01, 20))
def test_law_kl_divergence_is_the_textbook_sum(seed: int, size: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    a, b = spread * rng.standard_normal((2, 3, size))
    found = kl(a, b)
    assert found.shape == (3,)
    assert (found >= 0).all()
    expected = [plain_kl(x.tolist(), y.tolist()) for x, y in zip(a, b, strict=True)]
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-13)


@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(-1e3, 1e3))
def test_law_kl_divergence_ignores_a_shift_of_all_logits(seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, 4, 9))
    assert kl(a + shift, b) == pytest.approx(kl(a, b), rel=1e-7, abs=1e-12)
    assert kl(a, a + shift) == pytest.approx(0, abs=1e-12)


def test_kl_divergence_of_extreme_logits_is_finite() -> None:
    a, b = np.array([[1e4, 0.0, -1e4]]), np.array([[-1e4, 0.0, 1e4]])
    assert kl(a, b) == pytest.approx([2e4])
    assert np.isfinite(log_softmax(a)).all()


def test_kl_divergence_is_not_symmetric() -> None:
    a, b = np.array([[0.0, 0.0]]), np.array([[0.0, 3.0]])
    assert kl(a, b) != pytest.approx(kl(b, a), rel=0.01)


@pytest.mark.parametrize("shape", [(1, 1, 5), (2, 7, 30), (1, 64, 11), (3, 50, 20)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16])
def test_pairwise_is_that_of_all_positions(shape: tuple[int, ...], dtype: Any) -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal(shape)
    b = (a + 0.3 * rng.standard_normal(shape)).astype(dtype)
    found = pairwise("a", a, "b", b)
    x, y = a, b.astype(np.float64)
    divergence = kl(x, y)
    assert (found.a, found.b, found.greedy_agreement) == ("a", "b", None)
    assert found.max_abs == np.abs(x - y).max()
    assert found.mean_abs == pytest.approx(np.abs(x - y).mean(), rel=1e-12)
    assert found.kl_mean == pytest.approx(divergence.mean(), rel=1e-9)
    assert found.kl_max == pytest.approx(divergence.max(), rel=1e-9)
    assert found.top1_agreement == (x.argmax(-1) == y.argmax(-1)).mean()


def test_pairwise_counts_the_positions_at_which_the_largest_logit_agrees() -> None:
    a = np.zeros((1, 130, 4))
    a[..., 1] = 1
    b = a.copy()
    b[0, [0, 64, 129], 3] = 2
    found = pairwise("a", a, "b", b)
    assert found.top1_agreement == pytest.approx(127 / 130)
    assert found.max_abs == 2
    same = pairwise("a", a, "b", a)
    assert (same.top1_agreement, same.kl_max, same.max_abs) == (1, 0, 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_differences_of_what_is_not_finite_are_not_finite(value: float) -> None:
    x = np.zeros((1, 1, 70_000))
    y = x.copy()
    y[0, 0, 40_000] = value
    y[0, 0, 69_999] = np.nan
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(difference(x, y, "BTC").max_abs)
        assert difference(x, y, "BTC").worst.index == (0, 0, 40_000)
        assert not np.isfinite(local_error(x, y, np.ones(x.shape), "BTC").units)


def test_infinite_unit_hides_no_error() -> None:
    x = np.zeros((1, 1, 4))
    unit = np.array([[[1, np.inf, 1, 1]]], dtype=np.float32)
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(local_error(x, x + 1, unit, "BTC").units)


def test_unit_is_scaled_by_roundoff_and_shifted_by_underflow() -> None:
    x = np.zeros((1, 1, 2))
    unit = np.array([[[4.0, 0.0]]], dtype=np.float32)
    found = local_error(x, x + 1, unit, "BTC", roundoff=0.5, underflow=0.25)
    assert found.units == 4
    assert found.bound == 0.25


def test_difference_of_narrow_floats_and_booleans_is_taken_in_float32() -> None:
    x, y = (np.array([[[s * 60000, 1]]], dtype=np.float16) for s in (1, -1))
    assert difference(x, y, "BTC").max_abs == 120000
    flags = difference(np.array([[[True, False]]]), np.array([[[True, True]]]), "BTS")
    assert (flags.max_abs, flags.over, flags.magnitude) == (1, 1, 1)
