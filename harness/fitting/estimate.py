"""One constant by weighted least squares, with an honest error.

The result of an op is ``y(c)``; a candidate has ``y(c*)`` and rounding. With the derivative ``t``
and the error ``r = found - y(c)``, both divided by the size of one rounding unit at each element,
``sum(t r) / sum(t t)`` is by how much the candidate's constant differs, to first order; where that
is much, Gauss-Newton steps follow (Nocedal and Wright 2006, section 10.3).

Rounding errors within one row have common parts (a norm's root, the table of a rotation), so that
the usual standard error would be too small. The one here lets errors of one group of rows be
correlated in any way: the sandwich of Liang and Zeger 1986, Longitudinal data analysis using
generalized linear models, equation 3. Columns are such groups as well (a channel that has nearly
one value everywhere is rounded in one way everywhere), and the two errors are added in squares, as
in Cameron, Gelbach and Miller 2011, Robust inference with multiway clustering, without what they
subtract. From few groups an error is itself uncertain: Student's t says by how much.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import UNIT_LIMIT
from ..replay.lane import rounded

Array = NDArray[Any]

#: A constant is excluded from so many standard errors on.
SIGMAS = 8.0

#: Rounding is at least so large, in units: the root mean square of an error between 0 and one half.
_LEAST = 0.3

#: An engine's own order of operations may be biased by so many times what those tried here are.
_ANOTHER = 2.0

_STEPS = 40

_LEAST_SHARE = 0.05

#: One element of so many may be left out of a fit that explains all others.
_OUTLIERS = 1000

#: Gives the result and its derivative to the constant at some elements, both [G, N].
Curve = Callable[[float], tuple[Array, Array]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a candidate's numbers say of a constant.

    Attributes:
        configured: What it should be.
        value: What it seems to be.
        error: Standard error.
        doubt: Factor on the error for few groups of rows; 1 for many.
        systematic: By how much a faultless candidate's rounding moves the value.
        left: Largest error that is left with this value, in rounding units.
        power: Sum of squared units that it explains.
    """

    configured: float
    value: float
    error: float
    doubt: float
    systematic: float
    left: float
    power: float

    @property
    def margin(self) -> float:
        """How far a faultless candidate's value may be from the configured one."""
        return self.systematic + SIGMAS * self.doubt * self.error

    @property
    def explains(self) -> bool:
        """Whether nothing but rounding is left."""
        return self.left <= UNIT_LIMIT

    @property
    def excludes(self) -> bool:
        """Whether the candidate computed with another value than the configured one."""
        return self.explains and abs(self.value - self.configured) > self.margin


@dataclass(frozen=True, slots=True)
class Sample:
    """Elements that a constant is fitted to, in rows.

    Attributes:
        found: What the candidate has, [G, N].
        size: Absolute size of one rounding unit, [G, N].
        groups: Label of each row's group, [G] integers; None where each row is one.
        dtype: Of the candidate.
    """

    found: Array
    size: Array
    dtype: str
    groups: Array | None = None

    @property
    def weight(self) -> Array:
        """How many rounding units 1 is.

        Where a result nearly cancels, its unit is tiny, and a handful of such elements would
        outweigh all others: no element counts for more than one with a share of the row's mean.
        """
        least = _LEAST_SHARE * self.size.mean(axis=-1, keepdims=True)
        weight: Array = 1 / (self.size + least)
        return weight


@dataclass(frozen=True, slots=True)
class Step:
    """One step of least squares: by how much, its error and what few groups cost."""

    change: float
    error: float
    doubt: float
    left: float
    power: float


def least_squares(
    tangent: Array, error: Array, weight: Array, groups: Array | None = None
) -> Step | None:
    """One step; None where nothing depends on the constant.

    Args:
        tangent: Derivative of the result to the constant, [G, N].
        error: What the candidate has beyond the result, [G, N].
        weight: Rounding units in 1, [G, N].
        groups: Label of each row's group.
    """
    t, r = tangent * weight, error * weight
    information = np.einsum("gn,gn->g", t, t)
    moment = np.einsum("gn,gn->g", t, r)
    total = float(information.sum())
    if not (total > 0 and math.isfinite(total) and np.isfinite(moment).all()):
        return None
    change = float(moment.sum()) / total
    r -= change * t
    left = max(float(r.max()), -float(r.min()))
    by_row = grouped_error(information, moment, change, groups)
    r *= t
    by_column = grouped_error(np.einsum("gn,gn->n", t, t), r.sum(axis=0), 0.0, None)
    spread, limit = np.hypot(by_row, by_column)
    return Step(change, float(spread), float(limit / spread), left, change * change * total)


def grouped_error(
    information: Array, moment: Array, change: float, groups: Array | None
) -> tuple[float, float]:
    """Standard error of a step, and the same with what few groups cost.

    Args:
        information: Sum of squared tangents of each row, in units.
        moment: Sum of products of tangents and errors.
        change: The step.
        groups: Label of each row's group.
    """
    if groups is not None:
        _, labels = np.unique(groups, return_inverse=True)
        labels = labels.reshape(-1)
        information = np.bincount(labels, weights=information)
        moment = np.bincount(labels, weights=moment)
    total = float(information.sum())
    count = 1 / float(np.square(information / total).sum())  # groups of equal weight
    own = _LEAST / math.sqrt(total)
    if count <= 1.5:
        return own, math.inf
    scores = moment - change * information
    spread = math.sqrt(float(np.square(scores).sum()) * count / (count - 1)) / total
    error = max(own, spread)
    return error, error * students(count - 1)


def students(freedom: float) -> float:
    """How much further out a limit is for so many degrees of freedom than for a normal variable.

    At :data:`SIGMAS`. Source: Wallace 1959, Bounds on normal approximations to Student's and the
    chi-square distributions, equation for t in terms of z, solved for t.
    """
    z = 0.5 * SIGMAS * (8 * freedom + 3) / (8 * freedom + 1)
    square = z * z / freedom
    if square > 50:
        return math.inf
    return max(1.0, math.sqrt(freedom * math.expm1(square)) / (0.5 * SIGMAS))


def estimate(
    sample: Sample,
    curve: Curve,
    configured: float,
    *,
    lowest: float = -math.inf,
    orders: Sequence[Callable[[float], Array]] = (),
) -> Estimate | None:
    """Fit one constant.

    Args:
        sample: What the candidate has.
        curve: The result and its derivative for any value of the constant.
        configured: Where to begin.
        lowest: The constant is larger than that.
        orders: The result as engines may round it on the way, [G, N], for any value.

    Returns:
        None where the data say nothing of it.
    """
    value, (result, tangent), weight = configured, curve(configured), sample.weight
    step = least_squares(tangent, sample.found - result, weight, sample.groups)
    if step is None:
        return None
    bias = partial(_bias, sample.dtype, weight, orders)
    systematic = bias(configured, result, tangent) + of_constant(configured, sample.dtype)
    power = 0.0
    for _ in range(_STEPS):
        change = step.change
        if value + change <= lowest:
            change = (lowest - value) / 2
        value += change
        power += step.power
        if change == step.change and _is_small(step, value):
            break
        result, tangent = curve(value)
        again = least_squares(tangent, sample.found - result, weight, sample.groups)
        if again is None:
            return None
        step = again
    if step.left > UNIT_LIMIT:
        better = _without_outliers(sample, result, tangent)
        if better is not None:
            value, step = value - step.change + better.change, better
    found = Estimate(configured, value, step.error, step.doubt, systematic, step.left, power)
    if not found.excludes:
        return found
    # What rounding does to the value that was found is part of its error.
    return replace(found, error=math.hypot(step.error, bias(value, *curve(value))))


def stored(x: Array, dtype: str) -> Array:
    """Numbers after a rounding to a dtype, in float64."""
    return rounded(x, dtype).astype(np.float64)


def of_constant(value: float, dtype: str) -> float:
    """What a constant may lose before it is used: a rounding to the dtype, two to float32."""
    return abs(float(rounded(np.array(value), dtype)) - value) + 2 * 2.0**-24 * abs(value)


def _is_small(step: Step, value: float) -> bool:
    """Whether another step would change nothing that matters."""
    return abs(step.change) <= max(1e-12 * abs(value), 0.1 * step.error)


def _bias(
    dtype: str,
    weight: Array,
    orders: Sequence[Callable[[float], Array]],
    value: float,
    result: Array,
    tangent: Array,
) -> float:
    """By how much the constant seems off where results are rounded, and nothing else is wrong.

    Rounding is no noise where many results lie close together, which are then rounded alike; nor
    where a rounded number is multiplied by a constant and rounded again: 1.01 m, for whole m of 8
    bits, is rounded down more often than up. So it is tried out: on the exact result, and in the
    orders in which engines work.
    """
    slope = tangent * weight
    slope *= weight
    total = float(np.vdot(slope, tangent))
    tried = [result, *(order(value) for order in orders)]
    most = max(abs(float(np.vdot(slope, stored(x, dtype) - result))) for x in tried)
    return _ANOTHER * most / total


def _without_outliers(sample: Sample, result: Array, tangent: Array) -> Step | None:
    """The last step without a few elements that nothing explains; None if they are more than few.

    What most rows say tells which they are: the median of the rows' own steps.
    """
    weight = sample.weight
    t, r = tangent * weight, (sample.found - result) * weight
    information = np.einsum("gn,gn->g", t, t)
    steps = np.einsum("gn,gn->g", t, r) / np.maximum(information, 1e-300)
    change = float(np.median(steps[information > 0]))
    far = np.abs(r - change * t) > UNIT_LIMIT
    if np.count_nonzero(far) * _OUTLIERS > far.size:
        return None
    kept, error = np.where(far, 0.0, tangent), np.where(far, 0.0, sample.found - result)
    return least_squares(kept, error, weight, sample.groups)
