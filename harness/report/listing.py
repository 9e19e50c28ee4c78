"""Terminal views that catalogues share: entries by group, and all that is known of one."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def grouped(
    groups: Iterable[tuple[str, Sequence[tuple[str, str]]]], *, footer: str
) -> RenderableType:
    """Entries, each an id and what it is, under the titles of their groups; empty ones left out."""
    parts: list[RenderableType] = []
    for title, entries in groups:
        if not entries:
            continue
        table = Table(
            title=Text(f"{title} ({len(entries)})", style="bold"),
            title_justify="left",
            box=None,
            show_header=False,
            pad_edge=False,
            padding=(0, 2, 0, 0),
        )
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for name, words in entries:
            table.add_row(name, Text(words))
        parts += [table, Text("")]
    return Group(*parts, Text(footer, style="dim"))


def explained(title: Text, rows: Iterable[tuple[str, str]]) -> RenderableType:
    """What is known of one entry, by label; what is empty is left out."""
    table = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        if value:
            table.add_row(label, Text(value))
    return Group(title, Padding(table, (0, 0, 0, 2)))
