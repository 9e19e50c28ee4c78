"""From two sides to a verdict: the same, rounding, changed, failing, or not comparable."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .changes import changes
from .comparing import Compared, chunks_of, compare
from .logits import compare_position
from .pairing import pair
from .placing import carries, place
from .records import Facts, Failure, Pass, RecordedPass
from .result import (
    Divergence,
    FactChange,
    GateVerdict,
    PassChange,
    PositionChange,
    TapChange,
    TapState,
)
from .side import Side

_Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """What two sides came to, but for what is not theirs: names, commands, clocks.

    Attributes:
        verdict: What it came to.
        reason: Why, in a sentence.
        passes: Every pass on both sides.
        taps: Intermediates that are not the same, in order.
        facts: What else is not as before.
    """

    verdict: GateVerdict
    reason: str
    passes: tuple[PassChange, ...] = ()
    taps: tuple[TapChange, ...] = ()
    facts: tuple[FactChange, ...] = ()

    @property
    def divergence(self) -> Divergence | None:
        """Where the sides part first."""
        return next((each.divergence for each in self.passes if each.divergence), None)


def judge(before: Side, after: Side, passes: Sequence[Pass]) -> Judged:
    """Compare two sides that ran the same passes of the same model.

    Args:
        before: The side that was good.
        after: The other one.
        passes: What both ran.
    """
    facts = changes(before.facts, after.facts)
    obstacle = _obstacle(before.facts, after.facts)
    if obstacle:
        return Judged(GateVerdict.NOT_COMPARABLE, obstacle, facts=facts)
    if after.facts.failed is not None and not _ran(after.facts):
        words = f"It ran before and does not now: {describe(after.facts.failed)}"
        return Judged(GateVerdict.FAILING, words, facts=facts)
    if not _ran(before.facts):
        failed = before.facts.failed
        words = "It runs now and did not before" + (f": {describe(failed)}" if failed else "")
        return Judged(GateVerdict.CHANGED, words, facts=facts)
    compared = _compare_all(before, after)
    fed = {each.name: each.token_ids for each in passes}
    found = tuple(
        _pass(each, before, after, compared, fed.get(each.name, ())) for each in after.facts.passes
    )
    taps = [each.change for one in compared for each in one if each.state is not TapState.SAME]
    verdict, reason = _verdict(found, compared, facts)
    return Judged(verdict, reason, found, tuple(taps), facts)


def describe(failure: Failure) -> str:
    """A failure in one line."""
    message = " ".join(failure.message.split())
    if len(message) > 300:
        message = message[:300] + "..."
    return f"{failure.type} in {failure.stage}: {message}"


def _ran(facts: Facts) -> bool:
    return any(each.failed is None for each in facts.passes)


def _obstacle(before: Facts, after: Facts) -> str:
    """Why two sides cannot be compared; empty if they can."""
    if not _ran(before) and not _ran(after):
        failed = after.failed or before.failed
        return "Neither side ran" + (f": {describe(failed)}" if failed else ".")
    if before.dtype and after.dtype and before.dtype != after.dtype:
        return f"The dtype was {before.dtype} and is {after.dtype}."
    threads = [each.machine.threads for each in (before, after) if each.machine]
    if len(set(threads)) > 1:
        return f"Threads were {threads[0]} and are {threads[1]}: sums come in another order."
    return ""


def _compare_all(before: Side, after: Side) -> list[list[Compared]]:
    """Every chunk of every pass, in order."""
    found = []
    for key in chunks_of(after.taps):
        a, b = ([t for t in s.taps if (t.passed, t.chunk) == key] for s in (before, after))
        found.append(compare(before, after, pair(a, b)))
    return found


def _pass(
    each: RecordedPass,
    before: Side,
    after: Side,
    compared: Sequence[Sequence[Compared]],
    token_ids: _Rows,
) -> PassChange:
    own = [chunk for chunk in compared if chunk and chunk[0].after.passed == each.name]
    was = next((other for other in before.facts.passes if other.name == each.name), None)
    partners = {(c.before.name, c.before.chunk) for chunk in own for c in chunk}
    known = {(c.after.name, c.after.chunk) for chunk in own for c in chunk}
    alone = [
        dict.fromkeys(
            tap.name
            for tap in side.taps
            if tap.passed == each.name and (tap.name, tap.chunk) not in paired
        )
        for side, paired in ((before, partners), (after, known))
    ]
    counts = Counter(c.state.value for chunk in own for c in chunk)
    return PassChange(
        name=each.name,
        token_ids=token_ids,
        counts=dict(counts),
        logits=tuple(_positions(own, before, after, token_ids)),
        only_before=tuple(alone[0]),
        only_after=tuple(alone[1]),
        generated_before=was.generated if was else None,
        generated=each.generated,
        failed_before=describe(was.failed) if was and was.failed else "",
        failed=describe(each.failed) if each.failed else "",
        divergence=next((found for found in map(place, own) if found), None),
    )


def _positions(
    own: Sequence[Sequence[Compared]], before: Side, after: Side, ids: _Rows
) -> list[PositionChange]:
    found: list[PositionChange] = []
    start = 0
    for chunk in own:
        for c in chunk:
            if c.after.role != "logits":
                continue
            b = after.logits(c.after)
            # Of equal bits a baseline has kept rounded numbers; they are not to show.
            a = b if c.state is TapState.SAME else before.logits(c.before)
            for x, y in zip(a, b, strict=False):
                at = start + x.position
                token = ids[x.row][at] if x.row < len(ids) and at < len(ids[x.row]) else -1
                found.append(compare_position(x, y, start=start, token_id=token))
            start += c.after.shape[1]
    return found


def _verdict(
    passes: Sequence[PassChange],
    compared: Sequence[Sequence[Compared]],
    facts: Sequence[FactChange],
) -> tuple[GateVerdict, str]:
    newly = [each for each in passes if each.failed and not each.failed_before]
    if newly:
        words = f"Pass {newly[0].name} ran before and does not now: {newly[0].failed}"
        return GateVerdict.FAILING, words
    parted = next((each.divergence for each in passes if each.divergence), None)
    if parted is not None:
        return GateVerdict.CHANGED, _parting(parted)
    deciding = [each for each in facts if each.decides]
    if deciding:
        first = deciding[0]
        return GateVerdict.CHANGED, f"{first.kind}: {first.what} is not as before."
    texts = [each for each in passes if _other_text(each)]
    if texts:
        words = f"The logits agree, but greedy tokens after {texts[0].name} do not."
        return GateVerdict.CHANGED, words
    everything = [each for chunk in compared for each in chunk]
    if not any(carries(each) for each in everything):
        return GateVerdict.NOT_COMPARABLE, "No layer's output and no logits are on both sides."
    if all(each.state is TapState.SAME for each in everything):
        return GateVerdict.SAME, f"All {len(everything)} intermediates have the same bits."
    if all(each.state is TapState.SAME for each in everything if carries(each)):
        return GateVerdict.SAME, (
            "The outputs of all layers and the logits have the same bits; some intermediates are"
            " computed in another way."
        )
    return GateVerdict.ROUNDING, (
        "No layer's output and no logits moved by more than their own rounding explains."
    )


def _other_text(each: PassChange) -> bool:
    both = each.generated_before is not None and each.generated is not None
    return both and each.generated_before != each.generated


def _times(ratio: float) -> str:
    """Three digits, without a power of ten as long as people count in thousands."""
    return f"{float(f'{ratio:.3g}'):,.0f}" if 100 <= ratio < 1e9 else f"{ratio:.3g}"


def _parting(parted: Divergence) -> str:
    change = parted.change
    words = f"The sides part at {change.tap}"
    if change.chunk:
        words += f" of decoding step {change.chunk}"
    words += f" in pass {change.passed}"
    if change.state is TapState.RESHAPED:
        return f"{words}: its shape was {list(change.shape_before)} and is {list(change.shape)}."
    if change.state is TapState.NOT_FINITE:
        return f"{words}: it has NaN or infinity on one side alone."
    if change.distance is None or not change.norm:
        return words + "."
    share = change.distance / change.norm
    words += f": it is {share:.2g} of its size away"
    if change.allowance:  # booleans do not round
        words += f", {_times(change.distance / change.allowance)} times what rounding explains"
    return f"{words}."
