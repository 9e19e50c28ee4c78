"""Token ids for probes, chosen by what their rows of the embedding are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Rows of the table that are looked at in one go.
_BLOCK = 4096

#: The golden ratio: multiples of it, modulo 1, are spread evenly however many are taken.
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids by what they are good for.

    Attributes:
        size: V.
        special: Ids that are no text, by name.
        by_size: All ids whose row is not 0, from the smallest norm to the largest.
        mean_squares: [V] mean square of each row of the embedding.
    """

    size: int
    special: Mapping[str, int]
    by_size: NDArray[np.intp]
    mean_squares: NDArray[np.float64]

    def ordinary(self, count: int, *, skip: int = 0) -> tuple[int, ...]:
        """Ids spread over the vocabulary, none of them special as far as there are others."""
        banned = set(self.special.values())
        usable = [i for i in range(min(self.size, 64)) if i not in banned] or [0]
        found = []
        for n in range(skip, skip + count):
            token = int(self.size * ((n + 1) * _GOLDEN % 1.0))
            found.append(usable[n % len(usable)] if token in banned else token)
        return tuple(found)

    def smallest(self, count: int) -> tuple[int, ...]:
        """Ids whose rows have the smallest norms that are not 0, the smallest first."""
        return _cycled(self.by_size[:count].tolist(), count)

    def largest(self, count: int) -> tuple[int, ...]:
        """Ids whose rows have the largest norms, the largest first."""
        return _cycled(self.by_size[::-1][:count].tolist(), count)

    def edges(self, count: int) -> tuple[int, ...]:
        """First and last ids, special ones, then ordinary ones."""
        ends = [0, self.size - 1, 1, self.size - 2, 2, self.size - 3]
        wanted = [i for i in (*ends, *self.special.values()) if 0 <= i < self.size]
        chosen = list(dict.fromkeys(wanted))[:count]
        return (*chosen, *self.ordinary(count - len(chosen)))


def _cycled(ids: list[int], count: int) -> tuple[int, ...]:
    return tuple((ids * (count // len(ids) + 1))[:count]) if ids else (0,) * count


def read_vocabulary(table: NDArray[Any], special: Mapping[str, int]) -> Vocabulary:
    """Look through an embedding [V, C], in blocks."""
    squares = np.empty(table.shape[0], dtype=np.float64)
    for start in range(0, table.shape[0], _BLOCK):
        rows = np.asarray(table[start : start + _BLOCK]).astype(np.float64)
        squares[start : start + _BLOCK] = np.mean(rows**2, axis=1)
    order = np.argsort(squares, kind="stable")
    return Vocabulary(table.shape[0], special, order[squares[order] > 0], squares)
