"""What could make a second run come out otherwise: versions, threads, platform, clock."""

import datetime
import platform
import time
from dataclasses import dataclass, field
from importlib import metadata

from .result import Environment

_PACKAGES = ("logits-parity", "torch", "transformers", "tokenizers", "safetensors", "numpy", "gguf")


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """A run's beginning.

    Attributes:
        started: UTC time, ISO 8601.
        origin: Reading of the monotonic clock, in seconds.
    """

    started: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    origin: float = field(default_factory=time.monotonic)

    def environment(self, *, threads: int, seed: int | None, command: str) -> Environment:
        """Describe the environment of the run that ends now.

        Args:
            threads: Number of threads that the engines could use.
            seed: Seed of the case.
            command: What the user typed to run it, empty if it was no command.
        """
        return Environment(
            versions=_versions(),
            threads=threads,
            seed=seed,
            platform=f"{platform.platform()}, Python {platform.python_version()}",
            started=self.started,
            seconds=round(time.monotonic() - self.origin, 3),
            command=command,
        )


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
