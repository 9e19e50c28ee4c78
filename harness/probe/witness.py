"""One forward pass of the float64 reference over a probe, with small mistakes tried at each op."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import UNIT_LIMIT
from ..references_seam import model as models
from ..references_seam import ops
from ..references_seam import step as seam
from ..replay.bounds import unit
from ..replay.call import Call, Operand
from ..replay.precision import Precision, precision
from ..taps import split
from .mistakes import LINEAR, MISTAKES, At, Mistake
from .traits import Traits

Array = NDArray[Any]


#: Rounding units that a healthy op may add to a mistake, or take from it.
MARGIN = 3.0


@dataclass(frozen=True, slots=True)
class Moved:
    """How far a mistake moves one tap.

    Attributes:
        tap: The tap.
        units: Largest move in rounding units.
        row: Row of the batch where that is.
    """

    tap: str
    units: float
    row: int


@dataclass(slots=True)
class Testimony:
    """What a pass over a probe says.

    Attributes:
        moved: What each mistake moves, by topic, in data-flow order.
        mean_squares: Smallest mean square that each norm is fed, and its epsilon, by tap.
        unchosen: Number of experts that no token goes to, by tap; and of how many.
    """

    moved: dict[str, list[Moved]] = field(default_factory=lambda: defaultdict(list))
    mean_squares: dict[str, tuple[float, float]] = field(default_factory=dict)
    unchosen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def shows(self, topic: str) -> list[Moved]:
        """Taps that a mistake surely moves beyond the limit of replay, the furthest first."""
        over = [m for m in self.moved.get(topic, []) if m.units > UNIT_LIMIT + MARGIN]
        return sorted(over, key=lambda m: -m.units)

    def hides(self, topic: str) -> list[Moved]:
        """Taps that it moves by less, the furthest first."""
        under = [m for m in self.moved.get(topic, []) if not m.units > UNIT_LIMIT + MARGIN]
        return sorted(under, key=lambda m: -m.units)


def bear_witness(
    model: models.Model, traits: Traits, token_ids: NDArray[np.int64], *, dtype: str
) -> Testimony:
    """Try the mistakes on healthy values.

    Args:
        model: The reference.
        traits: The same, looked through.
        token_ids: [B, T] of a probe.
        dtype: Of the candidates: what rounding is measured by.
    """
    witness = _Witness(traits, precision(dtype))
    model.prefill(witness, token_ids)
    return witness.testimony


class _Witness:
    """A step that computes in float64 and tries the mistakes of each op."""

    def __init__(self, traits: Traits, rounding: Precision) -> None:
        self.testimony = Testimony()
        self._traits = traits
        self._rounding = rounding

    def __call__(
        self, tap: str | None, op: seam.Op, *inputs: seam.Handle, **constants: Any
    ) -> Array:
        kind = split(tap or "").kind
        if op in LINEAR and not kind.startswith("logits"):
            return self._multiply(tap, op, inputs, constants)
        arrays = tuple(_lift(x, np.float64) for x in inputs)
        result: Array = op(*arrays, **constants)
        if tap is not None:
            at = At(kind, op, arrays, constants, result, self._traits)
            self._note(tap, at)
            for mistake in MISTAKES:
                if op in mistake.ops:
                    self._try(tap, at, mistake)
        return result

    def _multiply(
        self, tap: str | None, op: seam.Op, inputs: tuple[seam.Handle, ...], constants: Any
    ) -> Array:
        """A product with a weight, in float32: what the mistakes do to its bias is exact enough.

        The products take nearly all of the time, and here only the size of what comes out matters.
        """
        arrays = tuple(_lift(x, np.float32) for x in inputs)
        result: Array = op(*arrays, **constants).astype(np.float64)
        if tap is not None and len(arrays) > 2 and arrays[2] is not None:
            wide = tuple(None if x is None else x.astype(np.float64) for x in arrays)
            at = At(split(tap).kind, op, wide, constants, result, self._traits)
            for mistake in MISTAKES:
                if op in mistake.ops:
                    self._try(tap, at, mistake)
        return result

    def _note(self, tap: str, at: At) -> None:
        if "eps" in at.constants:
            x = at.input(0)
            if at.op is ops.layer_norm:
                x = x - np.mean(x, axis=-1, keepdims=True)
            least = float(np.min(np.mean(x**2, axis=-1)))
            self.testimony.mean_squares[tap] = least, at.constants["eps"]
        if at.op is ops.top_experts:
            chosen = at.result.reshape(-1, at.result.shape[-1]).any(axis=0)
            self.testimony.unchosen[tap] = int(np.count_nonzero(~chosen)), chosen.size

    @np.errstate(all="ignore")  # a mistake may compute what is not finite
    def _try(self, tap: str, at: At, mistake: Mistake) -> None:
        made = mistake.make(at)
        if made is None:
            return
        if at.result.dtype == bool:
            wrong = made != at.result
            units = np.where(wrong, np.inf, 0.0)
        else:
            error = np.abs(made - at.result)
            units = np.where(error == 0, 0.0, error / self._unit(at))
            units = np.where(np.isnan(units), np.inf, units)
        flat = int(np.argmax(units))
        row = int(np.unravel_index(flat, units.shape)[0])
        self.testimony.moved[mistake.topic].append(Moved(tap, float(units.flat[flat]), row))

    def _unit(self, at: At) -> Array:
        """Absolute size of one rounding unit of the healthy op."""
        operands = tuple(None if x is None else Operand(x) for x in at.inputs)
        call = Call(Operand(at.result), operands, dict(at.constants), self._rounding)
        bound: Array = unit(at.op, call).astype(np.float64)
        return bound * self._rounding.unit_roundoff + self._rounding.underflow


def _lift(value: seam.Handle, dtype: Any) -> Any:
    """A parameter or an array in a dtype; integers, booleans and None as they are."""
    array = value.array if isinstance(value, seam.Weight) else value
    if array is None or np.asarray(array).dtype.kind in "iub":
        return array
    return np.asarray(array).astype(dtype, copy=False)


def rows_of(labels: tuple[str, ...], row: int) -> str:
    """What a row is, for sentences."""
    return labels[row] if row < len(labels) else f"row {row}"
