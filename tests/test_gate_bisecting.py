"""The search for the release that changed the model: right, in few steps, and able to go on."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.gate.bisect_state import BisectState, load_state, save_state
from harness.gate.bisecting import BisectResult, Judgement, Word, bisect


@dataclass
class History:
    """Releases of which each is good, bad or not to be judged; counts how often it is asked."""

    verdicts: list[Judgement]
    asked: list[str] = field(default_factory=list)

    @property
    def releases(self) -> list[str]:
        return [f"{index}.0" for index in range(len(self.verdicts))]

    def judge(self, release: str) -> Judgement:
        self.asked.append(release)
        return self.verdicts[self.releases.index(release)]


def history(text: str) -> History:
    words: dict[str, Word] = {"g": "good", "b": "bad", "s": "skip"}
    return History([Judgement(words[letter]) for letter in text])


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, int]:
    """Verdicts with one change, some hidden, ends never; and where the change is."""
    length = draw(st.integers(2, 60))
    change = draw(st.integers(1, length - 1))
    fixed = draw(st.booleans())
    letters = ["gb"[(index >= change) != fixed] for index in range(length)]
    for index in draw(st.sets(st.integers(1, length - 2)) if length > 2 else st.just(set())):
        letters[index] = "s"
    return "".join(letters), change


def search(text: str, state: Mapping[str, Judgement] | None = None) -> tuple[History, BisectResult]:
    """Search from one end of a history to the other."""
    made = history(text)
    good, bad = ends(text)
    return made, bisect(made.releases, made.judge, good=good, bad=bad, state=state)


def ends(text: str) -> tuple[str, str]:
    """The good and the bad end."""
    old, new = "0.0", f"{len(text) - 1}.0"
    return (old, new) if text[0] == "g" else (new, old)


@given(histories())
def test_bisect_law_the_change_is_among_the_suspects_and_nothing_else_can_be_told(
    drawn: tuple[str, int],
) -> None:
    text, change = drawn
    made, found = search(text)
    assert found.kind == ("broke" if text[0] == "g" else "fixed")
    assert f"{change}.0" in found.suspects
    before, after = (int(float(release)) for release in (found.before, found.after))
    assert before < change <= after
    assert text[before] == text[0]
    assert text[after] == text[-1]
    assert set(text[before + 1 : after]) <= {"s"}  # whatever can be judged between them, was
    assert found.suspects == tuple(made.releases[before + 1 : after + 1])
    assert found.first == (f"{change}.0" if after == before + 1 else None)


@given(histories())
def test_bisect_law_it_judges_few(drawn: tuple[str, int]) -> None:
    text, _ = drawn
    made, found = search(text)
    skips = sum(judgement.verdict == "skip" for _, judgement in found.judged)
    assert len(made.asked) == len(set(made.asked)) == len(found.judged)
    assert len(made.asked) <= 2 + math.ceil(math.log2(max(len(text) - 1, 1))) + skips


@given(histories(), st.data())
def test_bisect_law_going_on_asks_nothing_twice_and_ends_the_same(
    drawn: tuple[str, int], data: st.DataObject
) -> None:
    text, _ = drawn
    made, whole = search(text)
    good, bad = ends(text)
    stop = data.draw(st.integers(0, len(made.asked) - 1))
    kept: dict[str, Judgement] = {}
    first = history(text)

    def interrupted(release: str) -> Judgement:
        if len(kept) == stop:
            raise KeyboardInterrupt
        return first.judge(release)

    with pytest.raises(KeyboardInterrupt):
        bisect(made.releases, interrupted, good=good, bad=bad, on_judged=kept.__setitem__)
    second, again = search(text, kept)
    assert again == whole
    assert [*first.asked, *second.asked] == made.asked


def test_bisect_finds_one_of_a_hundred_in_nine_steps() -> None:
    made = history("g" * 64 + "b" * 36)
    found = bisect(made.releases, made.judge, good="0.0", bad="99.0")
    assert (found.kind, found.before, found.first) == ("broke", "63.0", "64.0")
    assert len(made.asked) == 9


def test_bisect_finds_what_mended_it_when_good_is_newer() -> None:
    made = history("bbbgg")
    found = bisect(made.releases, made.judge, good="4.0", bad="0.0")
    assert (found.kind, found.before, found.first) == ("fixed", "2.0", "3.0")


def test_bisect_names_several_when_those_between_cannot_be_judged() -> None:
    made = history("ggssbb")
    found = bisect(made.releases, made.judge, good="0.0", bad="5.0")
    assert found.first is None
    assert found.suspects == ("2.0", "3.0", "4.0")


@pytest.mark.parametrize(
    ("text", "good", "bad", "words"),
    [
        (
            "bbb",
            "0.0",
            "2.0",
            "release 0.0: expected a good one, as it was said to be, found a bad",
        ),
        (
            "ggg",
            "0.0",
            "2.0",
            "release 2.0: expected a bad one, as it was said to be, found a good",
        ),
        ("gbs", "0.0", "2.0", "release 2.0: expected a bad one, .* nothing can be said"),
        ("gb", "0.0", "0.0", "expected two, one good and one bad, found one"),
        ("gb", "0.0", "7.0", "bad release 7.0: expected one of those .* 0.0 to 1.0"),
    ],
)
def test_bisect_refuses_ends_that_are_not_what_was_said(
    text: str, good: str, bad: str, words: str
) -> None:
    made = history(text)
    with pytest.raises(UsageError, match=words):
        bisect(made.releases, made.judge, good=good, bad=bad)


def state() -> BisectState:
    return BisectState(
        package="transformers",
        good="1.0",
        bad="9.0",
        question={"model": "m", "dtype": "float32"},
        releases=("1.0", "5.0", "9.0"),
    ).with_judged("1.0", Judgement("good", "same"))


def test_state_goes_on_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    assert load_state(path, expected=state()) is None
    save_state(state(), path)
    found = load_state(path, expected=state())
    assert found == state()
    assert found.judgements == {"1.0": Judgement("good", "same")}
    assert [file.name for file in path.parent.iterdir()] == ["state.json"]
    assert json.loads(path.read_text())["format"] == "logits-parity/bisect"


def test_state_of_another_search_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save_state(state(), path)
    other = BisectState("transformers", "1.0", "8.0", {"model": "n", "dtype": "float32"}, ())
    words = "expected the same search: bad 8.0, model n, found bad 9.0, model m"
    with pytest.raises(UsageError, match=words):
        load_state(path, expected=other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:-20], "damaged"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "found .* version 2"),
        (lambda text: text.replace("logits-parity/bisect", "x"), "found x version 1"),
        (lambda text: text.replace('"good"', '"worse"'), "damaged"),
        (lambda text: "[]", "damaged"),
    ],
)
def test_state_that_cannot_be_read_is_refused(
    tmp_path: Path, change: Callable[[str], str], words: str
) -> None:
    path = tmp_path / "state.json"
    save_state(state(), path)
    path.write_text(change(path.read_text()))
    with pytest.raises(UsageError, match=words):
        load_state(path, expected=state())
