"""Where views go: whole files, put in place in one step, so that a failing run damages none."""

import contextlib
import errno
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..result import RunResult, to_json

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Written:
    """The files of one result."""

    html: Path
    json: Path


def write_report(result: RunResult, directory: Path, *, stem: str) -> Written:
    """Write ``stem.html`` and ``stem.json`` into a folder, which is made where it is absent.

    Neither takes the place of an earlier one before both are rendered and written.

    Raises:
        UsageError: The folder cannot be made or written to.
    """
    from .html import to_html

    page, document = to_html(result).encode("utf-8", "backslashreplace"), to_json(result)
    written = Written(directory / f"{stem}.html", directory / f"{stem}.json")
    write_together({written.json: document, written.html: page})
    return written


def write_whole(path: Path, data: bytes) -> None:
    """Write a file by way of a temporary one beside it: a reader sees the old one or the new one.

    A pipe or a device is written to as it is.

    Raises:
        UsageError: It cannot be written.
    """
    write_together({path: data})


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write files by way of temporary ones; none is put in place before all are on the disk.

    Raises:
        UsageError: One of them cannot be written; the earlier ones are as they were.
    """
    waiting: dict[Path, Path] = {}
    path = Path()
    try:
        for path, data in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            target = path.resolve()
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if target.exists() and not target.is_file():
                target.write_bytes(data)
            else:
                waiting[target] = _name_beside(target)
                _write_new(waiting[target], data)
        for target, temporary in waiting.items():
            path = target
            os.replace(temporary, target)
    except OSError as error:
        raise _refused(path, error) from None
    finally:
        for temporary in waiting.values():
            with contextlib.suppress(OSError):  # it is gone where it was put in place
                temporary.unlink()


def _refused(path: Path, error: OSError) -> UsageError:
    found = (error.strerror or type(error).__name__).lower()
    advice = "choose another folder or file, or mend its permissions"
    if isinstance(error, FileExistsError | NotADirectoryError):
        found = "a file where its folder should be"
    if error.errno in _FULL:
        advice = "make room there, or choose another folder"
    return UsageError(str(path), expected="a file that can be written", found=found, advice=advice)


def _name_beside(target: Path) -> Path:
    return target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")


def _write_new(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # a disk may be found to be full only now
