"""Batches of rows of unequal length: which columns hold tokens, and at which positions.

A batch is one array [B, T], so shorter rows are filled up with a pad token, on the left or on the
right. A column is a place in that array. The position of a token is the number of tokens before it
in its row: pads do not count. What an engine computes at a pad means nothing, and nobody reads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CaseError
from .taps import axes_of, split

SIDES = ("left", "right")

Booleans = NDArray[np.bool_]

#: Taps that say whether a key is seen, and so must be right of keys that are pads, too.
_OF_SIGHT = ("attn.mask", "attn.probs")


@dataclass(frozen=True, slots=True)
class Padding:
    """Where the pads of a prompt are. All tokens that follow the prompt are real.

    Attributes:
        side: ``left`` or ``right``.
        counts: Number of pads of each row, 0 for the longest.
        length: Number of columns of the prompt, pads included.
    """

    side: str
    counts: tuple[int, ...]
    length: int

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise CaseError(
                "padding",
                expected="left or right",
                found=repr(self.side),
                advice='write padding = "left", as engines that decode do',
            )
        if not self.counts or min(self.counts) != 0 or max(self.counts) >= self.length:
            raise CaseError(
                "padding",
                expected=f"0 to {self.length - 1} pads a row, and none in the longest",
                found=str(list(self.counts)),
                advice="pad to the longest row, and give each row a token",
            )

    def real(self, start: int, stop: int) -> Booleans:
        """Which of the columns ``start`` to ``stop - 1`` hold a token: [B, stop - start]."""
        columns, pads = np.arange(start, stop), np.asarray(self.counts)[:, None]
        if self.side == "left":
            return columns >= pads
        return (columns < self.length - pads) | (columns >= self.length)

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """Positions of these columns: [B, stop - start]; a pad has that of the token before it.

        Pads before the first token have position 0.
        """
        before: NDArray[np.int64] = np.cumsum(self.real(0, stop), axis=1) - 1
        return np.maximum(before, 0, out=before)[:, start:]

    @property
    def last(self) -> NDArray[np.int64]:
        """Column of each row's last token of the prompt: [B]."""
        pads = np.asarray(self.counts, dtype=np.int64)
        return self.length - 1 - (0 if self.side == "left" else 1) * pads

    def chunk(self, start: int, stop: int) -> "RealColumns":
        """What of one forward pass, over these columns, is real."""
        return RealColumns(self.real(start, stop), self.real(0, stop), self._shift(start, stop))

    def _shift(self, start: int, stop: int) -> NDArray[np.int64]:
        first = np.argmax(self.real(start, stop), axis=1)
        at = self.positions(start, stop)[np.arange(len(first)), first]
        shift: NDArray[np.int64] = at - first
        return shift


@dataclass(frozen=True, slots=True)
class RealColumns:
    """What of one forward pass is no padding, and so may be compared.

    Attributes:
        queries: [B, T], true where a column of this pass holds a token.
        columns: [B, N] the same of all columns so far, this pass included.
        start: [B] what is to be added to an index of a query to have its position.
    """

    queries: Booleans
    columns: Booleans
    start: NDArray[np.int64]

    def of(self, tap: str, shape: tuple[int, ...]) -> Booleans | None:
        """Which elements of a tap mean something; broadcasts to its shape.

        Those of queries that are tokens and, where the tap holds something of keys, of keys that
        are. Whether a key is seen means something also where the key is a pad.

        Args:
            tap: Name of the tap.
            shape: Its shape; layers with a window have fewer keys, the last ones.

        Returns:
            Booleans, None where all elements count.
        """
        axes = axes_of(tap)
        if "B" not in axes or len(axes) != len(shape):
            return None
        parts = [self.queries] if "T" in axes else []
        letters = ["BT"] if "T" in axes else []
        if "S" in axes and split(tap).kind not in _OF_SIGHT:
            parts.append(self.columns[:, self.columns.shape[1] - shape[axes.index("S")] :])
            letters.append("BS")
        if not parts:
            return None
        counted = np.ones(shape, dtype=bool)
        for mask, own in zip(parts, letters, strict=True):
            counted &= _along(mask, axes, own)
        return counted


def _along(mask: Booleans, axes: str, own: str) -> Booleans:
    """A mask over two axes in the place of these axes among all those of a tap."""
    sizes = dict(zip(own, mask.shape, strict=True))
    return mask.reshape([sizes.get(axis, 1) for axis in axes])


def padding_of(
    rows: Sequence[Sequence[int]] | None, side: str | None, *, cut: int | None = None
) -> Padding | None:
    """The padding that rows need to be one array, None where they are of one length.

    Args:
        rows: Token ids, None for a text, which is one row.
        side: The side to pad on, None for none.
        cut: Length to which rows are cut first.
    """
    lengths = [len(row[:cut]) for row in rows or ()]
    if side is None or len(set(lengths)) < 2:
        return None
    longest = max(lengths)
    return Padding(side, tuple(longest - length for length in lengths), longest)


def pad_rows(
    rows: Sequence[Sequence[int]], padding: Padding | None, token: int
) -> NDArray[np.int64]:
    """Rows as one array [B, T], filled up with a token where padding says so."""
    if padding is None:
        return np.array(rows, dtype=np.int64)
    table: NDArray[Any] = np.full((len(rows), padding.length), token, dtype=np.int64)
    table[padding.real(0, padding.length)] = np.concatenate([np.array(row) for row in rows])
    return table
