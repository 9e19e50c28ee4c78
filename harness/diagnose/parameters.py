"""Mistakes in parameters, for a candidate that shows the parameters it holds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..faults.fault import Fault, Instead, Site
from ..replay.lane import rounded
from ..result import WeightDifference
from ..verdict import describe_weight

Array = NDArray[Any]

#: Topic of the fault that is named where a parameter differs and no other mistake explains how.
OTHER_VALUES = "weights.values"


def held_instead(
    site: Site,
    differing: Sequence[WeightDifference],
    shown: Mapping[str, Array],
    faults: Sequence[Fault],
) -> Iterator[tuple[Fault, str]]:
    """Mistakes that make exactly the parameters which a candidate holds, each with its detail.

    Args:
        site: The op that reads the parameters.
        differing: Those that the candidate holds otherwise than the checkpoint.
        shown: What it holds, by name.
        faults: The mistakes to try.
    """
    wanted = {weight.name for weight in differing}
    named = False
    for fault in faults:
        if site.kind not in fault.kinds:
            continue
        for instead in fault.variant(site):
            made = _parameters_of(site, instead)
            if wanted <= set(made) and all(_is(shown[k], v) for k, v in made.items()):
                named = True
                yield fault, instead.detail
                break
    for fault in faults:
        if not named and fault.topic == OTHER_VALUES and site.kind in fault.kinds:
            yield fault, "; ".join(describe_weight(weight) for weight in differing)


def _parameters_of(site: Site, instead: Instead) -> dict[str, Array]:
    """Parameters that a mistake changes, by name; none if it changes anything else too."""
    constants = site.call.constants
    if instead.op is not site.op or len(instead.inputs) != len(site.call.inputs):
        return {}
    if any(instead.constants.get(name) is not value for name, value in constants.items()):
        return {}
    pairs = zip(site.call.inputs, instead.inputs, strict=True)
    changed = [(old, new) for old, new in pairs if new is not old]
    if any(old is None or new is None or not old.name for old, new in changed):
        return {}
    return {old.name: new.value for old, new in changed if old is not None and new is not None}


def _is(held: Array, made: Array) -> bool:
    """Whether a parameter is what a mistake makes of it, up to one rounding."""
    if held.shape != made.shape:
        return False
    exact = rounded(made, str(held.dtype)).astype(np.float64)
    held = held.astype(np.float64)
    slack = 2 * float(np.finfo(np.float32).eps) * np.abs(exact) if held.size else 0.0
    return bool(np.all(np.abs(held - exact) <= slack))
