"""Views of probes: what was run, what it shows, what stays hidden."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from ..result import ProbeInfo, ProbeReport, RunResult
from . import wording
from .tables import Fitting, open_table
from .wording import visible


def probe_parts(report: ProbeReport, result: RunResult, gap: int) -> Iterator[RenderableType]:
    """A table of the probes, and one of what stays hidden.

    Args:
        report: The probes.
        result: The run that they are part of.
        gap: Blanks behind each column.
    """
    table = open_table("Probes: inputs made for this checkpoint", gap)
    table.add_column("probe", overflow="fold", min_width=12)
    table.add_column("fed", overflow="fold", min_width=12)
    table.add_column("units", justify="right", no_wrap=True)
    table.add_column("for", overflow="fold", ratio=1)
    for probe in report.probes:
        units = wording.units(worst_units(probe.name, result))
        table.add_row(*(Text(visible(x)) for x in (probe.name, fed(probe), units)), _topics(probe))
    yield Fitting(table)
    hidden = [sight for sight in report.sights if not sight.shown]
    table = open_table("Faults that these probes do not show", gap)
    table.add_column("topic", overflow="fold", min_width=12)
    table.add_column("why", overflow="fold", ratio=1)
    for sight in hidden:
        table.add_row(Text(visible(sight.topic)), Text(visible(sight.why), style="dim"))
    yield Fitting(table)


def fed(probe: ProbeInfo) -> str:
    """``6 rows of 12``, ``12 in passes of 1, 5, 6``, ``9, 5, 1 padded left``; decoding behind."""
    lengths = sorted(set(probe.lengths), reverse=True)
    if probe.padding:
        words = f"rows of {', '.join(map(str, probe.lengths))}, padded {probe.padding}"
    elif len(probe.lengths) > 1:
        words = f"{len(probe.lengths)} rows of {lengths[0]}"
    else:
        words = wording.count(lengths[0], "token")
    if len(probe.passes) > 1:
        words += f" in passes of {', '.join(map(str, probe.passes))}"
    if probe.decode:
        words += f", {wording.count(probe.decode, 'decoding step')}"
    return words


def worst_units(prompt: str, result: RunResult) -> float | None:
    """Largest error of an op on one prompt, over all candidates; None where nothing replays."""
    found = [
        comparison.local.units
        for each in result.prompts
        if each.name == prompt
        for comparison in each.comparisons
        if comparison.local is not None
    ]
    return max(found, default=None)


def _topics(probe: ProbeInfo) -> Text:
    return Text(visible(", ".join(probe.topics)), style="dim")
