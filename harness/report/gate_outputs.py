"""Where the result of a gate goes: the terminal, a page, JSON, Markdown, JUnit."""

import sys
from pathlib import Path

from ..console import console, show_paths
from ..gate.running import Outcome
from .files import write_together
from .gate_text import GateView


class GateOutputs:
    """Where results of one command go.

    Args:
        json_file: Gets the result as JSON, ``-`` for standard output, None for nowhere.
        report_dir: Folder that gets the page and the JSON file, None for none.
        markdown: Gets the result as Markdown.
        junit: Gets it as JUnit XML.
    """

    def __init__(
        self,
        json_file: Path | None,
        report_dir: Path | None,
        markdown: Path | None,
        junit: Path | None,
    ) -> None:
        self._json, self._report_dir = json_file, report_dir
        self._markdown, self._junit = markdown, junit

    def put(self, outcome: Outcome, *, stem: str) -> None:
        """Write and show a result; it is shown also where it cannot be written."""
        to_stdout = self._json is not None and str(self._json) == "-"
        screen = console(stderr=to_stdout)
        pages: list[Path] = []
        try:
            pages = self._write(outcome, stem, to_stdout=to_stdout)
        finally:
            screen.print(GateView(outcome.result))
        show_paths(screen, pages)

    def _write(self, outcome: Outcome, stem: str, *, to_stdout: bool) -> list[Path]:
        """Write all files together; the pages among them."""
        from ..gate.document import to_json
        from .gate_junit import to_junit
        from .gate_markdown import to_markdown

        result = outcome.result
        contents: dict[Path, bytes] = {}
        pages: list[Path] = []
        if to_stdout:
            sys.stdout.write(to_json(result).decode() + "\n")
        elif self._json is not None:
            contents[self._json] = to_json(result) + b"\n"
        if self._report_dir is not None:
            report = _report(outcome, self._report_dir, stem)
            contents |= report
            pages = [path for path in report if path.suffix == ".html"]
        if self._markdown is not None:
            contents[self._markdown] = _encoded(to_markdown(result))
        if self._junit is not None:
            contents[self._junit] = to_junit(result)
        write_together(contents)
        return pages


def write_report(outcome: Outcome, folder: Path, *, stem: str) -> Path:
    """Write page and JSON of a gate, and the page of the replay if there is one; returns the page.

    Raises:
        UsageError: The folder cannot be made or written to.
    """
    report = _report(outcome, folder, stem)
    write_together(report)
    return list(report)[-1]


def _report(outcome: Outcome, folder: Path, stem: str) -> dict[Path, bytes]:
    """The files of a report; the page comes last."""
    from ..case import safe_stem
    from ..gate.document import to_json
    from .gate_html import to_html
    from .html import to_html as to_replay_page

    name, replay = safe_stem(stem), ""
    contents: dict[Path, bytes] = {}
    if outcome.replayed is not None:
        replay = f"{name}-replay.html"
        contents[folder / replay] = _encoded(to_replay_page(outcome.replayed))
    contents[folder / f"{name}.json"] = to_json(outcome.result) + b"\n"
    contents[folder / f"{name}.html"] = _encoded(to_html(outcome.result, replay=replay))
    return contents


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
