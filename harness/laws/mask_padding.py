"""Laws of batches and padding: the company that a sequence keeps must not matter."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..engines.ways import Way
from .candidate import Candidate, Floats, Rows
from .examples import batch, passes, ragged
from .law import Law, LawBroken
from .sizes import Sizes

_SOURCE = (
    "Vaswani et al. 2017, Attention Is All You Need, section 3.2: a query reads keys of its own "
    "sequence; a pad is hidden as what is illegal is, and has no position"
)


def check_left(candidate: Candidate, rows: Rows, chunks: Sequence[int] | None) -> None:
    """Rows with pads in front as each of them alone."""
    _check_padded(candidate, rows, "left", candidate.logits(rows, chunks=chunks, padding="left"))


def check_right(candidate: Candidate, rows: Rows) -> None:
    """Rows with pads behind as each of them alone."""
    _check_padded(candidate, rows, "right", candidate.logits(rows, padding="right"))


def check_batch(candidate: Candidate, rows: Rows, chunks: Sequence[int] | None) -> None:
    """Rows of one length as each of them alone."""
    found = candidate.logits(rows, chunks=chunks)
    for index, row in enumerate(rows):
        what = f"logits of row {index} of a batch of {len(rows)}"
        candidate.same(what, candidate.logits([row]), found[index][None], rows=[row])


def check_empty_rows(candidate: Candidate, rows: Rows) -> None:
    """Queries that see no key give numbers."""
    found = candidate.logits(rows, padding="left")
    _require_finite("logits of a batch with pads in front, those of pads included", found)
    _check_padded(candidate, rows, "left", found)


def check_empty_columns(candidate: Candidate, rows: Rows, blank: int) -> None:
    """Columns in front that hold a token of no row change nothing."""
    # Their token ids are in no row's sequence; 0 is as good as any.
    fed = [[0] * blank + list(row) for row in rows]
    found = candidate.logits(fed, padding="left", way=Way(blank=blank))
    _require_finite(f"logits of a batch with {blank} empty columns in front", found)
    _check_padded(candidate, rows, "left", found[:, blank:])


def _check_padded(candidate: Candidate, rows: Rows, side: str, found: Floats) -> None:
    """The columns of each row that hold tokens are as the row alone."""
    padding = candidate.padded(rows, side)
    real = np.ones(found.shape[:2], bool) if padding is None else padding.real(0, found.shape[1])
    for index, row in enumerate(rows):
        what = f"logits of row {index} of a batch with pads on the {side}"
        candidate.same(what, candidate.logits([row]), found[index, real[index]][None], rows=[row])


def _require_finite(what: str, found: Floats) -> None:
    if not np.isfinite(found).all():
        at = [int(index) for index in np.argwhere(~np.isfinite(found))[0]]
        raise LawBroken(f"{what} at {at}", expected="a number", found=str(found[tuple(at)]))


def _unequal_fed(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return ragged(sizes, 1, 12).flatmap(
        lambda rows: passes(max(map(len, rows))).map(
            lambda chunks: {"rows": rows, "chunks": chunks}
        )
    )


def _unequal(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return ragged(sizes, 1, 12).map(lambda rows: {"rows": rows})


def _unequal_or_not(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    rows = st.one_of(batch(sizes, 1, 8), ragged(sizes, 1, 8))
    return st.fixed_dictionaries({"rows": rows, "blank": st.integers(1, 6)})


def _several_fed(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return batch(sizes, 1, 12, rows=(2, 3)).flatmap(
        lambda rows: passes(len(rows[0])).map(lambda chunks: {"rows": rows, "chunks": chunks})
    )


LAWS = (
    Law(
        id="mask-left-padding",
        says="Pads in front of a sequence, which fill it up to the longest of its batch, do not "
        "change its logits, in one pass and over a cache.",
        source=_SOURCE,
        check=check_left,
        arguments=_unequal_fed,
        needs=("padding",),
        mutants=("padding-ignored", "padding-positions"),
    ),
    Law(
        id="mask-right-padding",
        says="Pads behind a sequence, which fill it up to the longest of its batch, do not change "
        "its logits.",
        source=_SOURCE,
        check=check_right,
        arguments=_unequal,
        needs=("padding",),
        mutants=("mask-missing", "padding-mask-flipped"),
    ),
    Law(
        id="mask-batch",
        says="A sequence has the logits in a batch that it has alone, in one pass and over a "
        "cache.",
        source=_SOURCE,
        check=check_batch,
        arguments=_several_fed,
        bound="1e-4, times the largest value where that is above 1: kernels cut a larger matrix "
        "into other blocks, so that sums are in another order",
        mutants=("keys-of-first-row",),
    ),
    Law(
        id="mask-empty-rows",
        says="A query that sees no key, which is a pad in front of the first token, gives numbers, "
        "and tokens have the right logits.",
        source="a softmax over nothing is 0 / 0, and a key of weight 0 whose value is no number "
        "makes none of what reads it; so that engines let such a query see something",
        check=check_empty_rows,
        arguments=_unequal,
        needs=("padding",),
        mutants=("mask-blind",),
    ),
    Law(
        id="mask-empty-columns",
        says="Columns in front in which no row has a token change no logits, and give numbers.",
        source=_SOURCE,
        check=check_empty_columns,
        arguments=_unequal_or_not,
        needs=("padding", "blank"),
        mutants=("mask-blind", "padding-positions"),
    ),
)
