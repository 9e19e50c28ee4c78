"""Files of history: TOML to :class:`~.case.History`, with a message for whatever does not fit."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from ...errors import CaseError, UsageError
from ..records import Make, Pass
from ..wanted import parse_wanted
from .case import TINY, History, Way

FORMAT = "logits-parity/history"
VERSION = 1

#: Tokens of a pass that names none: 14 of a vocabulary of 101, none twice, and not 0, 1 or 2.
TOKENS = (17, 54, 91, 3, 28, 66, 80, 45, 9, 72, 33, 98, 12, 60)


class _Pass(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    token_ids: tuple[int, ...] = TOKENS
    chunks: tuple[int, ...] | None = None
    pads: int = 0
    cache: bool = False
    forward: dict[str, Any] = {}
    attention: str | None = None
    generate: int = 0
    generate_kwargs: dict[str, Any] = {}


class _Make(msgspec.Struct, forbid_unknown_fields=True):
    config_class: str
    config: dict[str, Any] = {}
    nulls: tuple[str, ...] = ()
    model_class: str = "AutoModelForCausalLM"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    title: str
    arch: str
    what: str
    cause: str
    compare: Way
    bad: tuple[str, ...]
    make: _Make
    good: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    passes: tuple[_Pass, ...] = (_Pass("prompt"),)
    left: str = ""
    right: str = ""
    attention: str | None = None
    saved_by: str = ""
    first: str = ""
    live: bool = False
    ci: tuple[str, ...] = ()


def load_histories(folder: Path) -> list[History]:
    """Read all cases of a folder, by name.

    Raises:
        CaseError: One of them cannot be read; or there is none.
    """
    found = [load_history(path) for path in sorted(folder.glob("*.toml"))]
    if not found:
        raise CaseError(
            str(folder),
            expected="files of history",
            found="none",
            advice="name the folder that has them: cases/history in a checkout",
        )
    return found


def load_history(path: Path) -> History:
    """Read a case.

    Raises:
        CaseError: It cannot be read, or says something that does not exist.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "bytes that are not UTF-8"
        raise CaseError(
            str(path), expected="a readable file", found=reason.lower(), advice="check the path"
        ) from None
    return parse_history(text, name=path.stem, where=path.name)


def parse_history(text: str, *, name: str, where: str = "history") -> History:
    """Read the text of a case; touches no file.

    Args:
        text: TOML.
        name: Name of the case.
        where: Name of the text for messages.

    Raises:
        CaseError: Not TOML, not a case of history, another version, or what does not fit.
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(where, "TOML", f"a syntax error: {error}") from None
    head = (table.get("format"), table.get("version"))
    if head != (FORMAT, VERSION):
        wanted = f'format = "{FORMAT}" and version = {VERSION}'
        raise _wrong(where, wanted, f"format = {head[0]!r} and version = {head[1]!r}")
    try:
        read = msgspec.convert(table, _File)
        return _history(read, name)
    except msgspec.ValidationError as error:
        raise _wrong(where, "keys and values of a case of history", str(error)) from None
    except UsageError as error:  # what a pass or a release cannot be
        raise CaseError(
            f"{where}: {error.where}",
            expected=error.expected,
            found=error.found,
            advice=error.advice,
        ) from None


def _history(read: _File, name: str) -> History:
    for release in (
        *read.good,
        *read.refused,
        *read.bad,
        *([read.saved_by] if read.saved_by else []),
    ):
        parse_wanted(release)
    return History(
        name=name,
        title=read.title,
        arch=read.arch,
        what=" ".join(read.what.split()),
        cause=" ".join(read.cause.split()),
        way=read.compare,
        bad=read.bad,
        good=read.good,
        refused=read.refused,
        make=Make(read.make.config_class, _config(read.make), read.make.model_class),
        passes=tuple(map(_pass, read.passes)),
        reports=read.reports,
        left=read.left,
        right=read.right,
        attention=read.attention,
        saved_by=read.saved_by,
        first=read.first,
        live=read.live,
        ci=read.ci,
    )


def _config(read: _Make) -> dict[str, Any]:
    """Arguments of the config; TOML has no word for null."""
    return TINY | read.config | dict.fromkeys(read.nulls)


def _pass(read: _Pass) -> Pass:
    ids = (0,) * read.pads + read.token_ids
    mask = tuple(int(i >= read.pads) for i in range(len(ids)))
    return Pass(
        name=read.name,
        token_ids=(ids,),
        chunks=read.chunks,
        attention_mask=(mask,) if read.pads else None,
        cache=read.cache,
        forward=read.forward,
        attention=read.attention,
        generate=read.generate,
        generate_kwargs=read.generate_kwargs,
    )


def _wrong(where: str, expected: str, found: str) -> CaseError:
    advice = "docs/history.md has the keys and what they mean"
    return CaseError(where, expected=expected, found=found, advice=advice)
