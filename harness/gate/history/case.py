"""One case of history: a bug of a released library, and how it is shown."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...errors import CaseError
from ..records import Make, Pass, Request

#: What every model of a case is made with unless the case says otherwise.
TINY = {"vocab_size": 101, "hidden_size": 32}


class Way(StrEnum):
    """What shows a bug.

    ``RELEASES``: one pass, on the first good release and on another one. ``PASSES``: two passes of
    one model on one release, whose logits must agree. ``SAVED``: one pass, of the model as it was
    made and as it is after it was saved and loaded, on one release.
    """

    RELEASES = "releases"
    PASSES = "passes"
    SAVED = "saved"


@dataclass(frozen=True, slots=True)
class History:
    """A bug of a released library.

    Attributes:
        name: Of the case.
        title: What goes wrong, in a line.
        arch: Which models it concerns.
        reports: Addresses of public reports; none where none was found.
        what: What happens.
        cause: Why.
        way: What shows it.
        good: Releases without the bug, as :func:`~..wanted.parse_wanted` reads them.
        bad: Releases with it.
        refused: Releases that refuse, with an error, what goes wrong on the bad ones.
        make: How the model is made.
        passes: What is run.
        left: Of two passes of one release, the one that is right.
        right: The other one.
        attention: Attention implementation, None for what the library chooses.
        saved_by: The release that saves the model which the others load; empty where each release
            makes its own.
        first: Pattern of the first intermediate that differs, as :func:`fnmatch.fnmatchcase` reads
            it; empty where only tokens or weights tell.
        live: Whether the newest release is still bad.
        ci: Releases that are run at every change, and not only at night.
    """

    name: str
    title: str
    arch: str
    what: str
    cause: str
    way: Way
    bad: tuple[str, ...]
    make: Make
    passes: tuple[Pass, ...]
    good: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    left: str = ""
    right: str = ""
    attention: str | None = None
    saved_by: str = ""
    first: str = ""
    live: bool = False
    ci: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [each.name for each in self.passes]
        for key, value in (("left", self.left), ("right", self.right)):
            if self.way is Way.PASSES and value not in names:
                raise self._wrong(key, f"one of the passes {', '.join(names)}", repr(value))
            if self.way is not Way.PASSES and value:
                raise self._wrong(key, 'compare = "passes", which alone has sides', self.way.value)
        if not self.bad:
            raise self._wrong("bad", "a release that has the bug", "none")
        if not self.good and (self.way is Way.RELEASES or not (self.live or self.refused)):
            raise self._wrong("good", "a release without the bug, to compare with", "none")
        every = (*self.good, *self.refused, *self.bad)
        if twice := sorted({each for each in every if every.count(each) > 1}):
            raise self._wrong("bad", "each release once, among good, refused or bad", twice[0])
        if self.live != ("installed" in self.bad):
            found = f"live = {str(self.live).lower()} and bad = {list(self.bad)}"
            raise self._wrong("live", '"installed" among the bad where it is true, else not', found)
        if strange := set(self.ci) - set(self.releases):
            raise self._wrong(
                "ci", f"some of {', '.join(self.releases)}", ", ".join(sorted(strange))
            )
        if self.way is Way.SAVED and self.make.after_save_load:
            raise self._wrong("make", "no after_save_load: both kinds are run", "after_save_load")

    def _wrong(self, key: str, expected: str, found: str) -> CaseError:
        return CaseError(
            f"{self.name}: {key}", expected=expected, found=found, advice="correct the case"
        )

    @property
    def releases(self) -> tuple[str, ...]:
        """All releases on which something is to be seen, in the order in which they are judged."""
        base = self.good[:1] if self.way is Way.RELEASES else ()
        every = (*self.good, *self.refused, *self.bad)
        return tuple(each for each in every if each not in base)

    def request(self, *, model: str | None = None, saved: bool = False) -> Request:
        """What a release is asked to run.

        Args:
            model: Folder of the model where another release has saved it.
            saved: Whether the model is saved and loaded first.
        """
        passes = self.passes if self.way is not Way.PASSES else self._sides()
        common: dict[str, Any] = {"attention": self.attention, "passes": passes}
        if model is not None:
            return Request(model=model, **common)
        made = self.make
        if saved:
            made = Make(made.config_class, made.config, made.model_class, after_save_load=True)
        return Request(make=made, **common)

    def _sides(self) -> tuple[Pass, ...]:
        return tuple(each for each in self.passes if each.name in (self.left, self.right))
