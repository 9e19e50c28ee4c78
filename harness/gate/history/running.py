"""Runs cases of history: environments, records, and what they came to."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ...errors import ParityError
from ..environments import environment
from ..recording import record
from ..records import Record, Request
from ..wanted import parse_wanted
from .case import History, Way
from .judging import Shown, judge_passes, judge_releases, judge_saved

Say = Callable[[str], None]

#: Seconds that one record of a tiny model may take.
_TIMEOUT = 300.0


class Historian:
    """Runs releases; a record or a saved model that several need is made once.

    Args:
        say: Takes a line for the user.
        offline: Whether only environments that are kept may be used.
    """

    def __init__(self, *, say: Say, offline: bool = False) -> None:
        self._say = say
        self._offline = offline
        self._stack = ExitStack()
        self._saved: dict[str, str] = {}
        self._records: dict[tuple[str, str], Record] = {}

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
        if case.way is Way.PASSES:
            return judge_passes(case, self._record(case, release), release)
        if case.way is Way.SAVED:
            made = self._record(case, release)
            return judge_saved(case, made, self._ran(release, case.request(saved=True)), release)
        base = case.good[0]
        key = (case.name, base)
        if key not in self._records:
            self._records[key] = self._record(case, base)
        return judge_releases(case, self._records[key], self._record(case, release), release)

    def _record(self, case: History, release: str) -> Record:
        model = self._folder(case) if case.saved_by else None
        return self._ran(release, case.request(model=model))

    def _ran(self, release: str, request: Request) -> Record:
        made = environment(parse_wanted(release), say=self._say, offline=self._offline)
        found = record(made.python, request, folder=self._new(), timeout=_TIMEOUT)
        failed = found.facts.failed
        if failed is not None:
            raise ParityError(
                f"transformers {found.facts.versions.get('transformers', release)}",
                expected="a release that runs the case's model",
                found=f"{failed.type} in {failed.stage}: {failed.message}"[:600],
                advice="take another release, or correct how the model is made",
            )
        return found

    def _folder(self, case: History) -> str:
        """The model as the release that saves it leaves it."""
        if case.name not in self._saved:
            folder = str(self._new() / "saved")
            asked = Request(make=case.make, save_to=folder)
            self._ran(case.saved_by, asked)
            self._saved[case.name] = folder
        return self._saved[case.name]

    def _new(self) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="parity-history-")
        return Path(self._stack.enter_context(folder))
