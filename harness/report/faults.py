"""Terminal views of the catalogue of faults."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from ..faults.fault import GROUPS, Fault
from .listing import explained, grouped


def listing(faults: Sequence[Fault]) -> RenderableType:
    """All faults, a line each, by group."""
    ordered = sorted(faults, key=lambda fault: (fault.topic, -fault.common))
    return grouped(
        ((group, [(f.id, f.title) for f in ordered if f.group == group]) for group in GROUPS),
        footer=f"{len(faults)} faults; `parity faults show ID` explains one.",
    )


def explanation(fault: Fault) -> RenderableType:
    """All that is known of one fault."""
    rows = [
        ("topic", fault.topic),
        ("appears at", ", ".join(fault.kinds)),
        ("symptom", fault.symptom),
        ("advice", fault.advice),
        ("told apart by", fault.distinguish),
        ("constant", fault.constant),
        ("seen in", "\n".join(fault.links)),
    ]
    title = Text(fault.id, style="bold cyan")
    title.append(f": {fault.title}", style="bold default")
    return explained(title, rows)
