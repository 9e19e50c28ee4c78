"""What the views of a gate say, in words and rows: one wording for terminal, Markdown and page."""

from collections.abc import Iterator

from ..gate.result import (
    Divergence,
    FactChange,
    GateResult,
    GateVerdict,
    PassChange,
    SideInfo,
    TapChange,
    TapState,
)
from .wording import count

HEADLINES = {
    GateVerdict.SAME: "It is the same model",
    GateVerdict.ROUNDING: "It is the same model, up to rounding",
    GateVerdict.CHANGED: "It is another model",
    GateVerdict.FAILING: "It does not run any more",
    GateVerdict.NOT_COMPARABLE: "The two sides cannot be compared",
}

MEANINGS = {
    GateVerdict.SAME: "Every number that is carried on has the same bits on both sides.",
    GateVerdict.ROUNDING: "Some bits differ, by no more than the rounding errors that each side has"
    " against a run in float64. Sums in another order or another kernel do that.",
    GateVerdict.CHANGED: "What differs is more than rounding explains, or the model is given other"
    " tokens or other weights. Find out whether that is meant before you upgrade.",
    GateVerdict.FAILING: "A model that loaded and ran before raises an error now.",
    GateVerdict.NOT_COMPARABLE: "Nothing is said about the model. This is not a pass.",
}

#: Headings of :func:`fact_rows`, and of :func:`tap_cells`.
FACT_HEADINGS = ("what", "before", "after")
TAP_HEADINGS = ("pass", "step", "intermediate", "state", "difference", "of its size", "allowed")
PASS_HEADINGS = ("pass", "tokens", "same", "rounding", "changed", "top-1", "log p", "greedy")

#: What a kind of facts is called, in the order in which they are shown.
KINDS = {
    "weights": "Weights as loaded",
    "loading": "Said while loading",
    "tokenizer": "Tokenizer",
    "config": "Config as parsed",
    "default": "Defaults that the config file leaves open",
    "attention": "Attention implementation",
    "model class": "Class of the model",
    "config class": "Class of the config",
    "generation": "Defaults of generation",
    "cache": "Cache",
    "modules": "Modules",
    "warnings": "Warnings",
    "versions": "Versions",
    "machine": "Machine",
}

NOTHING = "none"


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
        yield "rounding", f"explains up to {change.allowance:.2g}{_times(change)}"
    yield "largest value", f"{change.largest_before:.6g} before, {change.largest:.6g} after"
    yield "carried to", divergence.carried_to
    if divergence.aside:
        yield (
            "not it",
            (f"{', '.join(divergence.aside)}: differ too, but what reads them does not show it"),
        )


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
        return "NaN or infinity on one side"
    if change.distance is None or change.low is None or change.high is None:
        return NOTHING
    share = f", {change.distance / change.norm:.2g} of its size" if change.norm else ""
    if change.low == change.high:
        return f"{change.distance:.3g}{share}"
    return (
        f"about {change.distance:.2g}{share} (from a sketch: between {change.low:.2g} and"
        f" {change.high:.2g}, but for one time in 5,000)"
    )


def _times(change: TapChange) -> str:
    if not change.allowance or change.distance is None:
        return ""
    return f"; this is {change.distance / change.allowance:.3g} times that"


def step(change: TapChange) -> str:
    """Which forward pass of a pass."""
    return "prompt" if change.chunk == 0 else f"cached step {change.chunk}"


def tap_cells(change: TapChange) -> tuple[str, ...]:
    """One intermediate as the cells of a row."""
    distance = change.distance
    share = f"{distance / change.norm:.2g}" if distance is not None and change.norm else NOTHING
    return (
        change.passed,
        step(change),
        change.tap,
        change.state.value,
        NOTHING if distance is None else f"{distance:.3g}",
        share,
        f"{change.allowance:.2g}",
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
        f"{agree}/{len(positions)}" if positions else NOTHING,
        f"{max(moved):.2g}" if moved else NOTHING,
        greedy(each),
    )


def greedy(each: PassChange) -> str:
    """How many greedy tokens are the same, of how many."""
    before, after = each.generated_before, each.generated
    if not before or not after:
        return NOTHING
    same = 0
    for x, y in zip(before[0], after[0], strict=False):
        if x != y:
            break
        same += 1
    return f"{same}/{len(after[0])}"


def facts_by_kind(result: GateResult) -> list[tuple[str, list[FactChange]]]:
    """What else is not as before, by kind, what matters most first."""
    groups: dict[str, list[FactChange]] = {}
    for each in result.facts:
        groups.setdefault(each.kind, []).append(each)
    order = [*KINDS, *(kind for kind in groups if kind not in KINDS)]
    return [(KINDS.get(kind, kind), groups[kind]) for kind in order if kind in groups]


def fact_cells(each: FactChange) -> tuple[str, str, str]:
    """One change as the cells of a row."""
    return each.what, each.before or NOTHING, each.after or NOTHING


def side_rows(side: SideInfo) -> Iterator[tuple[str, str]]:
    """What ran on one side."""
    for name, version in side.versions.items():
        yield name, version
    for name, value in side.machine.items():
        yield name, value
    if side.failed:
        yield "failed", side.failed


def left_out(result: GateResult, shown: int) -> str:
    """How many intermediates are not shown; empty for none."""
    more = len(result.taps) - shown
    return f"{count(more, 'more intermediate')} in the page and the JSON file" if more > 0 else ""
