"""What can be said of a difference that has no name: where it is and what it looks like."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import UNIT_LIMIT
from ..replay.bounds import unit
from ..replay.lane import covered
from ..replay.lockstep import Replayed
from ..replay.precision import DTYPES
from ..taps import axes_of, format_shape

Array = NDArray[Any]

_NAMES = {
    **{"B": "sequence", "T": "position", "S": "key position", "H": "head", "K": "kv head"},
    **{"D": "element", "C": "channel", "F": "channel", "V": "token id"},
}

#: About how many values are looked at for a simple form.
_LOOK_AT = 1 << 18

#: A difference of a simple form is one if so much of its square is explained.
_CLEAR = 0.98


@np.errstate(all="ignore")
def observe(failure: Replayed) -> tuple[str, ...]:
    """Sentences on the error of one op, the most telling first.

    Args:
        failure: The op with what the candidate has.
    """
    expected, found = failure.made.call.output.value, failure.found
    axes = axes_of(failure.comparison.tap)
    if expected.ndim != found.ndim or any(
        a > b for a, b in zip(found.shape, expected.shape, strict=True)
    ):
        shapes = format_shape(axes, expected.shape), format_shape(axes, found.shape)
        return (f"expected shape {shapes[0]}, found {shapes[1]}",)
    given = covered(expected, found)
    call = failure.made.call
    size = unit(failure.made.op, call)[given] * call.precision.unit_roundoff
    size = size + call.precision.underflow
    expected = expected[given].astype(np.float64)
    found = found.astype(np.float64)
    error = found - expected
    wrong = np.abs(error) > UNIT_LIMIT * size
    rows = _some(expected.shape)
    return (
        *_forms(expected[rows], found[rows], error[rows]),
        *_grid(found, failure.made.call.precision.name),
        *_where(axes, wrong),
    )


def _some(shape: tuple[int, ...]) -> tuple[Any, ...]:
    """So many positions that a look at their values is quick."""
    if len(shape) < 2:
        return (slice(None),)
    row = int(np.prod(shape)) // shape[-2]
    return (..., slice(max(1, _LOOK_AT // max(1, row))), slice(None))


def _forms(expected: Array, found: Array, error: Array) -> Iterator[str]:
    """Simple relations between what is there and what should be."""
    if not np.isfinite(error).all() or not error.any():
        return
    if not found.any():
        yield "every value is 0"
        return
    total = float(np.sum(error**2))
    power = float(np.sum(expected**2))
    if power > 0:
        slope = float(np.sum(expected * found)) / power
        if _explained(found - slope * expected, total):
            yield f"the values are {slope:.6g} times what they should be"
            return
    if error.ndim > 1:
        flat = error.reshape(-1, error.shape[-1])
        if len(flat) > 1 and _explained(flat - flat.mean(axis=0), total):
            yield "the same vector is added at every position: a bias"
            return
    mixed = np.sort(found, axis=None), np.sort(expected, axis=None)
    if np.allclose(*mixed, rtol=1e-5, atol=1e-6 * float(np.abs(expected).max())):
        yield "the values are the right ones in another order"
    elif np.corrcoef(found.ravel(), expected.ravel())[0, 1] < 0.1:
        yield "the values have nothing to do with what they should be"


def _explained(left: Array, total: float) -> bool:
    return float(np.sum(left**2)) < (1 - _CLEAR) * total


def _grid(found: Array, dtype: str) -> Iterator[str]:
    """Whether all values are numbers of a narrower dtype than the candidate's."""
    if dtype != "float32" or not found.size:
        return
    for name in ("float16", "bfloat16"):
        narrow = found.astype(DTYPES[name]).astype(np.float64)
        if np.array_equal(narrow, found) and len(np.unique(found)) > 2:
            yield f"every value is a {name} number: something was rounded to {name}"


def _where(axes: str, wrong: Array) -> Iterator[str]:
    """On which axes only some indices are wrong."""
    if not wrong.any() or len(axes) != wrong.ndim:
        return
    for axis, letter in enumerate(axes):
        others = tuple(n for n in range(wrong.ndim) if n != axis)
        bad = np.flatnonzero(wrong.any(axis=others))
        if 0 < len(bad) < wrong.shape[axis]:
            name = _NAMES.get(letter, letter)
            yield f"wrong only at {name} {_ranges(bad)} of {wrong.shape[axis]}"


def _ranges(indices: Array) -> str:
    """Indices as ranges: ``0 to 3, 7``; the first few of many."""
    breaks = np.flatnonzero(np.diff(indices) > 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(indices, breaks)]
    words = [str(a) if a == b else f"{a} to {b}" for a, b in runs[:4]]
    return ", ".join(words) + (" and others" if len(runs) > 4 else "")
