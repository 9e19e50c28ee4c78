"""Two sides at every tap, end to end, without a model: what differs, and where first.

No op can be replayed, so a difference beyond the tolerance may be a fault or accumulated rounding,
and nothing here can tell which: such a comparison is *not comparable*, never a fail and never a
pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Measured:
    """What a comparison without a model leaves behind.

    Attributes:
        comparisons: One a tap and candidate.
        logits: Those of each chunk, compared in more detail.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    logits: list[LogitsPair] = field(default_factory=list)


def compare_taps(
    first: Participant,
    others: Sequence[Participant],
    chunks: Sequence[TokenIds],
    places: Iterable[tuple[int, str]],
    *,
    into: Measured | None = None,
) -> Measured:
    """Measure sides against the first at every tap; each tap is dropped when it was compared.

    Args:
        first: The side that stands for the reference.
        others: The candidates.
        chunks: Token ids [B, T] of each forward pass.
        places: Chunk and name of each tap, chunks in order.
        into: Filled in, and returned; whoever gave it has what was compared also where this
            breaks off.
    """
    found = Measured() if into is None else into
    ends = np.cumsum([chunk.shape[1] for chunk in chunks]).tolist()
    # Asked once: an engine may have to look at its model to say it.
    lacking = {side.name: side.unavailable for side in (first, *others)}
    with ExitStack() as stack:
        sources = [stack.enter_context(side.source(chunks)) for side in (first, *others)]
        for order, (chunk, tap) in enumerate(places):
            ours, *theirs = (
                # To wait for what an engine never gives would be to keep all that it does give.
                None if declared(lacking[name], tap) else _values(source.take(chunk, tap))
                for name, source in zip(lacking, sources, strict=True)
            )
            for side, values in zip(others, theirs, strict=True):
                pair = _Pair(first.name, side.name, tap, ours, values)
                compared = pair.compare(chunk, order, end=ends[chunk], lacking=lacking)
                found.comparisons.append(compared)
                if tap == "logits" and compared.difference is not None:
                    found.logits.append(pair.compare_logits())
    return found


@dataclass(frozen=True, slots=True)
class _Pair:
    """One tap on both sides, None where a side did not give it."""

    first: str
    other: str
    tap: str
    ours: Array | None
    theirs: Array | None

    def common(self) -> tuple[Array, Array]:
        """Both at the positions that both cover."""
        if self.ours is None or self.theirs is None:
            raise LookupError(self.tap)
        return common_positions(axes_of(self.tap), self.ours, self.theirs)

    def compare(
        self, chunk: int, order: int, *, end: int, lacking: Mapping[str, Mapping[str, str]]
    ) -> Comparison:
        """Measure the tap, or say why not.

        Args:
            chunk: Index of the forward pass.
            order: Rank of the tap.
            end: Position behind the chunk.
            lacking: What each side cannot give, with the reason.
        """
        status, note = self._status(lacking)
        measured, axes = None, axes_of(self.tap)
        if status is TapStatus.COMPARED:
            a, b = self.common()
            start = end - a.shape[axes.index("T")] if "T" in axes else 0
            with np.errstate(all="ignore"):  # what is not finite is a status of its own
                measured = difference(a, b, axes, start=start)
            if not np.isfinite(measured.max_abs):
                status, note, measured = TapStatus.NOT_FINITE, self._why_not_finite(a), None
        return Comparison(
            candidate=self.other,
            chunk=chunk,
            tap=self.tap,
            op="",
            order=order,
            axes=axes,
            shape=() if self.ours is None else self.ours.shape,
            status=status,
            difference=measured,
            note=note,
        )

    def compare_logits(self) -> LogitsPair:
        """Compare logits in more detail."""
        a, b = self.common()
        return pairwise(self.first, a, self.other, b)

    def _status(self, lacking: Mapping[str, Mapping[str, str]]) -> tuple[TapStatus, str]:
        for side, array in ((self.first, self.ours), (self.other, self.theirs)):
            reason = declared(lacking[side], self.tap)
            if reason is not None:
                return TapStatus.UNAVAILABLE, f"{side}: {reason}"
            if array is None:
                return TapStatus.MISSING, f"{side} did not hand it over and did not declare so"
        a, b = self.common()
        if a.shape == b.shape:
            return TapStatus.COMPARED, ""
        ours, theirs = (format_shape(axes_of(self.tap), array.shape) for array in (a, b))
        found = f"{self.first} has {ours}, {self.other} {theirs}"
        return TapStatus.MISSHAPEN, found

    def _why_not_finite(self, ours: Array) -> str:
        side = self.first if worst_nonfinite(ours) is not None else self.other
        return f"{side} has NaN or infinity"


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


def _values(taken: Array | LastPositions | None) -> Array | None:
    return taken.value if isinstance(taken, LastPositions) else taken
