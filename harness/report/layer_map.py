"""The map of a page as it is without a script: layer by tap, one candidate on its worst prompt."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..result import Comparison, PromptResult, RunResult, TapStatus
from ..taps import chunk_name, split
from . import wording

#: Shades of the map at and below the limit; one step halves the units.
SHADES = 6


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of the map: what it shows, how it looks, what it says when pointed at."""

    text: str
    style: str
    title: str


@dataclass(frozen=True, slots=True)
class Map:
    """Layer by tap, of one candidate on one prompt; the worst of all chunks in each field."""

    candidate: str
    prompt: str
    kinds: tuple[str, ...]
    layers: tuple[tuple[int, tuple[Cell, ...]], ...]
    outside: tuple[tuple[str, Cell], ...]


def maps(result: RunResult) -> Iterator[Map]:
    """One map for each candidate: of the prompt with its first divergence, or else its worst op."""
    first = {
        c.candidate: c.first_divergence.prompt for c in result.candidates if c.first_divergence
    }
    names = dict.fromkeys(c.candidate for c in result.comparisons)
    for name in names:
        found = [(p, [c for c in p.comparisons if c.candidate == name]) for p in result.prompts]
        found = [(p, comparisons) for p, comparisons in found if comparisons]
        prompt, comparisons = max(
            found, key=lambda f: (f[0].name == first.get(name), max(map(_severity, f[1])))
        )
        yield _map(name, prompt, comparisons, result)


def _map(
    candidate: str, prompt: PromptResult, comparisons: list[Comparison], result: RunResult
) -> Map:
    by_tap: dict[str, list[Comparison]] = {}
    for comparison in sorted(comparisons, key=lambda c: c.order):
        by_tap.setdefault(comparison.tap, []).append(comparison)
    layers: dict[int, dict[str, Cell]] = {}
    kinds: dict[str, None] = {}
    outside = []
    for tap, found in by_tap.items():
        name, field = split(tap), cell(found, limit=result.unit_limit)
        if name.layer is None:
            outside.append((tap, field))
        else:
            layers.setdefault(name.layer, {})[name.kind] = field
            kinds[name.kind] = None
    empty = Cell("", "absent", "not a tap of this layer")
    rows = tuple(
        (layer, tuple(layers[layer].get(kind, empty) for kind in kinds)) for layer in sorted(layers)
    )
    return Map(candidate, prompt.name, tuple(kinds), rows, tuple(outside))


def cell(found: Iterable[Comparison], *, limit: float) -> Cell:
    """The field of one tap: the worst of its chunks."""
    worst = max(found, key=_severity)
    title = f"{worst.tap}, {chunk_name(worst.chunk, worst.prefill)}: "
    if worst.status is not TapStatus.COMPARED:
        text = {TapStatus.UNAVAILABLE: "\N{MIDDLE DOT}", TapStatus.NOT_FINITE: "nan"}
        return Cell(
            text.get(worst.status, "!"),
            "none" if worst.status is TapStatus.UNAVAILABLE else "broken",
            title + worst.status.value + (f" ({worst.note})" if worst.note else ""),
        )
    difference = worst.difference
    end = f"max abs {wording.number(difference.max_abs)} end to end" if difference else ""
    if worst.local is None:
        text_or_none = wording.short(difference.max_abs) if difference else wording.NONE
        return Cell(text_or_none, "unreplayed", f"{title}not replayed; {end}")
    return Cell(
        wording.units(worst.local.units),
        shade(worst.local.units, limit=limit),
        f"{title}{wording.units(worst.local.units)} units; {end}",
    )


def shade(units: float, *, limit: float) -> str:
    """Style of a field, on a log scale: ``u0`` to ``u5`` within the limit, ``x0`` to ``x2`` over.

    The last shade within is the upper half of what is allowed, each one before it half of that.
    """
    if math.isnan(units) or units > limit:
        steps = math.log(units / limit, 16) if math.isfinite(units) and limit > 0 else 2
        return f"x{min(int(steps), 2)}"
    steps = math.floor(math.log2(limit / units)) if units > 0 else SHADES
    return f"u{max(SHADES - 1 - steps, 0)}"


def _severity(comparison: Comparison) -> tuple[int, float]:
    rank = {TapStatus.UNAVAILABLE: 0, TapStatus.COMPARED: 1}.get(comparison.status, 3)
    if comparison.local is None:
        return (rank, comparison.difference.max_abs if comparison.difference else 0.0)
    units = comparison.local.units
    return (rank, math.inf if math.isnan(units) else units)
