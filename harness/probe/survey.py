"""The ops that a model is made of, without computing any: what its config comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from ..references_seam import model as models
from ..references_seam import rope as rotary
from ..references_seam import step as seam
from ..taps import split


@dataclass(frozen=True, slots=True)
class Part:
    """One op of a model.

    Attributes:
        tap: Name of what it makes, None for what nobody compares.
        op: A function of :mod:`references.ops`.
        inputs: Parameters among its inputs; None for anything else.
        constants: What the config fixes.
    """

    tap: str | None
    op: seam.Op
    inputs: tuple[seam.Weight | None, ...]
    constants: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The tap without its layer."""
        return split(self.tap or "").kind


def survey(model: models.Model, length: int = 1) -> tuple[Part, ...]:
    """All ops of one forward pass over ``length`` tokens, in order.

    The model never looks inside what a step gives it, so that nothing has to be computed.
    """
    parts: list[Part] = []

    def step(tap: str | None, op: seam.Op, *inputs: seam.Handle, **constants: Any) -> seam.Handle:
        weights = tuple(x if isinstance(x, seam.Weight) else None for x in inputs)
        parts.append(Part(tap, op, weights, constants))
        return _NOTHING

    model.prefill(step, np.zeros((1, length), dtype=np.int64))
    return tuple(parts)


#: What a step that computes nothing gives.
_NOTHING = object()


def ropes(config: Any) -> tuple[rotary.Rope, ...]:
    """The rotary embeddings of a family's config, whatever their fields are called."""
    found: list[rotary.Rope] = []
    for value in _values(config):
        for rope in value.values() if isinstance(value, Mapping) else (value,):
            if isinstance(rope, rotary.Rope) and rope not in found:
                found.append(rope)
    return tuple(found)


def _values(config: Any) -> list[Any]:
    names = [f.name for f in fields(config)] if is_dataclass(config) else []
    return [getattr(config, name) for name in names]
