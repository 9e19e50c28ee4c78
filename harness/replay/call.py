"""One evaluation of an op as its rounding bound sees it, and the sums that bounds are made of."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .precision import Precision

Array = NDArray[Any]


class Operand:
    """An input or output of an op in one lane.

    Args:
        value: Float64 array, or booleans or integers.
        incoming: Bound in units of ``u`` that it carries, None for what the candidate handed over.
        stored: The same numbers in a narrower dtype, which is faster to square.
        name: Name in the checkpoint of what is a parameter, empty otherwise.
        made: How it was made, for what no candidate handed over.
    """

    __slots__ = (
        *("_lock", "_magnitude", "_square", "_stored"),
        *("incoming", "made", "name", "value"),
    )

    def __init__(
        self,
        value: Array,
        incoming: Array | None = None,
        *,
        stored: Array | None = None,
        name: str = "",
        made: "Made | None" = None,
    ) -> None:
        self.value = value
        self.incoming = incoming
        self.name = name
        self.made = made
        self._stored = value if stored is None else stored
        self._magnitude: Array | None = None
        self._square: Array | None = None
        self._lock = threading.RLock()  # lanes that run side by side share parameters

    @property
    def magnitude(self) -> Array:
        """Absolute value in float32, which is exact enough for a bound."""
        with self._lock:
            if self._magnitude is None:
                narrow = self._stored.astype(np.float32, copy=False)
                own = narrow is not self._stored
                self._magnitude = np.abs(narrow, out=narrow if own else None)
            return self._magnitude

    @property
    def square(self) -> Array:
        """Square in float32."""
        with self._lock:
            if self._square is None:
                narrow = self._stored.astype(np.float32, copy=False)
                own = narrow is not self._stored
                self._square = np.square(narrow, out=narrow if own else None)
            return self._square

    def forget(self) -> None:
        """Drop what is only derived from the value, and made again where it is asked for."""
        with self._lock:
            self._magnitude = self._square = None

    @property
    def slack(self) -> Array | float:
        """The incoming bound, 0 where there is none."""
        return 0.0 if self.incoming is None else self.incoming


@dataclass(frozen=True, slots=True)
class Call:
    """One evaluation of an op, seen by its bound.

    Attributes:
        output: The float64 result.
        inputs: Operands, None where the op was given None.
        constants: Keyword arguments of the op.
        precision: Of the candidate.
    """

    output: Operand
    inputs: tuple[Operand | None, ...]
    constants: dict[str, Any]
    precision: Precision

    def input(self, index: int) -> Operand:
        """An input that is there."""
        operand = self.inputs[index]
        if operand is None:
            raise TypeError(f"input {index} is None")
        return operand


@dataclass(frozen=True, slots=True)
class Made:
    """An op that ran between two values that the candidate handed over.

    Attributes:
        tap: Name of the intermediate, None for one that nobody compares.
        op: The op.
        call: Its evaluation.
        era: Chunk and layer in which it ran.
    """

    tap: str | None
    op: Callable[..., Any]
    call: Call
    era: tuple[int, int | None] = (0, None)


def summation(call: Call, squares: Array, terms: Array | int) -> Array:
    """Rounding of a sum of ``terms`` products whose squares sum to ``squares``.

    Each addition rounds the partial sum ``s_k``, and the roundings add up like a random walk, to
    about ``u * sqrt(sum(s_k**2))`` (Higham and Mary 2019, A New Approach to Probabilistic Rounding
    Error Analysis). For terms in random order the expected square of ``s_k`` runs from that of a
    bridge, ``k/n (1 - k/n) squares``, to ``(k/n)**2 output**2``: summed over k that is
    ``n (squares / 6 + output**2 / 3)``. A rounding has a standard deviation of about 0.4 u, so
    twice the walk is about five of them. The product of absolute values, which is the worst case
    without the factor n, is too small where one product outweighs the rest, as in the
    residual streams of real models, and no larger elsewhere. Narrow dtypes are summed in float32
    and rounded once.
    """
    output = call.output
    count = np.asarray(terms, dtype=np.float32) * np.float32(4 * call.precision.float32_ratio**2)
    magnitude = output.magnitude
    walk: Array = np.empty(magnitude.shape, dtype=np.float32)
    rows = magnitude.reshape(-1, magnitude.shape[-1])
    sums, out = squares.reshape(rows.shape), walk.reshape(rows.shape)
    counts = count if count.ndim == 0 else count.reshape(-1, 1)
    several = max(1, _BLOCK // max(1, rows.shape[1]))
    for start in range(0, rows.shape[0], several):  # blocks that stay in a cache
        at = slice(start, start + several)
        block = np.square(rows[at], out=out[at])
        block *= np.float32(1 / 3)
        block += sums[at] * np.float32(1 / 6)
        block *= counts if counts.ndim == 0 else counts[at]
        np.sqrt(block, out=block)
        block += rows[at]
    return walk


#: Elements of a block: 128 KiB of float32.
_BLOCK = 1 << 15


def positive_sum(call: Call, terms: int) -> float:
    """Relative rounding of a mean of positive terms, on the scale of the final result.

    A random walk over partial sums that grow evenly gives ``sqrt(n / 3)``; libraries keep at least
    16 partial sums apart, which divides it by 4.
    """
    return call.precision.float32_ratio * float(np.sqrt(terms)) / 8
