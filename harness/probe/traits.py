"""What of a model decides which faults an input can show."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..references_seam import model as models
from ..references_seam import ops
from ..references_seam import rope as rotary
from ..references_seam import step as seam
from .survey import Part, ropes, survey

#: Keys of the config that name a token that is not text, and what people call it.
_SPECIAL = {"bos_token_id": "BOS", "eos_token_id": "EOS", "pad_token_id": "pad"}

#: Ops whose third input is a bias.
_LINEAR = (ops.linear, ops.linear_heads, ops.linear_merged, ops.affine, ops.affine_merged)


@dataclass(frozen=True, slots=True)
class Traits:
    """What of a model decides which faults an input can show.

    Attributes:
        vocab: V.
        layers: Number of decoder layers.
        longest: Number of positions that the model was made for, None if it takes any.
        heads: H, 0 if no op says it.
        kv_heads: K, the same.
        windows: Size of each sliding window, and how many layers have it.
        ropes: Rotary embeddings; none where positions are learned.
        grows: Lengths beyond which a rotary embedding changes with the length.
        learned: Number of learned positions, 0 where there are none.
        table: The embedding.
        head: The weight that logits are made with.
        biases: Names of all biases of linear maps.
        kinds: Kinds of taps that the model has.
        special: Token ids that are no text, by what people call them.
    """

    vocab: int
    layers: int
    longest: int | None
    heads: int
    kv_heads: int
    windows: Mapping[int, int]
    ropes: tuple[rotary.Rope, ...]
    grows: tuple[int, ...]
    learned: int
    table: seam.Weight
    head: seam.Weight
    biases: tuple[str, ...]
    kinds: frozenset[str]
    special: Mapping[str, int]

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding."""
        return self.head.name == self.table.name


def read_traits(model: models.Model, raw: Mapping[str, Any]) -> Traits:
    """Look through a model and its config.json."""
    parts = survey(model)
    by_kind: dict[str, Part] = {}
    for part in parts:
        by_kind.setdefault(part.kind, part)
    windows: dict[int, int] = {}
    for part in parts:
        size = part.constants.get("window") if part.op is ops.visible else None
        if size is not None:
            windows[size] = windows.get(size, 0) + 1
    rotations = ropes(model.config)
    learned = by_kind.get("pos_embed")
    return Traits(
        vocab=model.config.vocab,
        layers=model.config.layers,
        longest=model.config.max_positions,
        heads=by_kind["attn.q"].constants.get("heads", 0),
        kv_heads=by_kind["attn.k"].constants.get("heads", 0),
        windows=dict(sorted(windows.items())),
        ropes=rotations,
        grows=tuple(sorted({length for rope in rotations for length in _grows(rope)})),
        learned=0 if learned is None else _weight(learned).array.shape[0],
        table=_weight(by_kind["embed"]),
        head=_weight(_head(by_kind)),
        biases=tuple(
            part.inputs[2].name
            for part in parts
            if part.op in _LINEAR and len(part.inputs) > 2 and part.inputs[2] is not None
        ),
        kinds=frozenset(by_kind),
        special=_special(raw, model.config.vocab),
    )


def _head(by_kind: Mapping[str, Part]) -> Part:
    """The product that makes logits, before anything that is done to them."""
    kinds = [kind for kind in by_kind if kind.startswith("logits")]
    return next(by_kind[kind] for kind in kinds if by_kind[kind].op in _LINEAR)


def _weight(part: Part) -> seam.Weight:
    return next(weight for weight in part.inputs if weight is not None)


def _grows(rope: rotary.Rope) -> list[int]:
    """Lengths beyond which the rotation is another one."""
    marks = {rope.max_positions, rope.scaling.get("original_max_position_embeddings")}
    return [int(mark) for mark in marks if mark and not _same(rope, int(mark), int(mark) + 1)]


def _same(rope: rotary.Rope, length: int, longer: int) -> bool:
    a, b = rope.at(length), rope.at(longer)
    factors = a.attention_factor == b.attention_factor
    return factors and bool(np.array_equal(a.frequencies, b.frequencies))


def _special(raw: Mapping[str, Any], vocab: int) -> dict[str, int]:
    """Special tokens of a config; of several ends of text the first."""
    found: dict[str, int] = {}
    for key, name in _SPECIAL.items():
        value = raw.get(key)
        first = value[0] if isinstance(value, list) and value else value
        if type(first) is int and 0 <= first < vocab:
            found[name] = first
    return found
