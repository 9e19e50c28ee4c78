"""One pass of a record as a side by itself, so that two ways of running one model are compared.

Chunks are put behind one another, and pads in front are cut away: then a prompt fed in pieces, or
behind pads, has the intermediates of the prompt in one go. What cannot be brought into that form
(states of convolutions, keys that a window has dropped) is left out; logits always can.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..digest import Digest, digest
from ..logits import PositionLogits, look
from ..records import Pass, Record, RecordedPass, RecordedTap
from ..side import Tap

Array = NDArray[Any]

#: What both sides call their only pass.
NAME = "prompt"


class AlignedSide:
    """A pass of a record, as if its tokens had come in one piece without pads.

    Args:
        record: What was recorded.
        asked: The pass.
    """

    def __init__(self, record: Record, asked: Pass) -> None:
        found = record.recorded_pass(asked.name)
        self._arrays: dict[str, Array] = {}
        self.taps: tuple[Tap, ...] = ()
        if found.failed is None:
            self.taps = self._aligned(record, asked, found)
        only = replace(found, name=NAME, taps=())
        failed = found.failed if record.facts.failed is not None else None
        self.facts = replace(record.facts, passes=(only,), failed=failed)
        self.digest: Callable[[str], Digest] = lru_cache(maxsize=None)(
            lambda key: digest(self.array(key))
        )

    def array(self, key: str) -> Array:
        """The array of a key."""
        return self._arrays[key]

    def logits(self, tap: Tap) -> tuple[PositionLogits, ...]:
        """What is known of the logits of each position."""
        return look(self.array(tap.key))

    def _aligned(self, record: Record, asked: Pass, found: RecordedPass) -> tuple[Tap, ...]:
        lengths = asked.chunks or (len(asked.token_ids[0]),)
        pads = pads_of(asked)
        by_name: dict[str, list[RecordedTap]] = {}
        for each in found.taps:
            by_name.setdefault(each.tap, []).append(each)
        kept = []
        for name, parts in by_name.items():
            if len(parts) != len(lengths):  # not in every chunk
                continue
            arrays = [record.array(part.key) for part in parts]
            whole = join(parts[0].role, arrays, lengths, pads=pads)
            if whole is not None:
                self._arrays[name] = whole
                kept.append(_tap(parts, whole))
        return tuple(kept)


def pads_of(asked: Pass) -> int:
    """Number of pads in front of the only row."""
    return asked.attention_mask[0].index(1) if asked.attention_mask else 0


def tokens_of(asked: Pass) -> Pass:
    """The same pass as an aligned side has it: without pads, under the common name."""
    ids = asked.token_ids[0][pads_of(asked) :]
    return Pass(name=NAME, token_ids=(ids,), cache=asked.cache)


def join(role: str, arrays: Sequence[Array], lengths: Sequence[int], *, pads: int) -> Array | None:
    """An intermediate of all chunks as that of one; None where its form does not allow it.

    Args:
        role: Of the intermediate.
        arrays: One of each chunk: [B, T, ...] of outputs, inputs and logits, [B, H, T, D] of
            queries and contexts, [B, K, S, D] of keys and values, [B, (H,) T, S] of the rest.
        lengths: Number of tokens of each chunk.
        pads: Number of positions that are cut away in front.
    """
    if len(arrays) == 1 and not pads:
        return arrays[0]
    ends = np.cumsum(lengths).tolist()
    if role in ("out", "in", "logits"):
        if any(a.ndim < 2 or a.shape[1] != n for a, n in zip(arrays, lengths, strict=True)):
            return None
        return np.concatenate(arrays, axis=1)[:, pads:]
    if role in ("key", "value"):
        last = arrays[-1]
        return last[..., pads:, :] if last.shape[-2] == ends[-1] else None
    if any(a.shape[-2] not in (n, 1) for a, n in zip(arrays, lengths, strict=True)):
        return None
    if role in ("query", "context"):
        return np.concatenate(arrays, axis=-2)[..., pads:, :]
    if any(a.shape[-1] != end for a, end in zip(arrays, ends, strict=True)):
        return None
    rows = [_widened(a, ends[-1]) for a in arrays]
    if any(a.shape[-2] != n for a, n in zip(rows, lengths, strict=True)):
        return None
    return np.concatenate(rows, axis=-2)[..., pads:, pads:]


def _widened(array: Array, width: int) -> Array:
    """Keys that come later are hidden: nothing (0, or false) stands for them."""
    more = [(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])]
    return np.pad(array, more)


def _tap(parts: Sequence[RecordedTap], whole: Array) -> Tap:
    first = parts[0]
    noises = [part.noise for part in parts]
    known = [noise for noise in noises if noise is not None]
    same_scale = len({part.scale for part in parts}) == 1
    return Tap(
        passed=NAME,
        chunk=0,
        name=first.tap,
        module=first.module,
        cls=first.class_name,
        role=first.role,
        shape=whole.shape,
        dtype=first.dtype,
        noise=math.hypot(*known) if len(known) == len(noises) else None,
        scale=first.scale if same_scale else None,
        key=first.tap,
    )
