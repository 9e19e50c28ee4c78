"""A KV cache whose position is its length, so that the two cannot disagree."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import ops
from .errors import CacheError
from .step import Handle, Step


class KVCache:
    """Keys and values of every layer of one sequence, or of a batch.

    The only way to a new sequence is a new cache. Whoever goes on with one says at which position;
    it must be the number of positions that the cache holds. In a batch that is padded a position
    of the cache is a column of the batch, and the cache remembers which columns hold tokens.

    Args:
        layers: Number of decoder layers.
        first: Position of the first token.
    """

    def __init__(self, layers: int, *, first: int = 0) -> None:
        self.first = first
        self._windows: list[int | None] = [None] * layers
        self._keys: list[Handle | None] = [None] * layers
        self._values: list[Handle | None] = [None] * layers
        self._lengths = [0] * layers
        self._batch = 0
        self._real: NDArray[np.bool_] | None = None

    @property
    def length(self) -> int:
        """Number of positions held, which is the position of the next token."""
        if len(set(self._lengths)) > 1:
            raise CacheError(
                "cache",
                expected="the same number of positions in every layer",
                found=f"between {min(self._lengths)} and {max(self._lengths)}",
                advice="an earlier run broke off half way: start the sequence again",
            )
        return self._lengths[0] if self._lengths else 0

    def require(self, position: int, *, batch: int) -> None:
        """Refuse a position that is not the length of the cache, or another number of sequences.

        Raises:
            CacheError: The position was restarted, or the cache belongs to another sequence.
        """
        if position != self.length:
            raise CacheError(
                "position",
                expected=f"{self.length}, the number of positions that the cache holds",
                found=str(position),
                advice="count every token fed so far, or begin a new sequence with a new cache",
            )
        if self.length and batch != self._batch:
            raise CacheError(
                "batch",
                expected=f"{self._batch}, the number of sequences that the cache holds",
                found=str(batch),
                advice="feed every sequence of the batch, or begin new ones with a new cache",
            )
        self._batch = batch

    def note(self, real: NDArray[np.bool_] | None, *, length: int) -> NDArray[np.bool_] | None:
        """Remember which new columns hold tokens.

        Args:
            real: [B, T], None for all.
            length: T.

        Returns:
            [B, N] of all columns, the new ones included; None where all hold tokens.
        """
        if self._real is None and (real is None or real.all()):
            return None
        before = np.ones((self._batch, self.length), dtype=bool)
        new = np.ones((self._batch, length), dtype=bool) if real is None else real
        self._real = np.concatenate([before if self._real is None else self._real, new], axis=1)
        return self._real

    def extend(
        self,
        step: Step,
        at: str,
        layer: int,
        k: Handle,
        v: Handle,
        *,
        length: int,
        window: int | None = None,
    ) -> tuple[Handle, Handle]:
        """Append one layer's keys and values and return all that the new queries may read.

        Args:
            step: Makes the intermediates ``{at}.keys`` and ``{at}.values``.
            at: Tap prefix of the attention.
            layer: Index of the layer.
            k: [B, K, T, D], rotated.
            v: [B, K, T, D].
            length: T.
            window: Size of the sliding window: with one, keys that no query of this chunk can
                read are dropped.
        """
        keep = None if window is None else window - 1 + length
        keys = step(f"{at}.keys", ops.extend, self._keys[layer], k, keep=keep)
        values = step(f"{at}.values", ops.extend, self._values[layer], v, keep=keep)
        self._keys[layer], self._values[layer] = keys, values
        self._lengths[layer] += length
        self._windows[layer] = window
        return keys, values

    def crop(self, length: int) -> None:
        """Forget all positions behind the first ``length``; for handles that are arrays.

        Args:
            length: From 1 to what the cache holds.

        Raises:
            CacheError: There are not so many, or a window has dropped keys that the next token
                would read.
        """
        if not 1 <= length <= self.length:
            raise CacheError(
                "crop",
                expected=f"a length of 1 to {self.length}, what the cache holds",
                found=str(length),
                advice="begin a new sequence with a new cache, or feed more tokens",
            )
        for layer, window in enumerate(self._windows):
            keys = self._keys[layer]
            dropped = 0 if keys is None else self._lengths[layer] - keys.shape[2]
            wanted = 0 if window is None else max(0, length - window + 1)
            if dropped > wanted:
                raise CacheError(
                    "crop",
                    expected=f"keys from position {wanted} on in layer {layer}",
                    found=f"the first {dropped} dropped, beyond its window of {window}",
                    advice="crop by less, or begin a new sequence",
                )
        for layer, held in enumerate(self._lengths):
            if held > length:
                self._cut(layer, (slice(None), slice(None), slice(length - held)))
            self._lengths[layer] = length
        if self._real is not None:
            self._real = self._real[:, :length]

    def reorder(self, rows: Sequence[int]) -> None:
        """Let row ``i`` go on from what row ``rows[i]`` was; for handles that are arrays."""
        order = np.asarray(rows)
        for layer in range(len(self._lengths)):
            self._cut(layer, order)
        if self._real is not None:
            self._real = self._real[order]
        self._batch = len(order)

    def _cut(self, layer: int, part: Any) -> None:
        """Keep a part of one layer's keys and values, by an index; nothing where it holds none."""
        for kept in (self._keys, self._values):
            array = kept[layer]
            if array is not None:
                kept[layer] = array[part]
