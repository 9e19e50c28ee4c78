"""One side of a comparison: what ran, what it said of itself, and its intermediates.

A record (:mod:`harness.gate.records`) has every array; a baseline has a digest of each. Whatever
compares two sides sees only this.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

from numpy.typing import NDArray

from .digest import Digest, digest
from .logits import PositionLogits, look
from .records import Facts, Record

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
        scale: Of queries, what their products with the keys are multiplied with; None if unknown.
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
    scale: float | None
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
    def facts(self) -> Facts:
        """What ran, and what it said of itself."""
        ...

    @property
    def taps(self) -> Sequence[Tap]:
        """All intermediates of all passes, in order."""
        ...

    def logits(self, tap: Tap) -> tuple[PositionLogits, ...]:
        """What is known of the logits of each position of a chunk."""
        ...


class RecordSide:
    """A side that ran here or in another environment, with every array.

    Args:
        record: What was recorded.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self.facts = record.facts
        self.taps = taps_of(record.facts)
        self.digest = lru_cache(maxsize=None)(lambda key: digest(self.array(key)))

    def array(self, key: str) -> Array:
        """The array of a key."""
        return self._record.array(key)

    def logits(self, tap: Tap) -> tuple[PositionLogits, ...]:
        """What is known of the logits of each position of a chunk."""
        return look(self.array(tap.key))


def taps_of(facts: Facts) -> tuple[Tap, ...]:
    """All intermediates of all passes, in order."""
    return tuple(
        Tap(
            passed=each.name,
            chunk=tap.chunk,
            name=tap.tap,
            module=tap.module,
            cls=tap.class_name,
            role=tap.role,
            shape=tap.shape,
            dtype=tap.dtype,
            noise=tap.noise,
            scale=tap.scale,
            key=tap.key,
        )
        for each in facts.passes
        for tap in each.taps
    )


def without_taps(facts: Facts) -> Facts:
    """The same without intermediates."""
    return replace(facts, passes=tuple(replace(each, taps=()) for each in facts.passes))
