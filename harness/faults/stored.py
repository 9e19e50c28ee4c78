"""Stored parameters as a candidate holds them, and numbers that lie on the grid of a dtype."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..replay.lane import rounded
from ..replay.precision import DTYPES
from .fault import Site

Array = NDArray[Any]

#: Narrow dtypes that float32 models are computed in by mistake, the narrower one first.
NARROW = ("bfloat16", "float16")

_LAYER = re.compile(r"\.(\d+)\.")


def lift(site: Site, array: Array) -> Array:
    """A stored parameter, or rows of it, in float64 as a candidate of the site's dtype holds it."""
    return rounded(np.asarray(array), site.dtype).astype(np.float64)


def layer_of(name: str) -> int | None:
    """The layer in the name of a parameter, None if it has none."""
    found = _LAYER.search(f".{name}")
    return None if found is None else int(found[1])


def in_layer(name: str, layer: int) -> str:
    """The name of the same parameter in another layer."""
    return _LAYER.sub(f".{layer}.", f".{name}", count=1)[1:]


def short(name: str) -> str:
    """The end of a name that people know a parameter by: ``self_attn.q_proj.weight``."""
    return _LAYER.split(f".{name}", maxsplit=1)[-1]


def named(site: Site, index: int) -> str:
    """Name in the checkpoint of an input, empty if it is no parameter."""
    operand = site.call.inputs[index] if index < len(site.call.inputs) else None
    return "" if operand is None else operand.name


def siblings(site: Site, name: str) -> Iterator[str]:
    """Other parameters of the same layer and shape; those outside the layers for one of those."""
    known = site.facts.parameters
    if name not in known:
        return
    for other, array in known.items():
        if other != name and array.shape == known[name].shape and layer_of(other) == layer_of(name):
            yield other


def layers_of(site: Site, name: str) -> Iterator[tuple[int, str]]:
    """The same parameter in the other layers, the nearest first."""
    own = layer_of(name)
    if own is None:
        return
    places = {layer_of(other) for other in site.facts.parameters} - {None, own}
    for layer in sorted((p for p in places if p is not None), key=lambda p: abs(p - own)):
        other = in_layer(name, layer)
        known = site.facts.parameters
        if other in known and other != name and known[other].shape == known[name].shape:
            yield layer, other


def narrow(array: Array, dtype: str) -> Array:
    """Rounded to a narrower dtype, as float64."""
    return array.astype(DTYPES[dtype]).astype(np.float64)


def grid(site: Site) -> str:
    """The narrow dtype whose numbers all values of a float32 candidate are, empty if none."""
    found = site.found
    if site.dtype != "float32" or found is None or found.dtype.kind != "f" or found.size < 4:
        return ""
    few = found.reshape(-1)[:1024]
    with np.errstate(over="ignore"):
        for name in NARROW:
            if np.array_equal(narrow(few, name), few) and np.array_equal(
                narrow(found, name), found
            ):
                return name
    return ""


def comparable(site: Site) -> bool:
    """Whether the candidate has a value of the op's shape there."""
    return site.found is not None and site.found.shape == site.call.output.value.shape
