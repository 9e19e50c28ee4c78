"""What becomes of a result in a pytest session: report files, properties, text of a failure."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..result import RunResult

#: Names of properties of a test, in JUnit files and in the summary.
VERDICT = "parity_verdict"
REPORT = "parity_report"
SKIPPED = "parity_skipped"

#: Which results get report files.
REPORTS = ("all", "failed", "none")

#: File systems allow 255 bytes for a name; a report has a suffix and, while written, a prefix.
_LONGEST_STEM = 120


def setting(config: pytest.Config, name: str) -> str:
    """An option of the command line, else the ini key of the same name."""
    return str(config.getoption(name) or config.getini(name) or "")


def record(item: pytest.Item, result: "RunResult", stem: str) -> str:
    """Write a result's report and note it on the test; returns where the report is, in words.

    Args:
        item: The test.
        result: What its comparison came to.
        stem: Name of the report's files.

    Raises:
        UsageError: The report cannot be written.
    """
    from ..report.text import summary_line
    from ..report.wording import units

    item.user_properties.append((VERDICT, result.verdict.value))
    for candidate in result.candidates:
        name = f"parity_{candidate.candidate}"
        item.user_properties.append((f"{name}_verdict", candidate.verdict.value))
        item.user_properties.append((f"{name}_worst_units", units(candidate.worst_units)))
    page = _write(item.config, result, stem)
    where = ""
    if page is not None:
        where = shown(page, item.config)
        item.user_properties.append((REPORT, where))
        where = f"HTML report: {where}"
    item.add_report_section("call", "parity", f"{summary_line(result)}\n{where}".rstrip())
    return where


def failure(result: "RunResult", where: str) -> str:
    """Text of a failure: a line for the short summary, the first divergence, the report."""
    from ..report.text import failure_text

    return "\n\n".join(part for part in (_first_line(result), failure_text(result), where) if part)


def _first_line(result: "RunResult") -> str:
    from ..report.wording import visible

    first = result.first_divergence
    at = "" if first is None else f" at {first.tap} of {first.candidate}"
    return visible(f"{result.case}: {result.verdict.value}{at}")


def logits_beyond(result: "RunResult", within: float) -> str:
    """What keeps logits from being within an absolute distance of float64; empty if nothing.

    Args:
        result: What a comparison came to.
        within: The distance, over all positions of all prompts.
    """
    from ..outcome import TRUTH
    from ..report.wording import number

    lines = []
    for candidate in (c.candidate for c in result.candidates):
        pairs = [x for p in result.prompts for x in p.logits if (x.a, x.b) == (TRUTH, candidate)]
        largest = max((pair.max_abs for pair in pairs), default=None)
        if largest is None or not largest <= within:
            found = "were not compared" if largest is None else f"are {number(largest)} away"
            lines.append(
                f"{candidate}: expected logits within {number(within)} of the float64 reference"
                f" (logits_within), found that they {found}"
            )
    return "\n".join(lines)


def stem_of(nodeid: str, number: int) -> str:
    """Name of the report of a test's ``number``-th comparison, counted from 1.

    Different tests get different names: parameters that differ only in signs that a file name
    cannot have, and names that are cut, are told apart by a hash.
    """
    from ..case import safe_stem

    stem = safe_stem(nodeid)
    if "[" in nodeid or len(stem.encode()) > _LONGEST_STEM:
        digest = hashlib.sha256(nodeid.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        cut = stem.encode()[:_LONGEST_STEM].decode("utf-8", "ignore")
        stem = f"{cut.rstrip('_')}-{digest}"
    return stem if number == 1 else f"{stem}-{number}"


def _write(config: pytest.Config, result: "RunResult", stem: str) -> Path | None:
    from ..report.files import write_report

    if not wants_report(config, result.exit_code):
        return None
    folder = config.rootpath / setting(config, "parity_report_dir")
    return write_report(result, folder, stem=stem).html


def wants_report(config: pytest.Config, exit_code: int) -> bool:
    """Whether a comparison that came to this gets a page and a JSON file."""
    wanted = setting(config, "parity_reports")
    return wanted == "all" or (wanted == "failed" and exit_code != 0)


def shown(path: Path, config: pytest.Config) -> str:
    """A path as it is shown: relative to the root folder where it is below it."""
    root = config.rootpath
    return str(path.relative_to(root) if path.is_relative_to(root) else path)
