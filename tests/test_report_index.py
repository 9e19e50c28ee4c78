"""The index page: every JSON file of a folder is listed, a result or none, and never obeyed."""

import base64
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from harness.errors import UsageError
from harness.report import folder as folder_module
from harness.report.folder import read_folder
from harness.report.index import exit_codes, listing, to_index
from harness.result import RunResult, Verdict, to_json

Sample = Callable[..., RunResult]
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}\x1b\u202e"


class Page(HTMLParser):
    """Tags, text, and what is in a script or style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.inline = "", dict.fromkeys(("script", "style"), "")
        self._in = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in in self.inline:
            self.inline[self._in] += data
        else:
            self.text += data


@pytest.fixture
def reports(sample: Sample, tmp_path: Path) -> Path:
    """A folder of results, with some files that are none."""
    for verdict in Verdict:
        stem = verdict.value.replace(" ", "-")
        (tmp_path / f"{stem}.json").write_bytes(to_json(sample(verdict, case=stem)))
    (tmp_path / "fail.html").write_text("a page")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "deep #1?.json").write_bytes(to_json(sample(case="deep")))
    (tmp_path / "cost.json").write_text('{"somebody": "else"}')
    (tmp_path / "torn.json").write_bytes(to_json(sample())[:1000])
    (tmp_path / "later.json").write_text('{"format": "logits-parity/result", "version": 99}')
    (tmp_path / "folder.json").mkdir()
    (tmp_path / ".hidden.json").write_text("{")
    return tmp_path


def page_of(reports: Path) -> Page:
    return Page(to_index(read_folder(reports), beside=reports, folder=reports))


def test_index_lists_results_the_worst_first_and_what_is_none(reports: Path) -> None:
    found = read_folder(reports)
    order = ["not-finite", "fail", "not-comparable", "deep", "rounding", "pass"]
    assert [each.case for each in found.listed] == order
    assert {each.path.name: each.why for each in found.unlisted} == {
        "cost.json": "expected format logits-parity/result version 1, found (None, None): write it"
        " again with `parity run --json`",
        "torn.json": next(e.why for e in found.unlisted if e.path.name == "torn.json"),
        "later.json": next(e.why for e in found.unlisted if e.path.name == "later.json"),
        "folder.json": "not a file",
    }
    page = page_of(reports)
    rows = [attrs for tag, attrs in page.tags if tag == "tr" and "data-verdict" in attrs]
    assert [attrs["data-verdict"] for attrs in rows][:2] == ["not finite", "fail"]
    for part in (
        "models/smollm2",
        "15,756",
        "layers.1.attn.q_rope of hf:eager",
        "hf:eager at layers.1.attn.q_rope (prompt hello, prefill): the op itself is off",
        "4 files without a result",
        "torn.json: expected a JSON document",
    ):
        assert part in page.text, part
    assert ".hidden.json" not in page.text


def test_index_links_lead_to_pages_and_results(reports: Path) -> None:
    links = [attrs["href"] or "" for tag, attrs in page_of(reports).tags if tag == "a"]
    targets = {unquote(link) for link in links if not link.startswith("#")}
    assert targets == {
        "fail.html",
        "job/deep #1?.json",
        *(f"{v.value.replace(' ', '-')}.json" for v in Verdict),
    }
    assert all((reports / target).is_file() for target in targets)
    assert not any(character in link for link in links for character in "?: ")


def test_index_shows_hostile_text_as_text(sample: Sample, tmp_path: Path) -> None:
    result = sample(Verdict.FAIL)
    first = result.candidates[0]
    assert first.first_divergence is not None
    evil = replace(
        first,
        candidate=EVIL,
        worst_tap=EVIL,
        first_divergence=replace(first.first_divergence, candidate=EVIL, prompt=EVIL, tap=EVIL),
    )
    result = replace(
        result,
        case=EVIL,
        summary=EVIL,
        candidates=(evil,),
        engines=tuple(replace(e, name=EVIL) for e in result.engines),
        model=replace(result.model, origin=EVIL),
        environment=replace(result.environment, started=EVIL),
    )
    name = "<img onerror=x>\"'&\n\udcff.json"
    (tmp_path / name).write_bytes(to_json(result))
    (tmp_path / f"no{name}").write_text("{")
    page = page_of(tmp_path)
    tags = [tag for tag, _ in page.tags]
    assert "img" not in tags
    assert tags.count("script") == 1
    assert not [a for _, attrs in page.tags for a in attrs if a.startswith("on")]
    assert page.text.count("<script>alert(1)</script>") > 8
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text
    assert not any("\x1b" in line for line in listing(read_folder(tmp_path)))


def test_index_asks_for_nothing_from_elsewhere_and_allows_its_own_script_alone(
    reports: Path,
) -> None:
    html = to_index(read_folder(reports), beside=reports, folder=reports)
    page = Page(html)
    policy = next(attrs["content"] or "" for _, attrs in page.tags if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for kind, content in page.inline.items():
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
        assert content.strip()
    assert not re.search(r"https?://|@import|url\(", html)
    sources = [attrs for _, attrs in page.tags if "src" in attrs]
    assert sources == []


def test_index_needs_no_script_for_its_table(reports: Path) -> None:
    tags = page_of(reports).tags
    hidden = [(tag, attrs.get("id")) for tag, attrs in tags if "hidden" in attrs]
    assert hidden == [("form", "filters")]  # filters show up with the script that answers them


def test_index_refuses_what_is_no_folder_of_results(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a folder of results, found nothing there"):
        read_folder(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"expected results \(\*.json\) .* found none"):
        read_folder(tmp_path)
    file = tmp_path / "x.json"
    file.write_text("{}")
    with pytest.raises(UsageError, match="found a file"):
        read_folder(file)


def test_index_reads_no_pipe_and_nothing_huge(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "x.json").write_bytes(to_json(sample()))
    monkeypatch.setattr(folder_module, "LARGEST", 1 << 10)
    found = read_folder(tmp_path)
    assert found.listed == ()
    assert [each.why for each in found.unlisted] == ["not a file", "larger than 0 MiB: not read"]
    assert exit_codes(found) == [3]
    assert "that is not a pass" in page_of(tmp_path).text
