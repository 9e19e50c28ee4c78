"""Two sides, intermediate by intermediate: the same bits, rounding, or more."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .pairing import Pairs
from .result import LIMIT, TapChange, TapState
from .side import Arrays, Side, Tap
from .sketch import Distance, estimate, exact

#: Half the distance of two neighbouring numbers near 1, of each dtype.
_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True, slots=True)
class Compared:
    """One intermediate of both sides, and what became of it."""

    before: Tap
    after: Tap
    change: TapChange

    @property
    def state(self) -> TapState:
        """What became of it."""
        return self.change.state


def compare(before: Side, after: Side, pairs: Pairs) -> list[Compared]:
    """Compare the pairs of one chunk of one pass, in the order after."""
    return [Compared(a, b, _compare(before, after, a, b)) for a, b in pairs.pairs]


def _compare(before: Arrays, after: Arrays, a: Tap, b: Tap) -> TapChange:
    x, y = before.digest(a.key), after.digest(b.key)
    factor = _factor(a, b)
    allowed = allowance(a, b, max(x.norm, y.norm * factor))
    distance: Distance | None = None
    if x.hash == y.hash and factor == 1.0:
        state = TapState.SAME
    elif x.not_finite != y.not_finite or _elsewhere(before, after, a, b):
        state = TapState.NOT_FINITE
    elif math.prod(a.shape) != math.prod(b.shape):
        state = TapState.RESHAPED
    else:
        distance = _distance(before, after, a, b, factor)
        # Other bits at no distance: -0.0 for 0.0, or another shape of the same numbers.
        state = TapState.ROUNDING if distance.value <= allowed else TapState.CHANGED
        if distance.value == 0.0 and distance.exact:
            state = TapState.SAME
    return TapChange(
        passed=b.passed,
        chunk=b.chunk,
        tap=b.name,
        before=a.name if a.name != b.name else "",
        module=b.module,
        role=b.role,
        shape=b.shape,
        shape_before=a.shape,
        state=state,
        distance=None if distance is None else distance.value,
        low=None if distance is None else distance.low,
        high=None if distance is None else distance.high,
        norm=x.norm,
        allowance=allowed,
        largest_before=x.largest,
        largest=y.largest,
    )


def _elsewhere(before: Arrays, after: Arrays, a: Tap, b: Tap) -> bool:
    """Whether as many values are not finite, but others; a baseline does not tell."""
    if not before.digest(a.key).not_finite or math.prod(a.shape) != math.prod(b.shape):
        return False
    x, y = before.array(a.key), after.array(b.key)
    if x is None or y is None:
        return False
    own, other = (np.isfinite(each.astype(np.float64).reshape(-1)) for each in (x, y))
    return not np.array_equal(own, other)


def allowance(a: Tap, b: Tap, norm: float) -> float:
    """Up to which distance a difference of two runs is rounding.

    Each side is away from the exact value by its own rounding errors, as large as its distance to
    a run in float64 shows, and by no less than one rounding of the values. Another order of
    sums or another kernel errs as much in another direction. Booleans do not round.
    """
    if "bool" in (a.dtype, b.dtype):
        return 0.0
    unit = max(_ROUNDOFF.get(tap.dtype, 0.0) for tap in (a, b))
    noise = max(a.noise or 0.0, (b.noise or 0.0) * _factor(a, b))
    return LIMIT * max(noise, unit * norm)


def _factor(a: Tap, b: Tap) -> float:
    """What makes the queries after comparable with those before.

    Whether the scale of attention is in the queries or comes later is the release's business; what
    must not change is query times scale.
    """
    return b.scale / a.scale if a.scale and b.scale else 1.0


def _distance(before: Arrays, after: Arrays, a: Tap, b: Tap, factor: float) -> Distance:
    x, y = before.array(a.key), after.array(b.key)
    if x is None or y is None:
        return estimate(before.digest(a.key).sketch, after.digest(b.key).sketch * factor)
    return exact(x.reshape(-1), y.reshape(-1).astype(np.float64) * factor)


def chunks_of(taps: Sequence[Tap]) -> Iterator[tuple[str, int]]:
    """Name of the pass and index of the chunk, each once, in order."""
    yield from dict.fromkeys((tap.passed, tap.chunk) for tap in taps)
