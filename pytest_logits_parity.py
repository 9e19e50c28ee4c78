"""The pytest plugin: case files as tests, and the ``parity`` fixture for tests written by hand.

A file is collected where it says ``format = "logits-parity/case"``, in a folder named ``cases``
also where it only looks like a case, so that one whose format line is missing fails and does not
vanish. Importing this module imports nothing of ours and nothing heavy; see :func:`_harness`.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.case import Case
    from harness.result import RunResult

#: So much of a TOML file is read to see whether it is a case.
_HEAD = 64 * 1024

_FORMAT = re.compile(r"""^\s*format\s*=\s*["']logits-parity/""", re.MULTILINE)
_LOOKS_LIKE_CASE = (
    re.compile(r"^\s*model\s*=", re.MULTILINE),
    re.compile(r"^\s*(\[\[\s*prompts\s*\]\]|prompts\s*=)", re.MULTILINE),
)


def _harness() -> SimpleNamespace:
    """What the plugin uses of our package: the only place that imports it, and only in use."""
    import harness
    from harness.case import safe_stem
    from harness.case_file import load_case
    from harness.errors import ParityError
    from harness.pipeline import run_case
    from harness.report import files, text, wording

    return SimpleNamespace(
        check=lambda *args, **options: harness.check(*args, **options),
        load_case=load_case,
        run_case=run_case,
        safe_stem=safe_stem,
        ParityError=ParityError,
        write_report=files.write_report,
        failure_text=text.failure_text,
        summary_line=text.summary_line,
        units=wording.units,
    )


class ParityFailure(AssertionError):
    """A verdict that is no pass; its text is the whole report of the failure."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, each with an ini key of the same meaning."""
    group = parser.getgroup("parity", "logits parity")
    group.addoption(
        "--parity-report-dir",
        metavar="DIR",
        help="folder for reports of case files, relative to the root folder (default: reports)",
    )
    group.addoption(
        "--parity-engine",
        action="append",
        metavar="ENGINE",
        help="run case files with this engine instead of theirs; may be given again",
    )
    group.addoption(
        "--parity-model", metavar="MODEL", help="run case files on this model instead of theirs"
    )
    parser.addini("parity_report_dir", "folder for reports of case files", default="reports")
    parser.addini("parity_engines", "engines to run case files with", type="args", default=[])
    parser.addini("parity_model", "model to run case files on", default="")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect case files; other TOML files are none of our business."""
    if file_path.suffix == ".toml" and is_case_file(file_path):
        return CaseFile.from_parent(parent, path=file_path)
    return None


def is_case_file(path: Path) -> bool:
    """Whether a TOML file is a case, or meant to be one, by a look at its text."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD).decode("utf-8", "replace")
    except OSError:
        return False
    if _FORMAT.search(head.removeprefix("\ufeff")):
        return True
    return "cases" in path.parent.parts and all(p.search(head) for p in _LOOKS_LIKE_CASE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give cases of one stem in different folders reports of different names."""
    cases = [item for item in items if isinstance(item, CaseItem)]
    stems = [case.path.stem.casefold() for case in cases]
    for case, stem in zip(cases, stems, strict=True):
        if stems.count(stem) > 1:
            case.report_name = case.nodeid.split("::")[0].removesuffix(".toml")


class CaseFile(pytest.File):
    """A case file: one item, for its engines share the weights and the reference's run."""

    def collect(self) -> Iterator["CaseItem"]:
        """The one item, named as the file."""
        yield CaseItem.from_parent(self, name=self.path.stem)


class CaseItem(pytest.Item):
    """One case: fails unless the verdict is pass or rounding."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.report_name = self.path.stem

    def runtest(self) -> None:
        """Run the case, write its report, judge."""
        ours = _harness()
        try:
            case = self._overridden(ours.load_case(self.path))
            result = ours.run_case(case, command=self._command())
            folder = _report_dir(self.config)
            page = ours.write_report(result, folder, stem=ours.safe_stem(self.report_name)).html
        except ours.ParityError as error:
            raise ParityFailure(str(error)) from None
        where = f"HTML report: {_shown(page, self.config)}"
        self.user_properties += _properties(result)
        self.add_report_section("call", "parity", f"{ours.summary_line(result)}\n{where}")
        if result.exit_code != 0:
            raise ParityFailure(f"{ours.failure_text(result)}\n\n{where}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The text of a failure that was meant, a traceback for one that was not."""
        if isinstance(excinfo.value, ParityFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """How the item is called in listings."""
        return self.path, None, f"parity case {self.name}"

    def _overridden(self, case: "Case") -> "Case":
        from dataclasses import replace

        config = self.config
        engines = config.getoption("parity_engine") or config.getini("parity_engines")
        model = config.getoption("parity_model") or config.getini("parity_model")
        changes: dict[str, Any] = {"engines": tuple(engines)} if engines else {}
        return replace(case, **changes, **({"model": model} if model else {}))

    def _command(self) -> str:
        import shlex

        return shlex.join(["pytest", self.nodeid.split("::")[0]])


def _report_dir(config: pytest.Config) -> Path:
    chosen = config.getoption("parity_report_dir") or config.getini("parity_report_dir")
    return config.rootpath / str(chosen)


def _shown(path: Path, config: pytest.Config) -> str:
    root = config.rootpath
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _properties(result: "RunResult") -> list[tuple[str, object]]:
    """What JUnit files say of a case."""
    properties: list[tuple[str, object]] = [("parity_verdict", result.verdict.value)]
    for candidate in result.candidates:
        units = _harness().units(candidate.worst_units)
        properties.append((f"parity_{candidate.candidate}_verdict", candidate.verdict.value))
        properties.append((f"parity_{candidate.candidate}_worst_units", units))
    return properties


class Parity:
    """What the ``parity`` fixture hands to a test.

    Args:
        request: The test's own.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def check(
        self,
        engine: Any,
        *,
        checkpoint: str | Path,
        token_ids: Sequence[Sequence[int]],
        **options: Any,
    ) -> "RunResult":
        """Compare an engine, or a model in memory, with a checkpoint; does not judge.

        Args:
            engine: What ``harness.check`` takes.
            checkpoint: The files that say what is right.
            token_ids: Rows of token ids, [B, T].
            **options: Handed on to ``harness.check``.
        """
        ours = _harness()
        result: RunResult = ours.check(
            engine, checkpoint=checkpoint, token_ids=token_ids, **options
        )
        self._request.node.user_properties += _properties(result)
        self._request.node.add_report_section("call", "parity", ours.summary_line(result))
        return result

    def assert_parity(
        self,
        engine: Any,
        *,
        checkpoint: str | Path,
        token_ids: Sequence[Sequence[int]],
        **options: Any,
    ) -> "RunResult":
        """As :meth:`check`, and fail the test unless the verdict is pass or rounding."""
        __tracebackhide__ = True
        result = self.check(engine, checkpoint=checkpoint, token_ids=token_ids, **options)
        if result.exit_code != 0:
            pytest.fail(_harness().failure_text(result), pytrace=False)
        return result


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> Parity:
    """Check engines and models in memory against a checkpoint: ``parity.assert_parity(...)``."""
    return Parity(request)
