"""Where environments are kept: what is written about each, how they are listed and removed.

An environment is a folder with :data:`MARKER` in it, which is written last. Beside it may lie
folders that a run is at work on, or left when it died; only under the lock is that known.
"""

import datetime
import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from ..cache_folder import default_cache_dir
from .refusals import no_right, no_room
from .tools import Say

FORMAT = "logits-parity/environment"
VERSION = 1
MARKER = "environment.json"
PART = ".part-"
_LOCKS = ".locks"


class Own(msgspec.Struct, frozen=True):
    """A package in an environment's own folder: its version, and what it requires."""

    version: str
    requires: tuple[str, ...] = ()


class Made(msgspec.Struct, frozen=True):
    """What was made, written last: a folder without it is none.

    Attributes:
        requirements: What was asked for.
        python: Version of Python.
        tool: What made it.
        made: When, UTC, ISO 8601.
        shared: Folders of packages behind its own, in order.
        own: What is in its own folder.
        versions: As :class:`Environment`, when it was made.
    """

    requirements: tuple[str, ...]
    python: str
    tool: str
    made: str
    shared: tuple[str, ...]
    own: dict[str, Own]
    versions: dict[str, str]
    format: str = FORMAT
    version: int = VERSION


def environments_dir() -> Path:
    """Where environments are kept unless the caller names another folder."""
    return default_cache_dir() / "environments"


def read_made(target: Path) -> Made | None:
    """What is in a folder; None if it is no whole environment of this version."""
    try:
        made = msgspec.json.decode((target / MARKER).read_bytes(), type=Made)
    except (OSError, msgspec.MsgspecError):
        return None
    return made if (made.format, made.version) == (FORMAT, VERSION) else None


def kept_environments(folder: Path) -> list[tuple[Path, Made | None]]:
    """Folders of environments by name, with what is in each; None for what is not whole."""
    if not folder.is_dir():
        return []
    folders = sorted(p for p in folder.iterdir() if p.is_dir() and p.name != _LOCKS)
    return [(path, read_made(path)) for path in folders]


def remove_environment(path: Path, *, say: Say) -> None:
    """Remove an environment, or what an unfinished run left; a run that makes it is waited for."""
    target = path.with_name(path.name.partition(PART)[0])
    with failing_clearly(str(path)), alone(target, say=say):
        if path == target:
            remove_aside(path)


def size_of(path: Path) -> int:
    """Bytes that the files of an environment hold; what it shares is not in it."""
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())


def age_days(made: Made) -> int:
    """Whole days since an environment was made."""
    return (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(made.made)).days


@contextmanager
def alone(target: Path, *, say: Say) -> Iterator[None]:
    """Be the only run that makes or removes an environment; what dead ones left is removed."""
    locks = target.parent / _LOCKS  # they stay: whoever waits for one has it open
    locks.mkdir(exist_ok=True)
    lock = FileLock(locks / f"{target.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for another run that makes {target.name}")
        lock.acquire()
    try:
        for left in target.parent.glob(f"{target.name}{PART}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        lock.release()


def remove_aside(target: Path) -> None:
    """Remove an environment: at once for whoever looks, then its files."""
    if not target.exists():
        return
    aside = Path(tempfile.mkdtemp(prefix=f"{target.name}{PART}", dir=target.parent))
    try:
        target.rename(aside / "old")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def failing_clearly(where: str) -> Iterator[None]:
    """What the system refuses, as an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_room(where) from error
        said = (error.strerror or str(error)).lower()
        raise no_right(where, f"{error.filename}: {said}") from error
