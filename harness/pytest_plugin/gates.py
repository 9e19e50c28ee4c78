"""Baselines as test items: is it still the same model with the libraries that are installed?"""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .outcome import REPORT, SKIPPED, VERDICT, setting, shown, wants_report

if TYPE_CHECKING:
    from ..gate.running import Outcome

#: Begins the ids of these items: ``gate::FILE``.
NODE = "gate"


def add(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add an item for each baseline, whatever else is collected; none where none is asked for."""
    if _files(session.config):
        items += session.genitems(Gates.from_parent(session, name=NODE, nodeid=NODE))


def _files(config: pytest.Config) -> dict[Path, str]:
    """Baselines and how they are called: below the root folder, relative to it.

    Those of the command line count from where pytest was started, those of the ini file from the
    root folder. A file that is named twice is one.
    """
    given = config.getoption("parity_baselines")
    folder = config.invocation_params.dir if given else config.rootpath
    found = {}
    for name in given or config.getini("parity_baselines"):
        path = Path(os.path.abspath(folder / name))
        found[path.resolve()] = shown(path, config)
    return found


class Gates(pytest.Collector):
    """All baselines of a session."""

    def collect(self) -> Iterator["GateItem"]:
        """An item a baseline."""
        files = _files(self.config)
        stems = [path.stem.casefold() for path in files]
        for path, name in files.items():
            alone = stems.count(path.stem.casefold()) == 1
            stem = path.stem if alone else name.removesuffix(path.suffix)
            yield GateItem.from_parent(self, name=name, file=path, stem=f"gate-{stem}")


class GateItem(pytest.Item):
    """One baseline: fails unless the installed libraries compute the same, up to rounding."""

    def __init__(self, *, file: Path, stem: str, **arguments: Any) -> None:
        super().__init__(path=file, **arguments)
        self._stem = stem
        self.add_marker("parity")

    def runtest(self) -> None:
        """Record what the installed libraries compute, compare, write the report."""
        __tracebackhide__ = True
        from ..errors import MissingPackageError, ParityError
        from ..report.gate_text import failure_text, first_line

        try:
            outcome = self._run()
            where = self._record(outcome)
        except MissingPackageError as error:
            if setting(self.config, "parity_missing") == "skip":
                raise self._skip(str(error)) from None
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        except ParityError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        if outcome.result.exit_code != 0:
            parts = (
                f"{self.name}: {first_line(outcome.result)}",
                failure_text(outcome.result),
                where,
            )
            raise pytest.fail.Exception("\n\n".join(filter(None, parts)), pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        """How the item is called in listings."""
        return self.path, 0, f"parity gate {self.name}"

    def _run(self) -> "Outcome":
        from ..gate.baseline_file import read_baseline
        from ..gate.running import run_gate
        from ..gate.target import Target, find

        baseline = read_baseline(self.path)
        name = setting(self.config, "parity_model") or baseline.head.model
        outcome, _ = run_gate(
            baseline,
            Target(name, find(self._from_root(name)).checkpoint),
            name=f"baseline {self.name}",
            command=shlex.join(["pytest", "--parity-baseline", self.name]),
            progress=lambda stage, done, total: None,
        )
        return outcome

    def _from_root(self, model: str) -> str:
        """The model; one that is a folder below the root folder is found from everywhere."""
        from ..locate import exists

        below = self.config.rootpath / model
        return str(below) if exists(below) else model

    def _record(self, outcome: "Outcome") -> str:
        """Write the report and note what it came to; returns where it is, in words."""
        from ..report.gate_outputs import write_report
        from ..report.gate_text import first_line

        result, noted = outcome.result, self.user_properties
        noted.append((VERDICT, result.verdict.value))
        noted.append(("parity_model", result.model))
        for label, side in (("before", result.before), ("after", result.after)):
            noted += [
                (f"parity_{label}_{package}", side.versions[package])
                for package in ("transformers", "torch")
                if package in side.versions
            ]
        if result.divergence is not None:
            noted.append(("parity_divergence", result.divergence.change.tap))
        where = ""
        if wants_report(self.config, result.exit_code):
            folder = self.config.rootpath / setting(self.config, "parity_report_dir")
            page = shown(write_report(outcome, folder, stem=self._stem), self.config)
            noted.append((REPORT, page))
            where = f"HTML report: {page}"
        lines = f"{self.name}: {first_line(result)}\n{where}".rstrip()
        self.add_report_section("call", "parity", lines)
        return where

    def _skip(self, reason: str) -> BaseException:
        self.user_properties.append((SKIPPED, reason))
        skip = pytest.skip.Exception(reason)
        skip._use_item_location = True  # lists the baseline, not this line
        return skip
