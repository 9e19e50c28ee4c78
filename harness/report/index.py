"""The index page: all results of a folder in one table, with filters; it needs no script."""

import os
from collections.abc import Iterator
from pathlib import Path

from . import wording
from .folder import WORST_FIRST, Found
from .rendering import address, environment, source_hash, template_text
from .wording import visible


def to_index(found: Found, *, beside: Path, folder: Path) -> str:
    """Render the page. Whatever the results hold is shown as text, never as markup.

    Args:
        found: What the folder holds.
        beside: The folder that the page is for, so that links are relative to it.
        folder: The folder that was read, for the title.
    """
    style, script = (template_text(name) for name in ("index.css", "index.js"))
    counts = dict.fromkeys(WORST_FIRST, 0)
    for each in found.listed:
        counts[each.verdict] += 1
    return (
        environment()
        .get_template("index.html")
        .render(
            found=found,
            folder=str(folder),
            counts={verdict.value: n for verdict, n in counts.items() if n},
            words=wording,
            link=lambda path: _link(path, beside),
            style=style,
            script=script,
            policy=f"default-src 'none'; img-src data:; style-src '{source_hash(style)}';"
            f" script-src '{source_hash(script)}'",
        )
    )


def listing(found: Found) -> Iterator[str]:
    """The same for the terminal, a line each; why a file is no result is on the page."""
    for each in found.listed:
        yield f"{each.verdict.value}: {visible(each.case)} ({visible(str(each.path))})"
    for other in found.unlisted:
        yield f"no result: {visible(str(other.path))}"


def exit_codes(found: Found) -> list[int]:
    """Exit code of each result, and 3 where there is none at all: that is not a pass."""
    return [each.exit_code for each in found.listed] or [3]


def _link(path: Path, beside: Path) -> str:
    return address(os.path.relpath(path.resolve(), beside.resolve()))
