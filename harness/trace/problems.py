"""Problems of a file, collected instead of raised, so that all of them can be told at once."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        where: A tensor, a key of the metadata, the file.
        expected: What should have been there.
        found: What was there.
        advice: What to do.
        warning: True where the file can be compared all the same.
    """

    where: str
    expected: str
    found: str
    advice: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, found {self.found}: {self.advice}"


class Reader:
    """A JSON object, read key by key; what does not fit is noted and replaced by an empty value.

    Args:
        raw: The object.
        where: Its name for messages.
        problems: Where problems go; a new list if None.
    """

    def __init__(
        self, raw: Mapping[str, Any], where: str, problems: list[Problem] | None = None
    ) -> None:
        self.raw = raw
        self.where = where
        self.problems: list[Problem] = [] if problems is None else problems

    def add(self, key: str, expected: str, found: str, advice: str) -> None:
        """Note a problem of one key."""
        self.problems.append(Problem(f"{self.where}: {key}", expected, found, advice))

    def only(self, known: Collection[str]) -> None:
        """Note every key that nobody reads."""
        for key in self.raw:
            if key not in known:
                advice = nearest(key, known) or "remove it: nothing reads it"
                self.add(key, "one of " + ", ".join(known), repr(key), advice)

    def value(self, key: str, *, required: bool = True) -> Any:
        """The value; None, with a note, where it is absent."""
        value = self.raw.get(key)
        if value is None and required:
            self.add(key, "a value", "none", "add it; see docs/trace-format.md")
        return value

    def text(self, key: str, *, required: bool = True) -> str:
        """A text, empty where it is absent."""
        value = self.value(key, required=required)
        if isinstance(value, str) and (value or not required):
            return value
        if value is not None:
            self.add(key, "a text", repr(value)[:60], f'write "{key}": "..."')
        return ""

    def texts(self, key: str) -> dict[str, str]:
        """An object of texts, empty where it is absent."""
        value = self.raw.get(key)
        if isinstance(value, dict) and all(isinstance(v, str) for v in value.values()):
            return dict(value)
        if value is not None:
            advice = f'write "{key}": {{"name": "text"}}'
            self.add(key, "an object of texts", repr(value)[:60], advice)
        return {}

    def object(self, key: str, *, required: bool = True) -> "Reader":
        """An object within, empty where it is absent."""
        value = self.value(key, required=required)
        if value is not None and not isinstance(value, dict):
            self.add(key, "an object", repr(value)[:60], f'write "{key}": {{...}}')
        raw = value if isinstance(value, dict) else {}
        # What is absent was noted once: its own keys are not missed one by one.
        mute = not isinstance(value, dict)
        return Reader(raw, f"{self.where}: {key}", [] if mute else self.problems)


def nearest(word: str, known: Collection[str]) -> str:
    """``did you mean 'attn.q'?``, empty where nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""
