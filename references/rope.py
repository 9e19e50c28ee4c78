"""Frequencies of rotary position embeddings, for every scaling type of Llama's config.

All in float64. Frequencies are radians per position, one for each pair of a head.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import ConfigReader, positive, unusable
from .errors import ConfigError

Frequencies = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rotation:
    """What rotates queries and keys in one forward pass.

    Attributes:
        frequencies: [D/2] radians per position.
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


def _yarn_attention_factor(scaling: Mapping[str, Any]) -> float:
    """``0.1 m ln(factor) + 1`` (YaRN, equation 22), or the ratio of two such terms."""
    factor: float = scaling["factor"]
    given: float | None = scaling["attention_factor"]

    def magnitude(multiplier: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0

    if given is not None:
        return given
    if scaling["mscale"] is not None and scaling["mscale_all_dim"] is not None:
        return magnitude(scaling["mscale"]) / magnitude(scaling["mscale_all_dim"])
    return magnitude(1.0)


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

_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def read_rope(config: ConfigReader, *, dim: int, default_theta: float = 10000.0) -> Rope:
    """Read a config's rotary embedding, in the flat or in the nested spelling.

    ``rope_theta`` and ``rope_scaling`` at the top level are what transformers wrote before
    version 5; ``rope_parameters`` holds both since. A reader of one spelling takes the default
    theta for a file in the other, silently; here two spellings that disagree are an error.

    Args:
        config: The reader.
        dim: Number of rotated elements of a head.
        default_theta: What the family takes where the config names no theta.

    Raises:
        ConfigError: A scaling type or parameter that is unknown, absent or contradictory.
    """
    if dim % 2:
        raise unusable("head_dim", "an even number, as pairs of elements are rotated", dim)
    new, old = _spelling(config, "rope_parameters"), _spelling(config, "rope_scaling")
    max_positions = config.integer("max_position_embeddings")
    if new and old and _scaling_of(new) != _scaling_of(old):
        raise _contradiction("rope_parameters", _scaling_of(new), "rope_scaling", _scaling_of(old))
    theta = _agreed(
        ("rope_theta", config.get("rope_theta")),
        ("rope_parameters.rope_theta", new.get("rope_theta")),
        ("rope_scaling.rope_theta", old.get("rope_theta")),
    )
    given = old | new
    kind = _kind_of(given)
    if kind not in list(SCALINGS):
        raise unusable("rope_type", "one of " + ", ".join(SCALINGS), kind)
    name = "original_max_position_embeddings"
    trained = _agreed((name, config.get(name)), (f"rope_parameters.{name}", given.get(name)))
    if trained is not None:
        given[name] = trained
    theta = positive("rope_theta", default_theta if theta is None else theta)
    return Rope(kind, theta, dim, max_positions, _read_scaling(kind, given, max_positions))


def _spelling(config: ConfigReader, key: str) -> dict[str, Any]:
    """What one spelling says, empty if it is not there."""
    given = config.get(key, {})
    if not isinstance(given, Mapping):
        raise unusable(key, "an object with rope_type", given)
    if given.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise unusable(f"{key}.partial_rotary_factor", "1.0", given["partial_rotary_factor"])
    if "type" in given and "rope_type" in given and given["type"] != given["rope_type"]:
        raise _contradiction(f"{key}.type", given["type"], f"{key}.rope_type", given["rope_type"])
    return dict(given)


def _agreed(*spellings: tuple[str, Any]) -> Any:
    """The value that all spellings that are there agree on, None if none is there."""
    said = [(key, value) for key, value in spellings if value is not None]
    for key, value in said[1:]:
        if value != said[0][1]:
            raise _contradiction(*said[0], key, value)
    return said[0][1] if said else None


def _kind_of(given: Mapping[str, Any]) -> Any:
    return given.get("rope_type", given.get("type", "default"))


def _scaling_of(given: Mapping[str, Any]) -> dict[str, Any]:
    scaling = {k: v for k, v in given.items() if k not in _COMMON}
    return scaling | {"rope_type": _kind_of(given)}


def _contradiction(a: str, value_a: Any, b: str, value_b: Any) -> ConfigError:
    return ConfigError(
        "config.json",
        expected=f"{a} and {b} to say the same",
        found=f"{value_a!r} and {value_b!r}",
        advice="remove the one that the model was not trained with",
    )


def _read_scaling(kind: str, given: Mapping[str, Any], max_positions: int) -> dict[str, Any]:
    scaling = SCALINGS[kind]
    known = _COMMON | set(scaling.required) | set(scaling.optional)
    if kind == "default":
        known |= {"original_max_position_embeddings"}
    unknown = sorted(set(given) - known)
    if unknown:
        raise unusable(
            "rope_parameters",
            f"only the parameters of rope type {kind}: {', '.join(sorted(known))}",
            ", ".join(unknown),
        )
    values: dict[str, Any] = {
        name: positive(f"rope {name}", given[name]) if name in given else _absent(kind, name)
        for name in scaling.required
    }
    for name, default in scaling.optional.items():
        values[name] = _optional(name, given.get(name, default), default)
    if "original_max_position_embeddings" in values:
        trained = values["original_max_position_embeddings"] or max_positions
        values["original_max_position_embeddings"] = positive("rope trained length", trained)
    if kind == "yarn":
        values["attention_factor"] = _yarn_attention_factor(values)
    if kind == "llama3" and values["low_freq_factor"] >= values["high_freq_factor"]:
        low, high = values["low_freq_factor"], values["high_freq_factor"]
        raise unusable("rope high_freq_factor", f"more than low_freq_factor, {low}", high)
    return values


def _optional(name: str, value: Any, default: Any) -> Any:
    """An optional parameter; null and, for YaRN's magnitudes, 0 mean that it is not given."""
    if name == "truncate":
        if not isinstance(value, bool):  # null too: transformers takes it for false
            raise unusable("rope truncate", "true or false", value)
        return value
    if value is None or (name in ("mscale", "mscale_all_dim") and value == 0):
        return default
    return positive(f"rope {name}", value)


def _absent(kind: str, name: str) -> float:
    raise unusable(f"rope {name}", f"a positive number for rope type {kind}", None)
