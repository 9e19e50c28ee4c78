"""What the reference refuses, and why."""


class RefusedError(ValueError):
    """Base of everything that the reference refuses.

    Args:
        where: The config key, input or cache that it is about.
        expected: What should have been there.
        found: What was there instead.
        advice: What to do next.
    """

    def __init__(self, where: str, *, expected: str, found: str, advice: str) -> None:
        super().__init__(f"{where}: expected {expected}, found {found}: {advice}")
        self.where = where
        self.expected = expected
        self.found = found
        self.advice = advice


class ConfigError(RefusedError):
    """A config that the reference cannot follow to the letter."""


class InputError(RefusedError):
    """Token ids that the model has no row for, or of the wrong shape."""


class CacheError(RefusedError):
    """A cache whose length and the given position disagree, or one left half extended."""
