"""What commands that compare share: token ids of an option, and where results go."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .console import console, reported, show_paths
from .errors import UsageError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from .result import RunResult


class Outputs:
    """Where results of one command go: the terminal, files of each, files of all together.

    Args:
        json_file: Gets the one result as JSON, None for nowhere.
        report_dir: Folder that gets a page and a JSON file of each.
        markdown: Gets all results, a section each; written anew after each of them.
        junit: Gets all results, a suite each; written anew after each of them.
    """

    def __init__(
        self,
        json_file: Path | None,
        report_dir: Path | None,
        *,
        markdown: Path | None = None,
        junit: Path | None = None,
    ) -> None:
        self.json_file = json_file
        self.report_dir = report_dir
        self._markdown, self._junit = markdown, junit
        self._sections: list[str] = []
        self._suites: list[Element] = []
        self.stems: dict[str, str] = {}
        self.pages: list[Path] = []
        self._to_stdout = json_file is not None and str(json_file) == "-"
        self.console = console(stderr=self._to_stdout)

    def claim(self, name: str) -> str:
        """The stem of a case's files; two cases of one command cannot share it."""
        from .case import safe_stem

        stem = safe_stem(name)
        if self.report_dir is not None and stem.casefold() in self.stems:
            raise UsageError(
                f"case {name!r}",
                expected="cases of different names",
                found=f"another one whose report is {stem}.html",
                advice="give one of them another name = in its file",
            )
        self.stems[stem.casefold()] = name
        return stem

    def put(self, result: "RunResult", stem: str) -> None:
        """Write and show one result; it is shown also where it cannot be written."""
        try:
            self._write(result, stem)
        finally:
            self._show(result)

    def put_run(
        self,
        compare: Callable[[Callable[["RunResult"], None]], "RunResult"],
        *,
        stem: str | None = None,
        codes: list[int],
        debug: bool,
    ) -> None:
        """Run something and put its result; where it stops, put what is known by then.

        Args:
            compare: Called with what it has to call with what is known before it raises.
            stem: What :meth:`claim` gave, None to claim the result's case.
            codes: Gets the exit code, also of what is known if that cannot be written.
            debug: Whether to show tracebacks.
        """
        partial: list[RunResult] = []
        try:
            result = compare(partial.append)
        except (Exception, KeyboardInterrupt):
            for known in partial:
                with reported(codes, debug=debug):
                    self.put(known, stem or self.claim(known.case))
            raise
        self.put(result, stem or self.claim(result.case))
        codes.append(result.exit_code)

    @contextmanager
    def accounted(
        self, name: str, *, later: Sequence[str], codes: list[int], debug: bool
    ) -> Iterator[None]:
        """Whatever goes wrong inside is in the files of all results, in place of a result.

        Args:
            name: Of the case that runs inside.
            later: Names of the cases that an interrupt keeps from running.
            codes: Gets the exit code if what an interrupt leaves cannot be written.
            debug: Whether to show tracebacks.
        """
        before = len(self._suites)
        try:
            yield
        except Exception as error:
            if len(self._suites) == before:
                self._write_errors([(name, str(error) or type(error).__name__)])
            raise
        except KeyboardInterrupt:
            said = [(other, "not begun: the run was interrupted before") for other in later]
            if len(self._suites) == before:
                said.insert(0, (name, "interrupted before anything was compared"))
            with reported(codes, debug=debug):
                self._write_errors(said)
            raise

    def _write_errors(self, said: Sequence[tuple[str, str]]) -> None:
        """Add cases of which there is no result, each with the reason."""
        from .report.junit import error_suite
        from .report.markdown import error_view

        sections = [error_view(*each) for each in said]
        self._write_together(sections, [error_suite(*each) for each in said])

    def _write(self, result: "RunResult", stem: str) -> None:
        from .report.files import write_report, write_whole
        from .report.junit import suite
        from .report.markdown import to_markdown
        from .result import to_json

        if self._to_stdout:
            sys.stdout.write(to_json(result).decode() + "\n")
        elif self.json_file is not None:
            write_whole(self.json_file, to_json(result) + b"\n")
        if self.report_dir is not None:
            self.pages.append(write_report(result, self.report_dir, stem=stem).html)
        if self._markdown is not None or self._junit is not None:
            self._write_together([to_markdown(result)], [suite(result)])

    def _write_together(self, sections: Sequence[str], suites: "Sequence[Element]") -> None:
        """Add cases to the files of all of them."""
        from .report.files import write_together
        from .report.junit_xml import document
        from .report.markdown import join

        self._sections += sections
        self._suites += suites
        views = {self._markdown: join(self._sections), self._junit: document(self._suites)}
        write_together(
            {
                path: text.encode("utf-8", "backslashreplace")
                for path, text in views.items()
                if path is not None
            }
        )

    def _show(self, result: "RunResult") -> None:
        from .report.text import View

        if len(self.stems) > 1:
            self.console.print()
        self.console.print(View(result))

    def finish(self) -> None:
        """Print where the reports are, last of all."""
        show_paths(self.console, self.pages)


def parse_tokens(text: str) -> tuple[tuple[int, ...], ...]:
    """``"1,2,3;4,5,6"`` as two rows of token ids.

    Raises:
        UsageError: Something in it is not a whole number.
    """
    try:
        return tuple(tuple(int(word) for word in row.split(",")) for row in text.split(";"))
    except ValueError:
        raise UsageError(
            "--tokens",
            expected="whole numbers between commas",
            found=repr(text),
            advice='write --tokens "1,2,3"',
        ) from None
