"""Reading a config's rotary embedding, in every spelling that files have."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .config import ConfigReader, positive, unusable
from .errors import ConfigError
from .rope import SCALINGS, Rope

_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def read_rope(
    config: ConfigReader, *, dim: int, default_theta: float = 10000.0, partial: float | None = None
) -> Rope:
    """Read a config's rotary embedding, in the flat or in the nested spelling.

    ``rope_theta`` and ``rope_scaling`` at the top level are what transformers wrote before
    version 5; ``rope_parameters`` holds both since. A reader of one spelling takes the default
    theta for a file in the other, silently; here two spellings that disagree are an error.

    Args:
        config: The reader.
        dim: Number of elements of a head.
        default_theta: What the family takes where the config names no theta.
        partial: Which part of a head is rotated where the config does not name it; None for a
            family that rotates all of it.

    Raises:
        ConfigError: A scaling type or parameter that is unknown, absent or contradictory.
    """
    part = partial is not None
    new = _Spelling("rope_parameters", config.get("rope_parameters", {}), part=part)
    old = _Spelling("rope_scaling", config.get("rope_scaling", {}), part=part)
    if partial is not None:
        dim = _rotated(config, new, old, dim=dim, default=partial)
    return _read(config, new, old, dim=dim, flat_theta="rope_theta", default_theta=default_theta)


def read_rope_of_layer_types(
    config: ConfigReader, *, dim: int, default_thetas: Mapping[str, float]
) -> dict[str, Rope]:
    """Read a config whose full and sliding layers rotate each in its own way.

    ``rope_parameters`` then holds one object for each layer type. In the flat spelling
    ``rope_theta`` and ``rope_scaling`` speak of the full layers and ``rope_local_base_freq`` of
    the sliding ones, which are never scaled.

    Args:
        config: The reader.
        dim: Number of rotated elements of a head.
        default_thetas: Layer type to its theta where the config names none, for full_attention
            and sliding_attention.

    Raises:
        ConfigError: As :func:`read_rope`; ``rope_parameters`` that are not one object for each
            layer type, which transformers passes over.
    """
    given = config.get("rope_parameters", {})
    if not isinstance(given, Mapping) or set(given) - set(default_thetas):
        expected = "an object for each of " + " and ".join(sorted(default_thetas))
        raise unusable("rope_parameters", expected, given)
    scaling = {"full_attention": config.get("rope_scaling", {}), "sliding_attention": {}}
    flat = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
    return {
        kind: _read(
            config,
            _Spelling(f"rope_parameters.{kind}", given.get(kind, {})),
            _Spelling("rope_scaling", scaling[kind]),
            dim=dim,
            flat_theta=flat[kind],
            default_theta=theta,
        )
        for kind, theta in default_thetas.items()
    }


@dataclass(frozen=True, slots=True)
class _Spelling:
    """What one object of the config says, with the name of its key for messages.

    Attributes:
        part: Whether it may say that part of a head is rotated.
    """

    key: str
    said: Mapping[str, Any]
    part: bool = False

    def __post_init__(self) -> None:
        key, said = self.key, self.said
        if not isinstance(said, Mapping):
            raise unusable(key, "an object with rope_type", said)
        if not self.part and said.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise unusable(f"{key}.partial_rotary_factor", "1.0", said["partial_rotary_factor"])
        if "type" in said and "rope_type" in said and said["type"] != said["rope_type"]:
            raise _contradiction(f"{key}.type", said["type"], f"{key}.rope_type", said["rope_type"])


def _rotated(
    config: ConfigReader, new: _Spelling, old: _Spelling, *, dim: int, default: float
) -> int:
    """Number of rotated elements of a head."""
    name = "partial_rotary_factor"
    given = _agreed(
        (name, config.get(name)),
        (f"{new.key}.{name}", new.said.get(name)),
        (f"{old.key}.{name}", old.said.get(name)),
    )
    factor = default if given is None else positive(name, given)
    rotated = int(dim * factor)  # downwards, as measured
    if rotated > dim or rotated < 2 or rotated % 2:
        expected = f"a part of the {dim} elements of a head that is even, not {rotated}"
        raise unusable(name, expected, factor)
    return rotated


def _read(
    config: ConfigReader,
    new: _Spelling,
    old: _Spelling,
    *,
    dim: int,
    flat_theta: str,
    default_theta: float,
) -> Rope:
    if dim % 2:
        raise unusable("head_dim", "an even number, as pairs of elements are rotated", dim)
    max_positions = config.integer("max_position_embeddings")
    if new.said and old.said and _scaling_of(new.said) != _scaling_of(old.said):
        raise _contradiction(new.key, _scaling_of(new.said), old.key, _scaling_of(old.said))
    theta = _agreed(
        (flat_theta, config.get(flat_theta)),
        (f"{new.key}.rope_theta", new.said.get("rope_theta")),
        (f"{old.key}.rope_theta", old.said.get("rope_theta")),
    )
    given = dict(old.said) | dict(new.said)
    kind = _kind_of(given)
    if kind not in list(SCALINGS):
        raise unusable("rope_type", "one of " + ", ".join(SCALINGS), kind)
    name = "original_max_position_embeddings"
    trained = _agreed((name, config.get(name)), (f"{new.key}.{name}", given.get(name)))
    if trained is not None:
        given[name] = trained
    theta = positive("rope_theta", default_theta if theta is None else theta)
    if kind == "yarn" and theta == 1:
        raise unusable(flat_theta, "another number than 1 for rope type yarn", theta)
    if kind == "dynamic" and dim == 2:
        raise unusable("head_dim", "more than 2 for rope type dynamic", dim)
    return Rope(kind, theta, dim, max_positions, _read_scaling(kind, given, max_positions))


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
