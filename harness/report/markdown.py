"""The Markdown view: fit for the summary of a CI job or a comment on a pull request."""

from collections.abc import Iterator, Sequence

from ..result import CandidateVerdict, PromptResult, RunResult, Verdict
from . import wording
from .markdown_blocks import (
    MOST,
    RESERVE,
    Block,
    cause,
    fit,
    fold,
    labelled,
    row,
    size,
    table,
)
from .markdown_escape import code, fenced, html_code, prose
from .probes import fed, worst_units

_MARKS = {
    Verdict.PASS: ":white_check_mark:",
    Verdict.ROUNDING: ":white_check_mark:",
    Verdict.FAIL: ":x:",
    Verdict.NOT_FINITE: ":x:",
    Verdict.NOT_COMPARABLE: ":warning:",
}


def to_markdown(result: RunResult, *, most: int = MOST) -> str:
    """Render a result as Markdown.

    Whatever the result holds is shown as text: no markup, mention, reference or formula of it is
    obeyed. What matters most comes first; where room ends, the rest is left out and counted.

    Args:
        result: What to show.
        most: Most bytes, in UTF-8.
    """
    return fit(_blocks(result), most=most)


def join(views: Sequence[str], *, most: int = MOST) -> str:
    """The views of several cases in one document; those that do not fit are counted."""
    taken, room = [], most - RESERVE
    for view in views:
        if size(view) > room:
            break
        room -= size(view) + 1
        taken.append(view)
    if len(taken) < len(views):
        left = wording.count(len(views) - len(taken), "more case")
        taken.append(f"*{left} left out here for want of room.*\n")
    return "\n".join(taken)


def error_view(name: str, message: str) -> str:
    """What stands for a case of which there is no result."""
    return f"## :warning: error: {code(name)}\n\n**There is no result**: {prose(message)}\n"


def _blocks(result: RunResult) -> Iterator[Block]:
    yield _verdict(result)
    yield from _candidates(result)
    for candidate in result.candidates:
        yield from _divergence(candidate, result)
        for diagnosis in result.diagnoses:
            if diagnosis.candidate == candidate.candidate:
                yield cause(diagnosis)
    probes = {probe.name for probe in result.probe.probes} if result.probe else set()
    for prompt in result.prompts:
        if prompt.logits and prompt.name not in probes:
            yield _logits(prompt)
    if result.environment.command:
        yield Block("**Run it again**", (f"\n{fenced(result.environment.command)}",))
    yield from _details(result)


def _verdict(result: RunResult) -> Block:
    title = f"## {_MARKS[result.verdict]} {result.verdict.value}: {code(result.case)}"
    words = f"\n**{wording.headline(result.verdict)}**: {prose(result.summary)}"
    return Block(title, (words, f"\n{prose(wording.meaning(result))}"))


def _candidates(result: RunResult) -> Iterator[Block]:
    headings = ("candidate", "verdict", "worst at", "taps", "replayed", "units", "max abs")
    rows = []
    for each in result.candidates:
        compared, replayed, units, worst, largest = wording.candidate_cells(each)
        verdict = f"{_MARKS[each.verdict]} {each.verdict.value}"
        where = code(worst) if each.worst_tap else worst
        rows.append(row(code(each.candidate), verdict, where, compared, replayed, units, largest))
    title = f"**Candidates**, against {prose(result.against)}"
    yield Block(table(title, headings, 4), rows)
    yield Block(
        "", [f"- {code(each.candidate)}: {prose(each.reason)}" for each in result.candidates]
    )


def _divergence(candidate: CandidateVerdict, result: RunResult) -> Iterator[Block]:
    divergence = candidate.first_divergence
    if divergence is None:
        return
    title = f"### First divergence: {prose(wording.divergence_sentence(divergence))}"
    rows = [labelled(*each) for each in wording.divergence_rows(divergence, result)]
    failing = wording.failing(candidate, result.prompts)
    if failing:
        rows.append(labelled("fails by itself", failing))
    yield Block(table(title, ("", "")), rows)


def _logits(prompt: PromptResult) -> Block:
    title = f"### Logits: {prose(wording.prompt_title(prompt))}"
    headings = ("a", "b", "max abs", "mean abs", "KL", "top-1", "greedy")
    rows = [
        row(code(pair.a), code(pair.b), *wording.pair_cells(pair, prompt)) for pair in prompt.logits
    ]
    return Block(table(title, headings, 5), rows)


def _details(result: RunResult) -> Iterator[Block]:
    for candidate in result.candidates:
        if candidate.unavailable:
            taps = wording.count(len(candidate.unavailable), "tap")
            yield fold(
                f"Not compared for {html_code(candidate.candidate)}: {taps} that it cannot give",
                "",
                [f"- {code(tap)}: {prose(why)}" for tap, why in candidate.unavailable.items()],
            )
    for prompt in result.prompts:
        if prompt.greedy:
            yield fold(
                f"Greedy texts: {html_code(prompt.name)}",
                "",
                [f"- {code(each.engine)}: {code(each.text, most=500)}" for each in prompt.greedy],
            )
    yield from _probes(result)
    yield _versions(result)


def _probes(result: RunResult) -> Iterator[Block]:
    if result.probe is None:
        return
    rows = [
        row(code(each.name), prose(fed(each)), wording.units(worst_units(each.name, result)))
        for each in result.probe.probes
    ]
    head = table("", ("probe", "fed", "units"), 1)
    yield fold("Probes: inputs made for this checkpoint", head, rows)
    hidden = [sight for sight in result.probe.sights if not sight.shown]
    yield fold(
        f"Faults that these probes do not show: {len(hidden)}",
        "",
        [f"- {code(sight.topic)}: {prose(sight.why)}" for sight in hidden],
    )


def _versions(result: RunResult) -> Block:
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
    return fold("Model, engines and versions", "", [f"- {name}: {value}" for name, value in rows])
