"""The views of a result by name, and which of them a file's suffix asks for."""

from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..gate.result import GateResult
from ..result import RunResult

if TYPE_CHECKING:
    from rich.console import RenderableType


class Format(StrEnum):
    """A view of a result that goes to a file."""

    HTML = "html"
    TEXT = "text"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    JSON = "json"


#: Suffix of a file with such a view, without being told otherwise.
SUFFIXES = {
    Format.HTML: ".html",
    Format.TEXT: ".txt",
    Format.MARKDOWN: ".md",
    Format.JUNIT: ".xml",
    Format.JSON: ".json",
}
_FORMATS = {suffix: form for form, suffix in SUFFIXES.items()} | {".htm": Format.HTML}


def format_of(path: PurePath) -> Format:
    """The view that a file's suffix asks for.

    Raises:
        UsageError: The suffix is of no view.
    """
    found = _FORMATS.get(path.suffix.lower())
    if found is None:
        raise UsageError(
            str(path),
            expected=f"a suffix of {', '.join(_FORMATS)}",
            found=path.suffix or "none",
            advice=f"name another file, or say --format {'|'.join(Format)}",
        )
    return found


def render(result: RunResult | GateResult, form: Format) -> bytes:
    """One view of a result, as the bytes of its file."""
    from .documents import to_json

    if form is Format.JSON:
        return to_json(result) + b"\n"
    if isinstance(result, GateResult):
        return _gate(result, form)
    return _text(result, form).encode("utf-8", "backslashreplace")


def screen_view(result: RunResult | GateResult) -> "RenderableType":
    """The view for the terminal, with colours where it has them."""
    from .gate_text import GateView
    from .text import View

    return GateView(result) if isinstance(result, GateResult) else View(result)


def _gate(result: GateResult, form: Format) -> bytes:
    match form:
        case Format.HTML:
            from .gate_html import to_html

            text = to_html(result)
        case Format.MARKDOWN:
            from .gate_markdown import to_markdown

            text = to_markdown(result)
        case Format.JUNIT:
            from .gate_junit import to_junit

            return to_junit(result)
        case _:
            from .gate_text import to_text

            text = to_text(result) + "\n"
    return text.encode("utf-8", "backslashreplace")


def _text(result: RunResult, form: Format) -> str:
    match form:
        case Format.HTML:
            from .html import to_html

            return to_html(result)
        case Format.MARKDOWN:
            from .markdown import to_markdown

            return to_markdown(result)
        case Format.JUNIT:
            from .junit import to_junit

            return to_junit(result)
        case _:
            from .text import to_text

            return to_text(result) + "\n"
