"""The pytest plugin: case files and baselines as tests, the ``parity`` fixture for those by hand.

This module has the hooks; what they do is in :mod:`harness.pytest_plugin`. It is loaded in every
session of everybody who has it installed, so importing it imports nothing heavy, and ours goes by
the name ``logits_parity.harness``, for ``harness`` may be somebody else's; see
:mod:`harness.pytest_plugin.names`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logits_parity

if TYPE_CHECKING:
    from harness.pytest_plugin import cases, fixture, gates, laws, names, outcome, summary
else:
    from logits_parity.harness.pytest_plugin import (
        cases,
        fixture,
        gates,
        laws,
        names,
        outcome,
        summary,
    )


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Options, each with an ini key of the same meaning.

    The hook runs as soon as the plugin is registered, before anything of the user's is imported:
    the moment to give way to a ``harness`` of theirs.
    """
    remove = names.install(logits_parity.__name__)
    pluginmanager.register(_Cleaner(remove), "logits-parity-names")
    group = parser.getgroup("parity", "logits parity (case files and the parity fixture)")
    group.addoption(
        "--parity-report-dir",
        metavar="DIR",
        help="folder for reports, relative to the root folder (default: reports)",
    )
    group.addoption(
        "--parity-reports",
        choices=outcome.REPORTS,
        help="which comparisons get an HTML and a JSON report (default: all)",
    )
    group.addoption(
        "--parity-missing",
        choices=("fail", "skip"),
        help="what becomes of a case file that needs a package which is not installed: its model,"
        " or an attention implementation (default: fail)",
    )
    group.addoption(
        "--parity-engine",
        action="append",
        dest="parity_engines",
        metavar="ENGINE",
        help="run case files with this engine instead of theirs, for example hf:sdpa; may be given"
        " again",
    )
    group.addoption(
        "--parity-model", metavar="MODEL", help="run case files on this model instead of theirs"
    )
    group.addoption(
        "--parity-dtype",
        metavar="DTYPE",
        help="run case files in float32, bfloat16 or float16 instead of theirs",
    )
    group.addoption(
        "--parity-baseline",
        action="append",
        dest="parity_baselines",
        metavar="FILE",
        help="fail where the installed libraries make another model of that of this baseline, which"
        " `parity baseline` wrote; may be given again",
    )
    group.addoption(
        "--parity-laws",
        choices=("ci", "nightly"),
        default="ci",
        help="how long laws are searched for a break: ci (default), a few examples of a small pool"
        " of models, always the same; nightly, many of any model, kept where they break a law",
    )
    parser.addini("parity_report_dir", "folder for reports", default="reports")
    parser.addini(
        "parity_reports", "which comparisons get reports: all, failed or none", default="all"
    )
    parser.addini(
        "parity_missing", "a case file whose package is absent: fail or skip", default="fail"
    )
    parser.addini("parity_engines", "engines to run case files with", type="args", default=[])
    parser.addini("parity_model", "model to run case files on", default="")
    parser.addini("parity_dtype", "dtype to run case files in", default="")
    parser.addini(
        "parity_baselines",
        "baselines to hold the installed libraries against",
        type="linelist",
        default=[],
    )


class _Cleaner:
    """Takes the finder of names away when the session ends."""

    def __init__(self, remove: Any) -> None:
        self._remove = remove

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """The last hook of a session."""
        self._remove()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Keep assertions in somebody's ``harness`` as they are.

    pytest rewrites assertions in all top-level packages of a plugin's distribution, and goes by
    the name alone. Nothing of ours asserts.
    """
    hook = early_config.pluginmanager.rewrite_hook
    marked = getattr(hook, "_must_rewrite", None)
    if isinstance(marked, set):
        marked.difference_update(names.SHARED)
        getattr(hook, "_marked_for_rewrite_cache", {}).clear()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that case files carry, and refuse settings that do not exist."""
    config.addinivalue_line(
        "markers",
        "parity: compares implementations of a language model op by op; every case file has it"
        ' (select with -m parity, leave out with -m "not parity")',
    )
    config.addinivalue_line(
        "markers",
        f"{laws.MARKER}(group): runs the test for each law of a group (all of them without one),"
        " engine and family; see the parity_law fixture",
    )
    for key, known in (("parity_reports", outcome.REPORTS), ("parity_missing", ("fail", "skip"))):
        found = outcome.setting(config, key)
        if found not in known:
            raise pytest.UsageError(
                f"{key}: expected {' or '.join(known)}, found {found!r}: correct it in the ini file"
            )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect case files; other TOML files are none of our business."""
    if file_path.suffix == ".toml" and cases.is_case_file(file_path):
        return cases.CaseFile.from_parent(parent, path=file_path)
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a function that is marked with a group of laws for each law, engine and family."""
    laws.generate(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add baselines; give cases of one stem in different folders reports of different names.

    Baselines belong to no folder, and come before ``-k``, ``-m`` and the like choose.
    """
    gates.add(session, items)
    cases.tell_apart(items)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was compared and where the reports are, where anything was."""
    reports = [report for several in terminalreporter.stats.values() for report in several]
    lines = summary.summary_lines(reports)
    if lines:
        terminalreporter.section("logits parity")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> fixture.Parity:
    """Compare a model with its checkpoint: parity.assert_parity(model, checkpoint=..., ...)."""
    return fixture.Parity(request.node)


@pytest.fixture
def parity_law(request: pytest.FixtureRequest) -> laws.LawCase:
    """One law with one engine and family: parity_law.check(); see the parity_laws marker."""
    return laws.LawCase(request.node, request.param)
