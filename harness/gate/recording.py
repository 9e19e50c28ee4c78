"""Runs the recorder in an environment, and reads what it wrote."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError
from ..trace.container import scan
from .records import (
    FORMAT,
    REQUEST_FORMAT,
    REQUEST_VERSION,
    VERSION,
    Array,
    Facts,
    Failure,
    Record,
    Request,
)

RECORDER = Path(__file__).parent.parent / "engines" / "recorder"

#: Loads the recorder from its folder, under a name of its own: nothing else of ours is importable.
BOOT = """
import importlib, importlib.util, sys
folder, *requests = sys.argv[1:]
name = "parity_recorder"
spec = importlib.util.spec_from_file_location(
    name, folder + "/__init__.py", submodule_search_locations=[folder]
)
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
for request in requests:
    importlib.import_module(name + ".entry").main(request)
"""

FACTS = "facts.json"
TAPS = "taps.safetensors"
_LAST_LINES = 20

#: Seconds that a recording may take unless the caller says otherwise.
TIMEOUT = 3600.0


def record(python: Path, request: Request, *, folder: Path, timeout: float = TIMEOUT) -> Record:
    """Record what an environment makes of a model.

    Whatever goes wrong in the other process is part of the record: an error, a crash, a timeout.

    Args:
        python: The environment's interpreter.
        request: What to record.
        folder: Where the record goes; made if it is not there, else it has to be empty.
        timeout: In seconds.

    Raises:
        UsageError: The folder is not empty, or the interpreter cannot be started.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UsageError(
            f"record {folder}",
            expected="an empty folder",
            found="files in it",
            advice="name a new one",
        )
    command = [str(python), "-c", BOOT, str(RECORDER), str(_asked(request, folder))]
    code = _run(command, folder, _environment(python, request.threads, folder), timeout)
    if not (folder / FACTS).is_file():
        return Record(Facts(failed=(gone := _gone(folder, code, timeout)), failures=(gone,)))
    return read_record(folder)


def record_all(
    python: Path, requests: Sequence[Request], *, folder: Path, timeout: float = TIMEOUT
) -> list[Record]:
    """Record several models in one process, which imports the libraries once.

    One that ends the process is recorded again by itself, like those behind it.

    Args:
        python: The environment's interpreter.
        requests: What to record, all with as many threads.
        folder: Where the records go, a folder each; has to be empty.
        timeout: In seconds, for each of them.

    Raises:
        UsageError: Numbers of threads differ, the folder is not empty, or the interpreter cannot be
            started.
    """
    threads = {request.threads for request in requests}
    if len(threads) > 1:
        raise UsageError(
            "records in one process",
            expected="one number of threads",
            found=", ".join(map(str, sorted(threads))),
            advice="record them one by one",
        )
    folder = folder.absolute()
    parts = [folder / str(i) for i in range(len(requests))]
    asked = []
    for request, part in zip(requests, parts, strict=True):
        part.mkdir(parents=True)
        asked.append(str(_asked(request, part)))
    if asked:
        command = [str(python), "-c", BOOT, str(RECORDER), *asked]
        environment = _environment(python, threads.pop(), folder)
        _run(command, folder, environment, timeout * len(asked))
    found = []
    for request, part in zip(requests, parts, strict=True):
        if (part / FACTS).is_file():
            found.append(read_record(part))
        else:
            found.append(record(python, request, folder=part / "alone", timeout=timeout))
    return found


def _asked(request: Request, folder: Path) -> Path:
    """The request as a file in the folder of its record."""
    asked = folder / "request.json"
    asked.write_bytes(msgspec.json.encode(document(request, folder)))
    return asked


def read_record(folder: Path) -> Record:
    """Read a record that was made before.

    Raises:
        UsageError: There is none, or it is not one that this version reads.
    """
    path = folder / FACTS
    try:
        raw = path.read_bytes()
        head = msgspec.json.decode(raw)
        found = (head["format"], head["version"])
        if found == (FORMAT, VERSION):
            return Record(msgspec.json.decode(raw, type=Facts), lambda: _arrays(folder / TAPS))
        said = " version ".join(map(str, found))
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        said = str(error)
    raise UsageError(
        f"record {path}",
        expected=f"{FORMAT} version {VERSION}",
        found=said,
        advice="record again with this release",
    )


def document(request: Request, output: Path) -> dict[str, Any]:
    """The JSON document of a request."""
    head = {"format": REQUEST_FORMAT, "version": REQUEST_VERSION, "output": str(output)}
    return head | asdict(request)


def _arrays(path: Path) -> Mapping[str, Array]:
    return scan(path).map() if path.is_file() else {}


def _environment(python: Path, count: int, folder: Path) -> dict[str, str]:
    """The process's environment: no network, threads as asked for, nothing of ours."""
    kept = dict(os.environ)
    if python.absolute() != Path(sys.executable).absolute():
        for name in ("PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__"):
            kept.pop(name, None)
    threads = str(count)
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_MODULES_CACHE": str(folder / "modules"),  # where code of a model's folder is copied
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "TMPDIR": str(folder),  # torch makes a folder there, which goes with this one
        "PYTHONHASHSEED": "0",
        "PYTHONSAFEPATH": "1",
    }


def _run(
    command: list[str], folder: Path, environment: dict[str, str], timeout: float
) -> int | None:
    """The exit code, None where time ran out; the process is gone in any case."""
    with (folder / "output.txt").open("wb") as printed:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(
                f"environment {command[0]}",
                expected="a Python interpreter that starts",
                found=(error.strerror or type(error).__name__).lower(),
                advice="make the environment again",
            ) from error
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _gone(folder: Path, code: int | None, timeout: float) -> Failure:
    """What is known of a process that left no document."""
    lines = (folder / "output.txt").read_text(errors="replace").splitlines()
    stage = folder / "stage"
    kind, message = "Crash", f"the process ended with exit code {code} and left no record"
    if code is None:
        kind, message = "Timeout", f"not done after {timeout:g} seconds"
    elif code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        message = f"the process was ended by signal {name}"
        if name == "SIGKILL":
            message += ", as a system does that runs out of memory"
    return Failure(
        stage=stage.read_text() if stage.is_file() else "start",
        type=kind,
        message=message,
        traceback="\n".join(lines[-_LAST_LINES:]),
    )
