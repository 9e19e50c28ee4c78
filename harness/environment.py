"""What could make a second run come out otherwise: versions, threads, platform, clock."""

import datetime
import os
import platform
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata

from threadpoolctl import ThreadpoolController

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
            versions=versions(),
            threads=threads,
            seed=seed,
            platform=f"{platform.platform()}, Python {platform.python_version()}",
            started=self.started,
            seconds=round(time.monotonic() - self.origin, 3),
            command=command,
        )


@contextmanager
def side_by_side(threads: int | None) -> Iterator[Executor]:
    """Threads for lanes, each of which multiplies on one thread: more would only spin.

    Args:
        threads: At most so many, None for as many as there are cores.
    """
    blas = ThreadpoolController().select(internal_api="openblas")
    with blas.limit(limits=1), ThreadPoolExecutor(threads or os.cpu_count() or 1) as executor:
        yield executor


def versions() -> dict[str, str]:
    """Versions of the packages that numbers may depend on."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
