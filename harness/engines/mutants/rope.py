"""Mutants that break laws of rotary position embedding."""

from typing import Any

import torch

from ..plants.plant import Planting
from ..plants.rope import positions
from ..plants.rope_scaling import parameters
from .mutant import Mutant, Put, plant

Tensor = torch.Tensor


def _where_it_fits(fault: str, name: str) -> Put:
    """A plant of the catalogue, in models of whose config it is one."""
    found = plant(fault, name)

    def put(at: Planting) -> None:
        if not found.reason(at.config):
            found.put(at)

    return put


def _whole_head(at: Planting) -> None:
    """Rotate all of a head where a part was to be."""
    parameters(partial_rotary_factor=1.0)(at)
    module: Any = at.attention_module()
    module.rotary_ndims = module.head_dim


def _long_always(at: Planting) -> None:
    """LongRoPE's long list for any length."""
    rope = at.config.rope_parameters
    if rope.get("rope_type") == "longrope":
        parameters(short_factor=lambda config: config.rope_parameters["long_factor"])(at)


def _catalogued(name: str, fault: str, plant_name: str, says: str, **more: Any) -> Mutant:
    return Mutant(name=name, says=says, put=_where_it_fits(fault, plant_name), **more)


MUTANTS = (
    _catalogued(
        *("rope-neighbours", "rope-pairing", "neighbours"),
        "neighbouring elements are rotated in a checkpoint of two halves",
    ),
    _catalogued(
        *("rope-laid-out-otherwise", "rope-output-layout", "as neighbours"),
        "what is rotated in halves is handed on as neighbours",
    ),
    _catalogued(
        *("rope-reflected", "rope-sign", "plus"),
        "the sine of the first half has no minus",
    ),
    _catalogued(
        *("rope-tables-narrow", "rope-tables-narrow", "bfloat16"),
        "cosines and sines are rounded to bfloat16",
    ),
    _catalogued(
        *("rope-factor-twice", "rope-attention-factor", "twice"),
        "YaRN's attention factor is applied twice",
    ),
    _catalogued(
        *("rope-factor-missing", "rope-attention-factor", "left out"),
        "YaRN's attention factor is left out",
    ),
    _catalogued(
        *("rope-one-later", "rope-offset", "one later"),
        "positions begin at 1",
    ),
    _catalogued(
        *("rope-sine-first", "rope-sin-cos", "exchanged"),
        "cosine and sine are exchanged",
    ),
    _catalogued(
        *("rope-theta-other", "rope-theta", "theta 99,000"),
        "the base is another",
    ),
    _catalogued(
        *("rope-linear-squared", "rope-linear-inverse", "divided twice"),
        "positions are divided by the linear factor twice",
    ),
    _catalogued(
        *("rope-dynamic-always", "rope-dynamic-fixed", "base raised always"),
        "dynamic scaling raises the base whatever the length",
    ),
    _catalogued(
        *("rope-llama3-ignored", "rope-llama3-ignored", "as type default"),
        "scaling of type llama3 is passed over",
    ),
    _catalogued(
        *("rope-yarn-ignored", "rope-yarn-ignored", "as type default"),
        "scaling of type yarn is passed over",
    ),
    _catalogued(
        *("rope-yarn-truncated-otherwise", "rope-yarn-truncate", "the other way"),
        "the ends of YaRN's passage are rounded to whole pairs where they are not, and so on",
    ),
    _catalogued(
        *("rope-layer-types-alike", "rope-layer-types", "full as sliding"),
        "full layers turn as sliding ones do",
        family="gemma3_text",
    ),
    Mutant(
        name="rope-long-factors-always",
        says="LongRoPE takes the long list for any length",
        put=_long_always,
    ),
    Mutant(
        name="rope-whole-head",
        says="whole heads are rotated where a part is to be",
        put=_whole_head,
        family="stablelm",
        everywhere=True,
    ),
    _catalogued(
        *("rope-table-9", "rope-table-short", "ends at 9"),
        "tables end at position 9, and the last entry stands for all behind it",
    ),
    Mutant(
        name="rope-table-4096",
        says="tables end at position 4,096",
        put=positions(lambda ids: ids.clamp(max=4096)),
    ),
    _catalogued(
        *("rope-positions-narrow", "rope-positions-narrow", "bfloat16"),
        "positions are rounded to bfloat16",
    ),
    _catalogued(
        *("rope-angles-narrow", "rope-angles-narrow", "float16"),
        "angles are formed in float16",
    ),
)
