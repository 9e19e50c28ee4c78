"""Tables of the terminal view, and what becomes of them where there is no room for columns."""

from collections.abc import Callable, Iterator

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

#: Below this many columns of the terminal, tables are shown as lists.
_LEAST = 56

#: Below this many, tables have one blank between columns instead of two.
_NARROW = 72


def open_table(title: str, gap: int) -> Table:
    """A table without frame under its title.

    Args:
        title: In bold.
        gap: Blanks behind each column.
    """
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, gap, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.title_style = ""
    return table


class Sections:
    """A view: parts with a line between them, in the width that there is.

    Args:
        parts: Makes them; it is given the blanks that tables have behind each column.
    """

    __slots__ = ("_make",)

    def __init__(self, parts: Callable[[int], Iterator[RenderableType]]) -> None:
        self._make = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gap = 0 if options.max_width < _NARROW else 1
        for i, part in enumerate(self._make(gap)):
            if i:
                yield Text("")
            yield part


class Fitting:
    """A table of :func:`open_table`, or where it would be cut, its rows as lists of the same.

    Args:
        table: Its first column names the row.
    """

    __slots__ = ("_table",)

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= _LEAST:
            yield self._table
        else:
            yield from _lists(self._table)


def _lists(table: Table) -> Iterator[RenderableType]:
    """The title, then for each row its first cell and below it the others, labelled."""
    yield table.title or Text("")
    first, *others = table.columns
    for name, *cells in zip(first.cells, *(column.cells for column in others), strict=True):
        yield name
        listed = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
        listed.add_column(style="dim", no_wrap=True)
        listed.add_column(overflow="fold")
        for column, cell in zip(others, cells, strict=True):
            listed.add_row(column.header, cell)
        yield Padding(listed, (0, 0, 0, 2))
