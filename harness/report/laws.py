"""Terminal views of laws."""

from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..laws.law import GROUPS, Law
from ..laws.measure import Tried
from .listing import explained, grouped


def listing(laws: Sequence[Law]) -> RenderableType:
    """All laws, each with what it says, by group."""
    return grouped(
        (
            (title, [(law.id, law.says) for law in laws if law.group == group])
            for group, title in GROUPS.items()
        ),
        footer=f"{len(laws)} laws; `parity laws run` tries them.",
    )


def explanation(law: Law) -> RenderableType:
    """All that is known of one law."""
    rows = [
        ("says", law.says),
        ("source", law.source),
        ("allowed", law.bound),
        ("needs", ", ".join([*law.needs, *(f"tap {tap}" for tap in law.taps)])),
        ("mutants", ", ".join(law.mutants)),
    ]
    return explained(Text(law.id, style="bold cyan"), rows)


def tried_table(tried: Sequence[Tried], engines: Sequence[str]) -> RenderableType:
    """What became of each law with each engine: over all families, the worst of them."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("law", style="cyan", no_wrap=True)
    for engine in engines:
        table.add_column(engine, overflow="fold")
    for law in dict.fromkeys(one.law for one in tried):
        cells = [
            _cell([one for one in tried if (one.law, one.engine) == (law, engine)])
            for engine in engines
        ]
        table.add_row(law, *cells)
    return table


def _cell(several: Sequence[Tried]) -> Text:
    broken = [one for one in several if one.outcome is not None and one.outcome.broken]
    if broken:
        where = ", ".join(one.family for one in broken if one.family)
        return Text(f"broken{': ' if where else ''}{where}", style="bold red")
    ran = [one.outcome for one in several if one.outcome is not None]
    if ran:
        examples = sum(outcome.tried for outcome in ran)
        worst = max(outcome.worst for outcome in ran)
        return Text(f"holds: {examples} examples, {worst:.2g} of what is allowed", style="green")
    lacks = {one.lacks for one in several if one.lacks}
    return Text("; ".join(sorted(lacks)) or "says nothing of it", style="dim")
