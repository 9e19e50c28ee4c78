"""The page of a gate's result."""

from html import escape

from ..gate.result import GateResult
from .gate_text import to_text


def to_html(result: GateResult, *, replay: str = "") -> str:
    """Render a result as a page.

    Args:
        result: What to show.
        replay: Name of the page of the replay beside it, empty where there is none.
    """
    link = f'<p><a href="{escape(replay)}">Replay</a></p>' if replay else ""
    return f"<!DOCTYPE html><meta charset=utf-8><pre>{escape(to_text(result))}</pre>{link}"
