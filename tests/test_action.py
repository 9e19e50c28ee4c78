"""The CI action: its steps are run by bash, in a repository, as a runner would."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.gate.baseline_file import write_baseline
from harness.gate.running import make_baseline
from harness.gate.target import Options, find, make_plan
from tests.test_ci_changed import commit, git
from tests.warm_recorder import WarmRecorder

ROOT = Path(__file__).resolve().parent.parent
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")

#: Stands in for `parity`: notes what it was called with; its verdict is the baseline's text.
STUB = """#!{python}
import json, os, pathlib, sys
arguments = sys.argv[1:]
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
options = dict(each[2:].split("=", 1) for each in arguments if each.startswith("--"))
verdict = pathlib.Path(options["baseline"]).read_text().strip()
print("::error::what a model's files say")
codes = {{"same": 0, "rounding": 0, "changed": 1, "failing": 1, "not comparable": 3}}
if verdict in codes:
    pathlib.Path(options["report-dir"]).mkdir(exist_ok=True, parents=True)
    for key, text in (("json", json.dumps({{"verdict": verdict}})), ("markdown", "## " + verdict)):
        pathlib.Path(options[key]).write_text(text + "\\n")
sys.exit(codes.get(verdict, 2))
"""


class Runner:
    """A runner with a repository whose last commit may touch a requirement."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        self.folder.mkdir()
        self.temporary = folder / "temp"
        self.temporary.mkdir()
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls = folder / "calls"
        self.calls.touch()
        (self.bin / "python").symlink_to(sys.executable)
        self.parity = self.bin / "parity"
        self.parity.write_text(STUB.format(python=sys.executable))
        self.parity.chmod(self.parity.stat().st_mode | stat.S_IXUSR)
        git(self.folder, "init", "-q", "-b", "main")
        commit(self.folder, "requirements.txt", "torch==1\n")
        self.outputs: dict[str, dict[str, str]] = {}
        self.summary = folder / "summary"
        self.printed = ""

    def change(self, name: str = "requirements.txt", text: str = "torch==2\n") -> None:
        commit(self.folder, name, text)

    def baselines(self, **verdicts: str) -> None:
        for name, verdict in verdicts.items():
            (self.folder / f"{name}.json").write_text(verdict)

    def run(self, **inputs: str) -> int:
        """Run the steps; the exit code of the first that fails, 0 where none does."""
        given = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
        given["base"] = "HEAD^"
        given["install"] = "true"
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        assert set(given) == set(ACTION["inputs"])
        self.outputs, self.printed = {}, ""
        self.summary.write_text("")
        for step in ACTION["runs"]["steps"]:
            if "run" in step and self._wanted(step.get("if"), given):
                code = self._step(step, given)
                if code:
                    return code
        return 0

    def _wanted(self, condition: str | None, inputs: dict[str, str]) -> bool:
        if condition is None:
            return True
        found = re.fullmatch(r"(\S+) (==|!=) '(.*)'", condition)
        assert found is not None, condition
        return (self._value(found[1], inputs) == found[3]) == (found[2] == "==")

    def _value(self, name: str, inputs: dict[str, str]) -> str:
        parts = name.split(".")
        if parts[0] == "inputs":
            return inputs[parts[1]]
        if name == "github.action_path":
            return str(ROOT)
        assert (parts[0], parts[2]) == ("steps", "outputs"), name
        return self.outputs.get(parts[1], {}).get(parts[3], "")

    def _step(self, step: dict[str, Any], inputs: dict[str, str]) -> int:
        output = self.temporary / "output"
        output.write_text("")
        environment = {
            key: EXPRESSION.sub(lambda found: self._value(found[1], inputs), value)
            for key, value in step.get("env", {}).items()
        }
        script = self.temporary / "script.sh"
        script.write_text(step["run"])
        ran = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.folder,
            env=os.environ
            | environment
            | {
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(self.summary),
                "RUNNER_TEMP": str(self.temporary),
                "CALLS": str(self.calls),
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.printed += ran.stdout
        told = dict(line.split("=", 1) for line in output.read_text().splitlines())
        self.outputs[step.get("id", step["name"])] = told
        return ran.returncode

    @property
    def called(self) -> list[list[str]]:
        return [json.loads(line) for line in self.calls.read_text().splitlines()]

    @property
    def verdict(self) -> tuple[str, str]:
        told = self.outputs["gate"]
        return told["verdict"], told["exit-code"]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_steps_take_inputs_from_their_environment_alone() -> None:
    """An expression in a script is code that whoever names a branch or a file may write."""
    for step in ACTION["runs"]["steps"]:
        assert not EXPRESSION.search(step.get("run", "")), step["name"]
        assert ("shell" in step) == ("run" in step)
    assert {"verdict", "exit-code"} == set(ACTION["outputs"])
    for output in ACTION["outputs"].values():
        assert "steps.gate.outputs." in output["value"]
    for each in ACTION["inputs"].values():
        assert each["description"].strip()
        assert "default" in each or each.get("required")


def test_the_gate_is_not_run_where_nothing_is_touched(runner: Runner) -> None:
    runner.baselines(base="changed")
    runner.change("README.md", "torch")
    assert runner.run(baseline="base.json", install="touch installed") == 0
    assert runner.called == []
    assert "gate" not in runner.outputs
    assert not (runner.folder / "installed").exists()
    assert "nothing of it is touched" in runner.printed
    assert runner.run(baseline="base.json", always="true") == 1
    assert len(runner.called) == 1


def test_the_gate_is_run_where_a_requirement_is_touched(runner: Runner) -> None:
    runner.baselines(base="same")
    runner.change()
    assert runner.run(baseline="base.json", install="touch installed") == 0
    assert (runner.folder / "installed").exists()
    (call,) = runner.called
    assert call[:3] == ["gate", "--baseline=base.json", "--report-dir=reports"]
    assert runner.verdict == ("same", "0")
    assert runner.summary.read_text() == "## same\n"
    assert (runner.folder / "reports" / "summary.md").read_text() == "## same\n"
    assert "touched: torch in 'requirements.txt'" in runner.printed


def test_packages_are_an_input(runner: Runner) -> None:
    runner.baselines(base="same")
    runner.change()
    assert runner.run(baseline="base.json", packages="numpy scipy") == 0
    assert runner.called == []
    assert runner.run(baseline="base.json", packages="numpy torch") == 0
    assert len(runner.called) == 1


def test_a_base_that_was_not_fetched_is_fetched(runner: Runner, tmp_path: Path) -> None:
    """What actions/checkout gives: one commit."""
    runner.baselines(base="same")
    base = git(runner.folder, "rev-parse", "HEAD")
    runner.change("src.py", "x")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{runner.folder}", "shallow")
    runner.folder = tmp_path / "shallow"
    assert runner.run(baseline="base.json", base=base) == 0
    assert "nothing of it is touched" in runner.printed
    assert runner.run(baseline="base.json", base="1" * 40) == 0
    assert "cannot tell, so the gate runs" in runner.printed
    assert len(runner.called) == 1


VERDICTS = {
    "same": (0, 0, 0),
    "rounding": (0, 0, 0),
    "not comparable": (3, 0, 0),
    "changed": (1, 1, 0),
    "failing": (1, 1, 0),
    "unreadable": (2, 2, 2),
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_it_fails_on_what_it_is_told_to_fail_on(runner: Runner, verdict: str) -> None:
    runner.baselines(base=verdict)
    runner.change()
    for fail_on, code in zip(
        ("not-comparable", "changed", "never"), VERDICTS[verdict], strict=True
    ):
        assert runner.run(baseline="base.json", fail_on=fail_on) == code
        said = verdict if verdict != "unreadable" else "error"
        assert runner.verdict[0] == said
        assert f"logits parity: {said}" in runner.printed
    assert runner.run(baseline="base.json", fail_on="always") == 2
    assert "expected not-comparable, changed or never" in runner.printed


def test_several_baselines_give_the_worst_verdict(runner: Runner) -> None:
    runner.baselines(a="same", b="rounding", c="changed", d="not comparable")
    runner.change()
    assert runner.run(baseline="a.json\nb.json\n") == 0
    assert runner.verdict == ("rounding", "0")
    assert runner.run(baseline="\na.json\nc.json\nd.json\n", fail_on="never") == 0
    assert runner.verdict == ("changed", "1")
    assert runner.summary.read_text() == "## same\n## changed\n## not comparable\n"
    folders = [f"--report-dir=reports/{number}" for number in (1, 2, 3)]
    assert [call[2] for call in runner.called[-3:]] == folders
    assert runner.run(baseline="a.json\ngone.json\nc.json") == 2
    assert runner.verdict == ("error", "2")
    assert ":warning: error" in runner.summary.read_text()


def test_no_baseline_is_an_error(runner: Runner) -> None:
    runner.change()
    assert runner.run(baseline="\n\n") == 2
    assert "expected a file a line, found none" in runner.printed


@pytest.mark.parametrize(
    "evil", ["$(touch {0})", "`touch {0}`", "'; touch {0}; '", '"; touch {0} #']
)
def test_inputs_are_no_commands(runner: Runner, evil: str, tmp_path: Path) -> None:
    text = evil.format(tmp_path / "evil")
    (runner.folder / "-base.json").write_text("same")
    runner.change()
    code = runner.run(baseline="-base.json", model=text, report_dir=f"-{len(evil)} out")
    assert code == 0, runner.printed
    assert runner.called[0][1:4] == [
        text,
        "--baseline=-base.json",
        f"--report-dir=-{len(evil)} out",
    ]
    for name in ("baseline", "base", "packages", "fail_on", "always"):
        runner.run(**{"baseline": "-base.json", "report_dir": "out", name: text})
    assert not (tmp_path / "evil").exists()


def test_what_is_printed_is_no_command_to_the_runner(runner: Runner) -> None:
    """The runner obeys lines that begin with two colons, unless it is told to stop."""
    runner.baselines(base="same")
    runner.change()
    runner.run(baseline="base.json")
    first, *_, last = (line for line in runner.printed.splitlines() if line.startswith("::"))
    assert first.startswith("::stop-commands::")
    token = first.removeprefix("::stop-commands::")
    assert last == f"::{token}::"
    assert len(token) == 32
    begun, ended = runner.printed.index(first), runner.printed.index(last)
    assert begun < runner.printed.index("::error::what a model's files say") < ended


def test_installing_keeps_what_is_judged(runner: Runner) -> None:
    """pip is asked for nothing that moves what the change installs."""
    runner.baselines(base="same")
    runner.change()
    python = runner.bin / "python"
    python.unlink()
    python.write_text(
        "#!/bin/bash\n"
        f'if [ "$1" = -m ]; then shift; printf "%s\\n" "$*" > {runner.temporary}/pip\n'
        f'else exec {sys.executable} "$@"; fi\n'
    )
    python.chmod(0o755)
    assert runner.run(baseline="base.json", install="", packages="torch numpy no-such") == 0
    constraints = runner.temporary / "parity-constraints.txt"
    asked = f"pip install --quiet --constraint {constraints} {ROOT}\n"
    assert (runner.temporary / "pip").read_text() == asked
    kept = constraints.read_text().splitlines()
    assert [line.split("==")[0] for line in kept] == ["torch", "numpy"]


def test_with_the_real_command(
    runner: Runner,
    tiny: Callable[..., Path],
    recorder_process: WarmRecorder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Nothing is left in the temporary folder, and the model of tomorrow fails."""
    shutil.copytree(tiny(), runner.folder / "model")
    monkeypatch.chdir(runner.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.gate.recording._run", recorder_process)
        target = find("model")
        made = make_baseline(target, make_plan(target, Options()), progress=lambda *_: None)
    first, *rest = made.head.plan.passes
    plan = replace(made.head.plan, passes=(replace(first, attention="of_tomorrow"), *rest))
    write_baseline(made.under(replace(made.head, plan=plan)), runner.folder / "base.json")
    runner.parity.write_text(f'#!/bin/bash\nexec {sys.executable} -m logits_parity "$@"\n')
    runner.change()
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    assert runner.run(baseline="base.json", report_dir="out") == 1, runner.printed
    assert runner.verdict == ("failing", "1")
    assert "## :x: failing: `model`" in runner.summary.read_text()
    written = sorted(path.name for path in (runner.folder / "out").iterdir())
    assert written == ["gate-base.html", "gate-base.json", "junit.xml", "summary.md"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_documented_workflow_uses_what_there_is() -> None:
    text = (ROOT / "docs" / "ci.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    workflow = blocks[0]
    (step,) = [
        s for s in workflow["jobs"]["gate"]["steps"] if "logits-parity@" in s.get("uses", "")
    ]
    assert set(step["with"]) <= set(ACTION["inputs"])
    needed = {name for name, each in ACTION["inputs"].items() if each.get("required")}
    assert needed <= set(step["with"])
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request" in workflow[True]  # what YAML makes of `on`
    rows = dict(re.findall(r"^\| `([a-z-]+)` \|([^|]*)\|", text, re.MULTILINE))
    assert set(rows) == set(ACTION["inputs"])
    for name, shown in rows.items():
        default = str(ACTION["inputs"][name].get("default", ""))
        assert shown.strip("` ") in (default, "of the event"), name
