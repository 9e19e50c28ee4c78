"""Tables of the terminal view."""

from rich import box
from rich.table import Table
from rich.text import Text


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
