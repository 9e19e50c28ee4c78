"""What the views say: numbers, places and sentences, as pure functions of a result."""

import math
import unicodedata
from collections.abc import Sequence

from ..result import (
    CandidateVerdict,
    Comparison,
    Divergence,
    Element,
    LogitsPair,
    PromptResult,
    RunResult,
    TapStatus,
    Verdict,
)
from ..taps import AXES, chunk_name, format_shape, split
from ..verdict import describe_weight

#: What stands where there is no value.
NONE = "-"

_HEADLINES = {
    Verdict.PASS: "The engines agree",
    Verdict.ROUNDING: "The engines agree, up to rounding",
    Verdict.FAIL: "The engines disagree",
    Verdict.NOT_FINITE: "There are values that are not finite",
    Verdict.NOT_COMPARABLE: "The engines cannot be compared",
}

_MEANINGS = {
    Verdict.PASS: (
        "Every compared value is within {tolerance} of {against}, and every op that"
        " was replayed on the candidate's own inputs stays within {limit} rounding units."
    ),
    Verdict.ROUNDING: (
        "Some values are further than {tolerance} from {against}, but every op that"
        " was replayed on the candidate's own inputs stays within {limit} rounding units:"
        " accumulated rounding, not a fault."
    ),
    Verdict.FAIL: (
        "A candidate leaves the reference by more than rounding explains (limits: {limit} rounding"
        " units an op, {tolerance} end to end where nothing replays), or runs on other weights."
    ),
    Verdict.NOT_FINITE: "A candidate holds NaN or infinity where the reference is finite.",
    Verdict.NOT_COMPARABLE: "Too little could be compared for a verdict; that is not a pass.",
}


def number(value: float | None) -> str:
    """A number in three digits: ``0.0123``, ``9.2e-05``, ``26,112``, ``nan``; ``-`` for None."""
    return _digits(value, 3)


def short(value: float | None) -> str:
    """A number in two digits, at most seven characters, for narrow tables."""
    return _digits(value, 2)


def _digits(value: float | None, digits: int) -> str:
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    if 100 <= abs(value) < 1e5:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def precise(value: float | None) -> str:
    """A value to be compared digit by digit with another: nine significant digits."""
    return NONE if value is None else f"{value:.9g}"


def units(value: float | None) -> str:
    """Rounding units: ``0``, ``0.4``, ``18.2``, ``15,756``, ``3.1e+12``."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if abs(value) >= 1e7:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def percent(fraction: float | None) -> str:
    """A fraction as a percentage; 100 % only where it is exactly one."""
    if fraction is None:
        return NONE
    if not math.isfinite(fraction):
        return str(fraction)
    if fraction in (0, 1):
        return f"{fraction:.0%}"
    return f"{min(max(100 * fraction, 0.1), 99.9):.1f}%"


def visible(text: str, *, keep: str = "") -> str:
    """Text with control and direction characters spelt out, so that nothing obeys them.

    Args:
        text: Whatever a model, a tokenizer or a file name holds.
        keep: Characters to leave as they are.
    """
    return "".join(c if c in keep else _spell(c) for c in text)


def _spell(character: str) -> str:
    category = unicodedata.category(character)
    if character == " " or category not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def count(number: int, singular: str) -> str:
    """``1 tap``, ``3 taps``."""
    return f"{number} {singular}{'' if number == 1 else 's'}"


def headline(verdict: Verdict) -> str:
    """The verdict in words."""
    return _HEADLINES[verdict]


def meaning(result: RunResult) -> str:
    """What the verdict means, with the limits that it was judged by."""
    return _MEANINGS[result.verdict].format(
        tolerance=number(result.tolerance),
        limit=number(result.unit_limit),
        against=result.against,
    )


def shape(comparison: Comparison) -> str:
    """``[B=1, H=9, T=5, D=64]``."""
    return format_shape(comparison.axes, comparison.shape)


def place(element: Element) -> str:
    """``position 3, head 2, element 17``; other axes as an index: ``batch 1``."""
    parts = []
    for axis, index in zip(element.axes, element.index, strict=False):
        if axis == "B" and index == 0:
            continue
        at = element.position if axis == "T" and element.position is not None else index
        parts.append(f"{AXES.get(axis, axis)} {at}")
    return ", ".join(parts) or "index " + str(list(element.index))


def times_limit(found: float, limit: float) -> str:
    """How far over the limit: ``1.1 times the limit of 16``."""
    if not math.isfinite(found) or limit <= 0:
        return f"limit {number(limit)}"
    return f"{number(found / limit)} times the limit of {number(limit)}"


def divergence_sentence(divergence: Divergence) -> str:
    """One sentence: who leaves the reference, where, and by how much."""
    comparison = divergence.comparison
    start = (
        f"{divergence.candidate} at {divergence.tap}"
        f" (prompt {divergence.prompt}, {chunk_name(divergence.chunk, comparison.prefill)})"
    )
    if comparison.weights:
        return f"{start}: the op runs on other weights than the checkpoint's"
    if comparison.status is not TapStatus.COMPARED:
        return f"{start}: {comparison.status.value}"
    if divergence.fresh and comparison.local is not None:
        return f"{start}: the op itself is off by {units(comparison.local.units)} rounding units"
    if comparison.difference is not None:
        return f"{start}: {number(comparison.difference.max_abs)} end to end, not replayed"
    return start


def divergence_rows(divergence: Divergence, result: RunResult) -> list[tuple[str, str]]:
    """The first divergence as (label, value) rows, in the order in which a reader needs them."""
    comparison, layer = divergence.comparison, split(divergence.tap).layer
    rows = [
        ("candidate", divergence.candidate),
        ("prompt", divergence.prompt),
        ("chunk", f"{divergence.chunk} ({chunk_name(divergence.chunk, comparison.prefill)})"),
        ("tap", divergence.tap),
        ("layer", NONE if layer is None else str(layer)),
        ("op", comparison.op or NONE),
        ("shape", shape(comparison)),
    ]
    if comparison.status is not TapStatus.COMPARED:
        rows.append(("status", comparison.status.value))
    if comparison.note:
        rows.append(("note", comparison.note))
    rows += [("weights", describe_weight(weight)) for weight in comparison.weights]
    local, difference = comparison.local, comparison.difference
    if local is not None:
        rows += _element_rows(local.worst, "reference op on its inputs" if difference else "")
        rows.append(("local error", _local_words(comparison, result)))
        rows.append(("elements over", f"{local.over} beyond the limit"))
    elif difference is not None:
        rows += _element_rows(difference.worst, "")
    if difference is not None:
        rows.append(("end to end", _difference_words(comparison, result)))
    rows.append(("own or inherited", origin(divergence)))
    return rows


def _element_rows(element: Element, qualifier: str) -> list[tuple[str, str]]:
    index = ", ".join(
        f"{axis}={i}" for axis, i in zip(element.axes, element.index, strict=False)
    ) or str(list(element.index))
    return [
        ("position", NONE if element.position is None else str(element.position)),
        ("head", NONE if element.head is None else str(element.head)),
        ("element", f"{NONE if element.element is None else element.element} (index {index})"),
        ("reference", precise(element.reference) + (f" ({qualifier})" if qualifier else "")),
        ("candidate value", precise(element.candidate)),
    ]


def _local_words(comparison: Comparison, result: RunResult) -> str:
    local = comparison.local
    assert local is not None
    words = (
        f"{units(local.units)} rounding units, {times_limit(local.units, result.unit_limit)}"
        f" (median {units(local.median)}; {number(local.error)} absolute,"
        f" one unit is {number(local.bound)})"
    )
    if local.inherited_bound:
        words += "; the bound came through ops that the candidate does not tap"
    return words


def _difference_words(comparison: Comparison, result: RunResult) -> str:
    difference = comparison.difference
    assert difference is not None
    return (
        f"max {number(difference.max_abs)}, mean {number(difference.mean_abs)}, values up to"
        f" {number(difference.magnitude)}; {difference.over} of {difference.count} beyond"
        f" {number(result.tolerance)}; worst at {place(difference.worst)}"
    )


def origin(divergence: Divergence) -> str:
    """Whether the op itself is wrong or only what it was fed."""
    if divergence.comparison.weights:
        return "its own: the op runs on other weights, whatever this input shows of it"
    if divergence.fresh:
        return "its own: the op fails on the candidate's own inputs"
    return "unknown: only the end-to-end difference shows it; too few taps to replay"


def candidate_cells(candidate: CandidateVerdict) -> tuple[str, ...]:
    """Compared, replayed, worst units, where, max abs."""
    return (
        str(candidate.compared),
        str(candidate.replayed),
        units(candidate.worst_units),
        candidate.worst_tap or NONE,
        short(candidate.max_abs),
    )


def failing(
    candidate: CandidateVerdict, prompts: Sequence[PromptResult] = (), *, most: int = 5
) -> str:
    """The taps whose ops fail by themselves, in order; empty where none does."""
    prefill = {prompt.name: prompt.prefill for prompt in prompts}
    names = [
        tap if chunk == 0 else f"{tap} ({chunk_name(chunk, prefill.get(prompt, 1))})"
        for prompt, chunk, tap in candidate.failing
    ]
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def pair_cells(pair: LogitsPair, prompt: PromptResult) -> tuple[str, ...]:
    """Max abs, mean abs, mean KL, top-1 agreement, greedy agreement."""
    return (
        short(pair.max_abs),
        short(pair.mean_abs),
        short(pair.kl_mean),
        percent(pair.top1_agreement),
        greedy(pair, prompt),
    )


def greedy(pair: LogitsPair, prompt: PromptResult) -> str:
    """``20/20``: equal leading tokens of those that were generated; ``-`` where none were."""
    if pair.greedy_agreement is None:
        return NONE
    lengths = [len(g.token_ids) for g in prompt.greedy if g.engine in (pair.a, pair.b)]
    total = max(lengths, default=0)
    return f"{pair.greedy_agreement}/{total}" if total else str(pair.greedy_agreement)


def prompt_title(prompt: PromptResult) -> str:
    """``hello (5 tokens, 2 decoding steps)``, ``a (2 rows of 7 tokens, padded left by 0, 3)``."""
    rows = len(prompt.token_ids)
    tokens = count(max((len(row) for row in prompt.token_ids), default=0), "token")
    steps = len(prompt.chunks) - prompt.prefill
    parts = [tokens if rows <= 1 else f"{rows} rows of {tokens}"]
    if prompt.padding:
        parts.append(f"padded {prompt.padding} by {', '.join(map(str, prompt.pads))}")
    if prompt.prefill > 1:
        sizes = ", ".join(map(str, prompt.chunks[: prompt.prefill]))
        parts.append(f"in passes of {sizes}")
    if steps > 0:
        parts.append(count(steps, "decoding step"))
    return f"{prompt.name} ({', '.join(parts)})"
