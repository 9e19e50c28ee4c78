"""``--parity-baseline``: baselines as test items, from outside."""

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.gate.baseline_file import write_baseline
from harness.gate.running import make_baseline
from harness.gate.target import Options, find, make_plan
from tests.warm_recorder import WarmRecorder

pytest_plugins = ["pytester"]

THETA = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}


@pytest.fixture(scope="module")
def recorded(
    tiny: Callable[..., Path],
    recorder_process: WarmRecorder,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with a model, its baseline, and one of a model with another theta."""
    folder = tmp_path_factory.mktemp("recorded")
    shutil.copytree(tiny(), folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.gate.recording._run", recorder_process)
        patch.chdir(folder)
        made = []
        for path in ("model", str(tiny("llama", **THETA))):
            target = find(path)
            made.append(
                make_baseline(target, make_plan(target, Options()), progress=lambda *_: None)
            )
    model, other = made
    write_baseline(model, folder / "good.json")
    claimed = replace(other.head, model="model", fingerprint=model.head.fingerprint)
    write_baseline(other.under(claimed), folder / "bad.json")
    absent = replace(model.head, model="package:nothing_here/model.gguf")
    write_baseline(model.under(absent), folder / "absent.json")
    unlike = replace(model.head, fingerprint="0" * 64)
    write_baseline(model.under(unlike), folder / "unlike.json")
    return folder


@pytest.fixture
def project(
    pytester: pytest.Pytester,
    recorded: Path,
    recorder_process: WarmRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> pytest.Pytester:
    # Under the plugin's name it is another module than under ours.
    monkeypatch.setattr("logits_parity.harness.gate.recording._run", recorder_process)
    shutil.copytree(recorded, pytester.path, dirs_exist_ok=True)
    pytester.makeini("[pytest]\n")
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def test_a_baseline_is_an_item_where_there_are_no_tests(project: pytest.Pytester) -> None:
    result = run(project, "--parity-baseline", "good.json", "-v")
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*collected 1 item",
            "gate::good.json PASSED*",
            "1 compared: 1 same",
            "HTML report: reports/gate-good.html",
        ]
    )
    written = sorted(path.name for path in (project.path / "reports").iterdir())
    assert written == ["gate-good.html", "gate-good.json"]


def test_a_baseline_of_another_model_fails_and_says_why(project: pytest.Pytester) -> None:
    result = run(project, "--parity-baseline", "bad.json", "--junitxml", "junit.xml")
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*parity gate bad.json*",
            "bad.json: changed at model.rotary_emb, It is another model: baseline bad.json to *",
            "CHANGED: It is another model*",
            "First divergence: model.rotary_emb",
            "Config as parsed*",
            "rope_parameters.rope_theta *500 *100000",
            "HTML report: reports/gate-bad.html",
            "1 compared: 1 changed",
            "FAILED gate::bad.json - *bad.json: changed at model.rotary_emb*",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "Intermediates that are not the same" not in result.stdout.str()
    (case,) = ET.parse(project.path / "junit.xml").iter("testcase")
    assert (case.get("classname"), case.get("name")) == ("gate", "bad.json")
    noted = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert noted["parity_verdict"] == "changed"
    assert noted["parity_model"] == "model"
    assert noted["parity_divergence"] == "model.rotary_emb"
    assert noted["parity_report"] == "reports/gate-bad.html"
    assert noted["parity_before_transformers"] == noted["parity_after_transformers"]


def test_baselines_are_collected_once_wherever_pytest_looks(project: pytest.Pytester) -> None:
    project.path.joinpath("tests").mkdir()
    for name in ("a", "b"):
        (project.path / "tests" / f"test_{name}.py").write_text("def test(): pass")
    twice = ("--parity-baseline", "good.json", "--parity-baseline", "./good.json")
    result = run(project, *twice, "--collect-only", "-q", "tests", "tests/test_a.py")
    result.stdout.fnmatch_lines(["tests/test_a.py::test", "tests/test_b.py::test", "gate::good.*"])
    assert result.stdout.str().count("gate::") == 1
    for choice, count in (
        ("-k gate", 1),
        ("-k test_a", 1),
        ("-m parity", 1),
        ("-m 'not parity'", 2),
    ):
        option, value = choice.split(" ", 1)
        chosen = run(project, *twice, "--collect-only", "-q", option, value.strip("'"), "tests")
        assert len([x for x in chosen.outlines if "::" in x]) == count, choice


def test_baselines_of_the_ini_file_count_from_its_folder(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makeini("[pytest]\nparity_baselines =\n    good.json\n    kept/good.json\n")
    (project.path / "kept").mkdir()
    shutil.copy(project.path / "good.json", project.path / "kept" / "good.json")
    (project.path / "deep").mkdir()
    monkeypatch.chdir(project.path / "deep")
    result = run(project, "--strict-config", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*gate::good.json PASSED*", "*gate::kept/good.json PASSED*"])
    written = sorted(path.name for path in (project.path / "reports").glob("*.html"))
    assert written == ["gate-good.html", "gate-kept_good.html"]
    named = run(project, "--parity-baseline", "../good.json", "--parity-reports", "none", "-v")
    named.assert_outcomes(passed=1)
    named.stdout.fnmatch_lines(["*gate::good.json PASSED*", "1 compared: 1 same"])


def test_what_cannot_be_compared_fails(project: pytest.Pytester) -> None:
    """A baseline that is gone, or of other weights, protects nothing: it is never skipped."""
    (project.path / "text.json").write_text("{}")
    names = ("gone", "text", "unlike", "absent")
    options = [part for name in names for part in ("--parity-baseline", f"{name}.json")]
    result = run(project, *options)
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        [
            "*gone.json: expected a baseline that can be read, found no such file or directory*",
            "*text.json: expected format logits-parity/baseline version 1, found *",
            "unlike.json: not comparable, *",
            "*expected the Python package nothing_here, found that it is not installed*",
        ]
    )
    result = run(project, *options, "--parity-missing", "skip")
    result.assert_outcomes(failed=3, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *gate::absent.json: *nothing_here*"])


def test_baselines_run_on_the_model_that_is_given(project: pytest.Pytester) -> None:
    (project.path / "model").rename(project.path / "moved")
    run(project, "--parity-baseline", "good.json").assert_outcomes(failed=1)
    options = ("--parity-baseline", "good.json", "--parity-model", "moved")
    run(project, *options).assert_outcomes(passed=1)


def test_baselines_run_once_under_xdist(project: pytest.Pytester) -> None:
    """The real recorder: workers are processes of their own."""
    project.makepyfile(test_own="def test_one(): pass\n\ndef test_two(): pass\n")
    result = run(project, "-n", "2", "--parity-baseline", "good.json", "--junitxml", "junit.xml")
    result.assert_outcomes(passed=3)
    names = [case.get("name") for case in ET.parse(project.path / "junit.xml").iter("testcase")]
    assert sorted(map(str, names)) == ["good.json", "test_one", "test_two"]


def test_a_session_that_only_collects_baselines_imports_nothing_heavy(
    project: pytest.Pytester,
) -> None:
    heavy = ("torch", "transformers", "numpy", "harness.gate", "logits_parity.harness.gate.running")
    code = (
        "import sys, pytest\n"
        "pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider',"
        " '--parity-baseline', 'good.json'])\n"
        f"print('heavy:', sorted(set({heavy!r}) & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=project.path
    )
    assert "gate::good.json" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "heavy: []"
