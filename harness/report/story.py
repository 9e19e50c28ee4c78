"""The verdict as a story: what disagrees, since which op, why, and what to do about it."""

import re
from dataclasses import dataclass

from ..result import CandidateVerdict, Diagnosis, Element, RunResult, Verdict
from . import causes, wording

_NOTHING = {
    Verdict.PASS: "Nothing.",
    Verdict.ROUNDING: (
        "Nothing: no op adds more than its rounding. Error growth, below, shows where it gathers."
    ),
    Verdict.NOT_COMPARABLE: (
        "See the reasons under Candidates: they name what was missing. Then run it again."
    ),
}
_UNNAMED = (
    "No fault of the catalogue gives these numbers. Compare the op's values below, its weights and"
    " its constants with the model's definition; the map shows which other ops fail."
)
_NOT_FINITE = (
    "Look at the inputs of the first op that is not finite: what overflows in the candidate's"
    " dtype is finite in float64."
)

_REPORT = re.compile(
    r"https://github\.com/([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)/(?:issues|pull|discussions)/([0-9]+)"
)


@dataclass(frozen=True, slots=True)
class Told:
    """The story of one candidate, or of all where nothing is wrong.

    Attributes:
        rows: Question and answer, in reading order.
    """

    title: str
    rows: tuple[tuple[str, str], ...]


def tell(result: RunResult) -> list[Told]:
    """One story for each candidate that does not agree; one for all if every one does."""
    wrong = [c for c in result.candidates if c.verdict not in (Verdict.PASS, Verdict.ROUNDING)]
    if not wrong:
        return [Told("", (("What to do", _NOTHING.get(result.verdict, _UNNAMED)),))]
    return [Told(c.candidate, tuple(_rows(c, result))) for c in wrong]


def _rows(candidate: CandidateVerdict, result: RunResult) -> list[tuple[str, str]]:
    rows = [("What disagrees", f"{candidate.candidate}: {candidate.reason}")]
    first = candidate.first_divergence
    if first is None:
        return [*rows, ("What to do", _NOTHING.get(candidate.verdict, _UNNAMED))]
    rows.append(("Since which op", wording.divergence_sentence(first)))
    found = [d for d in result.diagnoses if d.candidate == candidate.candidate]
    rows += [("Why", _why(diagnosis)) for diagnosis in found]
    advice = [d.causes[0].advice for d in found if d.causes]
    other = _NOT_FINITE if candidate.verdict is Verdict.NOT_FINITE else _UNNAMED
    rows += [("What to do", words) for words in dict.fromkeys(advice or [other])]
    return rows


def _why(diagnosis: Diagnosis) -> str:
    detail = diagnosis.causes[0].detail if diagnosis.causes else ""
    return causes.title(diagnosis) + (f": {detail}" if detail else "")


def report_links(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Public reports of the first cause: a short name and the address.

    A result is read from a file: only what looks like an issue on GitHub becomes a link.
    """
    reports = diagnosis.causes[0].reports if diagnosis.causes else ()
    found = [match for report in reports if (match := _REPORT.fullmatch(report))]
    return [(f"{match[1]}#{match[2]}", match[0]) for match in found]


def marked(result: RunResult) -> set[tuple[str, int | None]]:
    """Prompts and columns of their rows that a divergence points at."""
    found = set()
    for candidate in result.candidates:
        if candidate.first_divergence is not None and _worst(candidate) is not None:
            found.add((candidate.first_divergence.prompt, _column(candidate, result)))
    return found


def token_of(candidate: CandidateVerdict, result: RunResult) -> str | None:
    """Text of the token at which a candidate's first divergence is worst; None if unknown."""
    worst, at = _worst(candidate), _column(candidate, result)
    if candidate.first_divergence is None or worst is None or at is None:
        return None
    row = worst.index[0] if worst.axes.startswith("B") and worst.index else 0
    for prompt in result.prompts:
        if prompt.name == candidate.first_divergence.prompt and 0 <= row < len(prompt.tokens):
            texts = prompt.tokens[row]
            return texts[at] if 0 <= at < len(texts) else None
    return None


def _column(candidate: CandidateVerdict, result: RunResult) -> int | None:
    """Where the query of the worst element stands in its row, pads included."""
    divergence, worst = candidate.first_divergence, _worst(candidate)
    if divergence is None or worst is None:
        return None
    at = worst.axes.find("T")
    if not 0 <= at < len(worst.index):
        return worst.position
    chunks = {p.name: p.chunks for p in result.prompts}.get(divergence.prompt, ())
    return sum(chunks[: divergence.chunk]) + worst.index[at]


def _worst(candidate: CandidateVerdict) -> Element | None:
    if candidate.first_divergence is None:
        return None
    comparison = candidate.first_divergence.comparison
    error = comparison.local or comparison.difference
    return None if error is None else error.worst
