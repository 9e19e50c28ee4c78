"""Converted GGUF files, kept by content: a directory that exists is complete."""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import CheckpointError
from .conversion_record import CONVERTER_VERSION

_PART = ".part-"  # between the key and the random end of a conversion's temporary directory


def convert_gguf(path: Path, *, cache_dir: Path) -> Path:
    """Convert a GGUF file unless that has been done before.

    The key is the sha256 of the file and the version of the converter, so an edited file and a
    corrected converter are both converted anew. A conversion is written beside its place and
    renamed into it, so one that was interrupted is never seen; of two at once, one waits.

    Args:
        path: The GGUF file.
        cache_dir: Where converted files are kept.

    Returns:
        A directory that transformers can load.

    Raises:
        CheckpointError: If the file cannot be converted or the cache cannot be written.
    """
    sha256 = _hash_file(path)
    parent = cache_dir / "gguf"
    key = f"{sha256}-v{CONVERTER_VERSION}"
    target = parent / key
    try:
        if target.is_dir():
            return target
        parent.mkdir(parents=True, exist_ok=True)
        with _hold_lock(parent / f"{key}.lock") as locked:
            if locked:
                _remove_left_overs(target)
            if not target.is_dir():
                _convert_into(path, target, sha256=sha256)
    except OSError as error:
        raise CheckpointError(
            str(parent),
            expected="a directory in which a converted GGUF file can be kept",
            found=f"{type(error).__name__}: {error.strerror or error}",
            advice="make room or name another directory in LOGITS_PARITY_CACHE",
        ) from error
    return target


def _convert_into(path: Path, target: Path, *, sha256: str) -> None:
    from .convert import write_converted

    temporary = Path(tempfile.mkdtemp(prefix=f"{target.name}{_PART}", dir=target.parent))
    try:
        write_converted(path, temporary, sha256=sha256)
        temporary.chmod(0o755)  # mkdtemp makes it private; a cache may be shared
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():  # else another process, without locks, was first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_left_overs(target: Path) -> None:
    """Remove what a killed run left; only while its lock is ours is it certain that it is dead."""
    for left_over in target.parent.glob(f"{target.name}{_PART}*"):
        shutil.rmtree(left_over, ignore_errors=True)


@contextmanager
def _hold_lock(path: Path) -> Iterator[bool]:
    """Let one process convert a file at a time; False where the system has no file locks.

    It only saves work: without it, the rename still makes one conversion win.
    """
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            locked = True
        except OSError:  # some network file systems refuse
            locked = False
        yield locked
    finally:
        os.close(descriptor)


def _hash_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(
            str(path),
            expected="a readable file",
            found=error.strerror or str(error),
            advice="check path and permissions",
        ) from error
