"""Stages of the work, and what failed in them."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Of several failures, the one of the earliest of these stages is the gravest.
_GRAVITY = ("request", "import", "config", "load", "save", "pass", "tokenizer")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


class Stages:
    """Where the process is, and what failed on the way.

    Args:
        output: Folder in which the name of the stage is kept, for the parent to read after a crash.
        hidden: Texts that are replaced in messages, since they tell nothing of the model.
    """

    def __init__(self, output: Path, hidden: dict[str, str]) -> None:
        self._output = output
        self._hidden = hidden
        self.now = "import"
        self.failures: list[dict[str, str]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Note a failure inside instead of passing it on."""
        self.now = name
        (self._output / "stage").write_text(name)
        try:
            yield
        except Exception as error:
            self.failures.append(self.failure(error))

    def failure(self, error: Exception) -> dict[str, str]:
        """An error as the document has it."""
        trace = "".join(traceback.format_exception(error))
        return {
            "stage": self.now,
            "type": type(error).__name__,
            "message": self.cleaned(str(error)),
            "traceback": self.cleaned(trace),
        }

    def cleaned(self, text: str) -> str:
        """A text without what differs from one process or place to the next."""
        for path, name in self._hidden.items():
            text = text.replace(path, name)
        return _ADDRESS.sub("0x...", text)

    def failed_at(self, *names: str) -> bool:
        """Whether one of these stages failed."""
        return any(failure["stage"] in names for failure in self.failures)

    def gravest(self) -> dict[str, str] | None:
        """The failure to tell first."""
        order = {name: rank for rank, name in enumerate(_GRAVITY)}
        return min(
            self.failures, key=lambda each: order[each["stage"].partition(":")[0]], default=None
        )
