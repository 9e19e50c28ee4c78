"""The terminal view of a result: rich renderables, and plain text for pytest and logs."""

import io
from collections.abc import Iterator
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..result import CandidateVerdict, Diagnosis, Divergence, PromptResult, RunResult, Verdict
from . import causes, wording
from .probes import probe_parts
from .tables import Fitting, Sections, open_table
from .wording import visible

_STYLES = {
    Verdict.PASS: "bold green",
    Verdict.ROUNDING: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.NOT_FINITE: "bold red",
    Verdict.NOT_COMPARABLE: "bold yellow",
}


class View(Sections):
    """The whole view of a result, the verdict first; rich gives it the width that there is.

    Args:
        result: What to show. Nothing in it is taken as markup or as terminal codes.
    """

    __slots__ = ()

    def __init__(self, result: RunResult) -> None:
        super().__init__(partial(_parts, result))


def _parts(result: RunResult, gap: int) -> Iterator[RenderableType]:
    yield _verdict(result)
    for candidate in result.candidates:
        if candidate.first_divergence is not None:
            yield divergence_card(candidate.first_divergence, result)
        yield from _causes(result, candidate)
    yield _candidates(result, gap)
    probes = () if result.probe is None else result.probe.probes
    for prompt in result.prompts:
        if prompt.logits and prompt.name not in {probe.name for probe in probes}:
            yield _logits(prompt, gap)
    if result.probe is not None:
        yield from probe_parts(result.probe, result, gap)
    for candidate in result.candidates:
        if candidate.unavailable:
            yield _unavailable(candidate)


def to_text(result: RunResult, *, width: int = 100) -> str:
    """The whole view as plain text, without colour."""
    return plain(View(result), width)


def failure_text(result: RunResult, *, width: int = 100) -> str:
    """The verdict and every candidate's first divergence: what a failing test prints."""
    parts: list[RenderableType] = [_verdict(result)]
    for candidate in result.candidates:
        if candidate.verdict not in (Verdict.PASS, Verdict.ROUNDING):
            parts.append(_reason(candidate, result))
        if candidate.first_divergence is not None:
            parts.append(divergence_card(candidate.first_divergence, result))
        parts += _causes(result, candidate)
    return plain(Group(*parts), width)


def summary_line(result: RunResult) -> str:
    """One line for lists of cases: ``smollm2: rounding; worst 3.2 units at layers.1.attn.q``."""
    line = f"{visible(result.case)}: {result.verdict.value}"
    replayed = [c for c in result.candidates if c.worst_units is not None]
    if replayed:
        worst = max(replayed, key=lambda c: c.worst_units or 0.0)
        line += (
            f"; worst {wording.units(worst.worst_units)} rounding units"
            f" at {visible(worst.worst_tap)} of {visible(worst.candidate)}"
        )
    return line


def plain(renderable: RenderableType, width: int) -> str:
    """A view as text without colour, so many columns wide."""
    console = Console(
        file=io.StringIO(),
        width=width,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _verdict(result: RunResult) -> RenderableType:
    title = Text(result.verdict.value.upper(), style=_STYLES[result.verdict])
    title.append(f": {wording.headline(result.verdict)}", style="bold")
    title.append(f" ({visible(result.case)})", style="bold")
    lines = [title]
    if result.summary:
        lines.append(Text(visible(result.summary)))
    lines.append(Text(wording.meaning(result), style="dim"))
    return Group(*lines)


def _reason(candidate: CandidateVerdict, result: RunResult) -> Text:
    words = Text(visible(candidate.candidate), style="bold")
    words.append(f" {candidate.verdict.value}", style=_STYLES[candidate.verdict])
    words.append(f": {visible(candidate.reason)}", style="not bold")
    if candidate.failing:
        words.append(f"; fails by itself: {visible(wording.failing(candidate, result.prompts))}")
    return words


def divergence_card(divergence: Divergence, result: RunResult) -> RenderableType:
    """The first divergence of one candidate, a label and a value a line."""
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in wording.divergence_rows(divergence, result):
        table.add_row(label, Text(visible(value)))
    title = Text("First divergence: ", style="bold red")
    title.append(visible(wording.divergence_sentence(divergence)), style="not bold default")
    return Group(title, Padding(table, (0, 0, 0, 2)))


def _causes(result: RunResult, candidate: CandidateVerdict) -> Iterator[RenderableType]:
    """Why a candidate fails, a card for each mistake."""
    for diagnosis in result.diagnoses:
        if diagnosis.candidate == candidate.candidate:
            yield diagnosis_card(diagnosis)


def diagnosis_card(diagnosis: Diagnosis) -> RenderableType:
    """One mistake of one candidate, a label and a value a line."""
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in causes.rows(diagnosis):
        table.add_row(label, Text(visible(value)))
    title = Text("Cause: ", style="bold red" if diagnosis.causes else "bold yellow")
    title.append(visible(causes.title(diagnosis)), style="bold default")
    return Group(title, Padding(table, (0, 0, 0, 2)))


def _candidates(result: RunResult, gap: int) -> RenderableType:
    table = open_table(f"Candidates, against {visible(result.against)}", gap)
    table.add_column("candidate", overflow="fold", min_width=9)
    table.add_column("verdict", overflow="fold", min_width=8)
    for heading in ("taps", "replayed", "units"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("worst at", overflow="fold", ratio=1)
    table.add_column("max abs", justify="right", no_wrap=True)
    for candidate in result.candidates:
        table.add_row(
            Text(visible(candidate.candidate)),
            Text(candidate.verdict.value, style=_STYLES[candidate.verdict]),
            *(Text(visible(cell)) for cell in wording.candidate_cells(candidate)),
        )
    return Group(Fitting(table), *(_reason(c, result) for c in result.candidates))


def _logits(prompt: PromptResult, gap: int) -> RenderableType:
    table = open_table(f"Logits: {visible(wording.prompt_title(prompt))}", gap)
    table.add_column("a", overflow="fold", min_width=9)
    table.add_column("b", overflow="fold", min_width=9)
    for heading in ("max abs", "mean abs", "KL", "top-1", "greedy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for pair in prompt.logits:
        table.add_row(
            Text(visible(pair.a)), Text(visible(pair.b)), *wording.pair_cells(pair, prompt)
        )
    return Fitting(table)


def _unavailable(candidate: CandidateVerdict) -> RenderableType:
    title = Text(f"Not compared for {visible(candidate.candidate)}: ", style="bold")
    title.append(wording.count(len(candidate.unavailable), "tap"), style="not bold")
    title.append(" that it cannot give", style="not bold")
    lines = [
        Text(f"  {visible(tap)}: {visible(why)}", style="dim")
        for tap, why in candidate.unavailable.items()
    ]
    return Group(title, *lines)
