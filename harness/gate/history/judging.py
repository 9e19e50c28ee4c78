"""What a release came to in a case of history, and whether that is what was expected."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from ..judging import Judged, judge
from ..records import Pass, Record
from ..result import GateVerdict, TapState
from ..side import RecordSide, Side
from .aligned import AlignedSide, tokens_of
from .case import History

_AGREES = (GateVerdict.SAME, GateVerdict.ROUNDING)


@dataclass(frozen=True, slots=True)
class Shown:
    """What was seen of one release.

    Attributes:
        release: As the case names it.
        version: Version of transformers that ran.
        verdict: Of the comparison.
        reason: Why, in a sentence.
        tap: The first intermediate that differs and is carried on; empty if none does.
        times: How far it is, in allowances; None if that says nothing.
        logits: Largest absolute difference of logits; None where there are none to compare.
    """

    release: str
    version: str
    verdict: GateVerdict
    reason: str
    tap: str = ""
    times: float | None = None
    logits: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether both sides are the same model."""
        return self.verdict in _AGREES


def judge_releases(case: History, good: Record, other: Record, release: str) -> Shown:
    """Hold another release against the good one."""
    before, after = RecordSide(good), RecordSide(other)
    return _shown(release, other, judge(before, after, case.passes), before, after)


def judge_passes(case: History, record: Record, release: str) -> Shown:
    """Hold two passes of one release against each other."""
    left, right = (_asked(case, name) for name in (case.left, case.right))
    before, after = AlignedSide(record, left), AlignedSide(record, right)
    judged = judge(before, after, [tokens_of(left)])
    return _shown(release, record, judged, before, after)


def judge_saved(case: History, made: Record, loaded: Record, release: str) -> Shown:
    """Hold a model that was saved and loaded against what it was."""
    before, after = RecordSide(made), RecordSide(loaded)
    return _shown(release, loaded, judge(before, after, case.passes), before, after)


def _asked(case: History, name: str) -> Pass:
    return next(each for each in case.passes if each.name == name)


def _shown(release: str, record: Record, judged: Judged, before: Side, after: Side) -> Shown:
    version = record.facts.versions.get("transformers", "unknown")
    parted = judged.divergence
    change = parted.change if parted else None
    times = None
    if change is not None and change.distance is not None and change.allowance:
        times = change.distance / change.allowance
    return Shown(
        release=release,
        version=version,
        verdict=judged.verdict,
        reason=judged.reason,
        tap=change.tap if change else "",
        times=times if change and change.state is TapState.CHANGED else None,
        logits=largest_of_logits(before, after),
    )


def largest_of_logits(before: Side, after: Side) -> float | None:
    """Largest absolute difference of logits that both sides have; None if there are none."""
    found = []
    theirs = {(t.passed, t.chunk): t.key for t in before.taps if t.role == "logits"}
    for tap in after.taps:
        key = theirs.get((tap.passed, tap.chunk))
        if tap.role != "logits" or key is None:
            continue
        a, b = before.array(key), after.array(tap.key)
        if a is not None and b is not None and a.shape == b.shape:
            found.append(float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)))))
    return max(found, default=None)


def surprise(case: History, shown: Shown) -> str:
    """What is not as the case says; empty if all of it is.

    Args:
        case: The case.
        shown: What was seen of one of its releases.
    """
    where = f"{case.name}: transformers {shown.version}"
    if shown.release in case.good:
        if shown.agrees:
            return ""
        return f"{where}: expected no bug, found {shown.verdict.value}: {shown.reason}"
    if shown.release in case.refused:
        if shown.verdict is GateVerdict.FAILING:
            return ""
        return f"{where}: expected an error, found {shown.verdict.value}: {shown.reason}"
    if shown.verdict is not GateVerdict.CHANGED:
        mended = "; if it is mended there, move it to good" if case.live else ""
        return f"{where}: expected the bug, found {shown.verdict.value}: {shown.reason}{mended}"
    if not fnmatchcase(shown.tap, case.first):
        wanted = (
            f"intermediates that part at {case.first}" if case.first else "tokens alone to part"
        )
        return f"{where}: expected {wanted}, found {shown.tap or 'no such place'}"
    return ""
