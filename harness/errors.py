"""The error tree: every message says what was expected, what was found and what to do.

Exit codes of the command line follow the class: unusable input or usage is 2, an environment in
which a comparison is impossible is 3.
"""


class ParityError(Exception):
    """Base of all errors that this project raises on purpose.

    Args:
        where: What the error is about: a tap, a file, an option.
        expected: What should have been there.
        found: What was there instead.
        advice: What to do next.
    """

    exit_code = 2

    def __init__(self, where: str, *, expected: str, found: str, advice: str) -> None:
        super().__init__(f"{where}: expected {expected}, found {found}: {advice}")
        self.where = where
        self.expected = expected
        self.found = found
        self.advice = advice

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.where, self.expected, self.found, self.advice))


def _rebuild(
    kind: type[ParityError], where: str, expected: str, found: str, advice: str
) -> ParityError:
    return kind(where, expected=expected, found=found, advice=advice)


class UsageError(ParityError):
    """An option, an engine name or a Python argument that cannot be used."""


class CaseError(ParityError):
    """A case file that cannot be read, or says something that does not exist."""


class CheckpointError(ParityError):
    """Weights, config or tokenizer files that are absent, damaged or do not belong together."""


class EngineError(ParityError):
    """An engine that cannot be loaded or that broke while it ran."""


class MissingPackageError(CaseError, EngineError):
    """A Python package that a model or an engine needs is not installed here."""


class NotComparableError(ParityError):
    """The two sides cannot be compared in this environment."""

    exit_code = 3


class BuildError(ParityError):
    """An environment that cannot be made on this machine: no room, no tool, no right to write."""


class NoSuchRelease(BuildError):
    """A release that the package index does not have."""


class CannotInstall(BuildError):
    """A release that is there, but does not go with this Python or with what else was asked for."""


class Offline(BuildError):
    """The package index is needed and cannot be reached, or must not be."""
