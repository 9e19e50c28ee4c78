"""Rotations written out with everything that can be done otherwise, for the variants of RoPE."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .fault import Site

Array = NDArray[Any]


def frequencies_of(site: Site) -> Array:
    """The reference's frequencies [R/2], radians per position, float64."""
    return np.asarray(site.constant("frequencies"), dtype=np.float64)


def size_of(site: Site) -> int:
    """R, the number of rotated elements of a head."""
    return 2 * len(frequencies_of(site))


def angles_of(positions: Array, frequencies: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """[B, 1, T, R/2] radians, rounded to a dtype where one is given."""
    angles: Array = np.asarray(positions)[:, None, :, None] * np.asarray(frequencies, np.float64)
    return angles if dtype is None else angles.astype(dtype).astype(np.float64)


def rotate_tables(
    x: Array,
    *,
    positions: Array,
    frequencies: Array,
    attention_factor: float = 1.0,
    sign: float = -1.0,
    swap: bool = False,
    angle_dtype: np.dtype[Any] | None = None,
    table_dtype: np.dtype[Any] | None = None,
) -> Array:
    """Rotate halves, ``(a cos + sign b sin, b cos + a sin)``; what is beyond R passes.

    Args:
        x: [B, H, T, D].
        positions: [B, T].
        frequencies: [R/2].
        attention_factor: Multiplies cosine and sine.
        sign: -1 for a rotation.
        swap: Exchange cosine and sine.
        angle_dtype: Dtype that angles are rounded to.
        table_dtype: Dtype that cosines and sines are rounded to.
    """
    angles = angles_of(positions, frequencies, angle_dtype)
    cos, sin = np.cos(angles) * attention_factor, np.sin(angles) * attention_factor
    if table_dtype is not None:
        cos, sin = (t.astype(table_dtype).astype(np.float64) for t in (cos, sin))
    if swap:
        cos, sin = sin, cos
    half = len(frequencies)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos + sign * b * sin, b * cos + a * sin, rest], axis=-1)


def rotate_halves(x: Array, **constants: Any) -> Array:
    """As :func:`references.ops.rope`."""
    return rotate_tables(x, **constants)


def rotate_neighbours(
    x: Array, *, positions: Array, frequencies: Array, attention_factor: float = 1.0
) -> Array:
    """Rotate pairs of neighbours ``(2 i, 2 i + 1)``, the pairing of RoFormer, equation 34."""
    angles = angles_of(positions, frequencies)
    cos, sin = np.cos(angles) * attention_factor, np.sin(angles) * attention_factor
    size = 2 * len(frequencies)
    even, odd = x[..., 0:size:2], x[..., 1:size:2]
    rotated = x.copy()
    rotated[..., 0:size:2] = even * cos - odd * sin
    rotated[..., 1:size:2] = odd * cos + even * sin
    return rotated
