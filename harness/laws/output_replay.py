"""Laws of numbers: how far an engine may be from what its dtype can give."""

import functools
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from ..contract import UNIT_LIMIT
from .cache_replay import replay, require_replayed
from .candidate import Candidate, Rows
from .examples import batch
from .law import Law
from .sizes import Sizes

_BOUND = (
    f"each op alone, on the engine's own inputs, within {UNIT_LIMIT:.0f} rounding units of its "
    "dtype, and each constant within what its fit allows: docs/rounding.md"
)

_SOURCE = (
    "Higham 2002, Accuracy and Stability, section 3.1: an op's rounding error is bounded by its "
    "inputs and the dtype; the bound is computed beside a float64 run of the op"
)


def check_replay(candidate: Candidate, rows: Rows, chunks: Sequence[int]) -> None:
    """Every op is within rounding of float64."""
    require_replayed(candidate, replay(candidate, candidate.engine, rows, chunks))


def check_dtype(candidate: Candidate, rows: Rows, chunks: Sequence[int], *, dtype: str) -> None:
    """The same in another dtype."""
    narrow = candidate.in_dtype(dtype)
    try:
        require_replayed(candidate, replay(candidate, narrow.engine, rows, chunks))
    finally:
        narrow.close()


def _fed(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    def more(rows: list[list[int]]) -> st.SearchStrategy[dict[str, Any]]:
        length = len(rows[0])
        chunks = st.sampled_from([[length], [length - 1, 1]])
        return st.fixed_dictionaries({"rows": st.just(rows), "chunks": chunks})

    return batch(sizes, 2, 8).flatmap(more)


def _narrow(dtype: str) -> Law:
    return Law(
        id=f"output-{dtype}",
        says=f"In {dtype} every op is within rounding of float64, in one pass and in a decoding "
        "step.",
        source=_SOURCE,
        check=functools.partial(check_dtype, dtype=dtype),
        arguments=_fed,
        needs=(f"dtype:{dtype}",),
        bound=_BOUND,
        mutants=("narrow-activation",),
    )


LAWS = (
    Law(
        id="output-replay",
        says="Every op of an engine is within rounding of float64, in one pass and in a decoding "
        "step.",
        source=_SOURCE,
        check=check_replay,
        arguments=_fed,
        bound=_BOUND,
        mutants=("scale-other",),
    ),
    _narrow("bfloat16"),
    _narrow("float16"),
)
