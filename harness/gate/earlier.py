"""Why the side before differed, where the side after is right and a baseline is all that is left.

Up to the first divergence both sides agree, so the inputs of that op are those of the side after,
which are all there. Each mistake of the catalogue is made on them; one whose outcome has the
baseline's sketch, up to rounding, is what the side before did. A release that mends a bug is told
from one that brings it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnose.evaluate import evaluate
from ..faults.fault import Facts, Fault, Instead, Site
from ..replay.call import Made
from ..result import Cause, Diagnosis, Evidence
from .digest import Digest
from .replayed import Stored
from .result import TapChange
from .sketch import estimate, sketch

Array = NDArray[Any]

#: A mistake has to take away so much of the distance, so that one that changes nothing never does.
_TAKEN = 0.5


@dataclass(frozen=True, slots=True)
class Earlier:
    """The op at which two sides part.

    Attributes:
        name: Of the side before.
        change: The intermediate, with what rounding explains.
        tap: Its name in the table of taps.
        kept: What the baseline has of it.
        stored: From the axes of the table to the order in which it was recorded.
    """

    name: str
    change: TapChange
    tap: str
    kept: Digest
    stored: Stored


class Watch:
    """Keeps the op at which two sides part while a run is replayed.

    Args:
        earlier: The op; None to keep nothing.
    """

    def __init__(self, earlier: Earlier | None) -> None:
        self._earlier = earlier
        self._seen = 0
        self.made: Made | None = None

    def __call__(self, passed: str, made: Made) -> None:
        """Look at an op; its chunk is the number of times that it came before in the pass."""
        earlier = self._earlier
        if earlier is None or (passed, made.tap) != (earlier.change.passed, earlier.tap):
            return
        if self._seen == earlier.change.chunk:
            self.made = made
        self._seen += 1


def explain(
    earlier: Earlier, made: Made, facts: Facts, faults: Iterable[Fault]
) -> Diagnosis | None:
    """Mistakes that give what the side before has at an op, the most plausible first.

    Args:
        earlier: The op.
        made: Its evaluation in float64 on the inputs of the side after.
        facts: Config, parameters and tokens.
        faults: What to try.

    Returns:
        None if no mistake does; one without causes where some could not be tried.
    """
    site = Site(
        tap=earlier.tap,
        op=made.op,
        call=made.call,
        found=None,
        facts=facts,
        chunk=earlier.change.chunk,
        dtype=made.call.precision.name,
    )
    usual = _distance(earlier, made, None)
    found: dict[str, tuple[float, Fault, str]] = {}
    broken: list[str] = []
    for fault in faults:
        if site.kind not in fault.kinds:
            continue
        for way, distance in _tried(earlier, made, fault, site, broken):
            best = found.get(fault.id, (np.inf, fault, ""))
            near = distance <= min(earlier.change.allowance, _TAKEN * usual)
            if near and distance < best[0]:
                found[fault.id] = (distance, fault, way)
    if not found and not broken:
        return None
    ranked = sorted(found.values(), key=lambda each: (-each[1].common, each[0]))
    place = (earlier.change.passed, earlier.change.chunk, earlier.tap)
    return Diagnosis(
        candidate=earlier.name,
        prompt=place[0],
        chunk=place[1],
        tap=place[2],
        places=(place,),
        causes=tuple(_cause(each, usual) for each in ranked),
        observations=tuple(broken),
    )


def _tried(
    earlier: Earlier, made: Made, fault: Fault, site: Site, broken: list[str]
) -> Iterator[tuple[str, float]]:
    """Every way of a mistake, and how far its outcome is from what the baseline has.

    What keeps a mistake from being tried is a bug of ours; it goes into ``broken``.
    """
    try:
        for way in fault.variant(site):
            yield way.detail, _distance(earlier, made, way)
    except Exception as error:
        broken.append(f"{fault.id} could not be tried: {type(error).__name__}: {error}")


def _distance(earlier: Earlier, made: Made, way: Instead | None) -> float:
    """From the outcome of an op, or of a mistake in its place, to what the baseline has."""
    instead = {} if way is None else {id(made.call): way}
    value = made.call.output if way is None else evaluate(made, instead, bounded=False)
    if value is None:
        return np.inf
    stored = earlier.stored(np.asarray(value.value))
    if stored.size != np.prod(earlier.change.shape_before):
        return np.inf
    return estimate(sketch(stored), earlier.kept.sketch).value


def _cause(each: tuple[float, Fault, str], usual: float) -> Cause:
    distance, fault, way = each
    return Cause(
        fault=fault.id,
        title=fault.title,
        detail=way,
        evidence=Evidence.SKETCH,
        explained=1.0 - (distance / usual) ** 2,
        units=None,
        advice=fault.advice,
        distinguish=fault.distinguish,
        reports=fault.links,
    )
