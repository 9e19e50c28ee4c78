"""Laws of masks: what a query sees, and how that is said."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..engines.ways import Way
from ..taps import declared
from . import mask_padding, mask_window
from .candidate import Candidate, Rows
from .examples import batch, passes
from .law import Law, LawBroken
from .sizes import Sizes

_VASWANI = (
    "Vaswani et al. 2017, Attention Is All You Need, section 3.2.3: values of illegal connections "
    "are set to -inf in the input of the softmax"
)

#: Forms of the causal mask, in words.
_FORMS = {
    "additive": "numbers that are added to the scores, the lowest of the dtype where a key is "
    "hidden",
    "additive-inf": "numbers that are added to the scores, minus infinity where a key is hidden",
    "boolean": "booleans, true where a key is read",
    "columns": "a mask over columns, all of which hold a token",
}


def check_form(
    candidate: Candidate, rows: Rows, chunks: Sequence[int] | None, *, form: str
) -> None:
    """The causal mask in a form comes to the same as none."""
    way = Way(mask=form)
    alone = candidate.logits(rows, chunks=chunks)
    given = candidate.logits(rows, chunks=chunks, way=way)
    candidate.same(f"logits with the causal mask as {form}", alone, given, rows=rows)
    if declared(candidate.engine.unavailable, "layers.0.attn.probs") is not None:
        return
    expected = candidate.taps(rows, "attn.probs", chunks=chunks)
    found = candidate.taps(rows, "attn.probs", chunks=chunks, way=way)
    for tap, probs in expected.items():
        candidate.same(f"{tap} with the causal mask as {form}", probs, found[tap])


def _rows_fed(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return batch(sizes, 2, 12).flatmap(
        lambda rows: passes(len(rows[0])).map(lambda chunks: {"rows": rows, "chunks": chunks})
    )


def _form(form: str, *mutants: str) -> Law:
    return Law(
        id=f"mask-form-{form}",
        says=f"The causal mask, handed over as {_FORMS[form]}, gives the logits and probabilities "
        "that there are without a mask, in one pass and over a cache. A layer with a window is "
        "handed its own mask, and nothing where a mask over columns is.",
        source=f"{_VASWANI}. The exponential of -inf is 0, and so is that of the lowest number of "
        "the dtype, for scores lie far above it",
        check=functools.partial(check_form, form=form),
        arguments=_rows_fed,
        needs=(f"mask:{form}",),
        mutants=mutants,
    )


def check_causal(
    candidate: Candidate, rows: Rows, at: int, shift: int, chunks: Sequence[int] | None
) -> None:
    """Another token at a position changes nothing before it, and something from there on."""
    sizes = candidate.sizes
    others = [list(row) for row in rows]
    for row in others:
        row[at] = (row[at] + shift) % sizes.vocab
    before = candidate.logits(rows, chunks=chunks)
    after = candidate.logits(others, chunks=chunks)
    candidate.same(
        f"logits before position {at}, where another token is put",
        before[:, :at],
        after[:, :at],
        exact=not sizes.experts,
    )
    require_change(f"logits of position {at}, with another token there", before, after, at)
    later = slice(at + 1, None)
    if before[:, later].size:
        what = f"logits behind position {at}, with another token there"
        require_change(what, before, after, later)


def require_change(what: str, before: Any, after: Any, at: int | slice) -> None:
    """Require that every row differs somewhere at these positions [B, T, V].

    Raises:
        LawBroken: A row does not.
    """
    for row in range(len(before)):
        if np.array_equal(before[row, at], after[row, at]):
            raise LawBroken(f"{what}, row {row}", expected="others", found="the very same")


def _later(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    def more(rows: list[list[int]]) -> st.SearchStrategy[dict[str, Any]]:
        length = len(rows[0])
        return st.fixed_dictionaries(
            {
                "rows": st.just(rows),
                "at": st.integers(1, length - 1),
                "shift": st.integers(1, sizes.vocab - 1),
                "chunks": passes(length),
            }
        )

    return batch(sizes, 2, 12).flatmap(more)


def check_packed(candidate: Candidate, rows: Sequence[Rows]) -> None:
    """Sequences one behind the other in a row as each of them alone."""
    lengths = tuple(len(sequence) for sequence in rows[0])
    packed = [[token for sequence in row for token in sequence] for row in rows]
    found = candidate.logits(packed, way=Way(lengths=lengths))
    stops = np.cumsum(lengths)
    for index, (stop, length) in enumerate(zip(stops, lengths, strict=True)):
        sequences = [row[index] for row in rows]
        alone = candidate.logits(sequences)
        what = f"logits of sequence {index} of rows of sequences of {list(lengths)} tokens"
        candidate.same(what, alone, found[:, stop - length : stop], rows=sequences)


def _sequences(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    each = max(2, min(6, sizes.longest // 3))
    shapes = st.tuples(st.integers(1, 2), st.lists(st.integers(1, each), min_size=2, max_size=3))
    ids = st.integers(0, sizes.vocab - 1)

    def row(lengths: list[int]) -> st.SearchStrategy[list[list[int]]]:
        return st.tuples(*(st.lists(ids, min_size=n, max_size=n) for n in lengths)).map(list)

    return shapes.flatmap(
        lambda shape: st.lists(row(shape[1]), min_size=shape[0], max_size=shape[0])
    ).map(lambda rows: {"rows": rows})


LAWS = (
    _form("additive", "mask-softened"),
    _form("additive-inf", "mask-softened"),
    _form("boolean", "mask-added-as-number"),
    _form("columns", "mask-replaces-causal"),
    Law(
        id="mask-causal",
        says="Another token at a position changes nothing before that position, and changes "
        "something at it and behind it, in one pass and over a cache.",
        source=_VASWANI,
        check=check_causal,
        arguments=_later,
        bound="bit for bit: shapes are the same, and what is hidden has the weight 0. With experts "
        "1e-4, times the largest value where that is above 1: an expert's matrix product is over "
        "the tokens that chose it, so that its shape, and with it the order of sums, goes by all "
        "tokens",
        mutants=("mask-ahead", "mask-missing"),
    ),
    Law(
        id="mask-packed",
        says="Sequences that lie one behind the other in a row do not see each other: each has the "
        "logits that it has alone.",
        source="Krell et al. 2021, Efficient Sequence Packing without Cross-contamination, section "
        "3.2: a mask of blocks, and positions that begin anew",
        check=check_packed,
        arguments=_sequences,
        needs=("packed",),
        mutants=("packing-ignored",),
    ),
    *mask_padding.LAWS,
    *mask_window.LAWS,
)
