"""The rotations that a checkpoint's config names, for the variants of RoPE."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..references_seam import config as configs
from ..references_seam import rope as rotary
from ..references_seam import rope_config
from .fault import Site
from .rope_layout import frequencies_of, size_of

#: Layer types with the base that each has where the config names none.
_LAYER_TYPES = {"full_attention": 1e6, "sliding_attention": 1e4}


def ropes_of(site: Site) -> Mapping[str, rotary.Rope]:
    """The config's rotations by layer type; under an empty name where all layers share one."""
    raw = _without_part(site.facts.config)
    read = configs.ConfigReader(raw)
    given = raw.get("rope_parameters") or {}
    apart = any(kind in given for kind in _LAYER_TYPES) or "rope_local_base_freq" in raw
    if apart:
        return rope_config.read_rope_of_layer_types(
            read, dim=size_of(site), default_thetas=_LAYER_TYPES
        )
    return {"": rope_config.read_rope(read, dim=size_of(site))}


def _without_part(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A config that does not say which part of a head is rotated: the op's frequencies tell."""
    return {
        key: _without_part(value) if isinstance(value, Mapping) else value
        for key, value in raw.items()
        if key != "partial_rotary_factor"
    }


def rope_at(site: Site) -> rotary.Rope | None:
    """The rotation that this layer should use: the one whose frequencies the op has."""
    length = length_of(site)
    for rope in ropes_of(site).values():
        if np.allclose(rope.at(length).frequencies, frequencies_of(site), rtol=1e-12):
            return rope
    return None


def length_of(site: Site) -> int:
    """Number of positions up to the last one of this forward pass."""
    return int(np.asarray(site.constant("positions")).max()) + 1
