"""Interrupted at any moment, the command ends at once, in one line, and damages no report.

A process that has imported everything forks once for each moment, so that a run costs a second and
not five; the last test interrupts the real command while it imports.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import HFEngine, Verdict, check

#: Forks for each line ``FOLDER SIGNAL MOMENT`` and answers with a line of JSON. A moment is the
#: name of a function, which is interrupted when it is called for the n-th time, or a time.
SERVER = """
import importlib, json, os, signal, sys, time
import torch, transformers, harness.checking, harness.engines.hf, harness.engines.reference
import harness.report.html, harness.report.text, rich.progress, gguf
from harness import cli, start
from typer.testing import CliRunner

def interrupted(name, nth, number):
    module, _, function = name.rpartition(":")
    owner = importlib.import_module(module)
    *path, last = function.split(".")
    for part in path:
        owner = getattr(owner, part)
    real, calls = getattr(owner, last), []
    def call(*arguments, **options):
        calls.append(None)
        if len(calls) == int(nth):
            os.kill(os.getpid(), number)
            time.sleep(0.02)
        return real(*arguments, **options)
    setattr(owner, last, call)

def child(folder, number, moment):
    os.chdir(folder)
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.argv = ["parity", "run", "case.toml"]
    if ":" in moment:
        interrupted(*moment.split("#"), number)
    start.main()

warm = None
for line in sys.stdin:
    folder, number, moment = line.split()
    if not warm:  # what is imported on first use is imported here, once
        os.chdir(folder)
        warm = CliRunner().invoke(cli.app, ["run", "case.toml", "--no-report"])
    begun = time.monotonic()
    process = os.fork()
    if process == 0:
        child(folder, int(number), moment)
    if ":" not in moment:
        time.sleep(float(moment))
        os.kill(process, int(number))
    sent = time.monotonic()
    _, status = os.waitpid(process, 0)
    now = time.monotonic()
    code = os.waitstatus_to_exitcode(status)
    print(json.dumps({"code": code, "seconds": now - begun, "after": now - sent}), flush=True)
"""

NEVER = "1000000000"


class Server:
    """Runs the command in a folder and interrupts it at a moment."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            | {
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },  # threads do not survive a fork
        )

    def run(self, desk: Any, moment: str, number: int = signal.SIGINT) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{desk.folder} {int(number)} {moment}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        answer |= {name: (desk.folder / name).read_text() for name in ("out", "err")}
        return answer

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def server() -> Any:
    server = Server()
    yield server
    server.close()


MOMENTS = {
    "reading the case": "harness.case_file:load_case",
    "opening the checkpoint": "harness.subject:load_checkpoint",
    "looking for NaN": "harness.subject:check_finite",
    "loading transformers' model": "transformers:AutoModelForCausalLM.from_pretrained",
    "choosing a token": "harness.engines.hf:HFSession.feed#2",
    "a tap of the prompt": "harness.engines.hf:to_numpy#40",
    "a tap of a decoding step": "harness.engines.hf:to_numpy#120",
    "rendering the page": "harness.report.html:to_html",
    "writing the first file": "os:fsync",
    "writing the second file": "os:fsync#2",
    "putting the first file in place": "os:replace",
    "showing the verdict": "harness.report.text:View",
}


def assert_undamaged(desk: Any, before: dict[str, bytes]) -> None:
    """Every report is the earlier one, or a new one that is whole; nothing else is there."""
    after = desk.files()
    assert set(after) == {"case.html", "case.json"}
    for name, content in after.items():
        if content != before[name]:
            assert content.endswith(b"</html>" if name.endswith("html") else b"}")
    if after["case.json"] != before["case.json"]:
        json.loads(after["case.json"])


@pytest.mark.parametrize("moment", MOMENTS)
def test_interruption_ends_the_command(desk: Any, server: Server, moment: str) -> None:
    before = desk.files()
    function, _, nth = MOMENTS[moment].partition("#")
    number = (signal.SIGINT, signal.SIGTERM)[list(MOMENTS).index(moment) % 2]
    ended = server.run(desk, f"{function}#{nth or 1}", number)
    assert ended["code"] == 128 + number, ended
    assert ended["err"] == "Interrupted.\n"
    assert_undamaged(desk, before)


@pytest.mark.parametrize(
    ("moment", "known"),
    [
        ("choosing a token", False),
        ("a tap of the prompt", False),
        ("a tap of a decoding step", True),
    ],
)
def test_interruption_leaves_what_was_compared_by_then(
    desk: Any, server: Server, moment: str, *, known: bool
) -> None:
    """Where nothing was, the earlier report stays."""
    before = desk.files()
    ended = server.run(desk, MOMENTS[moment] if "#" in MOMENTS[moment] else f"{MOMENTS[moment]}#1")
    assert ended["code"] == 130
    assert ended["err"] == "Interrupted.\n"
    after = desk.files()
    if not known:
        assert after == before
        assert ended["out"] == ""
        return
    assert_undamaged(desk, before)
    document = json.loads(after["case.json"])
    assert document["verdict"] == "not comparable"
    assert document["stopped"].startswith("interrupted; while comparing prompt p; the last tap")
    assert ended["out"].startswith("NOT COMPARABLE")
    assert b"interrupted; while comparing prompt p" in after["case.html"]
    assert ended["out"].splitlines()[-1] == "reports/case.html"


def test_interruption_tests_can_fail(desk: Any, server: Server) -> None:
    ended = server.run(desk, f"os:fsync#{NEVER}")
    assert ended["code"] == 0, ended
    assert "PASS" in ended["out"]
    (desk.reports / "case.html").write_bytes(b"<!DOCTYPE html> and no more")
    with pytest.raises(AssertionError):
        assert_undamaged(desk, {"case.html": b"", "case.json": b""})


def test_interruption_at_random_moments(desk: Any, server: Server) -> None:
    whole = server.run(desk, f"os:fsync#{NEVER}")["seconds"]
    draw = random.Random(2)
    codes = []
    for _ in range(6):
        before = desk.files()
        number = draw.choice([signal.SIGINT, signal.SIGTERM])
        ended = server.run(desk, f"{0.02 + draw.random() * whole:.3f}", number)
        codes.append(ended["code"])
        assert ended["code"] in (0, 128 + number), ended
        assert ended["err"] == ("" if ended["code"] == 0 else "Interrupted.\n")
        assert ended["after"] < 20
        assert_undamaged(desk, before)
    assert any(codes)


def test_interruption_twice_ends_at_once(desk: Any, server: Server) -> None:
    """The second signal does not wait for what the first one closes."""
    code = (
        "import os, signal, sys, time\n"
        "from harness import cli, start\n"
        "def stuck():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(60)\n"
        "cli.main = stuck\n"
        "start.main()\n"
    )
    begun = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=50, cwd=Path.cwd())
    assert ended.returncode == 130
    assert time.monotonic() - begun < 30


def test_an_ignored_interrupt_stays_ignored() -> None:
    """What `nohup` or a shell's background job asks for."""
    code = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from harness.start import Stop\n"
        "Stop().install()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN\n"
        "assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("seconds", [0.4, 1.5, 3.0])
def test_interruption_of_the_real_command_while_it_starts(desk: Any, seconds: float) -> None:
    before = desk.files()
    process = subprocess.Popen(
        [sys.executable, "-c", "from harness.start import main; main()", "run", "case.toml"],
        cwd=desk.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (0, 130), said
    assert said == ("" if process.returncode == 0 else "Interrupted.\n")
    assert_undamaged(desk, before)


def test_interruption_leaves_the_model_and_no_thread(
    tiny: Callable[..., Path], load_model: Callable[..., Any]
) -> None:
    """From Python: a KeyboardInterrupt that comes while an engine runs in its thread."""
    path = tiny()
    model = load_model(path)
    attention = model.config._attn_implementation
    threads = set(threading.enumerate())
    layer = model.model.layers[1]

    def interrupt(*_: Any) -> None:
        handle.remove()
        signal.raise_signal(signal.SIGINT)

    handle = layer.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        check(HFEngine(model), checkpoint=path, token_ids=[[1, 2, 3]])
    left = set(threading.enumerate()) - threads
    for thread in left:  # one that was just being started ends by itself, a moment later
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in left)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.config._attn_implementation == attention
    assert check(HFEngine(model), checkpoint=path, token_ids=[[1, 2, 3]]).verdict is Verdict.PASS
