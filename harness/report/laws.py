"""Terminal views of laws."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..laws.law import GROUPS, Law
from ..laws.measure import Tried


def listing(laws: Sequence[Law]) -> RenderableType:
    """All laws, each with what it says, by group."""
    parts: list[RenderableType] = []
    for group, title in GROUPS.items():
        some = [law for law in laws if law.group == group]
        if not some:
            continue
        table = Table(
            title=Text(f"{title} ({len(some)})", style="bold"),
            title_justify="left",
            box=None,
            show_header=False,
            pad_edge=False,
            padding=(0, 2, 0, 0),
        )
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for law in some:
            table.add_row(law.id, Text(law.says))
        parts += [table, Text("")]
    parts.append(Text(f"{len(laws)} laws; `parity laws run` tries them.", style="dim"))
    return Group(*parts)


def explanation(law: Law) -> RenderableType:
    """All that is known of one law."""
    table = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    rows = [
        ("says", law.says),
        ("source", law.source),
        ("allowed", law.bound),
        ("needs", ", ".join([*law.needs, *(f"tap {tap}" for tap in law.taps)])),
        ("mutants", ", ".join(law.mutants)),
    ]
    for label, value in rows:
        if value:
            table.add_row(label, Text(value))
    return Group(Text(law.id, style="bold cyan"), Padding(table, (0, 0, 0, 2)))


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
