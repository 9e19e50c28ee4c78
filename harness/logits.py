"""Comparison of whole logits, of any two engines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compare import kl_divergence, log_softmax
from .result import LogitsPair
from .spread import encode, stretches

Array = NDArray[Any]

#: Positions whose vocabulary rows are held in float64 at a time.
_BLOCK = 64

#: Most positions whose differences are told apart.
_MOST_POSITIONS = 1024


def pairwise(a: str, logits_a: Array, b: str, logits_b: Array) -> LogitsPair:
    """Compare two engines' logits [B, T, V] over all positions."""
    return all_pairs({a: logits_a, b: logits_b})[0]


def all_pairs(logits: Mapping[str, Array]) -> list[LogitsPair]:
    """Compare every two engines' logits, in the order of the mapping.

    Args:
        logits: [B, T, V] of each engine, of one shape.
    """
    sums = {pair: _Sums() for pair in combinations(logits, 2)}
    rows = {name: array.reshape(-1, array.shape[-1]) for name, array in logits.items()}
    count, vocab = next(iter(rows.values())).shape
    for start in range(0, count, _BLOCK):
        at = slice(start, start + _BLOCK)
        blocks = {name: _Block.of(array[at]) for name, array in rows.items()}
        for (a, b), total in sums.items():
            total.add(blocks[a], blocks[b])
    return [total.pair(a, b, count, vocab) for (a, b), total in sums.items()]


@dataclass(frozen=True, slots=True)
class _Block:
    """Some positions of one engine, with what every pair needs of them."""

    values: NDArray[np.float64]
    log_probs: NDArray[np.float64]
    probs: NDArray[np.float64]
    top: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Array) -> "_Block":
        values = rows.astype(np.float64)
        log_probs = log_softmax(values)
        return cls(values, log_probs, np.exp(log_probs), values.argmax(axis=-1))


@dataclass(slots=True)
class _Sums:
    """What is known of a pair so far."""

    largest: float = 0.0
    total: float = 0.0
    agree: int = 0
    positions: list[NDArray[np.float64]] = field(default_factory=list)
    divergence: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, x: _Block, y: _Block) -> None:
        error = np.subtract(x.values, y.values)
        np.abs(error, out=error)
        self.positions.append(error.max(axis=-1))
        self.largest = max(self.largest, float(self.positions[-1].max()))
        self.total += float(error.sum())
        self.agree += int(np.count_nonzero(x.top == y.top))
        self.divergence.append(kl_divergence(x.probs, x.log_probs, y.log_probs))

    def pair(self, a: str, b: str, count: int, vocab: int) -> LogitsPair:
        kl = np.concatenate(self.divergence)
        return LogitsPair(
            a=a,
            b=b,
            max_abs=self.largest,
            mean_abs=self.total / (count * vocab),
            kl_mean=float(kl.mean()),
            kl_max=float(kl.max()),
            top1_agreement=self.agree / count,
            positions=encode(stretches(np.concatenate(self.positions), _MOST_POSITIONS)),
        )


def most_likely(logits: Array, count: int) -> tuple[Array, Array, Array]:
    """The most likely tokens of one position.

    Args:
        logits: [V].
        count: How many, at most.

    Returns:
        Token ids, their logits and their probabilities, the most likely first.
    """
    wide = logits.astype(np.float64)
    count = min(count, wide.size)
    some = np.argpartition(-wide, count - 1)[:count]
    ids = some[np.lexsort((some, -wide[some]))]
    return ids, wide[ids], np.exp(log_softmax(wide)[ids])


def count_equal(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Number of leading tokens that two sequences share."""
    length = min(a.size, b.size)
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if differs.size else length
