import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.report import files
from harness.report.html import to_html
from harness.report.layer_map import cell, shade
from harness.report.text import failure_text, summary_line, to_text
from harness.result import Comparison, EngineInfo, Greedy, RunResult, TapStatus, Verdict

Sample = Callable[..., RunResult]
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}[red]\x1b[2J\u202e"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Parses a page: its tags, its text, and whether the tags are balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def everything_evil(result: RunResult) -> RunResult:
    """The same result with hostile text wherever it holds text of somebody else's."""
    prompts = tuple(
        replace(
            p,
            name=EVIL,
            text=EVIL,
            tokens=((EVIL,) * 5,),
            greedy=(Greedy(EVIL, (1,), EVIL),),
            logits=tuple(replace(pair, a=EVIL, b=EVIL) for pair in p.logits),
            pairs=tuple(replace(pair, a=EVIL, tap=EVIL) for pair in p.pairs),
            comparisons=tuple(
                replace(c, candidate=EVIL, tap=EVIL, op=EVIL, note=EVIL) for c in p.comparisons[:3]
            ),
        )
        for p in result.prompts
    )
    candidates = []
    for c in result.candidates:
        first = c.first_divergence
        if first is not None:
            worst = replace(first.comparison, note=EVIL, op=EVIL)
            first = replace(first, candidate=EVIL, prompt=EVIL, tap=EVIL, comparison=worst)
        candidates.append(
            replace(
                c,
                candidate=EVIL,
                reason=EVIL,
                worst_tap=EVIL,
                first_divergence=first,
                unavailable={EVIL: EVIL},
                failing=((EVIL, 0, EVIL),),
            )
        )
    return replace(
        result,
        case=EVIL,
        summary=EVIL,
        prompts=prompts,
        candidates=tuple(candidates),
        engines=(EngineInfo(EVIL, EVIL, EVIL, {EVIL: EVIL}),),
        model=replace(
            result.model,
            origin=EVIL,
            fingerprint=EVIL,
            family=EVIL,
            config={EVIL: EVIL, "l": [EVIL]},
        ),
        environment=replace(
            result.environment, command=EVIL, platform=EVIL, started=EVIL, versions={EVIL: EVIL}
        ),
    )


def test_page_shows_hostile_text_as_text(sample: Sample) -> None:
    page = Page(to_html(everything_evil(sample(Verdict.FAIL))))
    names = {tag for tag, _ in page.tags}
    assert not names & {"img", "iframe", "object", "form"}
    own = [(tag, attrs.get("id")) for tag, attrs in page.tags if tag in ("script", "svg")]
    assert own == [("svg", "growth"), *(("script", name) for name in ("data", None, "details-0"))]
    assert not [a for _, attrs in page.tags for a in attrs if a.startswith("on")]
    assert page.text.count("</script><script>alert(1)</script>") > 30
    assert "{{7*7}}" in page.text
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text
    assert page.open == []


def test_page_check_can_fail() -> None:
    assert {tag for tag, _ in Page(f"<p>{EVIL}</p>".replace("</script><", "<", 1)).tags} >= {"img"}


@pytest.mark.parametrize("verdict", list(Verdict))
def test_page_is_whole_and_asks_for_nothing_from_elsewhere(
    sample: Sample, verdict: Verdict
) -> None:
    html = to_html(sample(verdict))
    page = Page(html)
    assert page.open == []
    assert verdict.value in page.text
    links = [v or "" for _, attrs in page.tags for k, v in attrs.items() if k in ("src", "href")]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "http" not in re.sub(r"http-equiv", "", html)
    assert "@import" not in html
    assert "url(" not in html
    policy = dict(page.tags)["meta"]
    assert any("default-src 'none'" in (a.get("content") or "") for _, a in page.tags), policy


def test_page_links_lead_somewhere(sample: Sample) -> None:
    page = Page(to_html(sample(Verdict.FAIL, prompts={"a": "x", "b": "y"})))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = {(attrs.get("href") or "")[1:] for tag, attrs in page.tags if tag == "a"}
    assert targets <= set(ids)
    assert len(targets) == 8


def test_page_holds_every_part_of_the_result(sample: Sample) -> None:
    result = sample(Verdict.FAIL, layers=3, prompts={"first": "one text", "second": "another"})
    page = Page(to_html(result))
    for part in (
        "First divergence: hf:eager",
        "The engines disagree",
        "one text",
        "another",
        "sdpa never forms it",
        "20/20",
        "15,756",
        "parity run cases/smollm2.toml",
        "transformers",
        "134,515,008 parameters",
        "<b>big</b>",
    ):
        assert part in page.text, part
    styles = [attrs.get("class") for tag, attrs in page.tags if tag == "td"]
    # The planted divergence, of both chunks, which a map takes together; the other prompt is data.
    assert styles.count("x2") == 1
    assert styles.count("none") == 3 * 3
    titles = [attrs.get("title") or "" for _, attrs in page.tags]
    assert any(title.startswith("layers.1.attn.q_rope, prefill: 15,756 units") for title in titles)
    assert sum("marked" in (attrs.get("class") or "") for _, attrs in page.tags) == 1


def test_page_shows_a_result_with_next_to_nothing_in_it(sample: Sample) -> None:
    result = sample()
    bare = replace(result.prompts[0], text="", tokens=(), logits=(), greedy=(), comparisons=())
    page = Page(to_html(replace(result, candidates=(), prompts=(replace(bare, pairs=()),))))
    assert page.open == []
    assert Page(to_html(replace(result, candidates=(), prompts=()))).open == []


@pytest.mark.parametrize(
    ("units", "style"),
    [
        (0.0, "u0"),
        (0.5, "u0"),
        (0.6, "u1"),
        (1.0, "u1"),
        (1.1, "u2"),
        (4.0, "u3"),
        (8.0, "u4"),
        (8.1, "u5"),
        (16.0, "u5"),
        (16.1, "x0"),
        (256.1, "x1"),
        (1e9, "x2"),
        (float("inf"), "x2"),
        (float("nan"), "x2"),
    ],
)
def test_shade_is_logarithmic_and_changes_side_at_the_limit(units: float, style: str) -> None:
    assert shade(units, limit=16.0) == style


def comparisons(sample: Sample) -> list[Comparison]:
    return [c for c in sample().comparisons if c.tap == "layers.0.attn.q" and c.local is not None]


def test_cell_is_the_worst_of_its_chunks(sample: Sample) -> None:
    one, two, *_ = comparisons(sample)
    assert one.local is not None
    loud = replace(two, chunk=1, local=replace(one.local, units=99.0))
    assert cell([one, loud], limit=16.0).text == "99.0"
    assert cell([loud, one], limit=16.0).title.startswith("layers.0.attn.q, decoding step 1: 99.0")
    missing = replace(one, status=TapStatus.MISSING, local=None, difference=None, note="gone")
    assert cell([loud, missing], limit=16.0).style == "broken"
    assert cell([missing], limit=16.0).title.endswith("missing (gone)")
    absent = replace(missing, status=TapStatus.UNAVAILABLE)
    assert cell([absent, loud], limit=16.0).text == "99.0"
    nan = replace(one, local=replace(one.local, units=float("nan")))
    assert cell([loud, nan], limit=16.0).text == "nan"


def test_cell_gives_the_difference_when_nothing_was_replayed(sample: Sample) -> None:
    one = replace(comparisons(sample)[0], local=None)
    assert one.difference is not None
    shown = cell([one], limit=16.0)
    assert shown.style == "unreplayed"
    assert "not replayed; max abs" in shown.title


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("verdict", list(Verdict))
def test_text_fits_its_width_and_loses_nothing(
    sample: Sample, verdict: Verdict, width: int
) -> None:
    result = sample(verdict, engines=("hf:flash_attention_2", "hf:sdpa", "hf:eager"))
    text = to_text(result, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    for part in ("max abs", "mean abs", "KL", "top-1", "greedy", "replayed", "units", "worst at"):
        assert part in text
    assert text.count("20/20") == len(result.prompts[0].logits)
    assert text.startswith(verdict.value.upper())


def test_text_puts_the_verdict_first_then_the_divergence(sample: Sample) -> None:
    text = to_text(sample(Verdict.FAIL))
    parts = ("FAIL: The engines disagree", "First divergence: hf:eager", "Candidates", "Logits:")
    places = [text.index(part) for part in (*parts, "Not compared for hf:sdpa: 3 taps")]
    assert places == sorted(places)
    assert "attn.scores: sdpa never forms it" in text


def test_text_obeys_no_markup_and_no_terminal_codes(sample: Sample) -> None:
    result = everything_evil(sample(Verdict.FAIL))
    for text in (to_text(result, width=2000), failure_text(result, width=2000)):
        assert "[red]\\x1b[2J\\u202e" in text
        assert "\x1b" not in text
    assert "\x1b" not in summary_line(result)


def test_failure_text_holds_verdict_reasons_and_divergences_only(sample: Sample) -> None:
    text = failure_text(sample(Verdict.FAIL))
    assert "hf:eager fail: hf:eager does not replay" in text
    assert "layers.1.attn.q_rope" in text
    assert "hf:sdpa" not in text
    assert "Logits:" not in text


def test_summary_line_names_the_worst_of_all_candidates(sample: Sample) -> None:
    result = sample(Verdict.FAIL)
    assert summary_line(result) == (
        "smollm2: fail; worst 15,756 rounding units at layers.1.attn.q_rope of hf:eager"
    )
    bare = replace(
        result, candidates=tuple(replace(c, worst_units=None) for c in result.candidates)
    )
    assert summary_line(bare) == "smollm2: fail"


def test_write_report_leaves_only_whole_files(sample: Sample, tmp_path: Path) -> None:
    written = files.write_report(sample(), tmp_path / "new" / "reports", stem="x")
    assert {p.name for p in written.html.parent.iterdir()} == {"x.html", "x.json"}


def test_write_whole_keeps_the_old_file_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.html"
    files.write_whole(target, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UsageError, match="found no space left on device: make room there"):
        files.write_whole(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_write_whole_follows_a_link_and_writes_into_a_device(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    files.write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    files.write_whole(Path("/dev/null"), b"gone")
    assert not Path("/dev/null").is_file()
