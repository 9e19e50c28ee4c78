"""Frequencies of rotary position embeddings, for every scaling type of Llama's config.

All in float64. Frequencies are radians per position, one for each pair of a head.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Frequencies = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rotation:
    """What rotates queries and keys in one forward pass.

    Attributes:
        frequencies: [R/2] radians per position, R the rotated elements of a head.
        attention_factor: Multiplies cosine and sine.
    """

    frequencies: Frequencies
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """A config's rotary embedding.

    Attributes:
        kind: Scaling type: default, linear, dynamic, llama3 or yarn.
        theta: Base of the geometric series of frequencies.
        dim: Number of rotated elements of a head.
        max_positions: ``max_position_embeddings`` of the config.
        scaling: Parameters of the scaling type.
    """

    kind: str
    theta: float
    dim: int
    max_positions: int
    scaling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def longest(self) -> int | None:
        """Length that the model was made for, None where the scaling grows with the sequence."""
        return None if self.kind == "dynamic" else self.max_positions

    def at(self, length: int) -> Rotation:
        """The rotation for a forward pass whose last position is ``length - 1``."""
        return SCALINGS[self.kind].rotation(self, length)


def base_frequencies(theta: float, dim: int) -> Frequencies:
    """``theta ** (-2 i / dim)`` for each pair ``i``.

    Source: Su et al. 2021, RoFormer, section 3.2.2.
    """
    exponents: Frequencies = -np.arange(0, dim, 2, dtype=np.float64) / dim
    return np.power(theta, exponents)


def _default(rope: Rope, length: int) -> Rotation:
    return Rotation(base_frequencies(rope.theta, rope.dim))


def _linear(rope: Rope, length: int) -> Rotation:
    """Positions divided by the factor (Chen et al. 2023, Position Interpolation, equation 4)."""
    return Rotation(base_frequencies(rope.theta, rope.dim) / rope.scaling["factor"])


def _dynamic(rope: Rope, length: int) -> Rotation:
    """NTK-aware base that grows with the sequence beyond the trained length.

    Source: Peng et al. 2023, YaRN, section 3.3 (Dynamic NTK) and appendix A.1 for the base, with
    the scale ``factor * length / trained - (factor - 1)`` that Hugging Face configs mean.
    """
    factor = rope.scaling["factor"]
    longest = max(length, rope.max_positions)
    scale = factor * longest / rope.max_positions - (factor - 1)
    theta = rope.theta * scale ** (rope.dim / (rope.dim - 2))
    return Rotation(base_frequencies(theta, rope.dim))


def _llama3(rope: Rope, length: int) -> Rotation:
    """Long wavelengths stretched by the factor, short ones kept, a linear passage between.

    Source: Grattafiori et al. 2024, The Llama 3 Herd of Models, section 3.4.2, and the rope_scaling
    keys of the Llama 3.1 model card.
    """
    scaling = rope.scaling
    frequencies = base_frequencies(rope.theta, rope.dim)
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)  # share of the unscaled frequency
    return Rotation(frequencies * (kept + (1 - kept) / scaling["factor"]))


def _yarn(rope: Rope, length: int) -> Rotation:
    """Interpolation by parts: fast pairs kept, slow pairs divided by the factor.

    Source: Peng et al. 2023, YaRN, sections 3.2 and 3.4. The passage is linear in the pair's
    index between the pairs that turn beta_fast and beta_slow times within the trained length, as
    in the authors' released code, not linear in the number of turns as the text has it.
    """
    scaling = rope.scaling
    factor, trained = scaling["factor"], scaling["original_max_position_embeddings"]

    def pair_turning(times: float) -> float:
        turns_of_first = trained / (2 * math.pi)
        return rope.dim * math.log(turns_of_first / times) / (2 * math.log(rope.theta))

    first, last = pair_turning(scaling["beta_fast"]), pair_turning(scaling["beta_slow"])
    if scaling["truncate"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dim - 1)
    last = last if last != first else first + 0.001
    slow = np.clip((np.arange(rope.dim // 2) - first) / (last - first), 0.0, 1.0)
    frequencies = base_frequencies(rope.theta, rope.dim)
    return Rotation(
        frequencies * (1 - slow) + frequencies / factor * slow,
        scaling["attention_factor"],
    )


@dataclass(frozen=True, slots=True)
class Scaling:
    """One scaling type: how it computes, and which parameters it has.

    Attributes:
        rotation: From a rope and the length of the sequence to its rotation.
        required: Parameters that must be given.
        optional: Parameters that may be given, with their defaults.
    """

    rotation: Callable[[Rope, int], Rotation]
    required: tuple[str, ...] = ()
    optional: Mapping[str, Any] = field(default_factory=dict)


_YARN_OPTIONS = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,
    "attention_factor": None,
    "mscale": None,
    "mscale_all_dim": None,
    "original_max_position_embeddings": None,
}

SCALINGS = {
    "default": Scaling(_default),
    "linear": Scaling(_linear, required=("factor",)),
    "dynamic": Scaling(
        _dynamic, required=("factor",), optional={"original_max_position_embeddings": None}
    ),
    "llama3": Scaling(
        _llama3,
        required=("factor", "low_freq_factor", "high_freq_factor"),
        optional={"original_max_position_embeddings": None},
    ),
    "yarn": Scaling(_yarn, required=("factor",), optional=_YARN_OPTIONS),
}
