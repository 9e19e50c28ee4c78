"""What is kept of one array where the array itself is not: hash, summary, sketch."""

import base64
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sketch import Floats, sketch

Array = NDArray[Any]

_HASH_BYTES = 12


@dataclass(frozen=True, slots=True)
class Digest:
    """What is known of an array.

    Attributes:
        hash: Of dtype, shape and bytes: equal for equal arrays, and (with 96 bits) for no others.
        norm: L2 norm of what is finite.
        largest: Largest absolute value of what is finite.
        not_finite: Number of NaN and infinities.
        sketch: See :mod:`harness.gate.sketch`.
    """

    hash: str
    norm: float
    largest: float
    not_finite: int
    sketch: Floats


def digest(array: Array) -> Digest:
    """Look at an array of any shape and dtype."""
    values = np.ascontiguousarray(array)
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    kept = numbers if finite.all() else np.where(finite, numbers, 0.0)
    return Digest(
        hash=hash_of(values),
        norm=float(np.linalg.norm(kept)),
        largest=float(np.max(np.abs(kept), initial=0.0)),
        not_finite=int(finite.size - np.count_nonzero(finite)),
        sketch=sketch(kept),
    )


def hash_of(array: Array) -> str:
    """16 letters and digits that tell arrays apart, bit by bit: -0.0 is not 0.0."""
    values = np.ascontiguousarray(array)
    found = hashlib.sha256(f"{values.dtype.name}{values.shape}".encode())
    found.update(values.view(np.uint8).data if values.size else b"")
    return base64.urlsafe_b64encode(found.digest()[:_HASH_BYTES]).decode()


def pack(numbers: Floats) -> str:
    """A sketch as text: float32, little-endian, in base64; what is larger is its largest."""
    largest = float(np.finfo(np.float32).max)
    return base64.b64encode(numbers.clip(-largest, largest).astype("<f4").tobytes()).decode()


def unpack(text: str) -> Floats:
    """The inverse of :func:`pack`.

    Raises:
        ValueError: The text is not base64 of whole float32 numbers.
    """
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float64)
