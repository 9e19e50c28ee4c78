"""Examples: a model and the arguments of a check, small, random, and printable."""

from typing import Any

from hypothesis import strategies as st

from .law import Law
from .models import Model, sizes_of
from .sizes import Sizes


def examples(
    law: Law, models: st.SearchStrategy[Model]
) -> st.SearchStrategy[tuple[Model, dict[str, Any]]]:
    """A model that the law applies to, and arguments of its check."""
    fitting = models.filter(lambda model: not law.applies(sizes_of(model)))
    return fitting.flatmap(lambda model: st.tuples(st.just(model), law.arguments(sizes_of(model))))


# Parts of arguments


def tokens(sizes: Sizes, low: int, high: int) -> st.SearchStrategy[list[int]]:
    """Token ids of one sequence, from ``low`` to ``high`` of them."""
    most = min(high, sizes.longest)
    ids = st.integers(0, sizes.vocab - 1)
    return st.lists(ids, min_size=min(low, most), max_size=most)


def batch(
    sizes: Sizes, low: int, high: int, *, rows: tuple[int, int] = (1, 2)
) -> st.SearchStrategy[list[list[int]]]:
    """Rows of token ids of one length."""
    most = min(high, sizes.longest)
    shapes = st.tuples(st.integers(*rows), st.integers(min(low, most), most))
    ids = st.integers(0, sizes.vocab - 1)
    return shapes.flatmap(
        lambda shape: st.lists(
            st.lists(ids, min_size=shape[1], max_size=shape[1]),
            min_size=shape[0],
            max_size=shape[0],
        )
    )


def ragged(
    sizes: Sizes, low: int, high: int, *, rows: tuple[int, int] = (2, 3)
) -> st.SearchStrategy[list[list[int]]]:
    """Rows of token ids, not all of one length."""
    most = min(high, sizes.longest)
    lengths = st.lists(st.integers(low, most), min_size=rows[0], max_size=rows[1])
    ids = st.integers(0, sizes.vocab - 1)
    return lengths.filter(lambda found: len(set(found)) > 1).flatmap(
        lambda found: st.tuples(
            *(st.lists(ids, min_size=length, max_size=length) for length in found)
        ).map(list)
    )


def passes(length: int) -> st.SearchStrategy[list[int] | None]:
    """How a sequence is fed: in one go without a cache, or in pieces over one."""
    return st.one_of(st.none(), cuts(length))


def cuts(length: int) -> st.SearchStrategy[list[int]]:
    """Numbers of tokens that add up to a length: how a sequence is fed in pieces."""
    where = st.lists(st.booleans(), min_size=length - 1, max_size=length - 1)

    def pieces(ends: list[bool]) -> list[int]:
        sizes, current = [], 1
        for end in ends:
            if end:
                sizes.append(current)
                current = 1
            else:
                current += 1
        return [*sizes, current]

    return where.map(pieces)
