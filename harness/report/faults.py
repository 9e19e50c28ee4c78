"""Terminal views of the catalogue of faults."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..faults.fault import GROUPS, Fault


def listing(faults: Sequence[Fault]) -> RenderableType:
    """All faults, a line each, by group."""
    parts: list[RenderableType] = []
    for group in GROUPS:
        some = [fault for fault in faults if fault.group == group]
        if not some:
            continue
        table = Table(
            title=Text(f"{group} ({len(some)})", style="bold"),
            title_justify="left",
            box=None,
            show_header=False,
            pad_edge=False,
            padding=(0, 2, 0, 0),
        )
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for fault in sorted(some, key=lambda fault: (fault.topic, -fault.common)):
            table.add_row(fault.id, fault.title)
        parts += [table, Text("")]
    parts.append(Text(f"{len(faults)} faults; `parity faults show ID` explains one.", style="dim"))
    return Group(*parts)


def explanation(fault: Fault) -> RenderableType:
    """All that is known of one fault."""
    table = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    rows = [
        ("topic", fault.topic),
        ("appears at", ", ".join(fault.kinds)),
        ("symptom", fault.symptom),
        ("advice", fault.advice),
        ("told apart by", fault.distinguish),
        ("constant", fault.constant),
        ("seen in", "\n".join(fault.links)),
    ]
    for label, value in rows:
        if value:
            table.add_row(label, Text(value))
    title = Text(fault.id, style="bold cyan")
    title.append(f": {fault.title}", style="bold default")
    return Group(title, Padding(table, (0, 0, 0, 2)))
