import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.gate.digest import digest, hash_of, pack, unpack
from harness.gate.sketch import SIZE, TAIL, error_factors, estimate, exact, sketch


def test_sketch_is_linear() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 70_000))
    assert np.allclose(sketch(a) - 2 * sketch(b), sketch(a - 2 * b), atol=1e-9)


def test_matrix_never_changes() -> None:
    """A baseline that is in git is compared with sketches of later releases."""
    found = sketch(np.arange(1.0, 6.0))
    assert found[:3].tolist() == pytest.approx(
        [-5.824266343079205, -6.226884314368249, -3.091372647739247], abs=1e-12
    )


@pytest.mark.parametrize("kind", ["one element", "two elements", "dense", "across blocks"])
def test_estimate_has_the_stated_error(kind: str) -> None:
    """Of 4,000 distances, no more are beyond a bound than its probability says."""
    rng = np.random.default_rng(1)
    base = np.stack([sketch(row) for row in np.eye(64)])  # sketches of the unit vectors
    ratios = []
    for trial in range(4000):
        d = np.zeros(64)
        if kind == "one element":
            d[trial % 64] = 1.0
        elif kind == "two elements":
            d[rng.choice(64, 2, replace=False)] = 1.0, -1.0
        else:
            d = rng.standard_normal(64)
        if kind == "across blocks":
            d[32:] *= 100.0
        turned = base * rng.choice([-1.0, 1.0], size=(64, 1))  # other matrices of the same law
        ratios.append(np.linalg.norm(d @ turned) / math.sqrt(SIZE) / np.linalg.norm(d))
    low, high = error_factors()
    beyond = np.mean([not 1 / high <= ratio <= 1 / low for ratio in ratios])
    assert beyond < 40 * TAIL
    if kind != "one element":  # only 64 differ
        assert np.mean(np.square(ratios)) == pytest.approx(1.0, abs=0.15)


def test_error_bounds_are_quantiles_of_chi_squared() -> None:
    """Simulated: sums of 12 squares of normal numbers, not the closed form that is tested."""
    rng = np.random.default_rng(2)
    sums = np.sum(rng.standard_normal((400_000, SIZE)) ** 2, axis=1)
    low, high = error_factors()
    for share in (np.mean(sums > SIZE / low**2), np.mean(sums < SIZE / high**2)):
        assert share == pytest.approx(TAIL, rel=0.5)


def test_bounds_hold_a_distance_that_is_known() -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal((40, 500))
    b = a + 1e-5 * rng.standard_normal(a.shape)
    found, true = estimate(sketch(a), sketch(b)), exact(a, b)
    assert found.low <= true.value <= found.high
    assert true.exact
    assert not found.exact
    twice = estimate(sketch(a), sketch(a + 20 * (b - a)))
    assert twice.low > true.value  # a distance twenty times as large is told apart


def test_digest_counts_what_is_not_finite_and_leaves_it_out() -> None:
    found = digest(np.array([3.0, np.nan, -4.0, np.inf], np.float32))
    assert (found.norm, found.largest, found.not_finite) == (5.0, 4.0, 2)
    assert np.array_equal(found.sketch, sketch(np.array([3.0, 0.0, -4.0, 0.0])))


def test_hash_tells_bits_shape_and_dtype_apart() -> None:
    zero = np.zeros((2, 3), np.float32)
    others: list[NDArray[Any]] = [
        -zero,
        zero.reshape(3, 2),
        zero.astype(np.float64),
        np.zeros((2, 3), np.int32),
    ]
    assert len({hash_of(each) for each in [zero, *others]}) == 5
    assert hash_of(zero) == hash_of(np.zeros((2, 3), np.float32))
    assert hash_of(np.asfortranarray(zero)) == hash_of(zero)


def test_packed_sketch_is_the_same_to_float32() -> None:
    numbers = sketch(np.arange(100.0))
    assert np.array_equal(unpack(pack(numbers)), numbers.astype(np.float32))
