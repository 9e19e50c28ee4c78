"""Where views go: whole files, put in place in one step, so that a failing run damages none."""

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..result import RunResult, to_json


@dataclass(frozen=True, slots=True)
class Written:
    """The files of one result."""

    html: Path
    json: Path


def write_report(result: RunResult, directory: Path, *, stem: str) -> Written:
    """Write ``stem.html`` and ``stem.json`` into a folder, which is made where it is absent.

    Both are rendered before either is written.

    Raises:
        UsageError: The folder cannot be made or written to.
    """
    from .html import to_html

    page, document = to_html(result).encode(), to_json(result)
    written = Written(directory / f"{stem}.html", directory / f"{stem}.json")
    write_whole(written.json, document)
    write_whole(written.html, page)
    return written


def write_whole(path: Path, data: bytes) -> None:
    """Write a file by way of a temporary one beside it: a reader sees the old one or the new one.

    A pipe or a device is written to as it is.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise UsageError(
            str(path),
            expected="a file that can be written",
            found=(error.strerror or type(error).__name__).lower(),
            advice="choose another folder or file, or mend its permissions",
        ) from None


def _replace(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
