"""Comparison of two arrays, in pure functions of NumPy arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .contract import TOLERANCE, UNIT_LIMIT
from .result import (
    Difference,
    Element,
    LocalError,
    PairDifference,
    Spread,
    WeightDifference,
)
from .spread import SAMPLES, count_sizes, rows_of

Array = NDArray[Any]
Float64 = NDArray[np.float64]

#: Elements of a block: 256 KiB of float64.
_BLOCK = 1 << 15

#: Worst rows that are kept of each tap.
_WORST = 5

#: About how many elements the median is taken of; it is only shown.
_SAMPLES = 1 << 13


#: Position of the first query of a chunk in the whole sequence: one for all rows, or [B].
Start = int | NDArray[np.int64]


def locate(
    axes: str, flat: int, reference: Array, candidate: Array, *, start: Start = 0
) -> Element:
    """Describe one element of a tap.

    Args:
        axes: Axis letters of the tap, empty for one that the table of taps lacks.
        flat: Index into the flattened arrays.
        reference: The reference's array.
        candidate: The candidate's array, of the same shape.
        start: Position of the first query of this chunk in the whole sequence; of each row where
            rows are padded.
    """
    index = tuple(int(i) for i in np.unravel_index(flat, reference.shape))
    where = dict(zip(axes, index, strict=True)) if len(axes) == len(index) else {}
    position = where.get("T", where.get("S"))
    first = int(start[where["B"]]) if isinstance(start, np.ndarray) and "B" in where else start
    value = float(candidate[index])
    return Element(
        index=index,
        axes=axes,
        position=None if position is None else position + (int(first) if "T" in where else 0),
        head=where.get("H", where.get("K")),
        element=index[-1] if index else None,
        reference=float(reference[index]),
        candidate=value if np.isfinite(value) else None,
    )


def difference(
    reference: Array,
    candidate: Array,
    axes: str,
    *,
    start: Start = 0,
    counted: Array | None = None,
) -> Difference:
    """Measure ``candidate - reference``, elementwise.

    Args:
        reference: Values of the reference. Narrower floats than float32, and booleans, are
            compared in float32.
        candidate: The candidate's values, of the same shape.
        axes: Axis letters.
        start: Position of the first query of this chunk.
        counted: Booleans of the same shape, true where a value means something; None for all.

    Returns:
        The difference; ``max_abs`` is NaN or infinite if a value on either side is.
    """
    total, magnitude, over = 0.0, 0.0, 0
    kept, flat = _counted(counted, reference, candidate)
    rows = _Rows.of(reference, selected=kept is not None)
    for start_of_block, *pair in _blocks(*flat, row=rows.length):
        x, y = map(_wide, pair)
        error = np.subtract(y, x)
        np.abs(error, out=error)
        largest = rows.add(start_of_block, error)
        total += float(error.sum())
        magnitude = max(magnitude, float(x.max()), -float(x.min()))
        if not largest <= TOLERANCE:
            over += int(np.count_nonzero(error > TOLERANCE))
    worst = rows.worst if kept is None else int(kept[rows.worst])
    return Difference(
        max_abs=rows.largest,
        mean_abs=total / flat[0].size,
        magnitude=magnitude,
        over=over,
        count=flat[0].size,
        worst=locate(axes, worst, reference, candidate, start=start),
        spread=None if kept is not None else rows.spread(axes, reference, candidate),
    )


def local_error(
    expected: Array,
    found: Array,
    unit: Array,
    axes: str,
    *,
    roundoff: float = 1.0,
    underflow: float = 0.0,
    start: Start = 0,
    counted: Array | None = None,
    inherited_bound: bool = False,
) -> LocalError:
    """Measure the error that one op adds, in rounding units.

    Args:
        expected: Float64 result of the op on the candidate's own inputs.
        found: The candidate's result, lifted to float64; same shape.
        unit: Size of one rounding unit at every element, positive, before the two that follow:
            ``unit * roundoff + underflow`` is its absolute size.
        axes: Axis letters.
        roundoff: Unit roundoff of the candidate's dtype.
        underflow: Absolute error that it may make near zero.
        start: Position of the first query of this chunk.
        counted: As in :func:`difference`.
        inherited_bound: Whether the unit came through ops that were not tapped.

    Returns:
        The error; ``units`` is NaN or infinite if a value on either side is, or the unit.
    """
    over, samples = 0, []
    kept, flat = _counted(counted, expected, found, unit)
    step = max(1, flat[0].size // _SAMPLES)
    rows = _Rows.of(expected, selected=kept is not None)
    for start_of_block, x, y, size in _blocks(*flat, row=rows.length):
        absolute = size * unit.dtype.type(roundoff)
        absolute += unit.dtype.type(underflow)
        error = np.subtract(_wide(y), _wide(x))
        units = np.abs(error, out=error).astype(unit.dtype, copy=False)
        with np.errstate(over="ignore"):  # see _limit
            units /= absolute
        units += 0 * absolute  # an infinite unit would hide any error: NaN instead
        _limit(units, x, y)
        if not rows.add(start_of_block, units) <= UNIT_LIMIT:
            over += int(np.count_nonzero(units > UNIT_LIMIT))
        samples.append(units[::step])
    worst = rows.worst if kept is None else int(kept[rows.worst])
    index = np.unravel_index(worst, expected.shape)
    return LocalError(
        units=rows.largest,
        median=float(np.median(np.concatenate(samples))),
        error=abs(float(found[index]) - float(expected[index])),
        bound=float(unit[index]) * roundoff + underflow,
        over=over,
        inherited_bound=inherited_bound,
        worst=locate(axes, worst, expected, found, start=start),
        spread=None if kept is not None else rows.spread(axes, expected, found),
    )


class _Rows:
    """The largest errors of an array, row by row of its last axis, as blocks of it come.

    Args:
        length: Length of a row.

    Attributes:
        length: The same.
        worst: Flat index of the largest error, of the first NaN if there is one.
        largest: That error.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.worst, self.largest = 0, -1.0
        self._maxima: list[Array] = []
        self._samples: list[Array] = []

    @classmethod
    def of(cls, array: Array, *, selected: bool) -> "_Rows":
        """Rows of an array; of single elements where only some are selected."""
        return cls(1 if selected or not array.ndim else array.shape[-1])

    def add(self, start: int, errors: Array) -> float:
        """Enter a block, from a flat index on; returns its largest error."""
        rows = errors.reshape(-1, self.length)
        maxima = rows.max(axis=1)
        at = int(maxima.argmax())
        found = float(maxima[at])
        if not found <= self.largest and np.isfinite(self.largest):
            if np.isfinite(found):
                inner = int(rows[at].argmax())
            else:  # the first that is not finite stays
                at = int((~np.isfinite(maxima)).argmax())
                inner = int((~np.isfinite(rows[at])).argmax())
            self.worst = start + at * self.length + inner
            self.largest = float(rows[at, inner])
        self._maxima.append(maxima)
        self._samples.append(errors[:: max(1, errors.size // SAMPLES)])
        return found

    def spread(self, axes: str, reference: Array, candidate: Array) -> Spread:
        """How the errors are spread."""
        maxima = np.concatenate(self._maxima)
        positions, heads = rows_of(axes, reference.shape, maxima)
        few = np.argpartition(-maxima, min(_WORST, maxima.size) - 1)[:_WORST]
        few = few[np.argsort(-maxima[few], kind="stable")]
        pairs = reference.reshape(-1, self.length), candidate.reshape(-1, self.length)
        return Spread(
            sizes=count_sizes(np.concatenate(self._samples)),
            positions=positions,
            heads=heads,
            worst=tuple(self._extreme(int(row), *(x[row] for x in pairs)) for row in few),
        )

    def _extreme(self, row: int, x: Array, y: Array) -> tuple[int, float, float]:
        at = int(np.abs(_wide(y) - _wide(x)).argmax())
        return row * self.length + at, _short(x[at]), _short(y[at])


def _short(value: Any) -> float:
    """As many digits as float32 has."""
    return float(f"{float(value):.9g}")


def _limit(units: Array, x: Array, y: Array) -> None:
    """Let a finite error that is too many units for their dtype be the most that it can say."""
    if np.isinf(units).any():
        beyond = np.isposinf(units) & np.isfinite(x) & np.isfinite(y)
        units[beyond] = np.finfo(units.dtype).max


def _wide(block: Array) -> Array:
    """A block in a dtype that differences can be taken in."""
    return block.astype(np.float32) if block.dtype.itemsize < 4 else block


def _counted(counted: Array | None, *arrays: Array) -> tuple[NDArray[np.intp] | None, list[Array]]:
    """Flat arrays at the elements that count, with where those are; None if all do."""
    if counted is None:
        return None, [*arrays]
    at = np.flatnonzero(np.broadcast_to(counted, arrays[0].shape))
    return at, [array.reshape(-1)[at] for array in arrays]


def _blocks(*arrays: Array, row: int = 1) -> Iterator[tuple[Any, ...]]:
    """Flat pieces of arrays of one shape, with where they start: small enough for a cache.

    Pieces are of whole rows of so many elements. Whole temporaries of a long prompt's scores would
    cost more time than the arithmetic on them.
    """
    flat = [array.reshape(-1) for array in arrays]
    length = max(1, _BLOCK // row) * row
    for start in range(0, flat[0].size, length):
        yield (start, *(array[start : start + length] for array in flat))


def weight_difference(name: str, reference: Array, candidate: Array) -> WeightDifference | None:
    """Compare a parameter, element by element; None where all are equal.

    Args:
        name: Its name in the checkpoint.
        reference: The checkpoint's values, rounded to the candidate's dtype.
        candidate: The candidate's values.
    """
    if reference.shape != candidate.shape:
        first = (0,) * reference.ndim
        value = float(reference[first])
        return WeightDifference(name, reference.size, reference.size, None, first, value, None)
    if np.array_equal(reference, candidate):
        return None
    x, y = reference.astype(np.float64), candidate.astype(np.float64)
    error = np.abs(x - y)
    flat = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    index = tuple(int(i) for i in np.unravel_index(flat, error.shape))
    finite = bool(np.isfinite(y[index]))
    return WeightDifference(
        name=name,
        differing=int(np.count_nonzero(~(x == y))),
        count=error.size,
        max_abs=float(error[index]) if finite else None,
        index=index,
        reference=float(x[index]),
        candidate=float(y[index]) if finite else None,
    )


def common_positions(axes: str, a: Array, b: Array) -> tuple[Array, Array]:
    """Two taps at the positions that both cover: the last ones, where one covers fewer."""
    at = axes.find("T")
    if a.shape == b.shape or at < 0:
        return a, b
    last = (*(slice(None),) * at, slice(-min(a.shape[at], b.shape[at]), None))
    return a[last], b[last]


def pair_difference(
    a: str,
    values_a: Array,
    b: str,
    values_b: Array,
    chunk: int,
    tap: str,
    counted: Array | None = None,
) -> PairDifference:
    """Measure two candidates' values of one tap, of one shape, against each other."""
    largest, total = 0.0, 0.0
    _, flat = _counted(counted, values_a, values_b)
    for _, x, y in _blocks(*flat):
        error = np.subtract(_wide(y), _wide(x))
        np.abs(error, out=error)
        largest = max(largest, float(error.max()))
        total += float(error.sum())
    return PairDifference(a, b, chunk, tap, largest, total / flat[0].size)


def worst_nonfinite(candidate: Array) -> int | None:
    """Flat index of the first NaN or infinity, None if there is none."""
    # A sum is finite only if all terms are: one fast pass for the usual case.
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(np.sum(candidate)):
            return None
    finite = np.isfinite(candidate)
    return None if finite.all() else int(np.argmin(finite))


def log_softmax(logits: Float64) -> Float64:
    """Logarithm of the softmax over the last axis."""
    shifted: Float64 = logits - np.max(logits, axis=-1, keepdims=True)
    shifted -= np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    return shifted


def kl_divergence(probs_a: Float64, log_probs_a: Float64, log_probs_b: Float64) -> Float64:
    """KL(a || b) in nats at every position: [..., V] to [...].

    Source: Kullback and Leibler 1951. Rounding can leave a result of size 1e-16 below zero; it is
    clipped there.
    """
    divergence: Float64 = np.einsum("...v,...v->...", probs_a, log_probs_a - log_probs_b)
    np.maximum(divergence, 0.0, out=divergence)
    return divergence
