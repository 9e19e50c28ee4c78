"""Markdown through a parser of CommonMark with tables: what is shown, and what becomes of it.

``test_report_markdown.py`` looks at our text by rules of our own. Here markdown-it parses it, and
what comes of that is read as by a browser and by GitHub's filters: these run over the text outside
code and make mentions, references and links of what looks like one.
"""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from harness.report.gate_markdown import to_markdown as gate_to_markdown
from harness.report.markdown import error_view, to_markdown
from harness.report.markdown_escape import code, fenced, html_code, link, prose
from harness.report.wording import visible
from harness.result import RunResult, Verdict, from_json, to_json
from tests.gate_results import hostile as hostile_gate

Sample = Callable[..., RunResult]

#: What GitHub makes of text outside code, beyond what the parser knows. Sources: GitHub's
#: "Autolinked references and URLs", "Basic writing and formatting syntax", "Writing mathematical
#: expressions"; the GFM specification, 6.9 (autolinks).
FILTERS = {
    "mention": r"(?<![\w/])@[A-Za-z0-9]",
    "reference": r"#\d",
    "GH reference": r"(?i)\bGH-\d",
    "commit": r"(?<!\d\.)\b[0-9a-f]{7,40}\b",
    "address": r"(?i)\b(?:https?|ftp|mailto|xmpp):(?://)?[^\s\u200b]",
    "www": r"(?i)\bwww\.[^\s\u200b]",
    "mail": r"[\w.+-]+@[\w-]+\.[\w.-]*\w",
    "emoji": r":[a-z0-9_+-]+:",
    "formula": r"\$[^$\n]+\$",
}
OURS = {":white_check_mark:", ":x:", ":warning:"}
TAGS = {
    *("h2", "h3", "p", "strong", "em", "code", "pre", "ul", "li", "details", "summary", "a"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}


class Page(HTMLParser):
    """What a browser would see: tags, where links lead, text in and outside code."""

    def __init__(self, markdown: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.links: list[str] = []
        self.text = ""
        self.outside = ""
        self._open: list[str] = []
        self.feed(_PARSER.render(markdown))
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._open.append(tag)
        for name, value in attributes:
            if (tag, name) == ("a", "href"):
                self.links.append(str(value))
            else:
                self.attributes.append((name, value))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, "tags cross each other"

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_data(self, data: str) -> None:
        self.text += data
        in_code = {"code", "pre", "a"} & set(self._open)
        self.outside += "\n" if in_code else data


_PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def acted_on(text: str) -> dict[str, list[str]]:
    """What GitHub's filters would act on."""
    found = {name: re.findall(pattern, text) for name, pattern in FILTERS.items()}
    found["emoji"] = [each for each in found["emoji"] if each not in OURS]
    return {name: each for name, each in found.items() if each}


def assert_shows(markdown: str, text: str) -> Page:
    """The text and nothing else, with nothing of it obeyed."""
    page = Page(markdown)
    assert page.text.replace("\u200b", "").strip() == text.strip()
    assert page.links == []
    assert page.attributes == []
    assert acted_on(page.outside) == {}
    return page


PIECES = (
    *("@someone", "#12", "owner/name#3", "GH-12", "gh-7", "0123abc", "defaced", "a" * 40),
    *("https://evil.example/x", "HTTP://a.b", "www.evil.example", "ftp://a.b", "a@b.example"),
    *("mailto:a@b.c", "xmpp:a@b.c", ":smile:", ":+1:", "$x$", "$$", "x@0123abc", "a@@b", "##1"),
    *("<b>", "</td>", "<!--", "-->", "<?x", "<![CDATA[", "&lt;", "&#64;", "&amp;#35;12", "]]>"),
    *("`", "``", "```", "~~~", "**", "*", "__", "_", "~~", "|", "\\", "\\|", "[x](y)", "![y](z)"),
    *("[^1]", "[x]", "[ ]", "[!NOTE]", "]: /x", "<https://a.b>", "<a@b.c>", "<script>", "#", "##"),
    *("\n", "\r\n", "\t", "\x1b[2J", "\u202e", "\u200b", "\u2028", "\x00", " ", "  ", "   ", "a"),
    *(
        "1.",
        "-",
        "+",
        ">",
        "===",
        "---",
        "    x",
        "layers.1.attn.q_rope",
        "1.23456789",
        "é",
        "\ufeff",
    ),
)
HOSTILE = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=6).map("".join)

PLACES = {
    "line": "words: {}",
    "bold": "**words**: {}",
    "title": "### Cause: {}",
    "item": "- name: {}",
}


#: Without end: how text is cut is told elsewhere.
MOST = 1_000_000


@given(HOSTILE)
@example("x #")
@example("GH-12 and 0123abc")
@example(":smile:")
def test_law_prose_shows_the_text_and_is_not_obeyed(text: str) -> None:
    shown = visible(text)
    for name, place in PLACES.items():
        words = place.replace("*", "").lstrip("#- ").format(shown)
        page = assert_shows(place.format(prose(text, most=MOST)), words)
        assert page.tags <= {"p", "strong", "h3", "ul", "li", "code"}, name


@given(HOSTILE, st.sampled_from([prose, code]))
def test_law_a_cell_stays_one_cell(text: str, escape: Callable[..., str]) -> None:
    row = f"| {escape(text, most=MOST)} | end |"
    page = assert_shows(f"| a | b |\n| --- | --- |\n{row}", _cells(text, escape))
    assert page.tags <= {"table", "thead", "tbody", "tr", "th", "td", "code"}


def _cells(text: str, escape: Callable[..., str]) -> str:
    shown = visible(text)
    cell = shown.strip() if escape is prose else shown
    return f"\n\n\na\nb\n\n\n\n\n{cell}\nend\n\n\n"


@given(HOSTILE)
def test_law_code_shows_the_text_and_is_not_obeyed(text: str) -> None:
    page = assert_shows(f"x {code(text, most=MOST)} y", f"x {visible(text)} y")
    assert page.tags == {"p", "code"}
    summary = f"<summary>{html_code(text, most=MOST)}</summary>"
    page = assert_shows(f"<details>{summary}\n\n</details>", visible(text))
    assert page.tags == {"details", "summary", "code"}


@given(HOSTILE)
def test_law_a_fence_shows_the_text_and_is_not_obeyed(text: str) -> None:
    lines = "\n".join(map(visible, text.split("\n")))
    assert assert_shows(f"{fenced(text, most=MOST)}\n", lines).tags == {"pre", "code"}


@given(HOSTILE)
def test_law_a_link_leads_where_it_says_or_is_none(text: str) -> None:
    for address in (text, f"https://{text}", f"https://a.example/{text}"):
        page = Page(f"seen in {link(address)}")
        assert page.text.replace("\u200b", "").strip() == f"seen in {visible(address)}".strip()
        assert page.links in ([], [address])
        assert all(each.startswith("https://") for each in page.links)
        assert page.tags <= {"p", "a", "code"}
        assert acted_on(page.outside) == {}


EVIL = " ".join(piece for piece in PIECES if piece.strip())
#: Where a document has names of its own, or numbers as signs.
KEPT = ("format", "verdict", "status", "axes", "sizes", "positions", "heads", "evidence")


def spoilt(document: Any, key: str = "") -> Any:
    """A document with hostile text wherever it holds somebody else's."""
    if isinstance(document, dict):
        free = key in ("unavailable", "versions", "detail")
        return {(EVIL if free else name): spoilt(value, name) for name, value in document.items()}
    if isinstance(document, list):
        return [spoilt(value, key) for value in document]
    return EVIL if isinstance(document, str) and key not in KEPT else document


def hostile(result: RunResult) -> RunResult:
    return from_json(json.dumps(spoilt(json.loads(to_json(result)))).encode())


@pytest.mark.parametrize("verdict", list(Verdict))
def test_views_of_hostile_results_hold_nothing_but_our_own_tags(
    sample: Sample, verdict: Verdict
) -> None:
    for markdown in (to_markdown(hostile(sample(verdict))), error_view(EVIL, EVIL)):
        page = Page(markdown)
        assert page.tags <= TAGS, page.tags - TAGS
        assert page.links == []
        assert set(page.attributes) <= {("style", "text-align:right")}
        assert acted_on(page.outside) == {}
        assert visible("owner/name#3 GH-12 gh-7 0123abc defaced") in page.text.replace("\u200b", "")


def test_the_view_of_a_hostile_gate_holds_nothing_but_our_own_tags() -> None:
    page = Page(gate_to_markdown(hostile_gate(EVIL)))
    assert page.tags <= TAGS, page.tags - TAGS
    assert page.links == []
    assert set(page.attributes) <= {("style", "text-align:right")}
    assert acted_on(page.outside) == {}
    assert visible("owner/name#3 GH-12 gh-7 0123abc defaced") in page.text.replace("\u200b", "")


@pytest.mark.parametrize(
    ("planted", "name"),
    [
        ("@someone", "mention"),
        ("owner/name#3", "reference"),
        ("GH-12", "GH reference"),
        ("see 0123abc", "commit"),
        ("http://a.b", "address"),
        ("www.a.b", "www"),
        ("a@b.example", "mail"),
        (":smile:", "emoji"),
        ("$x$", "formula"),
    ],
)
def test_filters_find_what_is_planted(planted: str, name: str) -> None:
    assert name in acted_on(Page(f"words {planted}").outside)
    assert acted_on(Page(f"words `{planted}` <code>{planted}</code>").outside) == {}


@pytest.mark.parametrize(
    "planted",
    ["<b>x</b>", "[x](https://y.z)", "<https://a.b>", "![x](y)", "<!-- x -->", "`x`", "**x**"],
)
def test_parsing_finds_what_is_planted(planted: str) -> None:
    with pytest.raises(AssertionError):
        assert_shows(f"words: {planted}", f"words: {planted}")
