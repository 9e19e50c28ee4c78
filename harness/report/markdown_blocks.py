"""Parts of the Markdown views: blocks that are cut between rows, tables, folds, causes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..result import Diagnosis
from . import causes, wording
from .markdown_escape import code, link, prose

#: Most bytes of a view. GitHub takes 65,536 characters in a comment.
MOST = 60_000

#: Kept free for what closes a table or a fold, and for the note on what was left out.
RESERVE = 400

#: Labels whose values are names or numbers, shown as code.
_AS_CODE = frozenset(
    {
        *("candidate", "prompt", "tap", "op", "shape", "reference", "candidate value"),
        *("pass", "intermediate", "called before", "shape before", "carried to"),
    }
)


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a view that is cut between its rows where room ends.

    Attributes:
        head: Comes first, and only together with the first row.
        rows: Lines.
        tail: Closes what the head opened.
    """

    head: str
    rows: Sequence[str]
    tail: str = ""


def fit(blocks: Iterable[Block], *, most: int) -> str:
    """Blocks in order, as many rows of each as fit into so many bytes; the rest is counted."""
    parts, room, left_out = [], most - RESERVE, 0
    for block in blocks:
        taken, used = [], size(block.head) + size(block.tail)
        for each in block.rows:
            if used + size(each) > room:
                break
            used += size(each)
            taken.append(each)
        left_out += len(block.rows) - len(taken)
        if taken:
            parts.append("\n".join(part for part in (block.head, *taken, block.tail) if part))
            room -= used + 1
    if left_out:
        parts.append(
            f"*{wording.count(left_out, 'line')} left out here for want of room: the result's page"
            " and JSON file have everything.*"
        )
    return "\n\n".join(parts) + "\n"


def size(text: str) -> int:
    """Bytes of a line, with its end."""
    return len(text.encode("utf-8", "backslashreplace")) + 1


def table(title: str, headings: Sequence[str], right: int = 0) -> str:
    """Title and head of a table whose last so many columns are of numbers."""
    plain = len(headings) - right
    rule = ["---"] * plain + ["---:"] * right
    return f"{title}\n\n| {' | '.join(headings)} |\n| {' | '.join(rule)} |".lstrip("\n")


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def labelled(label: str, value: str) -> str:
    """A row of a label and somebody else's text, as code where it is a name or a number."""
    return row(prose(label), code(value) if label in _AS_CODE else prose(value))


def fold(summary: str, head: str, rows: Sequence[str]) -> Block:
    """Details that are closed until somebody opens them; the summary is HTML."""
    opened = f"<details><summary>{summary}</summary>\n\n{head}".rstrip("\n")
    return Block(opened if head else f"{opened}\n", rows, "\n</details>")


def cause(diagnosis: Diagnosis) -> Block:
    """What explains a difference, with its evidence."""
    title = f"### Cause: {prose(causes.title(diagnosis))}"
    rows = [
        labelled(label, value) if label != "seen in" else row(label, _links(value))
        for label, value in causes.rows(diagnosis)
    ]
    return Block(table(title, ("", "")), rows)


def _links(value: str) -> str:
    return ", ".join(link(address) for address in value.split(", "))
