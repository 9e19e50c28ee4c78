"""Case files: TOML to :class:`~.case.Case`, with a message for whatever does not fit.

A case file::

    format = "logits-parity/case"
    version = 1
    model = "path, hub id, or package:PKG/FILE"
    engines = ["hf:eager", "hf:sdpa", "reference"]

    [[prompts]]
    name = "hello"
    text = "The capital of France is"
"""

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from .case import Case, Prompt, nearest
from .errors import CaseError
from .locate import anchor

FORMAT = "logits-parity/case"
VERSION = 1

_CASE_KEYS = ("format", "version", *(field.name for field in fields(Case)))
_PROMPT_KEYS = tuple(field.name for field in fields(Prompt))
_READERS: dict[str, tuple[type, str, str]] = {
    "name": (str, "a text", 'name = "smollm2"'),
    "model": (str, "a text", 'model = "path, hub id or package:PKG/FILE"'),
    "engines": (list, "a list of texts", 'engines = ["hf:eager", "reference"]'),
    "dtype": (str, "a text", 'dtype = "float32"'),
    "threads": (int, "a whole number", "threads = 1"),
    "seed": (int, "a whole number", "seed = 0"),
    "greedy": (int, "a whole number", "greedy = 20"),
    "decode": (int, "a whole number", "decode = 2"),
    "probe": (bool, "true or false", "probe = true"),
    "probe_length": (int, "a whole number", "probe_length = 600"),
    "install": (str, "a text", 'install = "pip install PACKAGE"'),
}


def load_case(path: Path) -> Case:
    """Read a case file.

    A relative model path that exists beside the file, or that looks like a file, is anchored at
    the file's folder.

    Raises:
        CaseError: It cannot be read, or says something that does not exist.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CaseError(
            str(path),
            expected="a readable case file",
            found=(error.strerror or type(error).__name__).lower(),
            advice="check the path, or run without a case: parity run --model M --prompt P",
        ) from None
    except UnicodeDecodeError as error:
        raise CaseError(
            str(path),
            expected="a TOML file in UTF-8",
            found=f"byte {error.object[error.start]:#04x} at offset {error.start}",
            advice="save it as UTF-8",
        ) from None
    case = parse_case(text, name=path.stem, where=str(path))
    return replace(case, model=anchor(case.model, path.parent))


def parse_case(text: str, *, name: str, where: str = "case") -> Case:
    """Read the text of a case file; touches no file.

    Args:
        text: TOML.
        name: Name of the case where the text gives none.
        where: Name of the text for messages.

    Raises:
        CaseError: Not TOML, not a case, another version, or keys and values that do not fit.
    """
    try:
        table = tomllib.loads(text)
    # Beside its own error: a number of thousands of digits, a table nested thousands deep.
    except (ValueError, RecursionError) as error:
        raise CaseError(
            where,
            expected="TOML",
            found=f"a syntax error: {error}",
            advice="mend that line; texts stand in quotes, several lines in three of them",
        ) from None
    _check_format(table, where)
    _check_keys(table, _CASE_KEYS, where)
    values: dict[str, Any] = {key: _read(table, key, where) for key in table if key in _READERS}
    if "model" not in values:
        raise CaseError(
            where,
            expected="a model",
            found="none",
            advice='write model = "a path, a hub id or package:PKG/FILE"',
        )
    entries = _entries(table, where)
    prompts = tuple(_read_prompt(entry, i, where) for i, entry in enumerate(entries, start=1))
    try:
        return Case(**{"name": name, **values, "prompts": prompts})
    except CaseError as error:
        raise _within(where, error) from None


def _check_format(table: Mapping[str, object], where: str) -> None:
    found = table.get("format")
    if found != FORMAT:
        raise CaseError(
            where,
            expected=f'format = "{FORMAT}"',
            found="no format" if found is None else f"format = {found!r}",
            advice=f'a case file starts with the lines format = "{FORMAT}" and version = {VERSION}',
        )
    version = table.get("version")
    if type(version) is not int or version != VERSION:
        newer = type(version) is int and version > VERSION
        raise CaseError(
            where,
            expected=f"version = {VERSION}",
            found="no version" if version is None else f"version = {version!r}",
            advice="upgrade: pip install -U logits-parity"
            if newer
            else f"write version = {VERSION}",
        )


def _check_keys(table: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise CaseError(
                where,
                expected=f"the keys {', '.join(known)}",
                found=repr(key),
                advice=nearest(key, known) or "remove it: nothing reads it",
            )


def _read(table: Mapping[str, object], key: str, where: str) -> object:
    kind, words, example = _READERS[key]
    value = table[key]
    if key == "engines":
        if isinstance(value, list) and all(isinstance(engine, str) for engine in value):
            return tuple(value)
    elif type(value) is kind:  # bool is an int to isinstance
        return value
    raise _type_error(f"{where}: {key}", words, value, example)


def _entries(table: Mapping[str, object], where: str) -> list[Mapping[str, object]]:
    value = table.get("prompts", [])
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        return value
    raise _type_error(f"{where}: prompts", "[[prompts]] tables", value, '[[prompts]] text = "..."')


def _read_prompt(entry: Mapping[str, object], number: int, where: str) -> Prompt:
    where = f"{where}: prompt {number}"
    _check_keys(entry, _PROMPT_KEYS, where)
    for key, kind, words, example in (
        ("name", str, "a text", 'name = "hello"'),
        ("text", str, "a text", 'text = "The capital of France is"'),
        ("length", int, "a whole number", "length = 64"),
        ("padding", str, "a text", 'padding = "left"'),
        ("pad_token", int, "a whole number", "pad_token = 0"),
        ("decode", int, "a whole number", "decode = 2"),
        ("greedy", int, "a whole number", "greedy = 20"),
    ):
        if key in entry and type(entry[key]) is not kind:
            raise _type_error(f"{where}: {key}", words, entry[key], example)
    values: dict[str, Any] = dict(entry)
    values.setdefault("name", f"prompt-{number}")
    if "token_ids" in entry:
        values["token_ids"] = _read_rows(entry["token_ids"], f"{where}: token_ids")
    if "prefill" in entry:
        values["prefill"] = _read_numbers(entry["prefill"], f"{where}: prefill")
    try:
        return Prompt(**values)
    except CaseError as error:
        raise _within(where, error) from None


def _read_rows(value: object, where: str) -> tuple[tuple[int, ...], ...]:
    rows = value
    if isinstance(value, list) and not any(isinstance(row, list) for row in value):
        rows = [value]
    if isinstance(rows, list) and all(
        isinstance(row, list) and all(type(token) is int for token in row) for row in rows
    ):
        return tuple(tuple(row) for row in rows)
    raise _type_error(where, "whole numbers, or rows of them", value, "token_ids = [1, 2, 3]")


def _read_numbers(value: object, where: str) -> tuple[int, ...]:
    if isinstance(value, list) and all(type(number) is int for number in value):
        return tuple(value)
    raise _type_error(where, "a list of whole numbers", value, "prefill = [5, 4]")


def _type_error(where: str, expected: str, value: object, example: str) -> CaseError:
    return CaseError(where, expected=expected, found=_describe(value), advice=f"write {example}")


def _describe(value: object) -> str:
    names = {str: "text", bool: "true or false", int: "whole number", float: "decimal number"}
    name = names.get(type(value), type(value).__name__)
    shown = repr(value)
    return f"{name} {shown if len(shown) <= 40 else shown[:37] + '...'}"


def _within(where: str, error: CaseError) -> CaseError:
    return CaseError(
        f"{where}: {error.where}",
        expected=error.expected,
        found=error.found,
        advice=error.advice,
    )
