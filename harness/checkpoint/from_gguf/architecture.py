"""What an architecture has to say about itself, and how that is held against a file.

One architecture is one small module: the metadata keys that it reads, its config.json, and a
table of tensors. Whatever the table does not name is refused, because a tensor or a setting that
is dropped silently is exactly the fault that this project looks for.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import CheckpointError
from .gguf_file import GgufFile, Shape

Array = npt.NDArray[np.float32]
Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Keys:
    """Metadata keys of an architecture, without its name in front.

    Attributes:
        required: Key to type; an absent one is an error.
        optional: Key to type; read where it is there.
        fixed: Key to the only values under which the conversion is right.
        harmless: Keys that change no number, not read.
    """

    required: Mapping[str, type]
    optional: Mapping[str, type] = field(default_factory=dict)
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Rule:
    """One tensor, or one per layer where the names contain `{n}`.

    Attributes:
        source: Name in the GGUF file.
        target: Hugging Face name; None for a tensor that ends up in the config instead.
        axes: Its shape in letters, or products of them (`H*D`), looked up in `Sizes`.
        group: Tensors of one group are optional together: all there or none (biases, an untied
            head). None: always there.
        transform: Makes the Hugging Face tensor of the stored one, without a change of shape.
    """

    source: str
    target: str | None
    axes: tuple[str, ...]
    group: str | None = None
    transform: Callable[[Array, Sizes], Array] | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor to write: its Hugging Face name, shape, and how it is made."""

    name: str | None
    shape: Shape
    transform: Callable[[Array, Sizes], Array] | None


@dataclass(frozen=True, slots=True)
class Source:
    """What the config is made of.

    Attributes:
        file: The GGUF file.
        facts: The architecture's metadata, checked, without its name in front of the keys.
        groups: Groups of optional tensors that the file holds.
    """

    file: GgufFile
    facts: Mapping[str, Any]
    groups: frozenset[str]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture.

    Attributes:
        name: Its `general.architecture`.
        keys: The metadata that it reads; `block_count` is always required.
        rules: All tensors that a file may hold.
        make_config: Builds the config.json.
        measure: Takes the sizes behind the letters of `Rule.axes` from that config.
    """

    name: str
    keys: Keys
    rules: tuple[Rule, ...]
    make_config: Callable[[Source], dict[str, Any]]
    measure: Callable[[Mapping[str, Any]], Sizes]


def read_facts(file: GgufFile, architecture: Architecture) -> dict[str, Any]:
    """Take the architecture's metadata out of a file.

    Raises:
        CheckpointError: One error that lists every key that is missing, unknown, or has a value
            that the conversion cannot honour.
    """
    prefix = f"{architecture.name}."
    keys = architecture.keys
    given = {k.removeprefix(prefix): v for k, v in file.metadata.items() if k.startswith(prefix)}
    typed = {**keys.required, **keys.optional}
    missing = sorted(prefix + key for key in keys.required if key not in given)
    unknown, unfit = [], []
    for key, value in given.items():
        if key in typed:
            if not _has_type(value, typed[key]):
                unfit.append(f"{prefix}{key} = {_short(value)}, not one {typed[key].__name__}")
        elif key in keys.fixed:
            if value not in keys.fixed[key]:
                unfit.append(f"{prefix}{key} = {_short(value)}, not {keys.fixed[key][0]!r}")
        elif key not in keys.harmless:
            unknown.append(f"{prefix}{key} = {_short(value)}")
    lines = []
    if missing:
        lines.append(f"missing ({len(missing)}): {', '.join(missing)}")
    if unknown:
        lines.append(f"unknown to the converter ({len(unknown)}): {', '.join(sorted(unknown))}")
    if unfit:
        lines.append(f"not convertible ({len(unfit)}): {', '.join(sorted(unfit))}")
    if lines:
        raise CheckpointError(
            str(file.path),
            expected=f"metadata of {architecture.name} that can be told in a config.json",
            found="; ".join(lines),
            advice="use the checkpoint in its original format, or convert it anew with a current "
            "convert_hf_to_gguf",
        )
    return {key: value for key, value in given.items() if key in typed}


def find_groups(file: GgufFile, rules: tuple[Rule, ...], layers: int) -> frozenset[str]:
    """Groups of which the file holds at least one tensor."""
    return frozenset(
        rule.group
        for rule in rules
        if rule.group is not None and any(name in file.tensors for name in _expand(rule, layers))
    )


def plan_targets(
    architecture: Architecture, config: Mapping[str, Any], groups: frozenset[str]
) -> dict[str, Target]:
    """Every tensor that the file must hold, by its GGUF name.

    Args:
        architecture: Whose table is used.
        config: What `make_config` built.
        groups: Groups of optional tensors that are present, and so expected completely.
    """
    sizes = architecture.measure(config)
    targets: dict[str, Target] = {}
    for rule in architecture.rules:
        if rule.group is not None and rule.group not in groups:
            continue
        shape = tuple(math.prod(sizes[part] for part in axis.split("*")) for axis in rule.axes)
        for n, source in enumerate(_expand(rule, sizes["L"])):
            name = rule.target.format(n=n) if rule.target is not None else None
            targets[source] = Target(name=name, shape=shape, transform=rule.transform)
    return targets


def _expand(rule: Rule, layers: int) -> list[str]:
    if "{n}" not in rule.source:
        return [rule.source]
    return [rule.source.format(n=n) for n in range(layers)]


def _has_type(value: object, wanted: type) -> bool:
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is wanted


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
