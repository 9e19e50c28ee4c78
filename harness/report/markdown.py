"""The Markdown view: fit for the summary of a CI job or a comment on a pull request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..result import CandidateVerdict, Diagnosis, PromptResult, RunResult, Verdict
from . import causes, wording
from .markdown_escape import code, fenced, html_code, link, prose
from .probes import fed, worst_units

#: Most bytes of the view. GitHub takes 65,536 characters in a comment.
MOST = 60_000

#: Kept free for what closes a table or a fold, and for the note on what was left out.
_RESERVE = 400

_MARKS = {
    Verdict.PASS: ":white_check_mark:",
    Verdict.ROUNDING: ":white_check_mark:",
    Verdict.FAIL: ":x:",
    Verdict.NOT_FINITE: ":x:",
    Verdict.NOT_COMPARABLE: ":warning:",
}

#: Labels whose values are names or numbers, shown as code.
_AS_CODE = ("candidate", "prompt", "tap", "op", "shape", "reference", "candidate value")


@dataclass(frozen=True, slots=True)
class _Block:
    """A part of the view that is cut between its rows where room ends.

    Attributes:
        head: Comes first, and only together with the first row.
        rows: Lines.
        tail: Closes what the head opened.
    """

    head: str
    rows: Sequence[str]
    tail: str = ""


def to_markdown(result: RunResult, *, most: int = MOST) -> str:
    """Render a result as Markdown.

    Whatever the result holds is shown as text: no markup, mention, reference or formula of it is
    obeyed. What matters most comes first; where room ends, the rest is left out and counted.

    Args:
        result: What to show.
        most: Most bytes, in UTF-8.
    """
    parts, room, left_out = [], most - _RESERVE, 0
    for block in _blocks(result):
        taken, used = [], _size(block.head) + _size(block.tail)
        for row in block.rows:
            if used + _size(row) > room:
                break
            used += _size(row)
            taken.append(row)
        left_out += len(block.rows) - len(taken)
        if taken:
            parts.append("\n".join(part for part in (block.head, *taken, block.tail) if part))
            room -= used + 1
    if left_out:
        parts.append(
            f"*{wording.count(left_out, 'line')} left out here for want of room: the result's page"
            " and JSON file have everything.*"
        )
    return "\n\n".join(parts) + "\n"


def join(views: Sequence[str], *, most: int = MOST) -> str:
    """The views of several cases in one document; those that do not fit are counted."""
    taken, room = [], most - _RESERVE
    for view in views:
        if _size(view) > room:
            break
        room -= _size(view) + 1
        taken.append(view)
    if len(taken) < len(views):
        left = wording.count(len(views) - len(taken), "more case")
        taken.append(f"*{left} left out here for want of room.*\n")
    return "\n".join(taken)


def error_view(name: str, message: str) -> str:
    """What stands for a case of which there is no result."""
    return f"## :warning: error: {code(name)}\n\n**There is no result**: {prose(message)}\n"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace")) + 1


def _blocks(result: RunResult) -> Iterator[_Block]:
    yield _verdict(result)
    yield from _candidates(result)
    for candidate in result.candidates:
        yield from _divergence(candidate, result)
        for diagnosis in result.diagnoses:
            if diagnosis.candidate == candidate.candidate:
                yield _cause(diagnosis)
    probes = {probe.name for probe in result.probe.probes} if result.probe else set()
    for prompt in result.prompts:
        if prompt.logits and prompt.name not in probes:
            yield _logits(prompt)
    if result.environment.command:
        yield _Block("**Run it again**", (f"\n{fenced(result.environment.command)}",))
    yield from _details(result)


def _verdict(result: RunResult) -> _Block:
    title = f"## {_MARKS[result.verdict]} {result.verdict.value}: {code(result.case)}"
    words = f"\n**{wording.headline(result.verdict)}**: {prose(result.summary)}"
    return _Block(title, (words, f"\n{prose(wording.meaning(result))}"))


def _table(title: str, headings: Sequence[str], right: int = 0) -> str:
    """Title and head of a table whose last so many columns are of numbers."""
    plain = len(headings) - right
    rule = ["---"] * plain + ["---:"] * right
    return f"{title}\n\n| {' | '.join(headings)} |\n| {' | '.join(rule)} |"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _candidates(result: RunResult) -> Iterator[_Block]:
    headings = ("candidate", "verdict", "worst at", "taps", "replayed", "units", "max abs")
    rows = []
    for each in result.candidates:
        compared, replayed, units, worst, largest = wording.candidate_cells(each)
        verdict = f"{_MARKS[each.verdict]} {each.verdict.value}"
        where = code(worst) if each.worst_tap else worst
        rows.append(_row(code(each.candidate), verdict, where, compared, replayed, units, largest))
    title = f"**Candidates**, against {prose(result.against)}"
    yield _Block(_table(title, headings, 4), rows)
    yield _Block(
        "", [f"- {code(each.candidate)}: {prose(each.reason)}" for each in result.candidates]
    )


def _divergence(candidate: CandidateVerdict, result: RunResult) -> Iterator[_Block]:
    divergence = candidate.first_divergence
    if divergence is None:
        return
    title = f"### First divergence: {prose(wording.divergence_sentence(divergence))}"
    rows = [_labelled(*row) for row in wording.divergence_rows(divergence, result)]
    failing = wording.failing(candidate, result.prompts)
    if failing:
        rows.append(_labelled("fails by itself", failing))
    yield _Block(_table(title, ("", "")), rows)


def _cause(diagnosis: Diagnosis) -> _Block:
    title = f"### Cause: {prose(causes.title(diagnosis))}"
    rows = [
        _labelled(label, value) if label != "seen in" else _row(label, _links(value))
        for label, value in causes.rows(diagnosis)
    ]
    return _Block(_table(title, ("", "")), rows)


def _labelled(label: str, value: str) -> str:
    return _row(prose(label), code(value) if label in _AS_CODE else prose(value))


def _links(value: str) -> str:
    return ", ".join(link(address) for address in value.split(", "))


def _logits(prompt: PromptResult) -> _Block:
    title = f"### Logits: {prose(wording.prompt_title(prompt))}"
    headings = ("a", "b", "max abs", "mean abs", "KL", "top-1", "greedy")
    rows = [
        _row(code(pair.a), code(pair.b), *wording.pair_cells(pair, prompt))
        for pair in prompt.logits
    ]
    return _Block(_table(title, headings, 5), rows)


def _fold(summary: str, head: str, rows: Sequence[str]) -> _Block:
    """Details that are closed until somebody opens them; the summary is HTML."""
    opened = f"<details><summary>{summary}</summary>\n\n{head}".rstrip("\n")
    return _Block(opened if head else f"{opened}\n", rows, "\n</details>")


def _details(result: RunResult) -> Iterator[_Block]:
    for candidate in result.candidates:
        if candidate.unavailable:
            taps = wording.count(len(candidate.unavailable), "tap")
            yield _fold(
                f"Not compared for {html_code(candidate.candidate)}: {taps} that it cannot give",
                "",
                [f"- {code(tap)}: {prose(why)}" for tap, why in candidate.unavailable.items()],
            )
    for prompt in result.prompts:
        if prompt.greedy:
            yield _fold(
                f"Greedy texts: {html_code(prompt.name)}",
                "",
                [f"- {code(each.engine)}: {code(each.text, most=500)}" for each in prompt.greedy],
            )
    yield from _probes(result)
    yield _versions(result)


def _probes(result: RunResult) -> Iterator[_Block]:
    if result.probe is None:
        return
    rows = [
        _row(code(each.name), prose(fed(each)), wording.units(worst_units(each.name, result)))
        for each in result.probe.probes
    ]
    head = _table("", ("probe", "fed", "units"), 1).lstrip("\n")
    yield _fold("Probes: inputs made for this checkpoint", head, rows)
    hidden = [sight for sight in result.probe.sights if not sight.shown]
    yield _fold(
        f"Faults that these probes do not show: {len(hidden)}",
        "",
        [f"- {code(sight.topic)}: {prose(sight.why)}" for sight in hidden],
    )


def _versions(result: RunResult) -> _Block:
    environment, model = result.environment, result.model
    rows = [
        ("model", f"{code(model.origin)}, {model.parameters:,} parameters"),
        ("fingerprint", code(model.fingerprint)),
        *(("engine", f"{code(each.name)} in {code(each.dtype)}") for each in result.engines),
        ("threads", str(environment.threads)),
        ("seed", "none" if environment.seed is None else str(environment.seed)),
        ("platform", code(environment.platform)),
        ("started", f"{code(environment.started)}, took {environment.seconds:.1f} s"),
        *((code(name), code(version)) for name, version in environment.versions.items()),
    ]
    return _fold("Model, engines and versions", "", [f"- {name}: {value}" for name, value in rows])
