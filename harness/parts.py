"""One file that comes in several parts, joined into the cache by content."""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .cache_folder import default_cache_dir
from .errors import CaseError

_CHUNK = 1 << 24
_ENDING = re.compile(r"\.(part-?)?\d+$")


def join_parts(parts: Sequence[Path], *, cache_dir: Path | None = None) -> Path:
    """The file that the parts make, one after another.

    The key is the sha256 of the whole, so that other parts of the same names are another file. It
    is written beside its place and renamed into it: one that was interrupted is never seen.

    Args:
        parts: Files, in order.
        cache_dir: Where the joined file is kept, instead of `default_cache_dir()`.

    Returns:
        A file named as the first part, without ``.part00`` or ``.000``.

    Raises:
        CaseError: A part cannot be read, or the cache cannot be written.
    """
    folder = (cache_dir or default_cache_dir()) / "joined"
    name = _ENDING.sub("", parts[0].name)
    try:
        digest = hashlib.sha256()
        for block in _blocks(parts):
            digest.update(block)
        target = folder / digest.hexdigest() / name
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(target, parts)
    except OSError as error:
        raise CaseError(
            str(error.filename or folder),
            expected=f"{len(parts)} readable parts of {name}, and room to join them in {folder}",
            found=f"{type(error).__name__}: {error.strerror or error}",
            advice="install the parts again, make room, or name another folder in "
            "LOGITS_PARITY_CACHE",
        ) from error
    return target


def _write(target: Path, parts: Sequence[Path]) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f"{target.name}-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for block in _blocks(parts):
                file.write(block)
        Path(temporary).chmod(0o644)  # mkstemp makes it private; a cache may be shared
        Path(temporary).replace(target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _blocks(parts: Sequence[Path]) -> Iterator[bytes]:
    for part in parts:
        with part.open("rb") as file:
            while block := file.read(_CHUNK):
                yield block
