"""The data blocks of the page: what its script draws from, column by column.

A result of a large run holds tens of thousands of comparisons. As rows of JSON they would be tens
of megabytes; as columns, with names written once and numbers in as many digits as are shown, and
compressed, they are a few. The script unpacks them with ``DecompressionStream``: the main block, of
which the map is drawn, when the page opens, and what a field says beyond that, a block for each
prompt, when somebody opens one.

Everything that is text passes :func:`harness.report.wording.visible` here, and blocks are base64:
nothing in one can end the element that holds it.
"""

import base64
import gzip
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..result import (
    REFERENCE,
    Comparison,
    Difference,
    Element,
    LocalError,
    LogitsPair,
    PairDifference,
    PromptResult,
    RunResult,
    Spread,
)
from ..spread import LOWEST, MOST_POSITIONS, SIGNS
from ..taps import AXES, chunk_name
from . import wording
from .side_by_side import errors_by_token, shading_pair

FORMAT = "logits-parity/page"
VERSION = 2

#: Most bytes of all blocks; of the healthiest taps, the spread is then left out.
MOST_BYTES = 4_500_000

#: About how many bytes a comparison takes in the blocks without its spreads.
_COLUMNS = 30

#: Most forward passes that get a name; a result read from a file may say any number.
_MOST_PASSES = 4096

#: Unit roundoff of the dtypes that candidates compute in.
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}


class Names:
    """Texts that columns name by their number; each is written once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    def texts(self) -> list[str]:
        """All texts by number, made visible."""
        return [wording.visible(text) for text in self._numbers]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The data of a result, each block base64 of gzip of JSON.

    Attributes:
        main: What the page opens with.
        details: What fields say beyond that, a block a prompt.
    """

    main: str
    details: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of all blocks."""
        return len(self.main) + sum(map(len, self.details))


def to_blocks(result: RunResult, *, most_bytes: int = MOST_BYTES) -> Blocks:
    """The data of a result.

    Args:
        result: Any result, also one of an earlier release.
        most_bytes: Size at which spreads are left out, those of the smallest errors first.
    """
    room = most_bytes - _COLUMNS * len(result.comparisons)
    share = min(1.0, max(0.0, room / max(1.0, _guess_bytes(result))))
    packed = pack(result, share=share)
    while packed.size > most_bytes and share > 0:
        share = max(0.0, share * most_bytes / packed.size - 0.05)
        packed = pack(result, share=share)
    return packed


def pack(result: RunResult, *, share: float = 1.0) -> Blocks:
    """Blocks that keep the spreads of a share of the comparisons, the worst first."""
    names = Names()
    floor = _spread_floor(result, share)
    details = tuple(_pack(_details(p.comparisons, names, result, floor)) for p in result.prompts)
    return Blocks(_pack(_main(result, names)), details)


def _guess_bytes(result: RunResult) -> float:
    """About how large the spreads of a result are in the block; a block too large is made anew."""
    size = 0.0
    for comparison in result.comparisons:
        for error in (comparison.difference, comparison.local):
            if error is not None and (spread := error.spread) is not None:
                signs = len(spread.sizes) + len(spread.positions) + len(spread.heads)
                size += 0.75 * signs + 20 * len(spread.worst)
    return size


def _pack(data: object) -> str:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    # mtime 0: the same result is the same page.
    packed = gzip.compress(text.encode("ascii"), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def _main(result: RunResult, names: Names) -> dict[str, object]:
    """What the map, growth and tokens are drawn from; it holds the names of all blocks."""
    dtypes = {engine.name: engine.dtype for engine in result.engines}
    prompts = [_prompt(prompt, names) for prompt in result.prompts]
    return {
        "format": FORMAT,
        "version": VERSION,
        "tolerance": digits(result.tolerance),
        "limit": digits(result.unit_limit),
        "against": wording.visible(result.against),
        "side": "float64" if result.against == REFERENCE else wording.visible(result.against),
        "signs": SIGNS,
        "lowest": LOWEST,
        "stretches": MOST_POSITIONS,
        "axes": AXES,
        "candidates": [
            [names.number(c.candidate), ROUNDOFF.get(dtypes.get(c.candidate, ""))]
            for c in result.candidates
        ],
        "start": _start(result, names),
        "prompts": prompts,
        "names": names.texts(),
    }


def _start(result: RunResult, names: Names) -> dict[str, object] | None:
    """What the page opens with: the first divergence, where there is one."""
    first = result.first_divergence
    if first is None:
        return None
    at = [number for number, p in enumerate(result.prompts) if p.name == first.prompt]
    return {
        "candidate": names.number(first.candidate),
        "prompt": at[0] if at else 0,
        "tap": names.number(first.tap),
    }


def digits(value: float | None, most: int = 4) -> float | int | str | None:
    """A number in the digits that are shown; NaN and infinity as text, which JSON lacks."""
    if value is None:
        return None
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.{most}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 2**53 else rounded


def _prompt(prompt: PromptResult, names: Names) -> object:
    return {
        "name": wording.visible(prompt.name),
        "chunks": [chunk_name(i, prompt.prefill) for i in range(_passes(prompt))],
        "taps": _columns(prompt.comparisons, names),
        "pairs": _pairs(prompt.pairs, names),
        "shaded_by": _shaded_by(prompt),
        "logits": [_logits(pair, prompt, names) for pair in prompt.logits if pair.positions],
    }


def _passes(prompt: PromptResult) -> int:
    last = max((c.chunk for c in prompt.comparisons), default=-1)
    last = max((p.chunk for p in prompt.pairs), default=last)
    return min(max(len(prompt.chunks), last + 1), _MOST_PASSES)


def _columns(comparisons: Sequence[Comparison], names: Names) -> dict[str, list[object]]:
    """What a field of the map shows, a row a comparison."""
    ends = [c.difference for c in comparisons]
    return {
        "candidate": [names.number(c.candidate) for c in comparisons],
        "chunk": [c.chunk for c in comparisons],
        "tap": [names.number(c.tap) for c in comparisons],
        "status": [names.number(c.status.value) for c in comparisons],
        "note": [names.number(c.note) for c in comparisons],
        "units": [None if c.local is None else digits(c.local.units) for c in comparisons],
        "max_abs": [None if end is None else digits(end.max_abs) for end in ends],
        "magnitude": [None if end is None else digits(end.magnitude) for end in ends],
    }


def _details(
    comparisons: Sequence[Comparison], names: Names, result: RunResult, floor: float
) -> dict[str, list[object]]:
    """What the details of a field say besides, row by row as in :func:`_columns`."""

    def column(value: Callable[[Comparison], object]) -> list[object]:
        return [value(c) for c in comparisons]

    def end(value: Callable[[Difference], object]) -> list[object]:
        return [None if c.difference is None else value(c.difference) for c in comparisons]

    def own(value: Callable[[LocalError], object]) -> list[object]:
        return [None if c.local is None else value(c.local) for c in comparisons]

    def spread(found: Callable[[Comparison], Difference | LocalError | None]) -> list[object]:
        return [
            None if (e := found(c)) is None or severity(c, result) < floor else _spread(e.spread)
            for c in comparisons
        ]

    return {
        "op": column(lambda c: names.number(c.op)),
        "axes": column(lambda c: names.number(c.axes)),
        "shape": column(lambda c: names.number(wording.shape(c))),
        "weights": column(lambda c: len(c.weights)),
        "median": own(lambda e: digits(e.median)),
        "error": own(lambda e: digits(e.error)),
        "bound": own(lambda e: digits(e.bound)),
        "over": own(lambda e: e.over),
        "inherited": own(lambda e: int(e.inherited_bound)),
        "own_worst": own(lambda e: _element(e.worst)),
        "own_spread": spread(lambda c: c.local),
        "mean_abs": end(lambda e: digits(e.mean_abs)),
        "beyond": end(lambda e: e.over),
        "count": end(lambda e: e.count),
        "end_worst": end(lambda e: _element(e.worst)),
        "end_spread": spread(lambda c: c.difference),
    }


def _element(element: Element) -> list[object]:
    """Index, position, and the values of each side in nine digits."""
    return [
        list(element.index),
        element.position,
        digits(element.reference, 9),
        digits(element.candidate, 9),
    ]


def _spread(spread: Spread | None) -> list[object] | None:
    if spread is None:
        return None
    worst = [[flat, digits(x, 9), digits(y, 9)] for flat, x, y in spread.worst]
    return [spread.sizes, spread.positions, spread.heads, worst]


def _has_spread(comparison: Comparison) -> bool:
    found = (comparison.difference, comparison.local)
    return any(e is not None and e.spread is not None for e in found)


def severity(comparison: Comparison, result: RunResult) -> float:
    """How much a reader wants to see of a tap: 1 at the limit, infinite for what is not finite."""
    if comparison.local is not None:
        units = comparison.local.units
        return math.inf if math.isnan(units) else _ratio(units, result.unit_limit)
    if comparison.difference is None:
        return 0.0
    end = comparison.difference
    if not math.isfinite(end.max_abs):
        return math.inf
    return _ratio(end.max_abs, max(result.tolerance, 1e-3 * end.magnitude))


def _ratio(found: float, limit: float) -> float:
    return found / limit if limit > 0 else found


def _spread_floor(result: RunResult, share: float) -> float:
    """The severity from which on spreads are kept."""
    if share >= 1:
        return -math.inf
    found = sorted(
        (severity(c, result) for c in result.comparisons if _has_spread(c)), reverse=True
    )
    kept = int(share * len(found))
    return found[kept - 1] if kept else math.inf


def _pairs(pairs: Sequence[PairDifference], names: Names) -> dict[str, list[object]]:
    return {
        "a": [names.number(p.a) for p in pairs],
        "b": [names.number(p.b) for p in pairs],
        "chunk": [p.chunk for p in pairs],
        "tap": [names.number(p.tap) for p in pairs],
        "max_abs": [digits(p.max_abs) for p in pairs],
        "mean_abs": [digits(p.mean_abs) for p in pairs],
    }


def _shaded_by(prompt: PromptResult) -> int:
    """Which of the pairs with positions the page shades tokens by when it opens."""
    pair = shading_pair(prompt)
    found = [i for i, other in enumerate(p for p in prompt.logits if p.positions) if other is pair]
    return found[0] if found else 0


def _logits(pair: LogitsPair, prompt: PromptResult, names: Names) -> list[object]:
    """Engines, the largest difference, and that of each token, as [row, column, error]."""
    errors = errors_by_token(prompt, pair.positions)
    known = [[row, column, digits(error, 3)] for (row, column), error in errors.items()]
    return [names.number(pair.a), names.number(pair.b), digits(pair.max_abs), known]
