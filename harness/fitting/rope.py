"""Constants of a rotation, fitted to rotated queries or keys.

A pair of elements is a complex number, and a rotation multiplies it. So all that the heads of one
position say of a pair is ``c = sum(w conj(y) f)`` over them, with y the right result, f what the
candidate has and w the squared weight: its phase is by how much the angle is off, its size how
surely. Each constant is fitted to these phases, one for each position and pair; where they are
large they wrap, and a search over plausible values comes first.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..references_seam import ops
from .estimate import SIGMAS, Array, Estimate, grouped_error, of_constant, stored
from .rotations import Turn, turns
from .seen import Seen, thin

#: Phases within which a sine is as good as an angle, in radians.
_SMALL = 0.02

#: Positions that a search looks at.
_SEARCHED = 64

_UNIT = 2.0**-24

#: Phases up to which pairs are fitted one by one, in radians.
_TURNED = 0.5

#: Squared units that a pair must explain to be looked at: what is less excludes nothing.
_LEAST_POWER = 16.0

#: A constant that all pairs share is the better explanation if it explains so much of what the
#: frequencies of all pairs do.
_SHARED = 0.7

#: Roundings of float32 on the way to a frequency: the exponent, the power, the scaling.
_ROUNDINGS = 16


@dataclass(frozen=True, slots=True)
class Phases:
    """What all heads say of each position and pair.

    Attributes:
        positions: [P].
        torque: Imaginary part of c, [P, n]: the angle's error times its weight.
        along: Real part of c less the weight, [P, n]: the gain's error times its weight.
        weight: ``sum(w abs(y)**2)``, [P, n].
        twist: By how much tables of cosines and sines, rounded to the candidate's dtype, turn, [P,
            n] radians.
        gain: By how much such tables stretch.
    """

    positions: Array
    torque: Array
    along: Array
    weight: Array
    twist: Array
    gain: Array


def fit_rotation(seen: Seen) -> list[tuple[str, Estimate]]:
    """Every constant of a rotation; of those that turn, only the best where one is excluded."""
    frequencies = np.asarray(seen.call.constants["frequencies"], dtype=np.float64)
    at = thin(seen.found.shape, whole=True)
    times = np.asarray(seen.call.constants["positions"])[:, at[2]]
    if not times.size:
        return []
    phases = _phases(seen, at, times, frequencies)
    factor = float(seen.call.constants.get("attention_factor", 1.0))
    gain = _fit_gain(phases, factor, seen.call.precision.name)
    several = list(turns(frequencies, phases.positions, seen.config))
    fits = [(turn, _fit_turn(phases, turn)) for turn in several]
    near = [(turn, one) for turn, one in fits if one is not None]
    if any(one.excludes for _, one in near) or (gain is not None and gain.excludes):
        rounding = replace(seen, found=_rounded_all_along(seen, frequencies, factor))
        usual = _phases(rounding, at, times, frequencies)
        near = [(turn, _less_sure(one, _linear(usual, turn))) for turn, one in near]
        if gain is not None:
            own = float(usual.along.sum()) / float(usual.weight.sum())
            gain = _less_sure(gain, own * factor)
    found = [(turn.name, one) for turn, one in near]
    found += [] if gain is None else [("attention_factor", gain)]
    best = max(near, key=lambda pair: pair[1].power, default=None)
    pairs = _fit_pairs(seen, at, times, phases, frequencies, factor)
    excluded = any(one.excludes for _, one in found)
    shared = (
        excluded and best is not None and best[1].power >= _SHARED * (pairs.power if pairs else 0)
    )
    if pairs is not None and pairs.worst.excludes and not shared:
        return [("rope_frequency", pairs.worst)]
    if not excluded:
        return found
    if best is not None and best[1].excludes:
        turned = _turned(phases, *best)
        gain = _fit_gain(turned, factor, seen.call.precision.name)
    return list(_explained(seen, at, best, gain))


@dataclass(frozen=True, slots=True)
class Pairs:
    """The frequencies of all pairs, each fitted by itself.

    Attributes:
        worst: That which is surest to be another one, in radians per position.
        power: Sum of squared units that all of them explain.
    """

    worst: Estimate
    power: float


def _fit_pairs(
    seen: Seen,
    at: tuple[slice, ...],
    times: Array,
    phases: Phases,
    frequencies: Array,
    factor: float,
) -> Pairs | None:
    """Whether some pair turns at another frequency, where that is only a little different."""
    p = phases.positions[:, None]
    information, moment = p * p * phases.weight, p * phases.torque
    total = information.sum(axis=0)
    if not (total > 0).all():
        return None
    change = moment.sum(axis=0) / total
    powers = np.square(change) * total
    if np.abs(change * p).max() > _TURNED or float(powers.max()) < _LEAST_POWER:
        return None
    n = int(powers.argmax())
    error, limit = grouped_error(information[:, n], moment[:, n], float(change[n]), None)
    rounding = replace(seen, found=_rounded_all_along(seen, frequencies, factor))
    usual = _phases(rounding, at, times, frequencies).torque[:, n] * p[:, 0]
    twisted = (p[:, 0] * phases.weight[:, n] * phases.twist[:, n]).sum()
    own = (abs(float(usual.sum())) + abs(float(twisted))) / float(total[n])
    own += _ROUNDINGS * _UNIT * float(frequencies[n]) * (1 + abs(math.log(frequencies[n])))
    constants: dict[str, Any] = dict(seen.call.constants)
    constants["positions"] = np.asarray(constants["positions"])[:, at[2]]
    constants["frequencies"] = frequencies + change
    x = seen.call.input(0).value[at]
    left = float((np.abs(seen.found[at] - ops.rope(x, **constants)) / seen.size(at)).max())
    value = float(frequencies[n])
    one = Estimate(
        value, value + float(change[n]), error, limit / error, own, left, float(powers[n])
    )
    return Pairs(one, float(powers.sum()))


def _rounded_all_along(seen: Seen, frequencies: Array, factor: float) -> Array:
    """The right result with every product and sum rounded to the candidate's dtype."""
    dtype, n, x = seen.call.precision.name, len(frequencies), seen.call.input(0).value
    angles = np.asarray(seen.call.constants["positions"])[:, None, :, None] * frequencies
    cos, sin = stored(np.cos(angles) * factor, dtype), stored(np.sin(angles) * factor, dtype)
    first, second, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    parts = [
        stored(first * cos, dtype) - stored(second * sin, dtype),
        stored(second * cos, dtype) + stored(first * sin, dtype),
    ]
    return np.concatenate([*(stored(part, dtype) for part in parts), rest], axis=-1)


def _less_sure(one: Estimate, moved: float) -> Estimate:
    """An estimate that tolerates what rounding moves it by, where that is more."""
    return replace(one, systematic=max(one.systematic, abs(moved)))


def _linear(phases: Phases, turn: Turn) -> float:
    """By how much small phases move a constant."""
    slope = turn.slope(turn.configured, phases.positions)
    change = float((slope * phases.torque).sum() / (np.square(slope) * phases.weight).sum())
    return change * (abs(turn.configured) if turn.logarithmic else 1.0)


def _turned(phases: Phases, turn: Turn, one: Estimate) -> Phases:
    """What is left to say once a constant has the value that was found."""
    at = phases.positions
    moved = turn.angles(one.value, at) - turn.angles(turn.configured, at)
    wide = phases.weight + phases.along
    along = wide * np.cos(moved) + phases.torque * np.sin(moved) - phases.weight
    torque = phases.torque * np.cos(moved) - wide * np.sin(moved)
    return replace(phases, torque=torque, along=along)


def _phases(seen: Seen, at: tuple[slice, ...], times: Array, frequencies: Array) -> Phases:
    """Sums over heads, and over rows of a batch that are at the same position."""
    n = len(frequencies)
    y, f, size = seen.call.output.value[at], seen.found[at], seen.size(at)
    error = f - y
    w = np.square(1 / size[..., :n])
    y1, y2, r1, r2 = y[..., :n], y[..., n : 2 * n], error[..., :n], error[..., n : 2 * n]
    torque = ((y1 * r2 - y2 * r1) * w).sum(axis=1)  # [B, T, n]
    along = ((y1 * r1 + y2 * r2) * w).sum(axis=1)
    weight = ((y1 * y1 + y2 * y2) * w).sum(axis=1)
    positions, where = np.unique(times, return_inverse=True)
    where = where.reshape(-1)

    def summed(x: Array) -> Array:
        total = np.zeros((len(positions), n))
        np.add.at(total, where, x.reshape(-1, n))
        return total

    angles = positions[:, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    dtype = seen.call.precision.name
    d_cos = stored(cos, dtype) - cos
    d_sin = stored(sin, dtype) - sin
    return Phases(
        positions.astype(np.float64),
        summed(torque),
        summed(along),
        summed(weight),
        cos * d_sin - sin * d_cos,
        cos * d_cos + sin * d_sin,
    )


def _fit_gain(phases: Phases, factor: float, dtype: str) -> Estimate | None:
    """The attention factor: by how much results are longer than their inputs."""
    information, moment = phases.weight.sum(axis=1), phases.along.sum(axis=1)
    total = float(information.sum())
    if not total > 0:
        return None
    change = float(moment.sum()) / total
    rows = grouped_error(information, moment, change, None)
    pairs = grouped_error(phases.weight.sum(axis=0), phases.along.sum(axis=0), change, None)
    error, limit = (float(x) for x in np.hypot(rows, pairs))
    own = abs(float((phases.weight * phases.gain).sum())) / total
    own += of_constant(factor, dtype) / abs(factor)
    return Estimate(
        factor,
        factor * (1 + change),
        abs(factor) * error,
        limit / error,
        abs(factor) * own,
        0.0,
        change * change * total,
    )


def _fit_turn(phases: Phases, turn: Turn) -> Estimate | None:
    """One constant that turns, by a linear step or, where that is large, by search and steps."""
    slope = turn.slope(turn.configured, phases.positions)
    information = np.einsum("pn,pn->p", np.square(slope), phases.weight)
    total = float(information.sum())
    if not (total > 0 and math.isfinite(total)):
        return None
    moment = np.einsum("pn,pn->p", slope, phases.torque)
    change = float(moment.sum()) / total
    systematic = _systematic(phases, turn, slope, total)
    error, limit = grouped_error(information, moment, change, None)
    small = np.abs(change * slope).max() < _SMALL
    if small and abs(change) <= systematic + SIGMAS * limit:
        power = change * change * total
        return _as_estimate(turn, change, error, limit / error, systematic, power)
    return _search(phases, turn, systematic)


def _systematic(phases: Phases, turn: Turn, slope: Array, total: float) -> float:
    """What rounded tables and frequencies move a constant by, where no noise averages it out.

    A frequency is a float32 number, the power of a rounded exponent: its relative error is a few
    roundings of 1 and of its logarithm, and the same at every position.
    """
    tables = abs(float((phases.weight * slope * phases.twist).sum()))
    angles = np.abs(turn.angles(turn.configured, phases.positions))
    each = np.abs((phases.weight * slope * angles).sum(axis=0))
    last = max(1.0, float(phases.positions.max()))
    relative = _UNIT * 2 * (1 + np.abs(np.log(np.maximum(angles[-1], 1e-30) / last)))
    return (tables + float((each * relative).sum())) / total


def _search(phases: Phases, turn: Turn, systematic: float) -> Estimate | None:
    """Fit phases that may have wrapped: the best of many values, then steps."""
    wide = phases.weight + phases.along
    size, phase = np.hypot(wide, phases.torque), np.arctan2(phases.torque, wide)
    right = turn.angles(turn.configured, phases.positions)
    early = phases.positions <= _SEARCHED
    early = early if early.any() else np.ones_like(early)
    at = phases.positions[early]

    def agreement(value: float) -> float:
        moved = turn.angles(value, at) - right[early]
        return float((size[early] * np.cos(phase[early] - moved)).sum())

    value = max((turn.configured, *turn.tried), key=agreement)
    for kept in (early, np.ones_like(early)):
        value = _steps(phases.positions[kept], size[kept], phase[kept] + right[kept], turn, value)
    slope = turn.slope(value, phases.positions)
    left = size * np.sin(phase + right - turn.angles(value, phases.positions))
    information = np.einsum("pn,pn->p", np.square(slope), size)
    if not float(information.sum()) > 0:
        return None
    error, limit = grouped_error(information, np.einsum("pn,pn->p", slope, left), 0.0, None)
    moved = turn.angles(value, phases.positions) - right
    power = float((size * (np.cos(phase - moved) - np.cos(phase))).sum()) * 2
    change = _distance(turn, value)
    return _as_estimate(turn, change, error, limit / error, systematic, power)


def _steps(positions: Array, size: Array, angles: Array, turn: Turn, value: float) -> float:
    """Gauss-Newton from a value near the right one."""
    for _ in range(30):
        slope = turn.slope(value, positions)
        left = size * np.sin(angles - turn.angles(value, positions))
        total = float((size * np.square(slope)).sum())
        if not total > 0:
            return value
        change = float(np.clip((slope * left).sum() / total, -0.5, 0.5))
        value = turn.moved(value, change)
        if abs(change) < 1e-9:
            break
    return value


def _distance(turn: Turn, value: float) -> float:
    return float(np.log(value / turn.configured)) if turn.logarithmic else value - turn.configured


def _as_estimate(
    turn: Turn, change: float, error: float, doubt: float, systematic: float, power: float
) -> Estimate:
    """Steps of a logarithm are relative."""
    value = turn.moved(turn.configured, change)
    unit = abs(value) if turn.logarithmic else 1.0
    return Estimate(turn.configured, value, error * unit, doubt, systematic * unit, 0.0, power)


def _explained(
    seen: Seen,
    at: tuple[slice, ...],
    best: tuple[Turn, Estimate] | None,
    gain: Estimate | None,
) -> Iterator[tuple[str, Estimate]]:
    """The gain, and the turning constant that explains most, with what both leave."""
    constants: dict[str, Any] = dict(seen.call.constants)
    constants["positions"] = np.asarray(constants["positions"])[:, at[2]]
    if best is not None and best[1].excludes:
        turn, one = best
        if turn.name == "position_offset":
            constants["positions"] = constants["positions"] + one.value
        else:
            constants["frequencies"] = turn.angles(one.value, np.ones(1))[0]
    if gain is not None and gain.excludes:
        constants["attention_factor"] = gain.value
    x = seen.call.input(0).value[at]
    left = float((np.abs(seen.found[at] - ops.rope(x, **constants)) / seen.size(at)).max())
    if best is not None:
        yield best[0].name, replace(best[1], left=left)
    if gain is not None:
        yield "attention_factor", replace(gain, left=left)
