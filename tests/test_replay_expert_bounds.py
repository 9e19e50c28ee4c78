"""Choices of experts: a tie at rounding level may flip, another choice is a fault."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.contract import UNIT_LIMIT
from harness.replay.bounds import Call, Operand, unit
from harness.replay.precision import precision
from references import ops

Array = NDArray[Any]


def units(logits: list[float], chosen: list[int], *, count: int, dtype: str = "float32") -> Array:
    """Units of each expert, if a candidate with these logits chose these experts."""
    value = np.array([[logits]])
    expected = ops.top_experts(value, count=count)
    rounding = precision(dtype)
    call = Call(Operand(expected), (Operand(value),), {"count": count}, rounding)
    bound = unit(ops.top_experts, call).astype(np.float64)
    assert np.isfinite(bound).all()
    found = np.isin(np.arange(len(logits)), chosen)
    size = bound * rounding.unit_roundoff + rounding.underflow
    result: Array = (np.abs(found.astype(float) - expected) / size)[0, 0]
    return result


ULP = 2.0**-23  # of numbers between 1 and 2 in float32


def test_the_right_choice_is_exact() -> None:
    assert (units([3.0, 1.0, 2.0, 0.0], [0, 2], count=2) == 0).all()


@pytest.mark.parametrize(("dtype", "near"), [("float32", ULP), ("bfloat16", 2.0**-7)])
def test_neighbours_may_flip(dtype: str, near: float) -> None:
    """They differ by one step of the dtype; probabilities may not tell them apart."""
    flipped = units([3.0, 1.0, 1.0 + near, 0.0], [0, 1], count=2, dtype=dtype)
    assert 0 < flipped.max() < UNIT_LIMIT / 2
    assert (flipped[[0, 3]] == 0).all()


def test_equals_may_flip() -> None:
    assert 0 < units([3.0, 1.0, 1.0, 0.0], [0, 2], count=2).max() < 0.1


@pytest.mark.parametrize(
    ("chosen", "wrong"),
    [([0, 3], [2, 3]), ([1, 2], [0, 1]), ([0], [2]), ([0, 1, 2], [1])],
    ids=["a smaller one", "without the largest", "too few", "too many"],
)
def test_another_choice_is_a_fault(chosen: list[int], wrong: list[int]) -> None:
    found = units([3.0, 1.0, 2.0, 0.0], chosen, count=2)
    assert (found[wrong] > 1e4).all()
    assert np.count_nonzero(found) == len(wrong)


def test_a_far_choice_is_a_fault_beside_a_tie() -> None:
    """The largest is left out for one of two equals: the equals are excused, it is not."""
    found = units([3.0, 1.0, 1.0, 0.0], [1, 2], count=2)
    assert found[0] > 1e4
    assert found[2] < 0.1


def test_units_are_the_gap_in_roundings() -> None:
    gaps = np.array([2.0, 4.0, 8.0]) * ULP
    found = [units([1.0, 1.0 + gap], [0], count=1).max() for gap in gaps]
    assert np.allclose(np.diff(np.log2(found)), 1.0, atol=1e-3)


def test_nobody_can_choose_wrongly_where_all_are_chosen() -> None:
    assert (units([1.0, 2.0], [0, 1], count=2) == 0).all()
    assert units([1.0, 2.0], [0], count=2).max() > 1e9


def test_the_distance_from_the_largest_widens_a_tie() -> None:
    """Exponentials of distant logits are off by more, in proportion."""
    near = units([1.0, 1.0 + ULP], [0], count=1).max()
    far = units([40.0, 1.0, 1.0 + ULP], [0, 1], count=2).max()
    assert far < near / 10


def test_a_carried_bound_widens_a_tie() -> None:
    value = np.array([[[1.0, 1.001, 0.0]]])
    rounding = precision("float32")
    chosen = Operand(ops.top_experts(value, count=1))
    constants = {"count": 1}
    plain = unit(ops.top_experts, Call(chosen, (Operand(value),), constants, rounding))
    carried = Operand(value, np.full(value.shape, 1e4))
    wide = unit(ops.top_experts, Call(chosen, (carried,), constants, rounding))
    assert (wide > 1e3 * plain).all()


def test_experts_whose_probability_vanishes_may_be_confused() -> None:
    assert units([200.0, 1.0, 2.0], [0, 1], count=2).max() < UNIT_LIMIT / 2
    assert units([20.0, 1.0, 2.0], [0, 1], count=2).max() > 1e4
