"""Bugs of released libraries are shown on bad releases, and not on good ones."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import BuildError
from harness.gate.history.case import History
from harness.gate.history.case_file import load_histories
from harness.gate.history.judging import surprise
from harness.gate.history.running import Historian

FOLDER = Path(__file__).parent / "history"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each case and release that is to be run."""
    config = metafunc.config
    mode = config.getoption("parity_history") or config.getini("parity_history")
    if mode not in ("ci", "nightly", "off"):
        raise pytest.UsageError(
            f"parity_history: expected ci, nightly or off, found {mode!r}: correct it in the ini"
            " file"
        )
    found = [] if mode == "off" else load_histories(FOLDER)
    chosen = [
        pytest.param(case, release, id=f"{case.name}-{_word(case, release)}-{release}")
        for case in found
        for release in (case.ci if mode == "ci" else case.releases)
    ]
    metafunc.parametrize(("case", "release"), chosen)


def _word(case: History, release: str) -> str:
    if release in case.refused:
        return "refused"
    return "good" if release in case.good else "bad"


@pytest.fixture(scope="session")
def historian(request: pytest.FixtureRequest) -> Iterator[Historian]:
    """Runs releases: all that is selected of one release in one process."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    found = [call.params for call in calls if call is not None and "release" in call.params]
    items = [(each["case"], each["release"]) for each in found]
    with Historian(items, say=lambda line: None) as historian:
        yield historian


def test_history(historian: Historian, case: History, release: str) -> None:
    try:
        shown = historian.show(case, release)
    except BuildError as error:  # offline, for one
        if os.environ.get("PARITY_HISTORY") == "required":
            raise
        # What a release did cannot be looked at without it: no index, no room or another Python
        # says nothing about this project. CI sets the variable, so there nothing is passed over.
        pytest.skip(str(error))
    wrong = surprise(case, shown)
    assert not wrong, wrong
