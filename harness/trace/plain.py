"""Two sides at every tap, end to end, without a model: what differs, and where first.

No op can be replayed, so a difference beyond the tolerance may be a fault or accumulated rounding,
and nothing here can tell which: such a comparison is *not comparable*, never a fail and never a
pass.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compare import common_positions, difference, worst_nonfinite
from ..contract import TOLERANCE
from ..engines.protocol import TokenIds
from ..logits import pairwise
from ..participants import Participant
from ..replay.source import LastPositions
from ..result import (
    CandidateVerdict,
    Comparison,
    Divergence,
    LogitsPair,
    TapStatus,
    Verdict,
)
from ..taps import axes_of, declared, format_shape

Array = NDArray[Any]


def compare_taps(
    first: Participant,
    other: Participant,
    chunks: Sequence[TokenIds],
    places: Iterable[tuple[int, str]],
) -> tuple[list[Comparison], list[LogitsPair]]:
    """Measure one side against the other at every tap.

    Args:
        first: The side that stands for the reference.
        other: The candidate.
        chunks: Token ids [B, T] of each forward pass.
        places: Chunk and name of each tap, chunks in order.

    Returns:
        One comparison a tap, and the logits of each chunk compared in more detail.
    """
    comparisons, logits = [], []
    starts = [0, *np.cumsum([chunk.shape[1] for chunk in chunks]).tolist()]
    with ExitStack() as stack:
        source_a = stack.enter_context(first.source(chunks))
        source_b = stack.enter_context(other.source(chunks))
        for order, (chunk, tap) in enumerate(places):
            a, b = _values(source_a.take(chunk, tap)), _values(source_b.take(chunk, tap))
            status, note = _status(first, other, tap, a, b)
            measured = None
            shape = () if a is None else a.shape
            if status is TapStatus.COMPARED and a is not None and b is not None:
                axes, end = axes_of(tap), starts[chunk + 1]
                a, b = common_positions(axes, a, b)
                start = end - a.shape[axes.index("T")] if "T" in axes else starts[chunk]
                measured = difference(a, b, axes, start=start)
                if tap == "logits":
                    logits.append(pairwise(first.name, a, other.name, b))
            comparisons.append(
                Comparison(
                    candidate=other.name,
                    chunk=chunk,
                    tap=tap,
                    op="",
                    order=order,
                    axes=axes_of(tap),
                    shape=shape,
                    status=status,
                    difference=measured,
                    note=note,
                )
            )
    return comparisons, logits


def judge_taps(other: Participant, comparisons: Sequence[Comparison]) -> CandidateVerdict:
    """Pass where every tap is within the tolerance; not comparable otherwise.

    Args:
        other: The candidate.
        comparisons: Of all its taps.
    """
    compared = [c for c in comparisons if c.difference is not None]
    over = [c for c in compared if c.difference and c.difference.over]
    largest = max(compared, key=_size, default=None)
    verdict, reason, at = _decide(comparisons, compared, over, largest)
    first = None
    if at is not None:
        first = Divergence(other.name, "tokens", at.chunk, at.tap, fresh=False, comparison=at)
    return CandidateVerdict(
        candidate=other.name,
        verdict=verdict,
        reason=reason,
        first_divergence=first,
        failing=(),
        worst_units=None,
        worst_tap="",
        max_abs=None if largest is None else _size(largest),
        compared=len(compared),
        replayed=0,
        unavailable=dict(other.unavailable),
    )


def _decide(
    comparisons: Sequence[Comparison],
    compared: Sequence[Comparison],
    over: Sequence[Comparison],
    largest: Comparison | None,
) -> tuple[Verdict, str, Comparison | None]:
    for c in comparisons:
        if c.status in (TapStatus.NOT_FINITE, TapStatus.MISSHAPEN, TapStatus.MISSING):
            finite = c.status is not TapStatus.NOT_FINITE
            verdict = Verdict.NOT_COMPARABLE if finite else Verdict.NOT_FINITE
            return verdict, f"{c.tap}: {c.note}", c
    if not compared or largest is None:
        return Verdict.NOT_COMPARABLE, "no tap was compared", None
    if not over:
        return Verdict.PASS, f"every value of {len(compared)} taps is within {TOLERANCE:g}", None
    return (
        Verdict.NOT_COMPARABLE,
        f"{len(over)} of {len(compared)} taps differ by more than {TOLERANCE:g}, first "
        f"{over[0].tap} by {_size(over[0]):.2g}, most {largest.tap} by {_size(largest):.2g}; "
        "without the model no op can be replayed, so this may be rounding or a fault: name it "
        "with --model",
        over[0],
    )


def _size(comparison: Comparison) -> float:
    return comparison.difference.max_abs if comparison.difference else 0.0


def _status(
    first: Participant, other: Participant, tap: str, a: Array | None, b: Array | None
) -> tuple[TapStatus, str]:
    for side, array in ((first, a), (other, b)):
        reason = declared(side.unavailable, tap)
        if reason is not None:
            return TapStatus.UNAVAILABLE, f"{side.name}: {reason}"
        if array is None:
            return TapStatus.MISSING, f"{side.name} did not hand it over and did not declare so"
    if a is None or b is None:
        raise AssertionError(tap)
    x, y = common_positions(axes_of(tap), a, b)
    if x.shape != y.shape:
        axes = axes_of(tap)
        found = f"{first.name} has {format_shape(axes, a.shape)}"
        return TapStatus.MISSHAPEN, f"{found}, {other.name} {format_shape(axes, b.shape)}"
    for side, array in ((first, x), (other, y)):
        if worst_nonfinite(array) is not None:
            return TapStatus.NOT_FINITE, f"{side.name} has NaN or infinity"
    return TapStatus.COMPARED, ""


def _values(taken: Array | LastPositions | None) -> Array | None:
    return taken.value if isinstance(taken, LastPositions) else taken
