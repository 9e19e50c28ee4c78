"""Sketches: a few numbers of an array from which its distance to another one can be told.

A sketch of an array x of n elements is G x, G a fixed matrix [12, n] of independent standard
normal numbers. The sketch of a difference is the difference of the sketches, and each of its 12
numbers is normal with variance ||d||**2, whatever d is. So their mean square E estimates
||d||**2 without bias, and 12 E / ||d||**2 follows the chi-squared distribution with 12 degrees of
freedom *exactly*: that is the stated error. (W. Johnson and J. Lindenstrauss, Extensions of
Lipschitz mappings into a Hilbert space, 1984; the exact distribution is that of any sum of
squares of normal numbers.)

The matrix is made from the raw words of the Philox generator, whose stream NumPy keeps for ever
(that of its normal numbers it does not), by the transform of G. Box and M. Muller, 1958.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

#: Numbers in a sketch.
SIZE = 12

#: Probability with which a distance lies above the upper bound, and below the lower one.
TAIL = 1e-4

_KEY = 0x6C6F67697473  # any constant will do, as long as it never changes
_BLOCK = 1 << 15  # elements whose part of the matrix is made at a time
_CACHED = 32  # such parts that are kept: 96 MiB


@dataclass(frozen=True, slots=True)
class Distance:
    """The L2 norm of a difference.

    Attributes:
        value: The norm, or its estimate.
        low: The norm is below this with probability :data:`TAIL` at most; ``value`` if exact.
        high: And above this.
    """

    value: float
    low: float
    high: float

    @property
    def exact(self) -> bool:
        """Whether it was computed from all elements."""
        return self.low == self.high


def sketch(array: Array) -> Floats:
    """The sketch [12] of an array of any shape; elements in C order, booleans as 0 and 1.

    What is not finite counts as 0: the number of those is kept beside a sketch.
    """
    flat = np.ascontiguousarray(array).reshape(-1).astype(np.float64)
    flat[~np.isfinite(flat)] = 0.0
    total = np.zeros(SIZE)
    for block, start in enumerate(range(0, flat.size, _BLOCK)):
        part = flat[start : start + _BLOCK]
        total += part @ _matrix(block)[: part.size]
    return total


def estimate(a: Floats, b: Floats) -> Distance:
    """The distance of two arrays of one shape, from their sketches."""
    value = float(np.linalg.norm(a - b)) / math.sqrt(SIZE)
    low, high = error_factors()
    return Distance(value, value * low, value * high)


def exact(a: Array, b: Array) -> Distance:
    """The distance of two arrays of one shape, from all elements that are finite in both."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    both = np.isfinite(x) & np.isfinite(y)
    value = float(np.linalg.norm(np.where(both, x, 0.0) - np.where(both, y, 0.0)))
    return Distance(value, value, value)


@lru_cache(maxsize=1)
def error_factors() -> tuple[float, float]:
    """What an estimated norm is to be multiplied with for the bounds on the norm.

    With s = sum of squares / ||d||**2 chi-squared of 12 degrees of freedom, ||d|| is the estimate
    times sqrt(12 / s).
    """
    above, below = _quantile(1 - TAIL), _quantile(TAIL)
    return math.sqrt(SIZE / above), math.sqrt(SIZE / below)


def _quantile(share: float) -> float:
    """Where the chi-squared distribution with 12 degrees of freedom has ``share`` below it."""
    low, high = 0.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle) < share else (low, middle)
    return low


def _below(x: float) -> float:
    """Distribution function for an even number of degrees of freedom, in closed form."""
    terms = (x / 2) ** np.arange(SIZE // 2)
    factorials = [math.factorial(i) for i in range(SIZE // 2)]
    return 1.0 - math.exp(-x / 2) * float(np.sum(terms / np.asarray(factorials, np.float64)))


@lru_cache(maxsize=_CACHED)
def _matrix(block: int) -> Floats:
    """Rows [_BLOCK, 12] of the matrix, for the elements from ``block * _BLOCK`` on."""
    words = np.random.Philox(key=[_KEY, block]).random_raw(SIZE * _BLOCK)
    unit = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1)
    radius, angle = np.split(unit, 2)
    radius, angle = np.sqrt(-2.0 * np.log(radius)), 2.0 * math.pi * angle
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return normal.reshape(_BLOCK, SIZE)
