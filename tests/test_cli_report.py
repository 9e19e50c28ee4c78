"""`parity report` and `parity index` from outside, and the files of all results of a run."""

import html
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner, Result

from harness import cli
from harness.errors import EngineError
from harness.report.text import to_text
from harness.result import RunResult, Verdict, from_json, to_json

Sample = Callable[..., RunResult]
STARTS = {
    ".html": "<!DOCTYPE html>",
    ".htm": "<!DOCTYPE html>",
    ".txt": "FAIL: The engines disagree",
    ".md": "## :x: fail: `smollm2`",
    ".xml": '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites',
    ".json": '{"case":"smollm2"',
}
CASE = """
format = "logits-parity/case"
version = 1
model = "owner/name"
[[prompts]]
text = "hello"
"""


def parity(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "100", **environment})


@pytest.fixture
def saved(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "saved.json"
    path.write_bytes(to_json(sample(Verdict.FAIL)))
    return path


@pytest.mark.parametrize("suffix", STARTS)
def test_report_renders_the_view_that_the_suffix_asks_for(saved: Path, suffix: str) -> None:
    target = saved.parent / "new" / f"view{suffix.upper() if suffix == '.md' else suffix}"
    ran = parity("report", str(saved), "-o", str(target))
    assert ran.exit_code == 1, ran.stderr
    assert target.read_text().startswith(STARTS[suffix])
    assert ran.stdout.splitlines()[-1] == str(target)


@pytest.mark.parametrize(
    ("form", "suffix"),
    [("html", ".html"), ("text", ".txt"), ("markdown", ".md"), ("junit", ".xml")],
)
def test_report_writes_beside_the_result_where_no_file_is_named(
    saved: Path, form: str, suffix: str
) -> None:
    assert parity("report", str(saved), "--format", form).exit_code == 1
    written = saved.with_suffix(suffix)
    assert written.read_text().startswith(STARTS[suffix])
    assert set(saved.parent.iterdir()) == {saved, written}


def test_report_takes_the_format_before_the_suffix(saved: Path) -> None:
    assert parity("report", str(saved), "-o", "x.html", "--format", "junit").exit_code == 1
    assert Path("x.html").read_text().startswith("<?xml")


@pytest.mark.parametrize("form", ["text", "markdown", "junit", "json", "html"])
def test_report_prints_the_view_alone_on_standard_output(saved: Path, form: str) -> None:
    ran = parity("report", str(saved), "-o", "-", "--format", form)
    assert ran.exit_code == 1
    suffix = {"text": ".txt", "markdown": ".md", "junit": ".xml"}.get(form, f".{form}")
    assert ran.stdout.startswith(STARTS[suffix])
    assert "Report:" not in ran.stdout + ran.stderr
    assert list(saved.parent.iterdir()) == [saved]


def test_report_of_json_is_the_same_result(saved: Path) -> None:
    parity("report", str(saved), "-o", "again.json")
    assert from_json(Path("again.json").read_bytes()) == from_json(saved.read_bytes())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-o", "view.pdf"], "expected: a suffix of .html, .txt, .md, .xml, .json, .htm"),
        (["-o", "view"], "found:    none"),
        (["--format", "json"], "expected: --output beside it"),
    ],
)
def test_report_says_what_is_wrong_with_a_target(
    saved: Path, arguments: list[str], expected: str
) -> None:
    before = saved.read_bytes()
    ran = parity("report", str(saved), *arguments)
    assert ran.exit_code == 2
    assert expected in ran.stderr
    assert ran.stdout == ""
    assert list(saved.parent.iterdir()) == [saved]
    assert saved.read_bytes() == before


def test_index_writes_a_page_of_a_folder(saved: Path, sample: Sample) -> None:
    (saved.parent / "fine.json").write_bytes(to_json(sample(case="fine")))
    (saved.parent / "other.json").write_text("{}")
    ran = parity("index", ".")
    assert ran.exit_code == 1
    assert ran.stdout.splitlines() == [
        "fail: smollm2 (saved.json)",
        "rounding: fine (fine.json)",
        "no result: other.json",
        "",
        "Report:",
        "index.html",
    ]
    assert Path("index.html").read_text().startswith("<!DOCTYPE html>")


def test_index_links_are_relative_to_the_page(saved: Path) -> None:
    parity("index", str(saved.parent), "-o", str(saved.parent / "site" / "all.html"))
    assert 'href="../saved.json"' in (saved.parent / "site" / "all.html").read_text()


def test_index_leaves_the_earlier_page_when_there_is_nothing_to_list(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text("earlier")
    ran = parity("index", str(tmp_path))
    assert ran.exit_code == 2
    assert "expected: results (*.json)" in ran.stderr
    assert page.read_text() == "earlier"


@pytest.fixture
def cases(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Cases a to c, with what each comes to."""
    outcomes: dict[str, Any] = {"a": Verdict.PASS, "b": Verdict.FAIL, "c": Verdict.ROUNDING}

    def run_one(case: Any, *_: Any, **__: Any) -> RunResult:
        outcome = outcomes[case.name]
        if isinstance(outcome, BaseException):
            raise outcome
        return sample(outcome, case=case.name)

    monkeypatch.setattr(cli, "_run_case", run_one)
    monkeypatch.chdir(tmp_path)
    for name in outcomes:
        (tmp_path / f"{name}.toml").write_text(CASE)
    return outcomes


ALL = ("--markdown", "all.md", "--junit", "all.xml", "--no-report")


def test_run_writes_all_results_into_one_file_of_each_kind(cases: dict[str, Any]) -> None:
    ran = parity("run", "a.toml", "b.toml", "c.toml", *ALL)
    assert ran.exit_code == 1
    titles = [line for line in Path("all.md").read_text().splitlines() if line.startswith("## ")]
    marks = [":white_check_mark: pass", ":x: fail", ":white_check_mark: rounding"]
    assert titles == [f"## {m}: `{n}`" for m, n in zip(marks, "abc", strict=True)]
    root = ET.parse("all.xml").getroot()
    assert [each.get("name") for each in root] == ["a", "b", "c"]
    assert not Path("reports").exists()


def test_run_tells_of_a_case_without_a_result_in_files_of_all(cases: dict[str, Any]) -> None:
    cases["b"] = EngineError("hf:flash", expected="it", found="none", advice="install it")
    ran = parity("run", "a.toml", "b.toml", "absent.toml", *ALL)
    assert ran.exit_code == 2
    text = Path("all.md").read_text()
    assert "## :warning: error: `b`" in text
    # What would read as an emoji's code is kept apart by a blank that nobody sees.
    said = html.unescape(text).replace("\u200b", "")
    assert "hf:flash: expected it, found none: install it" in said
    assert "## :warning: error: `absent`" in text
    root = ET.parse("all.xml").getroot()
    assert [(e.get("name"), e.get("errors")) for e in root] == [
        ("a", "0"),
        ("b", "1"),
        ("absent", "1"),
    ]


def test_run_keeps_files_of_finished_cases_when_it_is_interrupted(cases: dict[str, Any]) -> None:
    cases["b"] = KeyboardInterrupt()
    assert parity("run", "a.toml", "b.toml", "c.toml", *ALL).exit_code == 130
    root = ET.parse("all.xml").getroot()
    assert [(e.get("name"), e.get("errors")) for e in root] == [("a", "0"), ("b", "1"), ("c", "1")]
    said = [each.get("message", "") for each in root.iter("error")]
    assert said == [
        "interrupted before anything was compared",
        "not begun: the run was interrupted before",
    ]
    text = Path("all.md").read_text()
    places = [text.index(part) for part in ("pass: `a`", "error: `b`", said[0], "`c`", said[1])]
    assert places == sorted(places)


def test_run_that_is_interrupted_ends_also_where_its_files_cannot_be_written(
    cases: dict[str, Any],
) -> None:
    Path("all.xml").mkdir()
    cases["a"] = KeyboardInterrupt()
    ran = parity("run", "a.toml", "b.toml", "--junit", "all.xml", "--no-report")
    assert ran.exit_code == 130
    assert "expected: a file that can be written" in ran.stderr


@pytest.mark.parametrize("verdict", list(Verdict))
def test_text_fits_forty_columns(sample: Sample, verdict: Verdict) -> None:
    result = sample(verdict, engines=("hf:flash_attention_2", "hf:sdpa", "hf:eager"))
    text = to_text(result, width=40)
    assert max(map(len, text.splitlines())) <= 40
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    for pair in result.prompts[0].logits:  # columns become lists, and none is lost
        assert re.search(rf"{pair.a}\n  b +{pair.b}\n  max abs +9", text)
    squeezed = re.sub(r"\s+", "", text)
    for part in ("units", "KL", "greedy", "20/20", "15,756" if verdict is Verdict.FAIL else "taps"):
        assert part in squeezed
    assert text.count("20/20") == len(result.prompts[0].logits)


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_report_colours_unless_asked_not_to(saved: Path, no_color: str, *, coloured: bool) -> None:
    ran = parity(
        "report", str(saved), FORCE_COLOR="1", TERM="xterm", NO_COLOR=no_color, COLUMNS="40"
    )
    assert bool(re.search(r"\x1b\[[\d;]*3[0-7]m", ran.stdout)) is coloured
    lines = re.sub(r"\x1b\[[\d;]*m", "", ran.stdout).splitlines()
    at = lines.index("Report:")
    assert max(map(len, lines[:at])) <= 40
    assert lines[-1] == str(saved.with_suffix(".html"))  # a path is never broken


def test_views_read_no_more_than_the_document(saved: Path) -> None:
    """What a release does not know yet is passed over, as docs/results.md promises."""
    document = json.loads(saved.read_bytes()) | {"of_a_later_release": [1, 2]}
    saved.write_text(json.dumps(document))
    assert parity("report", str(saved), "-o", os.devnull, "--format", "text").exit_code == 1
