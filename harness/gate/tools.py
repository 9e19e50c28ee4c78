"""Running pip and uv: which of them, with which variables, and what they say."""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import UsageError

INSTALLER_VARIABLE = "LOGITS_PARITY_INSTALLER"
"""Environment variable that names the tool, `pip` or `uv`, where the choice is not to be ours."""

Tool = Literal["pip", "uv"]
Say = Callable[[str], None]

_KEPT_LINES = 400
_GRACE_S = 5
#: What would lead a Python to other packages, or a tool to another place, than those of its folder.
_DROPPED = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_DRY_RUN"),
    *("PIP_REQUIRE_VIRTUALENV", "PIP_QUIET", "PIP_VERBOSE", "PIP_LOG", "PIP_REPORT"),
    *("UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_BREAK_SYSTEM_PACKAGES", "UV_TARGET", "UV_PREFIX"),
)
#: What says where pip takes packages from; uv reads none of it.
_PIP_PLACES = ("index-url", "extra-index-url", "find-links", "no-index", "constraint", "proxy")
#: The same for uv, beside pip's words for it.
_UV_PLACES = {
    "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
    "UV_INDEX_URL": "PIP_INDEX_URL",
    "UV_INDEX": "PIP_EXTRA_INDEX_URL",
    "UV_EXTRA_INDEX_URL": "PIP_EXTRA_INDEX_URL",
    "UV_FIND_LINKS": "PIP_FIND_LINKS",
    "UV_NO_INDEX": "PIP_NO_INDEX",
}
_DOWNLOADS = re.compile(r"^\s*Downloading (\S+) \(([\d.]+ ?[MG]i?B)\)$")


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended.

    Attributes:
        code: Its exit status.
        text: Its last lines, of both streams.
    """

    code: int
    text: str


def run_tool(command: list[str], *, temporary: Path | None, say: Say) -> Ran:
    """Run a command to its end; large downloads are told while they go on.

    It and whatever it started end with us: on an interrupt nothing is left running, and its
    temporary files are where the caller removes them.

    Args:
        command: What to run.
        temporary: Folder for its temporary files, None for the system's.
        say: Takes a line for the user.
    """
    extra = {} if temporary is None else {"TMPDIR": str(temporary)}
    process = subprocess.Popen(
        command,
        env=variables() | extra,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    assert process.stdout is not None  # a pipe was asked for
    with process.stdout as printed:
        try:
            for line in printed:
                lines.append(line.rstrip())
                if size := _DOWNLOADS.match(line.rstrip()):
                    say(f"downloading {size[1]} ({size[2]})")
            return Ran(process.wait(), "\n".join(lines))
        finally:
            if process.poll() is None:
                _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End a command and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_GRACE_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def variables() -> dict[str, str]:
    """Environment variables for a Python of another environment, and for pip and uv.

    Those that lead to other packages, or have something installed elsewhere, are dropped; those
    that say where packages come from are the user's and stay.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    words = {"NO_COLOR": "1", "PYTHONIOENCODING": "utf-8", "PIP_PROGRESS_BAR": "off"}
    words |= {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}  # a file may say otherwise
    if kept.get("PIP_RETRIES") == "0":
        words["PIP_RETRIES"] = "1"  # only on trying again does pip say that nobody answers
    return kept | words


def variables_of_uv_for_pip() -> dict[str, str]:
    """Where uv takes packages from, in pip's variables, where pip's are not set."""
    found: dict[str, str] = {}
    for theirs, ours in _UV_PLACES.items():
        if os.environ.get(theirs) and ours not in os.environ:
            found.setdefault(ours, os.environ[theirs])
    return found


def _pip_is_here() -> bool:
    """Whether pip is on the path; a finder of setuptools, asked for it, would replace distutils."""
    return importlib.machinery.PathFinder.find_spec("pip") is not None


def pip_command(python: Path | None = None) -> list[str] | None:
    """How to run pip; None if there is none on this machine.

    That of this environment, else the one that Python brings along to make others with, which runs
    from its archive, else uv's.

    Args:
        python: The Python that it is to install for, which shares the packages of this one; None
            for this one.
    """
    interpreter = str(python or sys.executable)
    if _pip_is_here():
        return [interpreter, "-I", "-m", "pip"]
    spec = importlib.util.find_spec("ensurepip")
    if spec is not None and spec.origin is not None:
        for wheel in sorted((Path(spec.origin).parent / "_bundled").glob("pip-*.whl")):
            return [interpreter, "-I", str(wheel / "pip")]
    uv = shutil.which("uv")
    return [uv, "tool", "run", "pip"] if uv and python is None else None


def choose_tool() -> Tool:
    """Which tool makes environments.

    uv where it is found; but pip where only pip has been told where packages come from, for uv
    reads none of pip's settings. ``$LOGITS_PARITY_INSTALLER`` decides it otherwise.

    Raises:
        UsageError: That variable names something else, or uv where there is none.
    """
    named = os.environ.get(INSTALLER_VARIABLE, "")
    if named not in ("", "pip", "uv"):
        raise UsageError(
            INSTALLER_VARIABLE, expected="pip or uv", found=named, advice="set one, or unset it"
        )
    if named == "pip":
        return "pip"
    if shutil.which("uv") is None:
        if named == "uv":
            raise UsageError(
                INSTALLER_VARIABLE,
                expected="uv on the path",
                found="no such command",
                advice="install uv, or unset the variable: pip does as well",
            )
        return "pip"
    return "uv" if named == "uv" or _uv_was_told() or not _pip_was_told() else "pip"


def _uv_was_told() -> bool:
    return any(os.environ.get(name) for name in _UV_PLACES)


def _pip_was_told() -> bool:
    """Whether pip's settings, in variables or files, say where packages come from."""
    command = pip_command()
    if command is None:
        return False
    told = subprocess.run(
        [*command, "config", "list"],
        env=variables(),
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    ).stdout
    keys = {line.partition("=")[0].rpartition(".")[2].strip("'\" ") for line in told.splitlines()}
    return not keys.isdisjoint(_PIP_PLACES)
