"""The Markdown view of a gate's result."""

from ..gate.result import GateResult
from .gate_text import to_text
from .markdown_escape import fenced


def to_markdown(result: GateResult) -> str:
    """Render a result as Markdown."""
    return fenced(to_text(result)) + "\n"
