"""Runs cases of history: environments, records, and what they came to."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ...errors import BuildError, ParityError
from ..environments import environment
from ..recording import record_all
from ..records import Record, Request
from ..wanted import parse_wanted
from .case import History, Way
from .judging import Shown, judge_passes, judge_releases, judge_saved

Say = Callable[[str], None]

#: Seconds that one record of a tiny model may take.
_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class _Need:
    """One record that a case needs: of which case and release, and of the model as saved or not."""

    case: str
    release: str
    saved: bool = False


class Historian:
    """Runs releases; what is asked of one release is run in one process.

    Args:
        items: Cases and releases that will be shown, so that they can be run together; others are
            run by themselves.
        say: Takes a line for the user.
        offline: Whether only environments that are kept may be used.
    """

    def __init__(
        self,
        items: Iterable[tuple[History, str]] = (),
        *,
        say: Say,
        offline: bool = False,
    ) -> None:
        self._say = say
        self._offline = offline
        self._stack = ExitStack()
        self._saved: dict[str, str] = {}
        self._records: dict[_Need, Record] = {}
        self._cases: dict[str, History] = {}
        self._absent: dict[str, BuildError] = {}
        self._waiting: dict[_Need, None] = {}
        for case, release in items:
            self._expect(case, release)

    def __enter__(self) -> "Historian":
        """Open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was recorded."""
        self._stack.close()

    def show(self, case: History, release: str) -> Shown:
        """What one release of a case comes to.

        Args:
            case: The case.
            release: One of its releases, as the case names it.

        Raises:
            BuildError: Its environment cannot be made.
            ParityError: Nothing ran there, or on the good release that it is held against.
        """
        first, *second = self._expect(case, release)
        before = self._record(first)
        if case.way is Way.PASSES:
            return judge_passes(case, before, release)
        after = self._record(second[0])
        if case.way is Way.SAVED:
            return judge_saved(case, before, after, release)
        return judge_releases(case, before, after, release)

    def _expect(self, case: History, release: str) -> Sequence[_Need]:
        """Records that a release of a case needs, what is right first."""
        needs = [_Need(case.name, release)]
        if case.way is Way.SAVED:
            needs.append(_Need(case.name, release, saved=True))
        if case.way is Way.RELEASES:
            needs.insert(0, _Need(case.name, case.good[0]))
        self._cases[case.name] = case
        self._waiting.update(dict.fromkeys(needs))
        return needs

    def _record(self, need: _Need) -> Record:
        if need not in self._records:
            together = [each for each in self._waiting if each.release == need.release]
            self._run([each for each in together if each not in self._records])
        found = self._records[need]
        failed = found.facts.failed
        if failed is not None and not found.facts.passes:
            raise ParityError(
                f"transformers {found.facts.versions.get('transformers', need.release)}",
                expected="a release that runs the case's model",
                found=f"{failed.type} in {failed.stage}: {failed.message}"[:600],
                advice="take another release, or correct how the model is made",
            )
        return found

    def _run(self, needs: Sequence[_Need]) -> None:
        """Record what is needed of one release."""
        requests = [self._request(each) for each in needs]
        found = self._ran(needs[0].release, requests)
        self._records.update(zip(needs, found, strict=True))

    def _request(self, need: _Need) -> Request:
        case = self._cases[need.case]
        model = self._folder(case) if case.saved_by else None
        return case.request(model=model, saved=need.saved)

    def _ran(self, release: str, requests: Sequence[Request]) -> list[Record]:
        python = self._python(release)
        return record_all(python, requests, folder=self._new(), timeout=_TIMEOUT)

    def _python(self, release: str) -> Path:
        """The environment's interpreter; what keeps it from being made is asked once."""
        if release in self._absent:
            raise self._absent[release]
        try:
            wanted = parse_wanted(release)
            return environment(wanted, say=self._say, offline=self._offline).python
        except BuildError as error:
            self._absent[release] = error
            raise

    def _folder(self, case: History) -> str:
        """The model as the release that saves it leaves it."""
        if case.name not in self._saved:
            folder = str(self._new() / "saved")
            saved = self._ran(case.saved_by, [Request(make=case.make, save_to=folder)])[0]
            failed = saved.facts.failed
            if failed is not None:
                raise ParityError(
                    f"{case.name}: saved_by",
                    expected="a release that makes and saves the model",
                    found=f"{failed.type} in {failed.stage}: {failed.message}"[:600],
                    advice="correct how the model is made",
                )
            self._saved[case.name] = folder
        return self._saved[case.name]

    def _new(self) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="parity-history-")
        return Path(self._stack.enter_context(folder))
