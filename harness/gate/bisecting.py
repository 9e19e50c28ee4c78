"""Which release changed the model: halving between one where it is good and one where it is bad."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError

Word = Literal["good", "bad", "skip"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one release came to.

    Attributes:
        verdict: ``skip`` where nothing can be said of it: it cannot be installed, or not compared.
        detail: Why, in words.
    """

    verdict: Word
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BisectResult:
    """Where the change is.

    Attributes:
        kind: Whether a newer release *broke* what was good, or *fixed* what was bad.
        before: The newest release that is known to be as it was.
        after: The oldest release that is known to be otherwise.
        suspects: After ``before``, up to and with ``after``, oldest first: one of them brought the
            change. One alone unless those between could not be judged.
        judged: What was judged, in that order.
    """

    kind: Literal["broke", "fixed"]
    before: str
    after: str
    suspects: tuple[str, ...]
    judged: tuple[tuple[str, Judgement], ...]

    @property
    def first(self) -> str | None:
        """The release that brought the change; None where it is one of several."""
        return self.after if len(self.suspects) == 1 else None


def bisect(
    releases: Sequence[str],
    judge: Callable[[str], Judgement],
    *,
    good: str,
    bad: str,
    state: Mapping[str, Judgement] | None = None,
    on_judged: Callable[[str, Judgement], None] = lambda release, judgement: None,
) -> BisectResult:
    """Find the release that changed from good to bad, or from bad to good if good is newer.

    Both ends are judged first. Then always the middle one of those that may still tell something:
    with n releases, at most ``2 + ceil(log2(n - 1))`` are judged, and those that are skipped.

    Args:
        releases: In order, oldest first; both ends are among them.
        judge: Says what a release comes to. What it raises ends the search.
        good: A release in which it is good.
        bad: One in which it is bad.
        state: What was judged before, which is not judged again.
        on_judged: Takes each judgement as it is made, to be kept.

    Raises:
        UsageError: An end is not among the releases, or is not what it is said to be.
    """
    low, high = _ends(releases, good=good, bad=bad)
    known = dict(state or {})
    judged: list[tuple[str, Judgement]] = []

    def verdict(index: int) -> Word:
        release = releases[index]
        if release not in known:
            known[release] = judge(release)
            on_judged(release, known[release])
        judged.append((release, known[release]))
        return known[release].verdict

    was: Word = "good" if releases[low] == good else "bad"
    for index, said in ((releases.index(good), "good"), (releases.index(bad), "bad")):
        if (found := verdict(index)) != said:
            raise _not_as_said(releases[index], said, found, known[releases[index]].detail)
    skipped: set[int] = set()
    while inner := [index for index in range(low + 1, high) if index not in skipped]:
        middle = inner[len(inner) // 2]
        found = verdict(middle)
        if found == "skip":
            skipped.add(middle)
        elif found == was:
            low = middle
        else:
            high = middle
    return BisectResult(
        kind="broke" if was == "good" else "fixed",
        before=releases[low],
        after=releases[high],
        suspects=tuple(releases[low + 1 : high + 1]),
        judged=tuple(judged),
    )


def _ends(releases: Sequence[str], *, good: str, bad: str) -> tuple[int, int]:
    """Indices of both ends, the older first."""
    for name, release in (("good", good), ("bad", bad)):
        if release not in releases:
            raise UsageError(
                f"{name} release {release}",
                expected=f"one of those between which to look: {_span(releases)}",
                found="none of them",
                advice="name a release as the package index lists it",
            )
    if good == bad:
        raise UsageError(
            f"releases {good} and {bad}",
            expected="two, one good and one bad",
            found="one",
            advice="name the release that was good, and the one that is bad",
        )
    low, high = sorted((releases.index(good), releases.index(bad)))
    return low, high


def _span(releases: Sequence[str]) -> str:
    return f"{releases[0]} to {releases[-1]}" if releases else "none"


def _not_as_said(release: str, said: str, found: Word, detail: str) -> UsageError:
    what = "one of which nothing can be said" if found == "skip" else f"a {found} one"
    return UsageError(
        f"release {release}",
        expected=f"a {said} one, as it was said to be",
        found=what + (f": {detail}" if detail else ""),
        advice="name another release for this end"
        if found == "skip"
        else "exchange the ends if they were mistaken; else name releases of which one is good and"
        " one is bad: there is no change between two that are alike",
    )
