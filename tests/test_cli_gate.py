"""``parity baseline`` and ``gate`` from outside: text, exit codes, files; refusals change nothing.

Records are those of the real recorder, in a process that forks; see tests/warm_recorder.py.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner, Result

from harness import cli
from harness.gate.baseline_file import read_baseline, write_baseline
from harness.gate.environments import Environment
from harness.gate.wanted import parse_wanted
from tests.conftest import SAID
from tests.warm_recorder import WarmRecorder

THETA = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}


def parity(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "100", **environment})


def refused(*arguments: str) -> tuple[str, str, str, str]:
    ran = parity(*arguments)
    assert ran.exit_code == 2, (ran.output, ran.exception)
    said = SAID.fullmatch(ran.stderr)
    assert said is not None, ran.stderr
    where, expected, found, advice = said.groups()
    return where, expected, found, advice


@pytest.fixture(scope="module")
def recorded(
    tiny: Callable[..., Path],
    recorder_process: WarmRecorder,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, bytes]:
    """Baselines: of a model, and of one with another theta that says that it is of the former."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.gate.recording._run", recorder_process)
        patch.chdir(folder)
        for name, path in (("model", tiny()), ("other", tiny("llama", **THETA))):
            (folder / name).symlink_to(path)
            assert parity("baseline", name, "-o", f"{name}.json").exit_code == 0
    model, other = (read_baseline(folder / f"{name}.json") for name in ("model", "other"))
    claimed = replace(other.head, model="model", fingerprint=model.head.fingerprint)
    write_baseline(other.under(claimed), folder / "other.json")
    return {name: (folder / f"{name}.json").read_bytes() for name in ("model", "other")}


@pytest.fixture
def desk(
    tiny: Callable[..., Path],
    recorded: dict[str, bytes],
    warm: WarmRecorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """A working folder with a model and baselines; nothing may be left in the temporary one."""
    shutil.copytree(tiny(), tmp_path / "model")
    for name, data in recorded.items():
        (tmp_path / f"{name}.json").write_bytes(data)
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield tmp_path
    assert list((tmp_path / "temporary").iterdir()) == []


def edit(folder: Path, name: str = "model.json", **changes: Any) -> None:
    """Change what a baseline says of its passes."""
    old = read_baseline(folder / name)
    first, *rest = old.head.plan.passes
    plan = replace(old.head.plan, passes=(replace(first, **changes), *rest))
    write_baseline(old.under(replace(old.head, plan=plan)), folder / name)


def set_weight(model: Path, name: str, value: float) -> None:
    weights = safetensors.numpy.load_file(model / "model.safetensors")
    weights[name].flat[0] = value
    safetensors.numpy.save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def test_a_baseline_of_an_unchanged_installation_is_the_same(desk: Path) -> None:
    ran = parity("baseline", "model", "-o", "new/base.json")
    assert ran.exit_code == 0, ran.output
    said, where = ran.stdout.splitlines()
    assert said.startswith("Baseline of model: 139 intermediates, ")
    assert where == "new/base.json"
    assert (desk / where).read_bytes() == (desk / "model.json").read_bytes()
    assert (desk / where).stat().st_size < 60_000
    assert str(desk) not in (desk / where).read_text()
    ran = parity("gate", "-b", where, "--markdown", "out.md", "--junit", "out.xml")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("SAME: It is the same model: baseline base.json to transformers ")
    assert ran.stdout.splitlines()[-1] == "reports/gate-base.html"
    assert json.loads((desk / "reports" / "gate-base.json").read_text())["verdict"] == "same"
    assert (desk / "out.md").read_text().startswith("## :white_check_mark: same: `model`")
    assert "<testsuite" in (desk / "out.xml").read_text()


def test_a_model_that_is_computed_otherwise_is_changed(desk: Path) -> None:
    ran = parity("gate", "-b", "other.json", "--json", "-")
    assert ran.exit_code == 1, ran.output
    document = json.loads(ran.stdout)
    assert document["verdict"] == "changed"
    assert document["passes"][0]["divergence"]["change"]["tap"] == "model.rotary_emb"
    assert [fact["what"] for fact in document["facts"]] == ["rope_parameters.rope_theta"]
    assert "First divergence: model.rotary_emb" in ran.stderr
    written = {path.name for path in (desk / "reports").iterdir()}
    assert written == {"gate-other.html", "gate-other.json", "gate-other-replay.html"}


def test_a_model_that_fails_now_is_failing(desk: Path) -> None:
    edit(desk, attention="of_tomorrow")
    ran = parity("gate", "-b", "model.json", "--no-report")
    assert ran.exit_code == 1, ran.output
    assert ran.stdout.startswith("FAILING: It does not run any more")
    assert "of_tomorrow" in " ".join(ran.stdout.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dtype", "bfloat16"), "The dtype was float32 and is bfloat16."),
        (("--threads", "2"), "Threads were 1 and are 2: sums come in another order."),
    ],
)
def test_a_gate_with_another_dtype_or_threads_is_not_comparable(
    desk: Path, options: tuple[str, ...], said: str
) -> None:
    ran = parity("gate", "-b", "model.json", "--no-report", *options)
    assert ran.exit_code == 3, ran.output
    assert said in ran.stdout
    assert "This is not a pass." in ran.stdout


def test_other_weights_are_not_comparable_and_are_not_run(desk: Path, warm: WarmRecorder) -> None:
    before = warm.count
    set_weight(desk / "model", "lm_head.weight", 3.0)
    ran = parity("gate", "-b", "model.json")
    assert ran.exit_code == 3, ran.output
    assert "another model is no matter of versions" in " ".join(ran.stdout.split())
    assert warm.count == before
    assert (desk / "reports" / "gate-model.html").exists()


def test_the_model_may_have_moved(desk: Path) -> None:
    (desk / "model").rename(desk / "moved")
    where, _, _, advice = refused("gate", "-b", "model.json", "--no-report")
    assert where == "model"
    assert advice.endswith("one that has moved: parity gate MODEL --baseline model.json")
    assert parity("gate", "moved", "-b", "model.json", "--no-report").exit_code == 0


@pytest.mark.parametrize("made", ["absent", "folder", "text", "json", "newer", "cut", "result"])
def test_what_is_no_baseline_is_refused(
    desk: Path, recorded: dict[str, bytes], made: str, warm: WarmRecorder
) -> None:
    path, before = desk / "base.json", warm.count
    if made == "folder":
        path.mkdir()
    elif made != "absent":
        contents = {
            "text": b"\x89PNG",
            "json": b"[1, 2]",
            "newer": recorded["model"].replace(b'"version": 1', b'"version": 9', 1),
            "cut": recorded["model"][:-200],
            "result": b'{"format": "logits-parity/gate", "version": 1}',
        }
        path.write_bytes(contents[made])
    where, expected, _, advice = refused("gate", "-b", "base.json")
    assert where == "base.json"
    assert "baseline" in expected
    assert "parity baseline MODEL -o " in advice
    assert warm.count == before
    assert not (desk / "reports").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("gate", "-b", "model.json", "--dtype", "int8"),
        ("gate", "-b", "model.json", "--threads", "0"),
        ("gate", "-b", "model.json", "--threads", "many"),
        ("gate",),
        ("baseline", "model", "-o", "new.json", "--dtype", "float64"),
        ("baseline", "model", "-o", "new.json", "--decode", "-1"),
        ("baseline", "model", "-o", "new.json", "--tokens", "1,x"),
        ("baseline", "model", "-o", "new.json", "--tokens", "1,2,500"),
        ("baseline", "model", "-o", "new.json", "--prompt", "no tokenizer here"),
        ("baseline", "model", "-o", "new.json", "--attention", "of_tomorrow"),
        ("baseline", "gone", "-o", "new.json"),
        ("baseline", "package:nothing_here/model.gguf", "-o", "new.json"),
        ("upgrade", "--to", "installed", "-m", "model"),
        ("upgrade", "--to", "newest", "-m", "model"),
    ],
)
def test_what_cannot_be_is_refused(desk: Path, arguments: tuple[str, ...]) -> None:
    ran = parity(*arguments)
    assert ran.exit_code == 2, (ran.output, ran.exception)
    assert ran.stdout == ""
    assert "This is a bug" not in ran.stderr
    assert not (desk / "new.json").exists()
    assert not (desk / "reports").exists()


def test_files_that_cannot_be_written_are_refused_and_the_verdict_is_shown(desk: Path) -> None:
    (desk / "file").touch()
    ran = parity("gate", "-b", "model.json", "--report-dir", "file/reports")
    assert ran.exit_code == 2
    assert ran.stdout.startswith("SAME")
    assert "found:    a file where its folder should be" in ran.stderr
    where, _, found, _ = refused("baseline", "model", "-o", "file/base.json")
    assert (where, found) == ("file/base.json", "a file where its folder should be")


def test_a_folder_that_is_read_only_keeps_the_old_baseline(
    desk: Path, monkeypatch: pytest.MonkeyPatch, recorded: dict[str, bytes]
) -> None:
    """Who runs tests may be root, for whom no folder is closed."""

    def closed(path: Path, data: bytes) -> None:
        raise PermissionError(13, os.strerror(13), str(path))

    monkeypatch.setattr("harness.report.files._write_new", closed)
    ran = parity("baseline", "model", "-o", "model.json", "--reason", "a new release")
    assert ran.exit_code == 2
    assert "found:    permission denied" in ran.stderr
    assert (desk / "model.json").read_bytes() == recorded["model"]


def test_a_baseline_is_not_replaced_without_a_reason(
    desk: Path, recorded: dict[str, bytes]
) -> None:
    for reason in ([], ["--reason", "  "]):
        ran = parity("baseline", "model", "-o", "other.json", *reason)
        assert ran.exit_code == 2
        assert ran.stdout.startswith("CHANGED: It is another model: baseline other.json")
        assert "First divergence: model.rotary_emb" in ran.stdout
        assert "expected: --reason, for a new baseline hides what is shown above" in ran.stderr
        assert (desk / "other.json").read_bytes() == recorded["other"]


def test_a_baseline_that_is_replaced_says_why_and_what_that_hides(desk: Path) -> None:
    ran = parity("baseline", "model", "-o", "other.json", "--reason", "theta was\n wrong")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("CHANGED: It is another model")
    assert ran.stdout.splitlines()[-1] == "other.json"
    assert parity("gate", "-b", "other.json", "--no-report").exit_code == 0
    assert parity("baseline", "model", "-o", "other.json", "--reason", "again").exit_code == 0
    history = read_baseline(desk / "other.json").head.history
    assert [each.reason for each in history] == ["theta was wrong", "again"]
    assert [each.verdict for each in history] == ["changed", "same"]
    assert "model.rotary_emb" in history[0].summary
    assert set(history[0].before) == {"transformers", "torch"}


def test_a_baseline_of_other_weights_is_not_replaced(
    desk: Path, recorded: dict[str, bytes]
) -> None:
    set_weight(desk / "model", "lm_head.weight", 3.0)
    ran = parity("baseline", "model", "-o", "model.json", "--reason", "trained on")
    assert ran.exit_code == 2
    assert "advice:   mend that, or write a baseline to another file" in ran.stderr
    assert (desk / "model.json").read_bytes() == recorded["model"]


@pytest.mark.parametrize(
    "options",
    [
        ("--tokens", "1,2,3"),
        ("--prompt", "Hello"),
        ("--generate", "3"),
        ("--decode", "2"),
        ("--dtype", "bfloat16"),
        ("--threads", "2"),
        ("--attention", "eager"),
    ],
)
def test_a_baseline_is_replaced_by_one_of_the_same_runs_only(
    desk: Path, options: tuple[str, str], recorded: dict[str, bytes], tiny: Callable[..., Path]
) -> None:
    ran = parity("baseline", "model", "-o", "model.json", "--reason", "why not", *options)
    assert ran.exit_code == 2
    assert ran.stdout == ""
    if options[0] != "--prompt":  # which this model has no tokenizer for
        assert f"found:    {options[0]}\n" in ran.stderr
        assert "for other runs name another file, or delete this one first" in ran.stderr
    assert (desk / "model.json").read_bytes() == recorded["model"]


def test_options_that_say_what_is_run_already_are_taken(desk: Path) -> None:
    options = ("--dtype", "float32", "--generate", "8")
    ran = parity("baseline", "model", "-o", "model.json", "--reason", "the same call", *options)
    assert ran.exit_code == 0, ran.output


def test_a_baseline_of_nan_is_refused(desk: Path, recorded: dict[str, bytes]) -> None:
    set_weight(desk / "model", "model.layers.1.mlp.up_proj.weight", np.nan)
    where, expected, found, advice = refused("baseline", "model", "-o", "nan.json")
    assert (where, expected) == ("model", "logits that are finite")
    assert found == "NaN or infinity, first in model.layers.1.mlp.up_proj of pass tokens"
    assert advice.endswith("a baseline of NaN protects nothing")
    assert not (desk / "nan.json").exists()


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
class MineConfig(LlamaConfig):
    model_type = "mine"
class MineForCausalLM(LlamaForCausalLM):
    config_class = MineConfig
"""


def test_a_model_type_that_nobody_knows_is_refused_or_runs_its_own_code(desk: Path) -> None:
    path = desk / "model" / "config.json"
    config = json.loads(path.read_text())
    config |= {"model_type": "mine", "architectures": ["MineForCausalLM"]}
    path.write_text(json.dumps(config))
    where, _, found, _ = refused("baseline", "model", "-o", "mine.json")
    assert where == "model"
    assert found.startswith("ValueError in ")
    assert "model type `mine`" in found
    names = {"AutoConfig": "MineConfig", "AutoModelForCausalLM": "MineForCausalLM"}
    config["auto_map"] = {key: f"mine.{name}" for key, name in names.items()}
    path.write_text(json.dumps(config))
    (desk / "model" / "mine.py").write_text(CODE)
    trust = "--trust-remote-code"
    assert parity("baseline", "model", "-o", "mine.json", trust).exit_code == 0
    ran = parity("gate", "-b", "mine.json", "--no-report", trust)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("SAME")
    ran = parity("gate", "-b", "mine.json", "--no-report")
    assert ran.exit_code == 1, ran.output
    assert ran.stdout.startswith("FAILING")


def test_two_at_once_write_whole_files(desk: Path, recorded: dict[str, bytes]) -> None:
    """They are told apart by process: here, by threads that call what the command calls."""
    from harness.gate.running import make_baseline
    from harness.gate.target import Options, find, make_plan

    def one(_: int) -> bytes:
        target = find("model")
        made = make_baseline(target, make_plan(target, Options()), progress=lambda *_: None)
        write_baseline(made, desk / "both.json")
        return (desk / "both.json").read_bytes()

    with ThreadPoolExecutor(2) as executor:
        found = list(executor.map(one, range(4)))
    assert set(found) == {recorded["model"]}
    assert not [path for path in desk.iterdir() if path.name.endswith(".tmp")]


#: The command, with environments that are this one.
COMMAND = """
import sys
from pathlib import Path
from harness.gate import upgrading
from harness.gate.environments import Environment
from harness.start import main
upgrading.environment = lambda wanted, **_: Environment(Path(sys.executable), wanted, {})
sys.argv[0] = "parity"
main()
"""


def test_upgrade_runs_both_sides(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def here(wanted: Any, **_: Any) -> Environment:
        return Environment(Path(sys.executable), wanted, {})

    assert parse_wanted("5.0.0") != parse_wanted("5.1.0")
    monkeypatch.setattr("harness.gate.upgrading.environment", here)
    arguments = ("upgrade", "--from", "5.0.0", "--to", "5.1.0", "-m", "model")
    ran = parity(*arguments)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("SAME: It is the same model: transformers 5.0.0 to transformers")
    assert ran.stdout.splitlines()[-1] == "reports/upgrade-5.0.0-5.1.0.html"
    assert parity(*arguments, "--resave", "--no-report").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("baseline", "model", "-o", "model.json", "--reason", "x"),
        ("gate", "-b", "model.json"),
        ("upgrade", "--from", "5.0.0", "--to", "5.1.0", "-m", "model", "--resave"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_interrupt_leaves_nothing_behind(
    desk: Path, arguments: tuple[str, ...], recorded: dict[str, bytes]
) -> None:
    """The real command, while its recorder runs: that ends, too."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    until = time.monotonic() + 60
    while not list((desk / "temporary").glob("parity-gate-*/output.txt")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    (folder,) = (desk / "temporary").glob("parity-gate-*")
    process.send_signal(signal.SIGINT)
    said, error = process.communicate(timeout=60)
    assert (process.returncode, said, error) == (130, "", "Interrupted.\n")
    assert (desk / "model.json").read_bytes() == recorded["model"]
    assert not (desk / "reports").exists()
    assert not _processes_of(folder)


def _processes_of(folder: Path) -> list[str]:
    """Processes whose command names a folder; none where the system does not list them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:  # it has ended
            continue
    return [line.decode(errors="replace") for line in found if str(folder).encode() in line]
