"""What a fit looks at: an op, what the candidate has there, and a sample of both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..replay.bounds import unit
from ..replay.call import Call

Array = NDArray[Any]

#: About how many elements a fit looks at.
MOST = 1 << 16

#: Least number of rows that are kept before rows are made shorter.
_ROWS = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """An op of a candidate with what the candidate has there.

    Attributes:
        call: The op in float64 on the candidate's own inputs.
        found: What the candidate has, float64 or booleans, of the shape of the output.
        bound: Rounding bound in units of ``u``, of the same shape.
        op: The op.
        kind: Kind of its tap, for example ``attn.q_rope``; empty if not known.
        config: config.json as written; what it says of rotations is looked up there.
    """

    op: Any
    call: Call
    found: Array
    bound: Array
    kind: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def direct(self) -> bool:
        """Whether the candidate handed over every input."""
        return all(x is None or x.incoming is None for x in self.call.inputs)

    def size(self, at: tuple[slice, ...]) -> Array:
        """Absolute size of a rounding unit, never 0."""
        size: Array = self.bound[at].astype(np.float64)
        size *= self.call.precision.unit_roundoff
        size += self.call.precision.underflow
        return size


def see(
    op: Any, call: Call, found: Array, *, kind: str = "", config: Mapping[str, Any] | None = None
) -> Seen:
    """An op with its rounding bound, for whoever has none at hand."""
    return Seen(op, call, found, unit(op, call), kind, config or {})


def thin(shape: tuple[int, ...], *, most: int = MOST, whole: bool = False) -> tuple[slice, ...]:
    """Indices of an evenly spaced sample of a tap.

    Positions (the last axis but one) are left out first, the last one never; then heads, then
    elements of each row.

    Args:
        shape: Of the tap.
        most: About how many elements to keep.
        whole: Whether rows must stay as they are.
    """
    steps = [1] * len(shape)
    size = int(np.prod(shape))
    axes = [len(shape) - 2] if len(shape) > 1 else []
    axes += [] if whole else [len(shape) - 1]
    for axis in axes:
        if size > most:
            rows = shape[axis] if axis == len(shape) - 1 else max(1, shape[axis] // _ROWS)
            steps[axis] = min(-(-size // most), rows)
            size = size // steps[axis]
    return tuple(slice((n - 1) % step, None, step) for n, step in zip(shape, steps, strict=True))


def rows(x: Array) -> Array:
    """An array as rows: [..., N] to [G, N]."""
    return x.reshape(-1, x.shape[-1])
