"""The search for a release, with releases that are made up: which run when, and what is kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import CannotInstall, Offline, UsageError
from harness.gate import searching
from harness.gate.environments import Environment
from harness.gate.records import Failure
from harness.gate.result import GateVerdict
from harness.gate.running import Recorder
from harness.gate.searching import Found, SearchRequest, search
from harness.gate.side import RecordSide
from harness.gate.target import Options
from harness.gate.wanted import Wanted
from tests.test_gate_judging import moved, side, values

RELEASES = [f"5.{n}.0" for n in range(16)]
CHANGED = 11
BROKEN = "5.8.0"  # cannot be installed


class World:
    """What releases there are, and which of them ran.

    Attributes:
        ran: Releases in the order in which they ran.
        stop_after: The run after so many is interrupted; None for none.
    """

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.stop_after: int | None = None

    def environment(self, wanted: Wanted, **_: Any) -> Environment:
        release = wanted.releases["transformers"]
        if release == BROKEN:
            raise CannotInstall(release, expected="wheels", found="none", advice="wait")
        return Environment(Path(release), wanted, {})

    def run(self, recorder: Recorder, python: Path, request: object, *, name: str) -> RecordSide:
        if self.stop_after == len(self.ran):
            raise KeyboardInterrupt
        release = str(python)
        self.ran.append(release)
        if release == "5.15.0":
            return side({}, passes=(), failed=Failure("load", "ValueError", "gone"))
        return side(after() if RELEASES.index(release) >= CHANGED else values())


def after() -> dict[str, Any]:
    return moved(values(), "model.layers.1.mlp", 1e-2)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(searching, "environment", made.environment)
    monkeypatch.setattr(searching, "releases", lambda *_, **__: RELEASES)
    monkeypatch.setattr(Recorder, "run", lambda *args, **named: made.run(*args, **named))
    monkeypatch.setattr(
        "harness.gate.running.explain_result", lambda result, *_, **__: (result, None)
    )
    return made


Search = Callable[..., Found]


@pytest.fixture
def look(tiny: Callable[..., Path], tmp_path: Path) -> Search:
    def run(good: str = "5.0.0", bad: str = "5.14.0", **other: Any) -> Found:
        request = SearchRequest(
            model=str(tiny()),
            good=good,
            bad=bad,
            package="transformers",
            options=other.pop("options", Options()),
            resave=False,
            offline=False,
            state=tmp_path / "state.json",
        )
        return search(request, say=lambda line: None, progress=lambda *_: None, **other)

    return run


def test_the_release_that_changed_the_model_is_found_in_few_steps(
    world: World, look: Search
) -> None:
    told: list[tuple[str, str]] = []
    found = look(on_judged=lambda release, each: told.append((release, each.verdict)))
    assert found.result.first == RELEASES[CHANGED]
    assert found.outcome.result.verdict is GateVerdict.CHANGED
    assert found.outcome.result.before.name == f"transformers {RELEASES[CHANGED - 1]}"
    assert found.outcome.result.after.name == f"transformers {RELEASES[CHANGED]}"
    assert len(world.ran) == len(set(world.ran)) <= 6
    assert dict(told)["5.0.0"] == "good"
    assert dict(told)[RELEASES[CHANGED]] == "bad"


def test_a_release_that_fails_is_bad_and_one_that_cannot_be_installed_is_skipped(
    world: World, look: Search
) -> None:
    found = look(bad="5.15.0")
    judged = dict(found.result.judged)
    assert judged["5.15.0"].verdict == "bad"
    assert "gone" in judged["5.15.0"].detail
    assert found.result.first == RELEASES[CHANGED]


def test_where_releases_between_cannot_be_installed_there_are_suspects(
    world: World, look: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.test_gate_searching.CHANGED", 8)
    found = look()
    assert found.result.first is None
    assert found.result.suspects == (BROKEN, "5.9.0")


def test_a_search_from_new_to_old_finds_what_mended_it(world: World, look: Search) -> None:
    found = look(good="5.14.0", bad="5.0.0")
    assert found.result.kind == "fixed"
    assert found.result.first == RELEASES[CHANGED]
    assert found.outcome.result.before.name == f"transformers {RELEASES[CHANGED]}"


def test_an_interrupted_search_goes_on_where_it_was(
    world: World, look: Search, tmp_path: Path
) -> None:
    whole = look()
    (tmp_path / "state.json").unlink()
    world.ran.clear()
    world.stop_after = 3
    with pytest.raises(KeyboardInterrupt):
        look()
    world.stop_after = None
    told: list[str] = []
    found = look(on_judged=lambda release, each: told.append(release))
    assert found.result == whole.result
    assert told == [release for release, _ in whole.result.judged]
    # The three that were judged are not judged again; both sides of the answer have to run for it.
    assert len(world.ran) <= 3 + len(told)


def test_a_state_of_another_question_is_refused(world: World, look: Search) -> None:
    look()
    with pytest.raises(UsageError, match="the same search"):
        look(options=Options(generate=3))


def test_an_end_that_is_not_what_it_was_said_to_be_is_an_error(world: World, look: Search) -> None:
    with pytest.raises(UsageError, match="expected a bad one"):
        look(good="5.0.0", bad="5.5.0")


def test_an_index_that_does_not_answer_ends_the_search(
    world: World, look: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> Environment:
        raise Offline("x", expected="an index", found="none", advice="connect")

    monkeypatch.setattr(searching, "environment", away)
    with pytest.raises(Offline):
        look()
