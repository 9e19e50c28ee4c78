"""Laws of caches: how tokens are fed must not matter."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from .candidate import Candidate, Rows
from .examples import batch, cuts
from .law import Law
from .sizes import Sizes


def check_chunks(candidate: Candidate, rows: Rows, chunks: list[int]) -> None:
    """Fed in pieces over a cache as in one go without."""
    whole = candidate.logits(rows)
    pieces = candidate.logits(rows, chunks=chunks)
    candidate.same(f"logits of pieces of {chunks} tokens over a cache", whole, pieces)


def _in_pieces(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return batch(sizes, 2, 14).flatmap(
        lambda rows: cuts(len(rows[0])).map(lambda chunks: {"rows": rows, "chunks": chunks})
    )


def check_greedy(candidate: Candidate, rows: Rows, count: int) -> None:
    """The same greedy tokens with a cache and without."""
    table = np.array(rows)
    with_cache = candidate.able.generate(table, count, cache=True)
    without = candidate.able.generate(table, count, cache=False)
    candidate.same("greedy tokens with a cache", without, with_cache, exact=True)


def _continued(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"rows": batch(sizes, 1, 8), "count": st.integers(1, 8)})


LAWS = (
    Law(
        id="cache-chunks",
        says="A sequence that is fed token by token, or in any other pieces, over a cache has the "
        "logits that it has when it is fed in one go without a cache.",
        source="Vaswani et al. 2017, Attention Is All You Need, section 3.2.3: a position reads "
        "those up to itself, so that keys and values of earlier ones never change",
        check=check_chunks,
        arguments=_in_pieces,
        mutants=("position-restarted", "cache-step-lost"),
    ),
    Law(
        id="cache-greedy",
        says="Greedy decoding gives the same tokens with a cache and without.",
        source="follows from cache-chunks, unless two logits are closer than rounding",
        check=check_greedy,
        arguments=_continued,
        needs=("beams",),
        bound="no token may differ",
        mutants=("position-restarted",),
    ),
)
