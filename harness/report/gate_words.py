"""What the views of a gate say, in words and rows: one wording for terminal, Markdown and page."""

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from ..gate.result import (
    Divergence,
    FactChange,
    GateResult,
    GateVerdict,
    PassChange,
    TapChange,
    TapState,
)
from .wording import NONE, count, number, precise, short

HEADLINES = {
    GateVerdict.SAME: "It is the same model",
    GateVerdict.ROUNDING: "It is the same model, up to rounding",
    GateVerdict.CHANGED: "It is another model",
    GateVerdict.FAILING: "It does not run any more",
    GateVerdict.NOT_COMPARABLE: "The two sides cannot be compared",
}

MEANINGS = {
    GateVerdict.SAME: (
        "The output of each layer and the logits have the same bits on both sides, and the model is"
        " given the same tokens and weights."
    ),
    GateVerdict.ROUNDING: (
        "Some bits differ, by no more than the rounding errors that each side has against a run in"
        " float64. Sums in another order or another kernel do that."
    ),
    GateVerdict.CHANGED: (
        "More differs than rounding explains, or the model is given other tokens or other weights."
    ),
    GateVerdict.FAILING: "A model that loaded and ran before raises an error now.",
    GateVerdict.NOT_COMPARABLE: "Nothing is said about the model. This is not a pass.",
}

#: Values of a key that nobody gave one, and those that switch nothing on.
_NOT_SET = frozenset({"", "null"})
_OFF = _NOT_SET | {"false", "0", "[]", "{}"}

#: Headings of :func:`fact_cells`, of :func:`tap_cells` and of :func:`pass_cells`.
FACT_HEADINGS = ("what", "before", "after")
TAP_HEADINGS = (
    *("intermediate", "pass", "step", "state"),
    *("difference", "of its size", "times rounding"),
)
PASS_HEADINGS = ("pass", "tokens", "same", "rounding", "changed", "top-1", "log p", "greedy")

#: What the columns of passes mean.
PASS_LEGEND = (
    "same, rounding, changed: numbers of intermediates. top-1: positions with the same most likely"
    " token. log p: largest change of the log-probability of a likely token. greedy: equal leading"
    " tokens of those chosen greedily."
)

#: What a kind of facts is called, in the order in which they are shown.
KINDS = {
    "weights": "Weights as loaded",
    "loading": "Said while loading",
    "tokenizer": "Tokenizer",
    "config": "Config as parsed",
    "default": "Config defaults",
    "attention": "Attention",
    "model class": "Model class",
    "config class": "Config class",
    "generation": "Generation defaults",
    "cache": "Cache",
    "modules": "Modules",
    "warnings": "Warnings",
    "versions": "Versions",
    "machine": "Machine",
}

#: What stands where a side does not have it, of the kinds for which that is not the word.
_ABSENT = {"warnings": "not shown", "loading": "not said", "weights": "not there"}


def title(result: GateResult) -> str:
    """One line: the verdict, and what of."""
    return f"{HEADLINES[result.verdict]}: {result.before.name} to {result.after.name}"


def divergence_rows(divergence: Divergence) -> Iterator[tuple[str, str]]:
    """Where two sides part, a label and a value a row."""
    change = divergence.change
    yield "pass", change.passed
    yield "step", step(change)
    yield "intermediate", change.tap
    if change.before:
        yield "called before", change.before
    yield "what it is", f"{ROLES.get(change.role, change.role)} of {change.module or 'the model'}"
    yield "shape", str(list(change.shape))
    if change.shape != change.shape_before:
        yield "shape before", str(list(change.shape_before))
    yield "difference", difference(change)
    if change.distance is not None:
        yield "rounding", f"explains up to {short(change.allowance)}{_times(change)}"
    yield (
        "largest value",
        f"{precise(change.largest_before)} before, {precise(change.largest)} after",
    )
    yield "carried to", divergence.carried_to
    if divergence.aside:
        names = ", ".join(divergence.aside[:_MOST_ASIDE])
        more = len(divergence.aside) - _MOST_ASIDE
        names += f" and {more} more" if more > 0 else ""
        yield "not it", f"{names}: not as before, but what reads it does not show that"


#: Intermediates that are named although they are not the place.
_MOST_ASIDE = 6

ROLES = {
    "out": "output",
    "in": "input",
    "query": "queries after the rotation",
    "key": "keys after the rotation",
    "value": "values",
    "mask": "which keys are read",
    "bias": "what is added to the scores",
    "scores": "scores before the softmax",
    "probs": "attention probabilities",
    "context": "attention's sum of values",
    "logits": "logits",
}


def difference(change: TapChange) -> str:
    """How far an intermediate moved, with the error of the estimate where it is one."""
    if change.state is TapState.RESHAPED:
        return "another shape"
    if change.state is TapState.NOT_FINITE:
        return "NaN or infinity on one side alone"
    if change.distance is None or change.low is None or change.high is None:
        return NONE
    share = f", {short(change.distance / change.norm)} of its size" if change.norm else ""
    if change.low == change.high:
        return f"{number(change.distance)}{share}"
    return (
        f"about {short(change.distance)}{share} (estimated from the baseline's sketch: it is"
        f" between {short(change.low)} and {short(change.high)}, but for one case in 5,000)"
    )


def times(change: TapChange) -> float | None:
    """How many times what rounding explains a difference is; None where there is none."""
    if change.distance is None:
        return None
    if not change.allowance:
        return math.inf if change.distance else 0.0
    return change.distance / change.allowance


def _times(change: TapChange) -> str:
    found = times(change)
    return "" if found is None or not change.allowance else f"; this is {number(found)} times that"


def step(change: TapChange) -> str:
    """Which forward pass of a pass."""
    return "prompt" if change.chunk == 0 else f"cached step {change.chunk}"


def tap_cells(change: TapChange) -> tuple[str, ...]:
    """One intermediate as the cells of a row."""
    distance = change.distance
    share = short(distance / change.norm) if distance is not None and change.norm else NONE
    return (
        change.tap,
        change.passed,
        step(change),
        change.state.value,
        number(distance),
        share,
        short(times(change)),
    )


def pass_cells(each: PassChange) -> tuple[str, ...]:
    """One pass as the cells of a row."""
    rows = len(each.token_ids)
    length = len(each.token_ids[0]) if rows else 0
    tokens = f"{rows} x {length}" if rows > 1 else str(length)
    other = sum(n for state, n in each.counts.items() if state not in ("same", "rounding"))
    positions = each.logits
    agree = sum(position.top == position.top_before for position in positions)
    moved = [p.log_probability for p in positions if p.log_probability is not None]
    return (
        each.name,
        tokens,
        str(each.counts.get("same", 0)),
        str(each.counts.get("rounding", 0)),
        str(other),
        f"{agree}/{len(positions)}" if positions else NONE,
        short(max(moved)) if moved else NONE,
        greedy(each),
    )


def greedy(each: PassChange) -> str:
    """How many leading greedy tokens are the same, of how many; of several rows, the worst."""
    before, after = each.generated_before, each.generated
    if not before or not after:
        return NONE
    found = [(leading(x, y), len(y)) for x, y in zip(before, after, strict=False)]
    same, total = min(found)
    return f"{same}/{total}"


def leading(before: Sequence[int], after: Sequence[int]) -> int:
    """Number of equal leading tokens."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(before), len(after)))


@dataclass(frozen=True, slots=True)
class Kind:
    """What is not as before of one kind.

    Attributes:
        telling: What may matter, what decides first.
        idle: What is on one side alone and switches nothing on: null, false, zero, empty, or a
            default of generation among those of the config. Releases move such keys by the dozen.
    """

    title: str
    telling: tuple[FactChange, ...]
    idle: tuple[FactChange, ...]


def kinds(result: GateResult) -> list[Kind]:
    """What else is not as before, by kind, what matters most first."""
    groups: dict[str, list[FactChange]] = {}
    for each in result.facts:
        groups.setdefault(each.kind, []).append(each)
    generation = {each.what for each in groups.get("generation", ())}
    order = [*KINDS, *(kind for kind in groups if kind not in KINDS)]
    found = []
    for kind in order:
        idle = tuple(each for each in groups.get(kind, ()) if _idle(each, generation))
        telling = tuple(each for each in groups.get(kind, ()) if each not in idle)
        if telling or idle:
            found.append(Kind(kind_name(kind), telling, idle))
    return found


def _idle(each: FactChange, generation: Set[str]) -> bool:
    if each.kind not in ("config", "default", "generation") or each.decides:
        return False
    off = {each.before, each.after} <= _OFF
    if each.kind == "config":
        return off
    alone = not {each.before, each.after}.isdisjoint(_NOT_SET)
    return off or (alone and (each.kind == "generation" or each.what in generation))


def kind_name(kind: str) -> str:
    """What a kind of facts is called."""
    return KINDS.get(kind, kind)


def fact_cells(each: FactChange) -> tuple[str, str, str]:
    """One change as the cells of a row."""
    absent = _ABSENT.get(each.kind, "absent")
    return each.what, each.before or absent, each.after or absent


def moved(each: FactChange) -> str:
    """``was 100000, is 10000``; or of what is on one side alone, ``new: 10000``, ``gone: ...``."""
    if not each.before:
        return f"new: {each.after}"
    return f"was {each.before}, is {each.after}" if each.after else f"gone: {each.before}"


def side_table(result: GateResult) -> list[tuple[str, str, str, bool]]:
    """What ran: name, before, after, and whether they differ."""
    rows = []
    for part in ("versions", "machine"):
        a, b = getattr(result.before, part), getattr(result.after, part)
        for name in dict.fromkeys([*a, *b]):
            was, now = a.get(name, ""), b.get(name, "")
            # A side that did not run says nothing: that is no difference.
            rows.append((name, was or NONE, now or NONE, bool(a and b) and was != now))
    return rows


def most_telling(result: GateResult) -> tuple[TapChange, ...]:
    """Intermediates that differ by more than rounding; all that are not the same if none does."""
    return tuple(each for each in result.taps if each.state.differs) or result.taps


def idle_title(kind: Kind) -> str:
    """What stands for the idle ones where they are not shown; empty for none."""
    more = "more, " if kind.telling else ""
    return f"{len(kind.idle)} {more}not set on one side, or off on both" if kind.idle else ""


def left_out(result: GateResult, shown: int) -> str:
    """How many intermediates are not shown; empty for none."""
    more = len(result.taps) - shown
    return f"{count(more, 'more intermediate')} in the page and the JSON file" if more > 0 else ""


def failures(result: GateResult) -> list[tuple[str, str]]:
    """What did not run: side or pass, and the error."""
    rows = [(side.name, side.failed) for side in (result.before, result.after) if side.failed]
    for each in result.passes:
        if each.failed_before:
            rows.append((f"{each.name}, before", each.failed_before))
        if each.failed:
            rows.append((f"{each.name}, after", each.failed))
    return rows
