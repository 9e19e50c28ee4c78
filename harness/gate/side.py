"""One side of a comparison: what ran, what it said of itself, and its intermediates.

A record (:mod:`harness.gate.records`) has every array; a baseline has a digest of each. Whatever
compares two sides sees only this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from .digest import Digest

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tap:
    """One intermediate.

    Attributes:
        passed: Name of the pass.
        chunk: Index of the forward pass within it.
        name: Its name, ``PATH``, ``PATH.in`` or ``PATH:ROLE``.
        module: Path of the module.
        cls: Class of the module.
        role: ``out``, ``in``, ``query``, ``key``, ``value``, ``mask``, ``bias``, ``scores``,
            ``probs``, ``context`` or ``logits``.
        shape: Its shape.
        dtype: Its dtype.
        noise: L2 norm of what it is away from a run in float64; None where there is no such run.
        key: Names its array or digest; several intermediates with the same bytes share one.
    """

    passed: str
    chunk: int
    name: str
    module: str
    cls: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    noise: float | None
    key: str


class Arrays(Protocol):
    """What is kept of the intermediates of one side."""

    def digest(self, key: str) -> Digest:
        """Hash, summary and sketch of an array."""
        ...

    def array(self, key: str) -> Array | None:
        """The array; None where only its digest was kept."""
        ...


class Side(Arrays, Protocol):
    """One side of a comparison."""

    @property
    def taps(self) -> Sequence[Tap]:
        """All intermediates of all passes, in order."""
        ...
