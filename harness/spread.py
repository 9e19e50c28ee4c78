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

#: The sign of zero; those behind it are half octaves from ``2 ** LOWEST`` on. All of them print,
#: and none has to be escaped in JSON or HTML.
SIGNS = "!" + "".join(chr(c) for c in range(0x23, 0x7F) if chr(c) not in "\\<>&'`")

#: Exponent of two of the sign behind that of zero; what is smaller is taken for it.
LOWEST = -27

#: Most positions that are told apart; of longer passes, so many stretches.
MOST_POSITIONS = 64

#: About how many elements the sizes are counted of.
SAMPLES = 1 << 11

_CODES = np.frombuffer(SIGNS.encode("ascii"), dtype=np.uint8)


def encode(values: Sequence[float] | Array) -> str:
    """Sizes as signs, each the nearest half octave: within a factor of 1.19.

    Args:
        values: Non-negative numbers; NaN and infinity are taken for the largest.
    """
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.rint(2.0 * (np.log2(array) - LOWEST)) + 1.0
        steps = np.maximum(np.fmin(steps, len(SIGNS) - 1), 1.0)  # fmin: the number beside a NaN
    steps[array == 0.0] = 0.0
    return _CODES[steps.astype(np.intp)].tobytes().decode("ascii")


def decode(signs: str) -> list[float]:
    """Sizes from what :func:`encode` wrote.

    Raises:
        ValueError: A sign that it never writes.
    """
    steps = [SIGNS.index(sign) for sign in signs]
    return [2.0 ** (LOWEST + (step - 1) / 2.0) if step else 0.0 for step in steps]


def count_sizes(sample: Array) -> str:
    """How many errors of a sample are of which size, as signs of counts.

    One count for each octave from ``2 ** LOWEST`` on, the first one of what is smaller or zero;
    those behind the last error are left out.

    Args:
        sample: Non-negative numbers.
    """
    exponents = np.minimum(np.maximum(np.frexp(sample)[1] - 1 - LOWEST, 0), 80)
    exponents[sample == 0.0] = 0
    return encode(np.bincount(exponents.reshape(-1)))


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
    positions = _along(table, axes[:-1], "T")
    heads = _along(table, axes[:-1], "H" if "H" in axes else "K")
    return (
        "" if positions is None else encode(stretches(positions, MOST_POSITIONS)),
        "" if heads is None else encode(heads),
    )


def stretches(values: Array, most: int) -> Array:
    """The largest of each of at most so many stretches of one length."""
    step = math.ceil(len(values) / most)
    if step < 2:
        return values
    found: Array = np.maximum.reduceat(values, np.arange(0, len(values), step))
    return found


def _along(table: Array, letters: str, letter: str) -> Array | None:
    at = letters.find(letter)
    if at < 0:
        return None
    found: Array = table.max(axis=tuple(axis for axis in range(table.ndim) if axis != at))
    return found
