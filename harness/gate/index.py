"""Which releases a package has: pip's answer, and what it answered last when it cannot."""

import datetime
import os
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from ..cache_folder import default_cache_dir
from ..errors import BuildError, NoSuchRelease, Offline
from .refusals import unreachable
from .tools import Ran, Say, pip_command, run_tool, variables_of_uv_for_pip
from .wanted import DEFAULT_PACKAGE

FORMAT = "logits-parity/releases"
VERSION = 1
_LINE = "Available versions:"


class Listing(msgspec.Struct, frozen=True):
    """What an index answered once.

    Attributes:
        package: Of which package.
        listed: When, UTC, ISO 8601.
        releases: What it has for this Python, without pre-releases, oldest first.
    """

    package: str
    listed: str
    releases: tuple[str, ...]
    format: str = FORMAT
    version: int = VERSION


def releases(
    package: str = DEFAULT_PACKAGE,
    *,
    between: tuple[str, str] | None = None,
    say: Say,
    offline: bool = False,
    cache_dir: Path | None = None,
) -> list[str]:
    """Releases that the index has for this Python, without pre-releases, oldest first.

    Args:
        package: Of which package.
        between: Only those from one to the other, in either order; both are in the answer, listed
            or not, for the index may hide one that was withdrawn and can still be installed.
        say: Takes a line for the user.
        offline: Ask nobody; answer what the index said last.
        cache_dir: Where answers are kept, instead of :func:`default_cache_dir`.

    Raises:
        NoSuchRelease: The index knows no such package.
        Offline: It does not answer, or is not to be asked, and never did before.
    """
    path = (cache_dir or default_cache_dir()) / "releases" / f"{package}.json"
    listing = None if offline else _ask(package)
    if listing is not None:
        _keep(listing, path)
    else:
        listing = _read(path)
        if listing is None:
            raise Offline(
                f"releases of {package}",
                expected="a package index that answers, or what it answered before",
                found="neither" if not offline else "nothing from before",
                advice="run once where the index can be reached",
            )
        say(f"the index is not reached; releases of {package} as listed on {listing.listed[:10]}")
    if between is None:
        return list(listing.releases)
    low, high = sorted(map(Version, between))
    inside = {Version(text) for text in listing.releases}
    inside = {version for version in inside if low < version < high}
    return [str(version) for version in sorted({low, *inside, high})]


def listed_releases(package: str) -> list[str]:
    """As the index answers now; none if it does not."""
    try:
        listing = _ask(package)
    except BuildError:
        return []
    return [] if listing is None else list(listing.releases)


def _ask(package: str) -> Listing | None:
    """Ask the index; None if it does not answer."""
    ran = _run_pip(["index", "versions", "--disable-pip-version-check", package])
    if unreachable(ran.text):
        return None
    for line in ran.text.splitlines():
        if line.strip().startswith(_LINE):
            words = line.partition(_LINE)[2].split(",")
            today = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            return Listing(package, today, tuple(_ordered(words)))
    if "No matching distribution found" in ran.text:
        raise NoSuchRelease(
            f"releases of {package}",
            expected="a package that the index has",
            found="none of this name",
            advice="check the name; if it is right, set the index that has it (PIP_INDEX_URL)",
        )
    return None


def _run_pip(words: list[str]) -> Ran:
    command = pip_command()
    if command is None:
        raise BuildError(
            "package index",
            expected="pip, uv or Python's module ensurepip, to ask it",
            found="none of them",
            advice="install pip into this environment",
        )
    settings = [f"{name}={value}" for name, value in variables_of_uv_for_pip().items()]
    return run_tool([*(["env", *settings] if settings else []), *command, *words],
                    temporary=None, say=lambda line: None)  # fmt: skip


def _ordered(words: list[str]) -> list[str]:
    found = set()
    for word in words:
        try:
            version = Version(word.strip())
        except InvalidVersion:  # from before versions were ruled
            continue
        if not version.is_prerelease:
            found.add(Version(version.public))  # builds of one release are one
    return [str(version) for version in sorted(found)]


def _keep(listing: Listing, path: Path) -> None:
    """Keep an answer; a disk that takes none is no reason to fail, for it was answered."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.format(msgspec.json.encode(listing)))
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)


def _read(path: Path) -> Listing | None:
    try:
        listing = msgspec.json.decode(path.read_bytes(), type=Listing)
    except (OSError, msgspec.MsgspecError):
        return None
    return listing if (listing.format, listing.version) == (FORMAT, VERSION) else None
