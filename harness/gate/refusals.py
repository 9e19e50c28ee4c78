"""What pip or uv refused, read from what it printed: a release that is not there, or other things.

Whoever bisects skips a release that is not there or cannot be installed, and stops where the index
does not answer, so these are told apart. What is not known is never taken for one to be skipped.
"""

import re

from ..errors import BuildError, CannotInstall, NoSuchRelease, Offline
from .tools import Tool
from .wanted import Wanted, near

_UNREACHABLE = re.compile(
    r"Retry\(total=0\b|Temporary failure in name resolution|Connection refused"
    r"|Network is unreachable|Name or service not known|connection error|Failed to fetch"
    r"|error sending request|dns error|connectivity is disabled|Max retries exceeded"
    r"|Read timed out|ReadTimeoutError|Could not fetch URL",
    re.IGNORECASE,
)
_NO_ROOM = re.compile(r"No space left on device|\[Errno 28\]|os error 28\b|Disk quota exceeded")
_NO_RIGHT = re.compile(r"Permission denied|\[Errno 13\]|Read-only file system")
_OTHER_PYTHON = re.compile(
    r"requires a different Python|[Rr]equires-Python|requires Python|Python>="
    r"|current Python version"
)
#: pip: a requirement without a candidate, and what there is in its place.
_NOT_FOUND = re.compile(
    r"satisfies the requirement (?P<requirement>[^\s(;]+)[^(]*(?:\(from (?!versions)[^)]*\) )?"
    r"\(from versions: (?P<versions>[^)]*)\)"
)
_IGNORED = re.compile(
    r"Ignored the following versions that require a different python version: (.*)"
)
_NO_VERSION = re.compile(r"no version of (\S+?)(?=[,\s]|$)|(\S+) was not found in the")
_NO_SOLUTION = re.compile(
    r"ResolutionImpossible|No solution found|conflicting dependencies|No matching distribution"
    r"|Failed building wheel|Failed to build|metadata-generation-failed"
    r"|subprocess-exited-with-error"
    r"|is not a supported wheel|no wheels with a matching|Could not build wheels"
)
_LAST = 12


def refusal(tool: Tool, wanted: Wanted, text: str, *, releases: list[str]) -> BuildError:
    """The error that says what a tool refused.

    Args:
        tool: Which tool.
        wanted: What was asked of it.
        text: What it printed.
        releases: Releases that the index is known to have of the package that is missing, where
            the tool does not say so itself.
    """
    where = f"environment with {wanted}"
    if _NO_ROOM.search(text):
        return no_room(where)
    flat = re.sub(r"[\s│├╰─▶]+", " ", text)
    missing, seen = _missing(flat, wanted)
    if unreachable(text):  # others may have answered: then nobody knows what there is
        return Offline(
            where,
            expected="a package index that answers",
            found=_no_answer(text),
            advice="connect, or set an index that can be reached (PIP_INDEX_URL, UV_DEFAULT_INDEX);"
            " environments that are made already need none: see `parity environments`",
        )
    if missing is not None and not _needs_other_python(flat, wanted):
        name, version = missing
        return _no_such(where, name, version, seen or releases)
    if _OTHER_PYTHON.search(flat):
        return CannotInstall(
            where,
            expected="releases for the Python that runs this",
            found=_told(text, _OTHER_PYTHON),
            advice="run parity in a Python that they support, or compare other releases",
        )
    if _NO_SOLUTION.search(text):
        return CannotInstall(
            where,
            expected="releases that can be installed together",
            found=f"{tool} says\n{_last_lines(text)}",
            advice="ask for releases that go together, or name one of what they disagree on"
            " (transformers==X,tokenizers==Y)",
        )
    if _NO_RIGHT.search(text):
        return no_right(where, _told(text, _NO_RIGHT))
    return BuildError(
        where,
        expected=f"{tool} to install them",
        found=f"it failed\n{_last_lines(text) or 'without a word'}",
        advice=f"try the same with {tool} by hand; mend what it says",
    )


def unreachable(text: str) -> bool:
    """Whether an index did not answer, by what a tool printed."""
    return _UNREACHABLE.search(text) is not None


def no_room(where: str) -> BuildError:
    """The error of a full disk."""
    return BuildError(
        where,
        expected="room on the disk",
        found="none left",
        advice="make room (`parity environments --remove KEY`), or set LOGITS_PARITY_CACHE to a"
        " folder that has some; nothing half-made was left",
    )


def no_right(where: str, found: str) -> BuildError:
    """The error of a folder that cannot be written."""
    return BuildError(
        where,
        expected="a cache folder that can be written",
        found=found,
        advice="set LOGITS_PARITY_CACHE to a folder of yours",
    )


def _missing(flat: str, wanted: Wanted) -> tuple[tuple[str, str] | None, list[str]]:
    """Which release that was asked for is not on the index, and those that are."""
    asked = wanted.releases
    for found in _NOT_FOUND.finditer(flat):
        name, _, version = found["requirement"].partition("==")
        if asked.get(name) == version:
            versions = [v.strip() for v in found["versions"].split(",")]
            return (name, version), [v for v in versions if v and v != "none"]
    for found in _NO_VERSION.finditer(flat):
        name = (found[1] or found[2]).partition("==")[0]
        if name in asked:
            return (name, asked[name]), []
    return None, []


def _needs_other_python(flat: str, wanted: Wanted) -> bool:
    """Whether pip left out a release that was asked for because of the Python here."""
    ignored = " ".join(_IGNORED.findall(flat))
    return any(
        re.search(rf"(?<![\d.]){re.escape(version)} Requires-Python", ignored)
        for version in wanted.releases.values()
    )


def _no_such(where: str, name: str, version: str, releases: list[str]) -> NoSuchRelease:
    close = near(version, releases)
    return NoSuchRelease(
        where,
        expected=f"a release of {name} that the package index has",
        found=f"none of version {version}"
        + (f"; near it are {', '.join(close)}" if close else f", and no other of {name}"),
        advice="ask for one that is there"
        if close
        else "check the name; if it is right, set the index that has it (PIP_INDEX_URL)",
    )


def _no_answer(text: str) -> str:
    """Why an index did not answer, without the words of the library that asked it."""
    broken = re.search(r"connection broken by '?\w+\((.*)\)'?: (\S+)", text)
    if broken is None:
        return _told(text, _UNREACHABLE)
    reason = broken[1].strip("'\"").rpartition(">: ")[2]
    return f"no answer for {broken[2]}: {reason}"


def _told(text: str, pattern: re.Pattern[str]) -> str:
    """The first line in which a tool says it."""
    line = next((line for line in text.splitlines() if pattern.search(line)), text[-200:])
    return re.sub(r"^\s*(ERROR|WARNING|error|cause):\s*", "", line).strip()[:300]


def _last_lines(text: str) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-_LAST:])
