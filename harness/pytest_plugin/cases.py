"""Case files as test items."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .outcome import SKIPPED, failure, record, setting

if TYPE_CHECKING:
    from ..case import Case
    from ..result import RunResult

#: So much of a TOML file is read to see whether it is a case.
_HEAD = 64 * 1024

_FORMAT = re.compile(r"""^\s*format\s*=\s*["']logits-parity/(?!history["'])""", re.MULTILINE)
_LOOKS_LIKE_CASE = (
    re.compile(r"^\s*model\s*=", re.MULTILINE),
    re.compile(r"^\s*(\[\[\s*prompts\s*\]\]|prompts\s*=)", re.MULTILINE),
)


def is_case_file(path: Path) -> bool:
    """Whether a TOML file is a case, or meant to be one, by a look at its text.

    Meant to be one is a file that looks like a case and lies among cases: a format line that was
    forgotten must not make it vanish, and other people's ``cases`` folders are theirs.
    """
    head = _head(path)
    if _FORMAT.search(head):
        return True
    if "cases" not in path.parent.parts or not all(p.search(head) for p in _LOOKS_LIKE_CASE):
        return False
    return any(_FORMAT.search(_head(other)) for other in path.parent.glob("*.toml"))


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD).decode("utf-8", "replace").removeprefix("\ufeff")
    except OSError:
        return ""


def tell_apart(items: list[pytest.Item]) -> None:
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
        self.add_marker("parity")

    def runtest(self) -> None:
        """Run the case, write its report, judge."""
        __tracebackhide__ = True
        from ..case import safe_stem
        from ..case_file import load_case
        from ..errors import MissingPackageError, ParityError
        from ..pipeline import run_case

        try:
            case = self._overridden(load_case(self.path))
            result = run_case(case, command=self._command(), on_stop=self._record_part)
            where = record(self, result, safe_stem(self.report_name))
        except MissingPackageError as error:
            if setting(self.config, "parity_missing") == "skip":
                raise self._skip(str(error)) from None
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        except ParityError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        if result.exit_code != 0:
            raise pytest.fail.Exception(failure(result, where), pytrace=False)

    def _record_part(self, known: "RunResult") -> None:
        """Write the report of a run that stops; the error that stops it is the test's failure."""
        from ..case import safe_stem

        record(self, known, safe_stem(self.report_name))

    def reportinfo(self) -> tuple[Path, int, str]:
        """How the item is called in listings."""
        return self.path, 0, f"parity case {self.name}"

    def _skip(self, reason: str) -> BaseException:
        self.user_properties.append((SKIPPED, reason))
        skip = pytest.skip.Exception(reason)
        skip._use_item_location = True  # lists the case file, not this line
        return skip

    def _overridden(self, case: "Case") -> "Case":
        config = self.config
        engines = config.getoption("parity_engines") or config.getini("parity_engines")
        given: dict[str, Any] = {"engines": tuple(engines)} if engines else {}
        for key in ("model", "dtype"):
            value = setting(config, f"parity_{key}")
            given |= {key: value} if value else {}
        return replace(case, **given)

    def _command(self) -> str:
        return shlex.join(["pytest", self.nodeid.split("::")[0]])
