"""A fact: what was measured elsewhere, how it is measured here, and when the two agree."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .bench import Bench


class Outcome(StrEnum):
    """What became of a fact here."""

    REPRODUCED = "reproduced"
    SAME_SIZE = "same size"
    DIFFERS = "differs"
    NOT_SHOWN = "not shown here"


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure, or one claim.

    Attributes:
        name: What is measured.
        seed: The figure or the claim in the seed's words.
        measure: Measures it on a bench; None where these engines cannot.
        low: Smallest value at which the fact still holds.
        high: Largest one. The two are argued from what the quantity is, where the fact is made,
            and never taken from what was measured here.
        figure: The seed's figure, None for a claim without one.
        digits: So many digits the seed gives of it.
        reason: Why the figure is not the same here, or why it cannot be shown.
    """

    name: str
    seed: str
    measure: Callable[[Bench], float] | None = None
    low: float = 0.0
    high: float = 0.0
    figure: float | None = None
    digits: int = 3
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A fact with what it came to.

    Attributes:
        value: As measured here, None where it is not.
        expected: In words: where the value has to lie.
        reason: Why it is not the seed's figure; empty where it is.
    """

    name: str
    seed: str
    value: float | None
    outcome: Outcome
    expected: str
    reason: str


def examine(fact: Fact, bench: Bench) -> Row:
    """Measure a fact and judge it."""
    if fact.measure is None:
        return Row(fact.name, fact.seed, None, Outcome.NOT_SHOWN, "-", fact.reason)
    value = fact.measure(bench)
    outcome = judge(fact, value)
    expected = f"{fact.low:.3g} to {fact.high:.3g}" if fact.low != fact.high else f"{fact.low:.3g}"
    if outcome is Outcome.DIFFERS:
        reason = f"expected {expected}, found {value:.3g}"
    else:
        reason = fact.reason if outcome is Outcome.SAME_SIZE else ""
    return Row(
        fact.name, fact.seed, value if math.isfinite(value) else None, outcome, expected, reason
    )


def judge(fact: Fact, value: float) -> Outcome:
    """Whether a value is the seed's, of its size, or another; NaN is another."""
    if not fact.low <= value <= fact.high:
        return Outcome.DIFFERS
    if fact.figure is None or _rounded(value, fact.digits) == _rounded(fact.figure, fact.digits):
        return Outcome.REPRODUCED
    return Outcome.SAME_SIZE


def _rounded(value: float, digits: int) -> str:
    return f"{value:.{digits - 1}e}"


def around(figure: float, factor: float) -> dict[str, Any]:
    """Limits a factor below and above a figure, with the figure, as arguments of a fact."""
    return {"figure": figure, "low": figure / factor, "high": figure * factor}
