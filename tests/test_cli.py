import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harness import cli, console
from harness.case import Case, Prompt
from harness.errors import EngineError, NotComparableError
from harness.result import RunResult, Verdict, from_json, to_json

Sample = Callable[..., RunResult]
CASE = """
format = "logits-parity/case"
version = 1
model = "owner/name"
[[prompts]]
text = "hello"
"""


class Fake:
    """Stands in for the pipeline: a verdict or an exception for each case name."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.outcomes: dict[str, Verdict | BaseException] = {}
        self.partial: dict[str, Verdict] = {}
        self.cases: list[Case] = []

    def __call__(
        self,
        case: Case,
        progress: Callable[[str, int, int], None],
        on_stop: Callable[[RunResult], None],
    ) -> RunResult:
        self.cases.append(case)
        progress("prefill", 1, 3)
        outcome = self.outcomes.get(case.name, Verdict.ROUNDING)
        if isinstance(outcome, BaseException):
            if case.name in self.partial:
                on_stop(self.sample(self.partial[case.name], case=case.name))
            raise outcome
        return self.sample(outcome, case=case.name)


@pytest.fixture
def fake(sample: Sample, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    fake = Fake(sample)
    monkeypatch.setattr(cli, "_run_case", fake)
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(CASE)
    return fake


def parity(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "100", **environment})


def test_run_shows_the_verdict_first_and_the_report_path_last(fake: Fake) -> None:
    result = parity("run", "a.toml")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "ROUNDING: The engines agree, up to rounding (a)"
    assert lines[-2:] == ["Report:", os.path.join("reports", "a.html")]
    assert result.stderr == ""
    assert Path(lines[-1]).read_text().startswith("<!DOCTYPE html>")
    assert from_json(Path("reports/a.json").read_bytes()).case == "a"


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Verdict.PASS, 0),
        (Verdict.ROUNDING, 0),
        (Verdict.FAIL, 1),
        (Verdict.NOT_FINITE, 1),
        (Verdict.NOT_COMPARABLE, 3),
        (EngineError("hf:flash", expected="it", found="none", advice="install it"), 2),
        (NotComparableError("cuda", expected="a GPU", found="none", advice="use one"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_run_exit_code_follows_the_outcome(
    fake: Fake, outcome: Verdict | BaseException, code: int
) -> None:
    fake.outcomes["a"] = outcome
    assert parity("run", "a.toml", "--no-report").exit_code == code


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([0, 3], 3), ([3, 1], 1), ([1, 2, 0], 2), ([2, 130], 130), ([], 2)],
)
def test_worst_orders_exit_codes(codes: list[int], expected: int) -> None:
    assert console.worst(codes) == expected


def test_run_shows_an_error_in_lines_without_a_traceback(fake: Fake) -> None:
    fake.outcomes["a"] = EngineError(
        "hf:flash_attention_2",
        expected="an installed [bold]attention[/bold]\x1b[2J",
        found="none",
        advice="pip install flash-attn",
    )
    result = parity("run", "a.toml")
    assert result.stderr.splitlines() == [
        "Error: hf:flash_attention_2",
        "  expected: an installed [bold]attention[/bold]\\x1b[2J",
        "  found:    none",
        "  advice:   pip install flash-attn",
    ]
    assert result.stdout == ""
    assert "Traceback" in parity("run", "a.toml", "--debug").stderr


def test_run_keeps_the_traceback_of_a_bug_in_a_file(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fake.outcomes["a"] = ZeroDivisionError("by [red]zero")
    result = parity("run", "a.toml")
    assert result.exit_code == 2
    assert "This is a bug in parity. ZeroDivisionError: by [red]zero" in result.stderr
    assert "Traceback" not in result.stderr
    (kept,) = tmp_path.glob("parity-*.txt")
    assert str(kept) in result.stderr
    assert "Traceback (most recent call last)" in kept.read_text()


def test_run_shows_the_traceback_of_a_bug_when_debugging(fake: Fake) -> None:
    fake.outcomes["a"] = ZeroDivisionError("by zero")
    assert "Traceback (most recent call last)" in parity("run", "a.toml", "--debug").stderr


def test_run_keeps_the_reports_of_other_cases_when_one_cannot_be_loaded(fake: Fake) -> None:
    result = parity("run", "a.toml", "absent.toml", "b.toml")
    assert result.exit_code == 2
    assert "Error: absent.toml" in result.stderr
    assert result.stdout.splitlines()[-3:] == [
        "Reports:",
        os.path.join("reports", "a.html"),
        os.path.join("reports", "b.html"),
    ]


def test_run_keeps_earlier_reports_when_a_run_fails(fake: Fake) -> None:
    parity("run", "a.toml")
    before = {path: path.read_bytes() for path in Path("reports").iterdir()}
    fake.outcomes["a"] = EngineError("e", expected="x", found="y", advice="z")
    parity("run", "a.toml")
    assert {path: path.read_bytes() for path in Path("reports").iterdir()} == before
    assert len(before) == 2


@pytest.mark.parametrize("error", [EngineError, ZeroDivisionError, KeyboardInterrupt])
def test_run_writes_what_is_known_of_a_run_that_stops(
    fake: Fake, error: type[BaseException]
) -> None:
    how = {"expected": "x", "found": "y", "advice": "z"} if error is EngineError else {}
    fake.outcomes["a"] = error("e", **how)
    fake.partial["a"] = Verdict.NOT_COMPARABLE
    options = ("--junit", "all.xml", "--markdown", "all.md")
    result = parity("run", "a.toml", "b.toml", *options)
    interrupted = error is KeyboardInterrupt
    assert result.exit_code == (130 if interrupted else 2)  # the error's, not the verdict's
    assert from_json(Path("reports/a.json").read_bytes()).verdict is Verdict.NOT_COMPARABLE
    assert Path("reports/a.html").read_text().startswith("<!DOCTYPE html>")
    assert "NOT COMPARABLE: The engines cannot be compared (a)" in result.stdout
    paths = [os.path.join("reports", f"{name}.html") for name in ("a", *"b" * (not interrupted))]
    assert result.stdout.splitlines()[-len(paths) :] == paths
    # Once in each file of all results, as what it is.
    assert Path("all.xml").read_text().count('testsuite name="a"') == 1
    assert Path("all.md").read_text().count("not comparable: `a`") == 1
    assert len(fake.cases) == (1 if interrupted else 2)


def test_run_says_why_what_is_known_cannot_be_written(fake: Fake) -> None:
    Path("reports").write_text("a file")
    fake.outcomes["a"] = EngineError("e", expected="x", found="y", advice="z")
    fake.partial["a"] = Verdict.NOT_COMPARABLE
    result = parity("run", "a.toml")
    assert result.exit_code == 2
    assert "Error: e\n" in result.stderr
    assert "expected: a file that can be written" in result.stderr


def test_run_refuses_two_cases_that_would_share_a_report(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "A.toml").write_text(CASE)
    result = parity("run", "a.toml", "sub/A.toml")
    assert result.exit_code == 2
    assert "found:    another one whose report is A.html" in result.stderr
    assert len(fake.cases) == 1


def test_run_takes_a_folder_of_cases(fake: Fake, tmp_path: Path) -> None:
    assert parity("run", ".").exit_code == 0
    assert [case.name for case in fake.cases] == ["a", "b"]
    (tmp_path / "empty").mkdir()
    result = parity("run", "empty")
    assert result.exit_code == 2
    assert "expected: case files (*.toml) in this folder" in result.stderr


def test_run_makes_a_case_of_options(fake: Fake) -> None:
    options = ["-m", "models/Tiny.gguf", "-p", "hello", "-p", "bye", "--tokens", "1,2;3,4"]
    options += ["-e", "hf:eager", "-e", "reference", "--dtype", "float16", "--threads", "2"]
    result = parity("run", *options, "--greedy", "0", "--decode", "1")
    assert result.exit_code == 0, result.stderr
    assert fake.cases == [
        Case(
            name="Tiny",
            model="models/Tiny.gguf",
            prompts=(
                Prompt("prompt-1", text="hello"),
                Prompt("prompt-2", text="bye"),
                Prompt("tokens-1", token_ids=((1, 2), (3, 4))),
            ),
            engines=("hf:eager", "reference"),
            dtype="float16",
            threads=2,
            greedy=0,
            decode=1,
        )
    ]


def test_run_overrides_a_case_file_by_options(fake: Fake) -> None:
    parity("run", "a.toml", "--engine", "reference", "--model", "other")
    (case,) = fake.cases
    assert (case.engines, case.model) == (("reference",), "other")
    assert case.prompts == (Prompt("prompt-1", text="hello"),)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "expected: a case file, or --model"),
        (["--model", "m"], "expected: a case file, or --prompt, --tokens or --probe"),
        (["--model", "m", "--tokens", "1,x"], "expected: whole numbers between commas"),
        (["--model", "m", "--tokens", "1,-2"], "expected: token ids of 0 and up"),
        (["--model", "m", "-p", "x", "--dtype", "f32"], "expected: dtype float32, bfloat16 or"),
        (["a.toml", "b.toml", "--json", "x.json"], "expected: one case"),
    ],
)
def test_run_says_what_is_wrong_with_options(
    fake: Fake, arguments: list[str], expected: str
) -> None:
    result = parity("run", *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
    assert fake.cases == []


def test_run_exit_code_is_2_for_an_unknown_option(fake: Fake) -> None:
    assert parity("run", "--modle", "m").exit_code == 2


def test_run_writes_json_to_a_file_or_standard_output(fake: Fake) -> None:
    assert parity("run", "a.toml", "--json", "out/r.json", "--no-report").exit_code == 0
    assert from_json(Path("out/r.json").read_bytes()).case == "a"
    assert not Path("reports").exists()
    result = parity("run", "a.toml", "--json", "-")
    assert json.loads(result.stdout)["case"] == "a"
    assert result.stderr.splitlines()[-1] == os.path.join("reports", "a.html")


def test_run_shows_a_result_that_it_cannot_write(fake: Fake) -> None:
    Path("reports").write_text("a file")
    result = parity("run", "a.toml")
    assert result.exit_code == 2
    assert "expected: a file that can be written" in result.stderr
    assert "ROUNDING" in result.stdout


def test_run_fits_60_columns(fake: Fake) -> None:
    fake.outcomes["a"] = Verdict.FAIL
    result = parity("run", "a.toml", COLUMNS="60")
    assert max(map(len, result.stdout.splitlines())) <= 60
    assert "\N{HORIZONTAL ELLIPSIS}" not in result.stdout


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_run_colours_unless_asked_not_to(fake: Fake, no_color: str, *, coloured: bool) -> None:
    result = parity("run", "a.toml", FORCE_COLOR="1", TERM="xterm", NO_COLOR=no_color)
    assert bool(re.search(r"\x1b\[[\d;]*3[0-7]m", result.stdout)) is coloured


def test_report_renders_a_saved_result_again(sample: Sample, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    saved.write_bytes(to_json(sample(Verdict.FAIL)))
    result = parity("report", str(saved))
    assert result.exit_code == 1
    assert "First divergence: hf:eager at layers.1.attn.q_rope" in result.stdout
    assert result.stdout.splitlines()[-1] == str(tmp_path / "saved.html")
    other = tmp_path / "new" / "page.html"
    assert parity("report", str(saved), "-o", str(other)).exit_code == 1
    assert other.read_bytes() == (tmp_path / "saved.html").read_bytes()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "expected: a readable result file"),
        (b"{", "expected: a JSON document"),
        (b'{"format": "other"}', "expected: format logits-parity/result version 1"),
    ],
)
def test_report_says_what_is_wrong_with_a_file(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_bytes(content)
    result = parity("report", str(path))
    assert result.exit_code == 2
    assert expected in result.stderr
    assert not path.with_suffix(".html").exists()


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    parts = [sys.executable, *arguments]
    return subprocess.run(parts, capture_output=True, text=True, check=False, **options)


LOADED = (
    "import sys; from typer.testing import CliRunner; from harness.cli import app\n"
    "assert CliRunner().invoke(app, ['{}']).exit_code == 0\n"
    "print(sorted({{'torch', 'transformers', 'numpy', 'jinja2'}} & set(sys.modules)))"
)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_imports_nothing_heavy(option: str) -> None:
    found = command("-c", LOADED.format(option))
    assert found.stdout.strip() == "[]", found.stderr


def test_help_imports_nothing_heavy_can_fail() -> None:
    found = command("-c", "import numpy\n" + LOADED.format("--help"))
    assert found.stdout.strip() == "['numpy']"


def test_version_is_that_of_the_distribution() -> None:
    result = parity("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("parity")


def test_command_without_arguments_shows_help_from_outside(tmp_path: Path) -> None:
    found = command("-c", "from harness.cli import main; main()", cwd=tmp_path)
    assert found.returncode == 2
    assert "Usage" in found.stdout + found.stderr


def test_command_reports_a_missing_case_from_outside(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['parity', 'run', 'x.toml']\nfrom harness.cli import main; main()"
    )
    found = command("-c", code, cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr.startswith("Error: x.toml\n  expected: a readable case file\n")
    assert list(tmp_path.iterdir()) == []
