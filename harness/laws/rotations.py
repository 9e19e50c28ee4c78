"""What an engine rotated, taken from its taps: heads as complex numbers, one a pair."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engines.protocol import Array
from ..engines.ways import Way
from ..errors import EngineError
from .candidate import Candidate, Rows
from .rope_formulas import Turning, rotated, turning

Floats = NDArray[np.float64]
Complex = NDArray[np.complex128]

#: What laws of rotations read.
TAPS = ("attn.q", "attn.k", "attn.q_rope", "attn.k_rope")

#: Roundings of a rotated element besides those of its angle, in parts of the length of its pair
#: and units: cosine and sine may be off by one in the last place, which is two, and are rounded
#: again with the factor; two products and their sum are rounded. Together 2 + 1 + 1 + 1, and what
#: is the same for both elements of a pair counts up to sqrt(2) times.
ROUNDINGS = 8


@dataclass(frozen=True, slots=True)
class Rotation:
    """Queries or keys of a layer, before they are rotated and after.

    Attributes:
        name: Of the tap after it.
        layer: Index of the layer.
        before: [B, H, T, D].
        after: [B, H, T, D].
        size: Number of rotated elements of a head, R.
        turning: How pairs turn by the config.
        positions: [T].
    """

    name: str
    layer: int
    before: Array
    after: Array
    size: int
    turning: Turning
    positions: Floats

    @property
    def pairs_before(self) -> Complex:
        """[B, H, T, R/2]."""
        return pairs(self.before[..., : self.size])

    @property
    def pairs_after(self) -> Complex:
        """[B, H, T, R/2]."""
        return pairs(self.after[..., : self.size])


def neighbours(size: int) -> list[int]:
    """Where in a head of two halves the elements of a head of neighbouring pairs stand."""
    return [number for pair in range(size // 2) for number in (pair, pair + size // 2)]


def pairs(x: Array) -> Complex:
    """A head of two halves [..., R] as complex numbers [..., R/2]: of neighbours, permuted."""
    permuted = np.asarray(x, dtype=np.float64)[..., neighbours(x.shape[-1])]
    made: Complex = permuted[..., 0::2] + 1j * permuted[..., 1::2]
    return made


def parts(x: Complex) -> Floats:
    """Real and imaginary parts [2, ...]."""
    return np.stack([x.real, x.imag])


def rotations(candidate: Candidate, rows: Rows, *, first: int = 0) -> list[Rotation]:
    """All that an engine rotates in one forward pass.

    Args:
        candidate: The engine.
        rows: Token ids.
        first: Position of the first token.

    Raises:
        EngineError: A tap is not there.
    """
    sizes, length = candidate.sizes, len(rows[0])
    inputs = ("attn.q_norm", "attn.k_norm") if sizes.normalised else ("attn.q", "attn.k")
    way: dict[str, Any] = {"way": Way(first=first)} if first else {}
    taken = candidate.taps(rows, *inputs, "attn.q_rope", "attn.k_rope", **way)
    found = []
    for layer in range(sizes.layers):
        turns = turning(sizes, layer, first + length)
        for kind, after in zip(inputs, ("attn.q_rope", "attn.k_rope"), strict=True):
            names = [f"layers.{layer}.{tap}" for tap in (kind, after)]
            missing = [name for name in names if name not in taken]
            if missing:
                raise _missing(candidate, missing[0])
            before, turned = (taken[name] for name in names)
            positions = np.arange(first, first + length, dtype=np.float64)
            size = rotated(sizes, layer)
            found.append(Rotation(names[1], layer, before, turned, size, turns, positions))
    return found


def _missing(candidate: Candidate, tap: str) -> EngineError:
    return EngineError(
        f"engine {candidate.engine.name}",
        expected=f"tap {tap}",
        found="none of that name",
        advice="hand it over, or say in `unavailable` that attn.q_rope cannot be had",
    )
