"""Laws of caches that round what they hold: how far it may move, and nothing else may."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from ..engines.protocol import Engine, Session
from ..engines.ways import CACHE_BITS, CACHE_GROUP, CACHE_RECENT, Way, begin_in
from ..padding import Padding
from .cache_replay import replay, require_replayed
from .candidate import Candidate, Floats, Rows
from .examples import batch
from .law import Law, LawBroken
from .sizes import Sizes

#: What attention reads of keys and values that a cache holds.
_HELD = ("attn.keys", "attn.values")

#: From what a cache was given, and the unit roundoff of its dtype, to how far each element of it
#: may be moved.
Rounding = Callable[[Floats, float], Floats]


def check_narrow(
    candidate: Candidate, rows: Rows, tails: Rows, *, kind: str, rounding: Rounding
) -> None:
    """What is read from a cache is what was stored, rounded; every other op replays.

    Args:
        candidate: The engine.
        rows: Token ids of the first pass, which are stored.
        tails: Token ids of the second pass, which reads them.
        kind: Of the cache.
        rounding: Bound of what it does.
    """
    way, first = Way(cache=kind), len(rows[0])
    joined = [[*row, *tail] for row, tail in zip(rows, tails, strict=True)]
    chunks = [first, len(tails[0])]
    stored = candidate.taps(rows, *_HELD, chunks=[first], way=way)
    read = candidate.taps(joined, *_HELD, chunks=chunks, way=way)
    for tap, given in stored.items():
        held, back = given.astype(np.float64), read[tap][:, :, :first].astype(np.float64)
        unit = float(ml_dtypes.finfo(given.dtype).eps) / 2
        if np.array_equal(held, back):
            raise LawBroken(f"{tap}, read from the cache", expected="rounded", found="as it was")
        what = f"{tap} in the second pass, against what the first one stored"
        candidate.same(what, held, back, bound=rounding(held, unit))
    over = _Over(candidate.engine, way)
    require_replayed(candidate, replay(candidate, over, joined, chunks), besides=_HELD)


def of_integers(held: Floats, unit: float) -> Floats:
    """Half a step: the range of a group over the number of steps between so many bits.

    The step rounds twice, the distance of a value from the lowest, its quotient by the step and
    the product that goes back once each, all of them up to the range; the last sum once, up to the
    largest.
    """
    groups = held.reshape(*held.shape[:-1], -1, CACHE_GROUP)
    span = groups.max(-1, keepdims=True) - groups.min(-1, keepdims=True)
    step = span / (2**CACHE_BITS - 1)
    rounded = unit * (5 * span + np.abs(groups).max(-1, keepdims=True))
    bound: Floats = np.broadcast_to(step / 2 + rounded, groups.shape).reshape(held.shape)
    return bound


def of_float8(held: Floats, unit: float) -> Floats:
    """Half the distance of neighbours: 2^-4 of a value, and of the least normal where it is less.

    e4m3 has three bits behind the point and 2^-6 as the least normal number; the largest, 448, is
    the largest value of the first pass. The quotient by the scale, the product with it and what is
    stored in the model's dtype round once each.
    """
    scale = np.abs(held).max() / 448
    rounded = 3 * unit * np.abs(held)
    bound: Floats = np.maximum(np.abs(held), 2.0**-6 * scale) * 2.0**-4 + rounded
    return bound


class _Over:
    """An engine that always runs in some way.

    Args:
        engine: The engine.
        way: The way.
    """

    def __init__(self, engine: Engine, way: Way) -> None:
        self._engine = engine
        self._way = way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def open(self, *, cache: bool, padding: Padding | None = None) -> Iterator[Session]:
        """Begin a new sequence in that way."""
        with begin_in(self._engine, self._way, cache=cache, padding=padding) as session:
            yield session


def _arguments(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    """The second pass is so short that what it brings is not rounded yet."""
    ids = st.integers(0, sizes.vocab - 1)
    lengths = st.integers(1, CACHE_RECENT - 1)

    def behind(rows: list[list[int]]) -> st.SearchStrategy[dict[str, Any]]:
        tails = lengths.flatmap(
            lambda length: st.lists(
                st.lists(ids, min_size=length, max_size=length),
                min_size=len(rows),
                max_size=len(rows),
            )
        )
        return tails.map(lambda tails: {"rows": rows, "tails": tails})

    # Of a single group, quanto keeps the numbers as they are: two positions are two groups.
    return batch(sizes, 2, 9).flatmap(behind)


def _full(sizes: Sizes) -> str:
    return "caches that round are for full attention alone" if any(sizes.windows) else ""


def _grouped(sizes: Sizes) -> str:
    if sizes.head_dim % CACHE_GROUP:
        return f"heads of {sizes.head_dim} channels do not fall into groups of {CACHE_GROUP}"
    return _full(sizes)


LAWS = (
    Law(
        id="cache-quantised",
        says="A cache that rounds to integers gives back what was stored up to half a step of its "
        "group, and not all of it as it was; every op but the two that read the cache replays on "
        "its own inputs.",
        source="Liu et al. 2024, KIVI, section 2 (round to nearest by the range of a group); to "
        "the nearest is within half a step",
        check=functools.partial(check_narrow, kind="quantised", rounding=of_integers),
        arguments=_arguments,
        applies=_grouped,
        needs=("cache:quantised",),
        taps=_HELD,
        bound="keys and values: (largest - least of a group) / (2^bits - 1) / 2, and six "
        "roundings of numbers up to the range and the largest; other ops: 8 rounding units",
        mutants=("quantised-coarser",),
    ),
    Law(
        id="cache-float8",
        says="A cache of 8-bit floats gives back what was stored in the first pass up to the "
        "rounding of e4m3, scaled so that the largest of that pass is its largest number; every "
        "op but the two that read the cache replays on its own inputs. Of what later passes store, "
        "larger values are cut off there, so that nothing is said of them.",
        source="Micikevicius et al. 2022, FP8 Formats for Deep Learning, section 3, table 1",
        check=functools.partial(check_narrow, kind="float8", rounding=of_float8),
        arguments=_arguments,
        applies=_full,
        needs=("cache:float8",),
        taps=_HELD,
        bound="keys and values: 2^-4 of a value, or of the least normal number, and three "
        "roundings; other ops: 8 rounding units",
        mutants=("float8-coarser",),
    ),
)
