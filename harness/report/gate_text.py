"""The terminal view of a gate: rich renderables, and plain text for pytest and logs."""

from collections.abc import Iterable, Iterator
from functools import partial

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..gate.result import Divergence, GateResult, GateVerdict
from . import gate_story
from . import gate_words as words
from .tables import Fitting, Sections, open_table
from .text import diagnosis_card, plain
from .wording import visible

_STYLES = {
    GateVerdict.SAME: "bold green",
    GateVerdict.ROUNDING: "bold green",
    GateVerdict.CHANGED: "bold red",
    GateVerdict.FAILING: "bold red",
    GateVerdict.NOT_COMPARABLE: "bold yellow",
}

#: Intermediates and facts of one kind that are shown here, and facts where nothing is wrong.
_MOST = 12
_FEW = 3

#: Column of :func:`gate_words.tap_cells` from which on there are numbers.
_FIRST_NUMBER = 3


class GateView(Sections):
    """The whole view of a gate's result, the verdict first.

    Args:
        result: What to show. Nothing in it is taken as markup or as terminal codes.
    """

    __slots__ = ()

    def __init__(self, result: GateResult) -> None:
        super().__init__(partial(_parts, result))


def to_text(result: GateResult, *, width: int = 100) -> str:
    """The whole view as plain text, without colour."""
    return plain(GateView(result), width)


def first_line(result: GateResult) -> str:
    """The verdict, and where the sides part, in one line."""
    at = "" if result.divergence is None else f" at {result.divergence.change.tap}"
    return visible(f"{result.verdict.value}{at}, {words.title(result)}")


def failure_text(result: GateResult, *, width: int = 100) -> str:
    """The view without tables of intermediates: for a test's failure.

    Verdict, errors, first divergence, cause, and what else is not as before.
    """
    parts = [_verdict(result)]
    failures = words.failures(result)
    if failures:
        parts.append(_labelled(Text("Errors"), failures))
    if result.divergence is not None:
        parts.append(_divergence(result.divergence))
    parts += map(diagnosis_card, result.diagnoses)
    parts += (_facts(kind, 1, _MOST) for kind in words.kinds(result))
    return "\n\n".join(plain(part, width) for part in parts)


def _parts(result: GateResult, gap: int) -> Iterator[RenderableType]:
    yield _verdict(result)
    failures = words.failures(result)
    if failures:
        yield _labelled(Text("Errors", style="bold red"), failures)
    if result.divergence is not None:
        yield _divergence(result.divergence)
    for diagnosis in result.diagnoses:
        yield diagnosis_card(diagnosis)
    if result.passes:
        yield _passes(result, gap)
    for kind in words.kinds(result):
        yield _facts(kind, gap, _FEW if result.exit_code == 0 else _MOST)
    if result.taps:
        yield _taps(result, gap)
    if result.replayed:
        yield Text(f"Replayed on the reference: {visible(result.replayed)}")
    for note in result.notes:
        yield Text(visible(note), style="dim")


def _verdict(result: GateResult) -> RenderableType:
    title = Text(result.verdict.value.upper(), style=_STYLES[result.verdict])
    title.append(f": {visible(words.title(result))}", style="bold")
    told = [
        (label, answer)
        for label, answer in gate_story.tell(result)
        if label == "What to do" or (label == "Why" and not result.diagnoses)
    ]
    search = gate_story.bisect_command(result)
    return Group(
        title,
        Text(visible(result.summary)),
        Text(words.MEANINGS[result.verdict], style="dim"),
        *(Text(f"{label}: {visible(answer)}") for label, answer in told),
        *([Text(f"{gate_story.search(result)}: {visible(search)}")] if search else []),
    )


def _divergence(divergence: Divergence) -> RenderableType:
    title = Text("First divergence: ", style="bold red")
    title.append(visible(divergence.change.tap), style="not bold default")
    return _labelled(title, words.divergence_rows(divergence))


def _labelled(title: Text, rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Rows of a label and a text, below a title."""
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(style="dim", overflow="fold")
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(visible(label)), Text(visible(value)))
    return Group(title, Padding(table, (0, 0, 0, 2)))


def _passes(result: GateResult, gap: int) -> RenderableType:
    table = open_table("Passes", gap)
    table.add_column(words.PASS_HEADINGS[0], overflow="fold", min_width=8)
    for heading in words.PASS_HEADINGS[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for each in result.passes:
        table.add_row(*(Text(visible(cell)) for cell in words.pass_cells(each)))
    return Fitting(table)


def _facts(kind: words.Kind, gap: int, most: int) -> RenderableType:
    parts: list[RenderableType] = []
    if kind.telling:
        table = open_table(visible(kind.title), gap)
        for heading in words.FACT_HEADINGS:
            table.add_column(heading, overflow="fold", ratio=1)
        for each in kind.telling[:most]:
            style = "bold red" if each.decides else ""
            table.add_row(*(Text(visible(cell), style=style) for cell in words.fact_cells(each)))
        parts.append(Fitting(table))
    else:
        parts.append(Text(visible(kind.title), style="bold"))
    more = len(kind.telling) - most
    rest = [f"{more} more", words.idle_title(kind)] if more > 0 else [words.idle_title(kind)]
    parts += [Text(f"... and {line}" if kind.telling else line, style="dim")
              for line in rest if line]  # fmt: skip
    return Group(*parts)


def _taps(result: GateResult, gap: int) -> RenderableType:
    shown = words.most_telling(result)[:_MOST]
    places = dict.fromkeys(f"{each.passed}, {words.step(each)}" for each in shown)
    one = len(places) == 1  # then it need not be said in every row
    where = f": {next(iter(places))}" if one else ""
    table = open_table(f"Intermediates that are not the same{visible(where)}", gap)
    columns = [0, *(() if one else (1, 2)), 3, 4, 5, 6]
    for column in columns:
        if column < _FIRST_NUMBER:
            table.add_column(words.TAP_HEADINGS[column], overflow="fold")
        else:
            table.add_column(words.TAP_HEADINGS[column], justify="right", no_wrap=True)
    for change in shown:
        style, cells = "red" if change.state.differs else "", words.tap_cells(change)
        table.add_row(*(Text(visible(cells[column]), style=style) for column in columns))
    rest = words.left_out(result, len(shown))
    return Group(Fitting(table), *([Text(rest, style="dim")] if rest else []))
