"""The table of facts: measured, as JSON, as text."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from ..environment import Stopwatch
from ..report.wording import number, visible
from ..result import Environment
from .bench import Bench
from .fact import Fact, Outcome, Row, examine

FORMAT = "logits-parity/seeds"
VERSION = 1

_STYLES = {
    Outcome.REPRODUCED: "green",
    Outcome.SAME_SIZE: "green",
    Outcome.DIFFERS: "bold red",
    Outcome.NOT_SHOWN: "yellow",
}


@dataclass(frozen=True, slots=True)
class Table:
    """What all facts came to.

    Attributes:
        model: Where the weights come from.
        fingerprint: Of the checkpoint.
    """

    model: str
    fingerprint: str
    rows: tuple[Row, ...]
    environment: Environment
    format: str = field(default=FORMAT)
    version: int = field(default=VERSION)

    @property
    def exit_code(self) -> int:
        """1 where a fact does not hold here, else 0; what is not shown is no failure."""
        return int(any(row.outcome is Outcome.DIFFERS for row in self.rows))


def measure(
    bench: Bench,
    facts: Sequence[Fact],
    *,
    progress: Callable[[str, int, int], None],
    command: str = "",
) -> Table:
    """Examine facts one after another.

    Args:
        bench: What they are measured on.
        facts: In the order of the table.
        progress: Told which fact is next.
        command: What the user typed, for the record.
    """
    from ..engines.hf import default_threads

    watch, rows = Stopwatch(), []
    for done, fact in enumerate(facts):
        progress(fact.name, done, len(facts))
        rows.append(examine(fact, bench))
    model = bench.subject.info()
    environment = watch.environment(threads=default_threads(), seed=None, command=command)
    return Table(model.origin, model.fingerprint, tuple(rows), environment)


def to_json(table: Table) -> bytes:
    """The table as JSON."""
    import msgspec

    return msgspec.json.encode(table)


class View:
    """The table on a terminal: a fact a row, then the reasons.

    Args:
        table: What to show.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        grid.add_column("fact", overflow="fold", ratio=1)
        grid.add_column("seed", overflow="fold")
        grid.add_column("here", justify="right", no_wrap=True)
        grid.add_column("outcome", no_wrap=True)
        for row in self._table.rows:
            grid.add_row(
                Text(visible(row.name)),
                Text(visible(row.seed)),
                _cell(row.value),
                Text(row.outcome.value, style=_STYLES[row.outcome]),
            )
        yield grid
        yield Text("")
        yield from _reasons(self._table.rows)
        counts = Counter(row.outcome for row in self._table.rows)
        told = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome)
        yield Text(told, style="bold")


def _cell(value: float | None) -> str:
    whole = value is not None and value == round(value) and abs(value) < 1e7
    return f"{value:.0f}" if whole else number(value)


def _reasons(rows: Sequence[Row]) -> Iterator[Text]:
    """Each reason once, with the facts that it is given for."""
    for reason in dict.fromkeys(row.reason for row in rows if row.reason):
        mine = [row for row in rows if row.reason == reason]
        line = Text(f"{mine[0].outcome.value}: ", style=_STYLES[mine[0].outcome])
        line.append("; ".join(visible(row.name) for row in mine), style="default not bold")
        yield line
        yield Text(f"  {visible(reason)}", style="dim")
