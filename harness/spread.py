"""How the errors of one tap are spread: over sizes, positions and heads, in a few bytes.

A result holds thousands of these, so that numbers are kept as signs, one for each: see
:func:`encode`.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: The sign of zero; those behind it are half octaves from :data:`LOWEST` on.
ZERO = "!"

#: Signs behind :data:`ZERO`; all print, and neither quotes nor backslashes need escapes in JSON.
SIGNS = "".join(chr(code) for code in range(0x23, 0x7F) if chr(code) not in '"\\<>&`')

#: Exponent of two of the first sign: what is smaller is taken for it.
LOWEST = -34.0

#: Most positions that are told apart; of longer passes, so many stretches.
MOST_POSITIONS = 64


def encode(values: Sequence[float] | Array) -> str:
    """Sizes as signs, each the nearest half octave: within a factor of 1.19.

    Args:
        values: Non-negative numbers; NaN and infinity are taken for the largest.
    """
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.rint(2.0 * (np.log2(array) - LOWEST))
    steps = np.where(np.isfinite(array), steps, len(SIGNS) - 1.0)
    index = np.clip(np.where(array == 0.0, -1.0, np.maximum(steps, 0.0)), -1, len(SIGNS) - 1)
    return "".join(ZERO if at < 0 else SIGNS[int(at)] for at in index)


def decode(signs: str) -> list[float]:
    """Sizes from what :func:`encode` wrote.

    Raises:
        ValueError: A sign that it never writes.
    """
    return [0.0 if s == ZERO else 2.0 ** (LOWEST + SIGNS.index(s) / 2.0) for s in signs]


def rows_of(axes: str, shape: Sequence[int], largest: Array) -> tuple[str, str]:
    """Positions and heads as signs, from the largest error of each row of the last axis.

    Args:
        axes: Axis letters of the tap.
        shape: Its shape.
        largest: [prod(shape[:-1])] largest errors.

    Returns:
        Largest errors by query position, and by query or kv head; empty where the tap has none.
    """
    if len(axes) != len(shape) or not shape:
        return "", ""
    table = largest.reshape(tuple(shape[:-1]))
    letters = axes[:-1]
    positions = _along(table, letters, "T")
    heads = _along(table, letters, "H")
    heads = _along(table, letters, "K") if heads is None else heads
    return (
        "" if positions is None else encode(_stretches(positions)),
        "" if heads is None else encode(heads),
    )


def _along(table: Array, letters: str, letter: str) -> Array | None:
    at = letters.find(letter)
    if at < 0:
        return None
    others = tuple(axis for axis in range(table.ndim) if axis != at)
    found: Array = table.max(axis=others)
    return found


def _stretches(values: Array) -> Array:
    """The largest of each of at most :data:`MOST_POSITIONS` stretches."""
    step = math.ceil(len(values) / MOST_POSITIONS)
    starts = np.arange(0, len(values), step)
    found: Array = np.maximum.reduceat(values, starts)
    return found
