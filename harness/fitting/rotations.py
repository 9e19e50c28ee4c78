"""Which numbers a rotation is made of, and how its frequencies follow from each."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import config as reader
from ..references_seam import errors, rope, rope_config

Array = NDArray[Any]

_STEP = 1e-5


@dataclass(frozen=True, slots=True)
class Turn:
    """A constant that angles depend on.

    Attributes:
        name: As the config has it.
        configured: Its value.
        angles: Radians [P, n] of some positions [P] for any value of it.
        tried: Values that a search begins with, where the candidate's is far off.
        logarithmic: Whether it counts in ratios.
    """

    name: str
    configured: float
    angles: Callable[[float, Array], Array]
    tried: tuple[float, ...]
    logarithmic: bool = True

    def slope(self, value: float, positions: Array) -> Array:
        """Derivative [P, n] of the angles to the constant, or to its logarithm."""
        above, below = self.moved(value, _STEP), self.moved(value, -_STEP)
        change: Array = self.angles(above, positions) - self.angles(below, positions)
        return change / (2 * _STEP)

    def moved(self, value: float, change: float) -> float:
        """The constant after a step."""
        return value * float(np.exp(change)) if self.logarithmic else value + change


def turns(frequencies: Array, positions: Array, config: Mapping[str, Any]) -> Iterator[Turn]:
    """Every constant that the angles of a rotation depend on.

    Args:
        frequencies: [n] radians per position.
        positions: [P] that are rotated.
        config: config.json as written.
    """
    reach = int(positions.max()) + 1
    found = next(_ropes(frequencies, reach, config), None)
    if found is None:
        theta = plain_theta(frequencies)
        found = None if theta is None else rope.Rope("default", theta, 2 * len(frequencies), reach)
    if found is not None:
        yield _theta(found, reach)
        if "factor" in found.scaling:
            yield _factor(found, reach)
    several = np.arange(-64, 65)
    yield Turn(
        "position_offset",
        0.0,
        lambda offset, at: (at[:, None] + offset) * frequencies,
        tuple(float(x) for x in several),
        logarithmic=False,
    )


def plain_theta(frequencies: Array) -> float | None:
    """The base of unscaled frequencies; None for frequencies that are no plain series of powers."""
    count = len(frequencies)
    if count < 2 or frequencies[0] != 1.0 or not frequencies[1] > 0:
        return None
    theta = float(f"{(frequencies[0] / frequencies[1]) ** count:.12g}")
    usual = rope.base_frequencies(theta, 2 * count)
    return theta if np.allclose(usual, frequencies, rtol=1e-9, atol=0) else None


def _theta(found: rope.Rope, reach: int) -> Turn:
    def angles(theta: float, at: Array) -> Array:
        scaled: Array = at[:, None] * replace(found, theta=theta).at(reach).frequencies
        return scaled

    # Fine enough that no angle of the first positions moves by more than half a radian at a step.
    return Turn("rope_theta", found.theta, angles, tuple(np.exp(np.arange(2.0, 21.0, 0.1))))


def _factor(found: rope.Rope, reach: int) -> Turn:
    def angles(factor: float, at: Array) -> Array:
        other = replace(found, scaling={**found.scaling, "factor": factor})
        scaled: Array = at[:, None] * other.at(reach).frequencies
        return scaled

    tried = (1.0, *np.exp(np.arange(-1.0, 5.0, 0.02)))
    return Turn("factor", float(found.scaling["factor"]), angles, tried)


def _ropes(frequencies: Array, reach: int, config: Mapping[str, Any]) -> Iterator["rope.Rope"]:
    """Rotations of a config that have these frequencies."""
    for one in _read(config, 2 * len(frequencies)):
        made = one.at(reach).frequencies
        if made.shape == frequencies.shape and np.allclose(made, frequencies, rtol=1e-9, atol=0):
            yield one


def _read(config: Mapping[str, Any], dim: int) -> Iterator["rope.Rope"]:
    """Every rotation that a config speaks of; what cannot be read is for the family to refuse."""
    with suppress(errors.ConfigError):
        yield rope_config.read_rope(reader.ConfigReader(config), dim=dim)
    thetas = {"full_attention": 1e6, "sliding_attention": 1e4}
    with suppress(errors.ConfigError):
        read = reader.ConfigReader(config)
        yield from rope_config.read_rope_of_layer_types(
            read, dim=dim, default_thetas=thetas
        ).values()
