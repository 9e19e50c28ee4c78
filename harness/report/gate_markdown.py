"""The Markdown view of a gate: fit for the summary of a CI job or a comment on a pull request."""

from collections.abc import Iterator

from ..gate.result import GateResult, GateVerdict, PassChange
from . import gate_story
from . import gate_words as words
from .markdown_blocks import MOST, Block, cause, fit, fold, labelled, row, table
from .markdown_escape import code, fenced, html_code, prose
from .wording import count

_MARKS = {
    GateVerdict.SAME: ":white_check_mark:",
    GateVerdict.ROUNDING: ":white_check_mark:",
    GateVerdict.CHANGED: ":x:",
    GateVerdict.FAILING: ":x:",
    GateVerdict.NOT_COMPARABLE: ":warning:",
}

#: Intermediates that are shown: the page has all of them.
_MOST_TAPS = 40


def to_markdown(result: GateResult, *, most: int = MOST) -> str:
    """Render a result as Markdown.

    Whatever the result holds is shown as text: no markup, mention, reference or formula of it is
    obeyed. What matters most comes first; where room ends, the rest is left out and counted.

    Args:
        result: What to show.
        most: Most bytes, in UTF-8.
    """
    return fit(_blocks(result), most=most)


def _blocks(result: GateResult) -> Iterator[Block]:
    yield _verdict(result)
    yield from _failures(result)
    yield from _divergence(result)
    for diagnosis in result.diagnoses:
        yield cause(diagnosis)
    yield from _passes(result)
    yield from _facts(result)
    yield from _taps(result)
    yield from _sides(result)
    said = [*result.notes]
    if result.replayed:
        said.append(f"Replayed on the reference: {result.replayed}")
    yield Block("", [f"- {prose(each)}" for each in said])
    search = gate_story.bisect_command(result)
    if search:
        yield Block(f"**{gate_story.search(result)}**", (f"\n{fenced(search)}",))
    if result.command:
        yield Block("**Run it again**", (f"\n{fenced(result.command)}",))


def _verdict(result: GateResult) -> Block:
    title = f"## {_MARKS[result.verdict]} {result.verdict.value}: {code(result.model)}"
    sides = f"{code(result.before.name)} to {code(result.after.name)}"
    lines = [
        f"\n**{words.HEADLINES[result.verdict]}**, {sides}. {words.MEANINGS[result.verdict]}\n",
        *(f"- **{question}**: {prose(answer)}" for question, answer in gate_story.tell(result)),
    ]
    return Block(title, lines)


def _failures(result: GateResult) -> Iterator[Block]:
    for name, error in words.failures(result):
        yield Block(f"**Error**: {code(name)}", (f"\n{fenced(error, most=2_000)}",))


def _divergence(result: GateResult) -> Iterator[Block]:
    found = result.divergence
    if found is not None:
        title = f"### First divergence: {code(found.change.tap)}"
        rows = [labelled(*each) for each in words.divergence_rows(found)]
        yield Block(table(title, ("", "")), rows)


def _passes(result: GateResult) -> Iterator[Block]:
    rows = [_pass_row(each) for each in result.passes]
    yield Block(table("**Passes**", words.PASS_HEADINGS, 7), rows)
    for each in result.passes:
        for side, names in (("before", each.only_before), ("after", each.only_after)):
            title = f"Only {side}, in pass {html_code(each.name)}"
            lines = [f"- {code(name)}" for name in names]
            yield fold(f"{title}: {count(len(names), 'intermediate')}", "", lines)


def _pass_row(each: PassChange) -> str:
    name, *numbers = words.pass_cells(each)
    return row(code(name), *numbers)


def _facts(result: GateResult) -> Iterator[Block]:
    """What decides in the open, everything else closed."""
    deciding = [each for each in result.facts if each.decides]
    rows = [
        row(prose(words.kind_name(each.kind)), *map(code, words.fact_cells(each)))
        for each in deciding
    ]
    yield Block(table("**This alone makes it another model**", ("", *words.FACT_HEADINGS)), rows)
    for kind in words.kinds(result):
        facts = (*kind.telling, *kind.idle)
        head = table("", words.FACT_HEADINGS)
        cells = [row(*map(code, words.fact_cells(each))) for each in facts]
        yield fold(f"{html_code(kind.title)}: {len(facts)} not as before", head, cells)


def _taps(result: GateResult) -> Iterator[Block]:
    shown = words.most_telling(result)[:_MOST_TAPS]
    rows = []
    for each in shown:
        name, passed, step, *others = words.tap_cells(each)
        rows.append(row(code(name), code(passed), step, *others))
    title = f"Intermediates that are not the same: {len(result.taps)}"
    rest = words.left_out(result, len(shown))
    yield fold(title, table("", words.TAP_HEADINGS, 3), rows)
    if rest:
        yield Block("", (f"*{rest}*",))


def _sides(result: GateResult) -> Iterator[Block]:
    rows = []
    for name, was, now, other in words.side_table(result):
        cells = (f"**{code(each)}**" if other else code(each) for each in (was, now))
        rows.append(row(code(name), *cells))
    yield fold("Versions and machine", table("", ("", "before", "after")), rows)
