import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.result import RunResult, Verdict, from_json, to_json

pytest_plugins = ["pytester"]

Sample = Callable[..., RunResult]

CASE = """
format = "logits-parity/case"
version = 1
model = "owner/name"
[[prompts]]
text = "hello"
"""

#: Stands in for the pipeline: reads the result that a test laid out for a case or a check.
CONFTEST = """
import dataclasses, pathlib, sys, types
from logits_parity import harness
from logits_parity.harness.errors import EngineError, MissingPackageError
from logits_parity.harness.result import from_json

RESULTS = pathlib.Path(__file__).parent / "results"

def run_case(case, *, progress=None, command="", on_stop=None):
    seen = RESULTS.parent / f"seen-{case.name}.txt"
    seen.write_text(f"{case.model} {' '.join(case.engines)} {command}")
    path = RESULTS / f"{case.name}.json"
    part = RESULTS / f"{case.name}-part.json"
    if part.exists():
        on_stop(from_json(part.read_bytes()))
    if not path.exists():
        kind = MissingPackageError if case.name == "absent" else EngineError
        raise kind("hf:flash", expected="it", found="none", advice="install it")
    return from_json(path.read_bytes())

def check(engine, *, checkpoint, token_ids, on_stop=None, **options):
    part = RESULTS / f"{engine}-part.json"
    if part.exists():
        on_stop(from_json(part.read_bytes()))
    path = RESULTS / f"{engine}.json"
    if not path.exists():
        kind = KeyboardInterrupt if engine == "stopped" else ValueError
        raise kind("boom")
    return from_json(path.read_bytes())

pipeline = types.ModuleType("logits_parity.harness.pipeline")
pipeline.run_case = run_case
sys.modules["logits_parity.harness.pipeline"] = pipeline
harness.check = check
"""


class Project:
    """Somebody's repository with case files and made-up outcomes."""

    def __init__(self, pytester: pytest.Pytester, sample: Sample) -> None:
        self.pytester = pytester
        self.sample = sample
        self.path = pytester.path
        (self.path / "conftest.py").write_text(CONFTEST)
        (self.path / "results").mkdir()

    def outcome(self, name: str, verdict: Verdict) -> None:
        (self.path / "results" / f"{name}.json").write_bytes(
            to_json(self.sample(verdict, case=name))
        )

    def case(self, path: str, text: str = CASE) -> None:
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        (self.path / path).write_text(text)

    def pytest_apart(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in a process of its own, as users do; it takes seconds to start."""
        return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    def pytest(self, *arguments: str) -> pytest.RunResult:
        """Run pytest here, with modules as they were before and put back afterwards."""
        return self.pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


@pytest.fixture
def project(pytester: pytest.Pytester, sample: Sample) -> Project:
    return Project(pytester, sample)


def test_case_passes_and_says_so_when_the_verdict_is_rounding(project: Project) -> None:
    project.outcome("smol", Verdict.ROUNDING)
    project.case("cases/smol.toml")
    result = project.pytest_apart("cases/", "-rA", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "cases/smol.toml::smol PASSED*",
            "smol: rounding; worst * rounding units at * of *",
            "HTML report: reports/smol.html",
        ]
    )
    assert result.ret == 0
    assert (project.path / "reports" / "smol.html").read_text().startswith("<!DOCTYPE html>")
    assert (project.path / "reports" / "smol.json").exists()
    assert (project.path / "seen-smol.txt").read_text() == (
        "owner/name hf:eager hf:sdpa reference pytest cases/smol.toml"
    )


def test_case_fails_with_the_first_divergence_and_no_traceback(project: Project) -> None:
    project.outcome("smol", Verdict.FAIL)
    project.case("cases/smol.toml")
    result = project.pytest()
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*parity case smol*",
            "FAIL: The engines disagree (smol)",
            "hf:eager fail: hf:eager does not replay*",
            "First divergence: hf:eager at layers.1.attn.q_rope (prompt hello, prefill): the op *",
            "  tap * layers.1.attn.q_rope",
            "  position * 2",
            "  head * 1",
            "  reference * 1.5 *",
            "  candidate value * 1.75",
            "HTML report: reports/smol.html",
            "*= logits parity =*",
            "1 compared: 1 fail",
            "HTML report: reports/smol.html",
            "FAILED cases/smol.toml::smol - *smol: fail at layers.1.attn.q_rope of *",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "runtest" not in result.stdout.str()
    assert (project.path / "reports" / "smol.html").exists()


def test_case_fails_when_it_is_not_comparable(project: Project) -> None:
    project.outcome("smol", Verdict.NOT_COMPARABLE)
    project.case("cases/smol.toml")
    result = project.pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["NOT COMPARABLE: The engines cannot be compared (smol)"])


def test_case_fails_with_the_message_when_an_engine_cannot_run(project: Project) -> None:
    project.case("cases/other.toml")
    result = project.pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["hf:flash: expected it, found none: install it"])
    assert "Traceback" not in result.stdout.str()
    assert not (project.path / "reports").exists()


def test_case_shows_a_traceback_when_the_tool_breaks(project: Project) -> None:
    project.case("cases/smol.toml")
    (project.path / "results" / "smol.json").mkdir()
    result = project.pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*IsADirectoryError*"])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("version = 1", "versoin = 1", "*expected version = 1, found no version*"),
        ("[[prompts]]", "engine = 1\n[[prompts]]", "*found 'engine': did you mean 'engines'?"),
        (
            "version = 1",
            "version = = 1",
            "*smol.toml: expected TOML, found a syntax error: *line 3*",
        ),
        ('format = "logits-parity/case"', "", '*expected format = "logits-parity/case", found no*'),
    ],
)
def test_case_file_that_does_not_load_fails_alone(
    project: Project, old: str, new: str, expected: str
) -> None:
    project.outcome("good", Verdict.PASS)
    project.case("cases/good.toml")
    project.case("cases/smol.toml", CASE.replace(old, new))
    result = project.pytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([expected])


def test_foreign_toml_is_left_alone(project: Project) -> None:
    project.case("pyproject.toml", "[tool.pytest.ini_options]\nxfail_strict = true\n")
    project.case("cases/other.toml", 'title = "no case"\nformat = "zip"\n')
    project.case("cases/broken.toml", "= = =")
    (project.path / "cases" / "binary.toml").write_bytes(b"\xff\xfe\x00")
    project.case("test_own.py", "def test_own(): pass")
    result = project.pytest(".", "pyproject.toml")
    result.assert_outcomes(passed=1)


def test_case_is_collected_in_any_folder_when_it_says_what_it_is(project: Project) -> None:
    project.outcome("smol", Verdict.PASS)
    project.case("elsewhere/smol.toml", "# a comment first\n" * 50 + CASE)
    project.case("elsewhere/meant.toml", CASE.replace('format = "logits-parity/case"', ""))
    project.pytest().assert_outcomes(passed=1)


def test_case_of_somebody_else_is_left_alone_in_their_cases_folder(project: Project) -> None:
    project.case("cases/theirs.toml", CASE.replace('format = "logits-parity/case"', ""))
    project.pytest().assert_outcomes()


def test_options_override_engines_model_and_folder(project: Project) -> None:
    project.outcome("smol", Verdict.PASS)
    project.case("cases/smol.toml")
    options = ["--parity-engine", "hf:eager", "--parity-engine", "reference"]
    options += ["--parity-model", "mine", "--parity-report-dir", "out/parity"]
    project.pytest(*options).assert_outcomes(passed=1)
    seen = (project.path / "seen-smol.txt").read_text()
    assert seen.startswith("mine hf:eager reference pytest")
    assert (project.path / "out" / "parity" / "smol.html").exists()
    assert not (project.path / "reports").exists()


def test_ini_keys_mean_the_same_as_options(project: Project) -> None:
    project.outcome("smol", Verdict.PASS)
    project.case("cases/smol.toml")
    (project.path / "pytest.ini").write_text(
        "[pytest]\nparity_engines = hf:sdpa\nparity_model = mine\nparity_report_dir = out\n"
    )
    project.pytest("--strict-config").assert_outcomes(passed=1)
    assert (project.path / "seen-smol.txt").read_text().startswith("mine hf:sdpa pytest")
    assert (project.path / "out" / "smol.html").exists()
    project.pytest("--parity-engine", "reference")
    assert (project.path / "seen-smol.txt").read_text().startswith("mine reference pytest")


def test_cases_of_one_stem_get_reports_of_their_own(project: Project) -> None:
    project.outcome("smol", Verdict.PASS)
    project.case("one/smol.toml")
    project.case("two/smol.toml")
    project.pytest().assert_outcomes(passed=2)
    written = sorted(path.name for path in (project.path / "reports").glob("*.html"))
    assert written == ["one_smol.html", "two_smol.html"]


def test_junit_file_holds_verdict_and_units(project: Project) -> None:
    project.outcome("smol", Verdict.FAIL)
    project.case("cases/smol.toml")
    project.pytest("--junitxml", "junit.xml")
    properties = {
        p.get("name"): p.get("value") for p in ET.parse(project.path / "junit.xml").iter("property")
    }
    assert properties["parity_verdict"] == "fail"
    assert properties["parity_hf:eager_verdict"] == "fail"
    assert properties["parity_hf:eager_worst_units"] == "15,756"
    assert properties["parity_hf:sdpa_verdict"] == "rounding"
    assert properties["parity_report"] == "reports/smol.html"
    (failure,) = ET.parse(project.path / "junit.xml").iter("failure")
    message = failure.get("message") or ""
    assert message.startswith("Failed: smol: fail at layers.1.attn.q_rope of hf:eager")


def test_cases_run_under_xdist(project: Project) -> None:
    for name in ("a", "b", "c"):
        project.outcome(name, Verdict.PASS if name != "b" else Verdict.FAIL)
        project.case(f"cases/{name}.toml")
    result = project.pytest("-n", "2", "-rA")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["First divergence: hf:eager at layers.1.attn.q_rope*"])
    result.stdout.fnmatch_lines(["a: pass; worst *"])
    assert len(list((project.path / "reports").glob("*"))) == 6


HAND_WRITTEN = """
def test_model(parity):
    result = parity.assert_parity("{0}", checkpoint="dir", token_ids=[[1, 2]])
    assert result.verdict == "rounding"

def test_check(parity):
    assert parity.check("{0}", checkpoint="dir", token_ids=[[1, 2]]).case == "{0}"
"""


def test_fixture_passes_when_the_engine_agrees(project: Project) -> None:
    project.outcome("mine", Verdict.ROUNDING)
    (project.path / "test_mine.py").write_text(HAND_WRITTEN.format("mine"))
    result = project.pytest("-rA")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["mine: rounding; worst *"])


def test_fixture_fails_with_the_first_divergence_when_asked_to_assert(project: Project) -> None:
    project.outcome("mine", Verdict.FAIL)
    (project.path / "test_mine.py").write_text(HAND_WRITTEN.format("mine"))
    result = project.pytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "FAIL: The engines disagree (mine)",
            "First divergence: hf:eager at layers.1.attn.q_rope*",
        ]
    )
    assert "assert_parity(" not in result.stdout.str()


def test_every_comparison_of_the_fixture_has_a_report_of_its_own(project: Project) -> None:
    project.outcome("mine", Verdict.ROUNDING)
    (project.path / "test_mine.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('sign', ['<', '>', 'x' * 300])\n"
        "def test_two(parity, sign):\n"
        "    for _ in range(2):\n"
        "        parity.check('mine', checkpoint='dir', token_ids=[[1, 2]])\n"
    )
    result = project.pytest("-n", "2", "--junitxml", "junit.xml", "--parity-report-dir", "out")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["6 compared: 6 rounding", "HTML report: out/* and 5 more *"])
    written = {str(p.relative_to(project.path)) for p in (project.path / "out").glob("*.html")}
    named = [
        p.get("value")
        for p in ET.parse(project.path / "junit.xml").iter("property")
        if p.get("name") == "parity_report"
    ]
    assert len(named) == 6
    assert set(named) == written
    assert all(len(Path(name).name) < 150 for name in written)


@pytest.mark.parametrize(("wanted", "stems"), [("all", ["bad", "good"]), ("failed", ["bad"])])
def test_reports_are_written_of_what_is_asked_for(
    project: Project, wanted: str, stems: list[str]
) -> None:
    for name, verdict in (("good", Verdict.PASS), ("bad", Verdict.FAIL)):
        project.outcome(name, verdict)
        project.case(f"cases/{name}.toml")
    project.pytest("--parity-reports", wanted).assert_outcomes(passed=1, failed=1)
    assert sorted(p.stem for p in (project.path / "reports").glob("*.html")) == stems


def test_no_report_is_written_where_none_is_wanted(project: Project) -> None:
    project.outcome("bad", Verdict.FAIL)
    project.case("cases/bad.toml")
    (project.path / "pytest.ini").write_text("[pytest]\nparity_reports = none\n")
    result = project.pytest()
    result.assert_outcomes(failed=1)
    assert not (project.path / "reports").exists()
    assert "HTML report" not in result.stdout.str()


def test_case_that_stops_fails_with_its_error_and_leaves_a_report(project: Project) -> None:
    project.outcome("smol-part", Verdict.NOT_COMPARABLE)
    project.case("cases/smol.toml")
    result = project.pytest("cases/", "--junitxml", "junit.xml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["hf:flash: expected it, found none: install it"])
    assert (project.path / "reports" / "smol.html").is_file()
    assert 'value="not comparable"' in (project.path / "junit.xml").read_text()


@pytest.mark.parametrize("name", ["broken", "stopped"])
def test_comparison_of_the_fixture_that_stops_leaves_a_report(project: Project, name: str) -> None:
    project.outcome("mine", Verdict.PASS)
    project.outcome(f"{name}-part", Verdict.NOT_COMPARABLE)
    (project.path / "test_mine.py").write_text(
        "def test_mine(parity):\n"
        "    parity.check('mine', checkpoint='dir', token_ids=[[1]])\n"
        f"    parity.check({name!r}, checkpoint='dir', token_ids=[[1]])\n"
    )
    result = project.pytest_apart("--junitxml", "junit.xml")
    assert result.ret == (pytest.ExitCode.INTERRUPTED if name == "stopped" else 1)
    reports = {path.name for path in (project.path / "reports").iterdir()}
    assert reports == {
        f"test_mine.py_test_mine{number}.{suffix}"
        for number in ("", "-2")
        for suffix in ("html", "json")
    }
    known = from_json((project.path / "reports" / "test_mine.py_test_mine-2.json").read_bytes())
    assert known.verdict is Verdict.NOT_COMPARABLE
    if name == "broken":
        result.stdout.fnmatch_lines(
            ["*ValueError: boom", "HTML report: reports/test_mine.py_test_mine-2.html"]
        )


def test_setting_that_does_not_exist_is_a_usage_error(project: Project) -> None:
    (project.path / "pytest.ini").write_text("[pytest]\nparity_missing = ignore\n")
    result = project.pytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*parity_missing: expected fail or skip, found 'ignore': correct it in the ini file"]
    )


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_case_whose_package_is_absent_is_skipped_in_sight_when_asked(
    project: Project, workers: tuple[str, ...]
) -> None:
    project.case("cases/absent.toml")
    project.case("cases/broken.toml")
    result = project.pytest("--parity-missing", "skip", "--junitxml", "junit.xml", *workers)
    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED cases/absent.toml::absent: hf:flash: expected it, found none: install it"]
    )
    (skipped,) = ET.parse(project.path / "junit.xml").iter("skipped")
    assert skipped.get("message") == "hf:flash: expected it, found none: install it"


def test_case_whose_package_is_absent_fails_when_nothing_else_is_asked(project: Project) -> None:
    project.case("cases/absent.toml")
    project.pytest().assert_outcomes(failed=1)


def test_cases_have_a_marker(project: Project) -> None:
    project.outcome("smol", Verdict.PASS)
    project.case("cases/smol.toml")
    (project.path / "test_own.py").write_text("def test_own(): pass")
    project.pytest("-m", "parity", "--strict-markers").assert_outcomes(passed=1, deselected=1)
    project.pytest("-m", "not parity").assert_outcomes(passed=1, deselected=1)
    project.pytest("--markers").stdout.fnmatch_lines(["@pytest.mark.parity: compares *"])
    assert not (project.path / "reports" / "test_own.html").exists()


@pytest.mark.parametrize(
    ("within", "outcome"), [(1e-3, {"passed": 1}), (1e-5, {"failed": 1}), (9.2e-5, {"passed": 1})]
)
def test_fixture_asks_for_close_logits_besides(
    project: Project, within: float, outcome: dict[str, int]
) -> None:
    project.outcome("mine", Verdict.ROUNDING)
    (project.path / "test_mine.py").write_text(
        "def test_mine(parity):\n"
        "    parity.assert_parity('mine', checkpoint='dir', token_ids=[[1]],"
        f" logits_within={within})\n"
    )
    result = project.pytest()
    result.assert_outcomes(**outcome)
    if "failed" in outcome:
        result.stdout.fnmatch_lines(
            [
                "hf:eager: expected logits within 1e-05 of the float64 reference (logits_within),"
                " found that they are 9.2e-05 away",
                "hf:sdpa: *",
                "reference: *",
                "HTML report: reports/test_mine.py_test_mine.html",
            ]
        )


def test_fixture_never_passes_a_failing_verdict_for_close_logits(project: Project) -> None:
    project.outcome("mine", Verdict.FAIL)
    (project.path / "test_mine.py").write_text(
        "def test_mine(parity):\n"
        "    parity.assert_parity('mine', checkpoint='dir', token_ids=[[1]], logits_within=1e9)\n"
    )
    project.pytest().assert_outcomes(failed=1)


HEAVY = "print('loaded', sorted({'torch', 'transformers', 'numpy', 'harness'} & set(sys.modules)))"


def loaded(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_of_the_plugin_loads_nothing_of_ours_and_nothing_heavy() -> None:
    assert loaded(f"import sys, pytest_logits_parity\n{HEAVY}") == "loaded []"


def test_import_check_can_fail() -> None:
    assert loaded(f"import sys, numpy, pytest_logits_parity\n{HEAVY}") == "loaded ['numpy']"


def test_session_without_cases_loads_nothing_of_ours_even_beside_a_harness_folder(
    pytester: pytest.Pytester,
) -> None:
    (pytester.path / "harness").mkdir()
    (pytester.path / "harness" / "__init__.py").write_text("MINE = True")
    (pytester.path / "conftest.py").write_text(f"import sys\ndef pytest_unconfigure(): {HEAVY}\n")
    (pytester.path / "test_own.py").write_text("def test_own(): pass")
    result = pytester.runpytest_subprocess("-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["loaded []"])


def test_plugin_is_found_without_being_named(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--help")
    result.stdout.fnmatch_lines(["logits parity (case files and *:", "*--parity-report-dir=DIR*"])
