"""What the page of a gate draws: bars, groups and marks, as pure functions of a result."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ..gate.result import GateResult, PassChange, PositionChange, TapChange, TapState
from . import gate_words as words
from .wording import NONE, short

#: Decades to each side of the limit at most.
_MOST_DECADES = 8


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic scale of how many times what rounding explains a difference is.

    Attributes:
        low: Exponent of ten at the left edge, below 0.
        high: At the right edge, above 0.
    """

    low: int
    high: int

    @property
    def limit(self) -> float:
        """Where 1 is, in percent."""
        return self.at(1.0)

    def at(self, ratio: float) -> float:
        """Where a ratio is, in percent; what is beyond an edge is at it."""
        if ratio <= 0:
            return 0.0
        exponent = math.log10(ratio) if math.isfinite(ratio) else self.high
        share = (exponent - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 1)


def scale_of(taps: Sequence[TapChange]) -> Scale:
    """A scale that holds all ratios and the limit."""
    found = [ratio for each in taps if (ratio := words.times(each))]
    exponents = [math.log10(ratio) for ratio in found if math.isfinite(ratio)]
    low = math.floor(min(exponents, default=-1.0))
    high = math.ceil(max(exponents, default=1.0))
    return Scale(max(min(low, -1), -_MOST_DECADES), min(max(high, 1), _MOST_DECADES))


@dataclass(frozen=True, slots=True)
class Drawn:
    """One intermediate with its bar.

    Attributes:
        cells: Name, difference, share of its size, times rounding.
        width: Of the bar, in percent; None where there is nothing to draw.
    """

    change: TapChange
    cells: tuple[str, ...]
    width: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """Intermediates of one step of one pass.

    Attributes:
        title: Pass and step.
        counts: How many of each state.
        opened: Whether it is shown without being asked for.
    """

    title: str
    counts: str
    opened: bool
    rows: tuple[Drawn, ...]


def groups(result: GateResult) -> list[Group]:
    """Intermediates that are not the same, by pass and step; the first divergence's is open."""
    scale = scale_of(result.taps)
    found: dict[tuple[str, int], list[TapChange]] = {}
    for each in result.taps:
        found.setdefault((each.passed, each.chunk), []).append(each)
    first = result.divergence.change if result.divergence else next(iter(result.taps), None)
    shown = (first.passed, first.chunk) if first else None
    return [
        Group(
            title=f"{taps[0].passed}, {words.step(taps[0])}",
            counts=", ".join(
                f"{n} {state.value}"
                for state in TapState
                if (n := sum(each.state is state for each in taps))
            ),
            opened=key == shown,
            rows=tuple(_drawn(each, scale) for each in taps),
        )
        for key, taps in found.items()
    ]


def _drawn(change: TapChange, scale: Scale) -> Drawn:
    name, _, _, _, *numbers = words.tap_cells(change)
    ratio = words.times(change)
    return Drawn(change, (name, *numbers), None if ratio is None else scale.at(ratio))


@dataclass(frozen=True, slots=True)
class Position:
    """Logits of one position.

    Attributes:
        width: Of the bar of the distance, in percent of the largest one of the pass.
        other_top: Whether the most likely token is another one.
    """

    change: PositionChange
    distance: str
    log_probability: str
    width: float
    other_top: bool


def positions(each: PassChange) -> list[Position]:
    """Logits of a pass, position by position."""
    largest = max((one.distance for one in each.logits), default=0.0)
    return [
        Position(
            change=one,
            distance=short(one.distance),
            log_probability=short(one.log_probability),
            width=round(100 * one.distance / largest, 1) if largest else 0.0,
            other_top=one.top != one.top_before,
        )
        for one in each.logits
    ]


_ENDINGS = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd"}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Greedy tokens of one row of a batch on both sides.

    Attributes:
        note: How many leading ones are the same.
        pairs: Token before, token after, and whether it is the first that differs.
    """

    note: str
    pairs: tuple[tuple[str, str, bool], ...]


def generated(each: PassChange) -> list[Tokens]:
    """Greedy tokens of a pass; empty where none were asked for."""
    found = []
    sides = zip(each.generated_before or (), each.generated or (), strict=False)
    several = len(each.generated or ()) > 1
    for i, (before, after) in enumerate(sides):
        same = words.leading(before, after)
        total = max(len(before), len(after))
        note = f"all {total} are the same" if same == total else _differ(same)
        pairs = enumerate(zip_longest(before, after))
        found.append(
            Tokens(
                f"row {i}: {note}" if several else note,
                tuple((_token(x), _token(y), at == same) for at, (x, y) in pairs),
            )
        )
    return found


def _differ(same: int) -> str:
    return f"they differ from the {same + 1}{_ENDINGS.get(same + 1, 'th')} on"


def _token(token_id: int | None) -> str:
    return NONE if token_id is None else str(token_id)
