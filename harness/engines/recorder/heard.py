"""Warnings of Python and of the libraries' logs, once each."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Loggers that are listened to.
_LOGGERS = ("transformers", "huggingface_hub")


class _Ear(logging.Handler):
    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(record.getMessage())


@contextmanager
def heard(
    stage: Callable[[], str], cleaned: Callable[[str], str]
) -> Iterator[list[dict[str, str]]]:
    """Collect what is warned of inside.

    Args:
        stage: Tells where the process is.
        cleaned: Takes out of a text what differs from one process to the next.

    Yields:
        ``{"stage", "text"}`` of each text that is new, in order; it grows.
    """
    found: list[dict[str, str]] = []
    known: set[str] = set()

    def hear(text: str) -> None:
        text = cleaned(text.strip())
        if text and text not in known:
            known.add(text)
            found.append({"stage": stage(), "text": text})

    def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
        hear(f"{category.__name__}: {message}")

    ear = _Ear(hear)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(ear)
        try:
            yield found
        finally:
            for name in _LOGGERS:
                logging.getLogger(name).removeHandler(ear)
