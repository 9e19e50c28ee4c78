"""Engines side by side: logits, tokens, likely next tokens, greedy texts, weights and constants."""

import math
from dataclasses import dataclass
from itertools import zip_longest

from ..result import Greedy, LogitsPair, PromptResult, RunResult
from ..spread import decode
from ..verdict import describe_weight
from . import wording

#: The reference among the engines of :class:`LogitsPair`.
REFERENCE = "float64"

#: Most positions of a pair of logits that are told apart; of longer prompts, so many stretches.
_MOST_POSITIONS = 1024

#: Most texts of fits and weights of a kind that are listed.
_MOST = 40


@dataclass(frozen=True, slots=True)
class Matrix:
    """Every engine against every other, the worst of all prompts.

    Attributes:
        rows: Of each engine, a cell for each engine: max abs above the diagonal, the share of
            positions with the same largest logit below it.
    """

    engines: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """One token as it is shown.

    Attributes:
        style: ``given`` or ``decoded``, ``marked`` where a divergence points at it, and a shade of
            the error of its logits where that is known.
    """

    at: int
    text: str
    style: str
    title: str


@dataclass(frozen=True, slots=True)
class Text:
    """A greedy text, cut where it leaves the first one.

    Attributes:
        note: Which token differs first and how, or that all are equal.
    """

    engine: str
    same: str
    other: str
    note: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """One constant of one candidate, fitted at all layers."""

    candidate: str
    constant: str
    written: str
    configured: str
    fitted: str
    places: int
    excluded: int


def matrix(result: RunResult) -> Matrix | None:
    """The worst of all prompts for each pair; None where no logits were compared."""
    worst: dict[tuple[str, str], float] = {}
    agreed: dict[tuple[str, str], float] = {}
    engines: dict[str, None] = {}
    for pair in (pair for prompt in result.prompts for pair in prompt.logits):
        key = (pair.a, pair.b)
        engines |= dict.fromkeys(key)
        worst[key] = _larger(worst.get(key, 0.0), pair.max_abs)
        agreed[key] = min(agreed.get(key, 1.0), pair.top1_agreement)
    names = tuple(engines)
    if not names:
        return None

    def cell(row: int, column: int) -> str:
        if row == column:
            return ""
        key = (names[min(row, column)], names[max(row, column)])
        key = key if key in worst else key[::-1]
        if key not in worst:
            return wording.NONE
        return wording.number(worst[key]) if row < column else wording.percent(agreed[key])

    rows = ((name, tuple(cell(i, j) for j in range(len(names)))) for i, name in enumerate(names))
    return Matrix(names, tuple(rows))


def _larger(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def shading_pair(prompt: PromptResult) -> LogitsPair | None:
    """The pair that tokens are shaded by at first: the candidate furthest from float64."""
    found = [pair for pair in prompt.logits if pair.positions]
    found = [pair for pair in found if REFERENCE in (pair.a, pair.b)] or found
    return max(
        found, key=lambda pair: -1.0 if math.isnan(pair.max_abs) else pair.max_abs, default=None
    )


def tokens(prompt: PromptResult, marked: set[tuple[str, int | None]]) -> list[list[Shown]]:
    """The tokens of each row, those of decoding steps behind the prompt's."""
    pair = shading_pair(prompt)
    errors = {} if pair is None else errors_by_token(prompt, pair.positions)
    rows = []
    for row, ids in enumerate(prompt.token_ids):
        texts = prompt.tokens[row] if row < len(prompt.tokens) else tuple(map(str, ids))
        shown = []
        for at, text in enumerate(texts):
            error = errors.get((row, at))
            styles = ["given" if at < len(ids) else "decoded", decade(error)]
            styles += ["marked"] if (prompt.name, at) in marked else []
            title = f"position {at}, " + (
                f"id {ids[at]}" if at < len(ids) else "chosen greedily, fed in a decoding step"
            )
            if error is not None and pair is not None:
                title += f"; logits of {pair.a} and {pair.b} differ by {wording.number(error)}"
            shown.append(Shown(at, text, " ".join(filter(None, styles)), title))
        rows.append(shown)
    return rows


def errors_by_token(prompt: PromptResult, signs: str) -> dict[tuple[int, int], float]:
    """What the positions of a :class:`LogitsPair` say of each (row, column) of a prompt.

    They are those of the prompt's forward passes, one behind the other, row by row, without pads;
    of a long prompt, one for each stretch. Empty where they cannot be told to be of these.
    """
    try:
        errors = decode(signs)
    except ValueError:  # read from a file that something else wrote
        return {}
    slots = slots_of(prompt)
    step = math.ceil(len(slots) / _MOST_POSITIONS)
    if len(errors) == math.ceil(len(slots) / max(step, 1)):
        return {slot: errors[i // step] for i, slot in enumerate(slots)}
    if len(prompt.token_ids) == 1 and 0 < len(errors) < min(len(slots), _MOST_POSITIONS):
        return dict(zip(slots[-len(errors) :], errors, strict=True))  # an engine gave the last ones
    return {}


def slots_of(prompt: PromptResult) -> list[tuple[int, int]]:
    """Rows and columns of the prompt's tokens, in the order in which logits come."""
    found = []
    start = 0
    for size in prompt.chunks[: prompt.prefill]:
        for row, ids in enumerate(prompt.token_ids):
            pads = prompt.pads[row] if row < len(prompt.pads) else 0
            first = pads if prompt.padding == "left" else 0
            last = len(ids) - (pads if prompt.padding == "right" else 0)
            columns = range(max(start, first), min(start + size, last))
            found += [(row, column) for column in columns]
        start += size
    return found


def decade(error: float | None) -> str:
    """Shade of an absolute error: ``g0`` up to 1e-7, one more for each power of ten, to ``g7``."""
    if error is None:
        return ""
    if error <= 1e-7:
        return "g0"
    return f"g{min(7, math.ceil(math.log10(error) + 7 - 1e-9))}" if math.isfinite(error) else "g7"


def top_rows(prompt: PromptResult) -> list[list[tuple[str, str, bool]]]:
    """The likely next tokens: of each rank, of each engine its token, numbers, whether it differs.

    An engine differs where its token of that rank is not the first engine's.
    """
    rows = []
    for rank in range(max((len(top.token_ids) for top in prompt.top), default=0)):
        row = []
        for top in prompt.top:
            if rank >= min(len(top.token_ids), len(top.logits), len(top.probabilities)):
                row.append(("", wording.NONE, False))
                continue
            first = prompt.top[0].token_ids
            differs = rank >= len(first) or top.token_ids[rank] != first[rank]
            numbers = f"{top.logits[rank]:.6g}, {wording.percent(top.probabilities[rank])}"
            text = top.texts[rank] if rank < len(top.texts) else str(top.token_ids[rank])
            row.append((text, numbers, differs))
        rows.append(row)
    return rows


def greedy_texts(prompt: PromptResult) -> list[Text]:
    """The greedy texts, each cut where it leaves the first one's."""
    if not prompt.greedy:
        return []
    first = prompt.greedy[0]
    start = _said(first)
    shown = []
    for greedy in prompt.greedy:
        text = _said(greedy)
        pairs = zip_longest(greedy.token_ids, first.token_ids)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is None:
            same = f"the same {wording.count(len(greedy.token_ids), 'token')}"
            shown.append(Text(greedy.engine, text, "", "" if greedy is first else same))
            continue
        letters = enumerate(zip_longest(text, start))
        cut = next((i for i, (a, b) in letters if a != b), len(text))
        ids = [str(g.token_ids[at]) if at < len(g.token_ids) else "none" for g in (greedy, first)]
        note = f"token {at + 1} is the first that differs: id {ids[0]}, {first.engine} has {ids[1]}"
        shown.append(Text(greedy.engine, text[:cut], text[cut:], note))
    return shown


def _said(greedy: Greedy) -> str:
    """The text, or the ids where there is no tokenizer."""
    return greedy.text or " ".join(map(str, greedy.token_ids))


def weights(result: RunResult) -> list[tuple[str, str]]:
    """Candidates and what they hold otherwise than the checkpoint, each difference once."""
    found = {
        (c.candidate, describe_weight(weight)): None
        for c in result.comparisons
        for weight in c.weights
    }
    return list(found)[:_MOST]


def fits(result: RunResult) -> list[Fitted]:
    """Constants as candidates compute with them; of many places, the one furthest off."""
    found: dict[tuple[str, str, float], list[tuple[bool, float, str, str]]] = {}
    for c in result.comparisons:
        for fit in c.fits:
            off = abs(fit.fitted - fit.configured) / (fit.tolerated or 1.0)
            said = f"{fit.fitted:.7g} \N{PLUS-MINUS SIGN} {wording.short(fit.error)}"
            key = (c.candidate, fit.constant, fit.configured)
            found.setdefault(key, []).append((fit.excluded, off, said, fit.written))
    rows = []
    for (candidate, constant, configured), all_of_it in found.items():
        _, _, said, written = max(all_of_it)
        count = sum(item[0] for item in all_of_it)
        rows.append(
            Fitted(candidate, constant, written, f"{configured:.7g}", said, len(all_of_it), count)
        )
    return rows[:_MOST]
