"""Laws of caches: how tokens are fed must not matter."""

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

from ..engines.ways import AbleSession, Way, begin_in
from . import cache_narrow, cache_search
from .cache_replay import check_replay
from .candidate import Candidate, Floats, Rows
from .examples import batch, cuts, ragged
from .law import Law, LawBroken
from .sizes import Sizes

_VASWANI = (
    "Vaswani et al. 2017, Attention Is All You Need, section 3.2.3: a position reads those up to "
    "itself, so that keys and values of earlier ones never change"
)


def check_chunks(candidate: Candidate, rows: Rows, chunks: Sequence[int]) -> None:
    """Fed in pieces over a cache as in one go without."""
    whole = candidate.logits(rows)
    pieces = candidate.logits(rows, chunks=chunks)
    candidate.same(f"logits of pieces of {chunks} tokens over a cache", whole, pieces)


def check_kind(candidate: Candidate, rows: Rows, chunks: Sequence[int], *, kind: str) -> None:
    """Fed in pieces over a cache of some kind as in one go without; rows alone where unequal."""
    side = "left" if len({len(row) for row in rows}) > 1 else None
    found = candidate.logits(rows, chunks=chunks, padding=side, way=Way(cache=kind))
    padding = candidate.padded(rows, side) if side else None
    for index, row in enumerate(rows):
        of_row = (
            found[index]
            if padding is None
            else found[index][padding.real(0, found.shape[1])[index]]
        )
        what = f"logits of row {index} in pieces of {chunks} tokens over a cache: {kind}"
        candidate.same(what, candidate.logits([row])[0], of_row)


def check_crop(
    candidate: Candidate, rows: Rows, steps: Sequence[Sequence[int]], *, kind: str = ""
) -> None:
    """Tokens that are fed and cropped away again leave nothing behind.

    Args:
        candidate: The engine.
        rows: Tokens that stay.
        steps: How many of them each forward pass feeds, and how many others behind them that are
            cropped away before the next.
        kind: Of the cache.
    """
    whole, table = candidate.logits(rows), np.array(rows)
    stay = 0
    with _begin(candidate, Way(cache=kind)) as session:
        for fed, refused in steps:
            # Another token than the one that comes next, so that a trace of it would show.
            others = (table[:, stay : stay + 1] + 1 + np.arange(refused)) % candidate.sizes.vocab
            new = np.concatenate([table[:, stay : stay + fed], others], axis=1)
            logits = session.feed(new)[:, :fed]
            what = f"logits of columns {stay} to {stay + fed - 1}, after what was cropped"
            candidate.same(what, whole[:, stay : stay + fed], logits.astype(np.float64))
            stay += fed
            if refused and not _cropped(candidate, session, stay, stay + refused, kind):
                return


def _cropped(candidate: Candidate, session: AbleSession, length: int, held: int, kind: str) -> bool:
    """Crop; False where the engine refuses to and may."""
    smallest = min((window for window in candidate.sizes.windows if window), default=held + 1)
    try:
        session.crop(length)
    except Exception as error:
        if held >= smallest and kind != "recorded":
            return False
        raise LawBroken(
            f"a crop from {held} columns to {length}",
            expected="one, as no window has dropped a column",
            found=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
        ) from error
    return True


def check_reorder(
    candidate: Candidate, rows: Rows, order: Sequence[int], tails: Rows, *, kind: str = ""
) -> None:
    """Rows that are put in another order go on as if that had been their order.

    Args:
        candidate: The engine.
        rows: Token ids, another one in each row of a column.
        order: For each row, the one that it goes on from.
        tails: Token ids that follow; one row each.
        kind: Of the cache.
    """
    with _begin(candidate, Way(cache=kind)) as session:
        session.feed(np.array(rows))
        session.reorder(order)
        found = session.feed(np.array(tails)).astype(np.float64)
    length = len(rows[0])
    orders = (order, list(range(len(order))))
    anew, stale = (_behind(candidate, rows, one, tails)[:, length:] for one in orders)
    moved = [i for i, row in enumerate(order) if row != i]
    change = float(np.abs(anew - stale)[moved].max())
    if change <= candidate.tolerance(anew):
        raise LawBroken(
            f"logits of rows {moved}, with another beginning",
            expected="others",
            found=f"the same to {change:.3g}",
        )
    candidate.same(f"logits of rows that go on from rows {list(order)}", anew, found)


def _behind(candidate: Candidate, rows: Rows, order: Sequence[int], tails: Rows) -> Floats:
    joined = [[*rows[row], *tail] for row, tail in zip(order, tails, strict=True)]
    return candidate.logits(joined)


def _begin(candidate: Candidate, way: Way) -> AbstractContextManager[AbleSession]:
    session = begin_in(candidate.engine, way, cache=True)
    return cast(AbstractContextManager[AbleSession], session)


# Arguments


def _in_pieces(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return batch(sizes, 2, 16).flatmap(_pieces)


def _padded_pieces(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(batch(sizes, 2, 16), ragged(sizes, 1, 14)).flatmap(_pieces)


def _pieces(rows: list[list[int]]) -> st.SearchStrategy[dict[str, Any]]:
    longest = max(map(len, rows))
    return cuts(longest).map(lambda chunks: {"rows": rows, "chunks": chunks})


def _few_passes(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    """Two passes or three: every one of them is walked through op by op."""

    def fed(rows: list[list[int]]) -> st.SearchStrategy[dict[str, Any]]:
        longest = max(map(len, rows))
        cut = st.lists(st.integers(1, longest - 1), min_size=1, max_size=2, unique=True)
        return cut.map(
            lambda at: {"rows": rows, "chunks": list(np.diff([0, *sorted(at), longest]).tolist())}
        )

    return st.one_of(batch(sizes, 2, 12), ragged(sizes, 1, 12)).flatmap(fed)


def _steps(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    """Tokens that stay, and steps, at least one of which is followed by a crop and another."""
    room = min(sizes.longest, 16)
    refused = st.integers(0, max(1, min(4, room // 4)))

    def fed(rows: list[list[int]]) -> st.SearchStrategy[dict[str, Any]]:
        pieces = cuts(len(rows[0])).filter(lambda found: len(found) > 1)
        steps = pieces.flatmap(
            lambda found: st.tuples(
                st.integers(1, max(1, room // 4)),
                st.lists(refused, min_size=len(found) - 1, max_size=len(found) - 1),
            ).map(lambda more: _paired(found, [more[0], *more[1][1:], 0]))
        )
        return steps.map(lambda steps: {"rows": rows, "steps": steps})

    return batch(sizes, 2, room - max(1, room // 4)).flatmap(fed)


def _paired(fed: list[int], refused: list[int]) -> list[list[int]]:
    return [list(pair) for pair in zip(fed, refused, strict=True)]


def _reordered(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    """Rows of which no two have the same token in a column, and an order that is another."""
    shapes = st.tuples(st.integers(2, 3), st.integers(1, 8), st.integers(1, 3))

    def of(shape: tuple[int, int, int]) -> st.SearchStrategy[dict[str, Any]]:
        count, length, more = shape
        ids = st.integers(0, sizes.vocab - 1)
        columns = st.lists(
            st.lists(ids, min_size=count, max_size=count, unique=True),
            min_size=length,
            max_size=length,
        )
        tail = st.lists(ids, min_size=more, max_size=more)
        rows = st.integers(0, count - 1)
        order = st.lists(rows, min_size=count, max_size=count)
        return st.fixed_dictionaries(
            {
                "rows": columns.map(lambda found: [list(row) for row in zip(*found, strict=True)]),
                "order": order.filter(lambda found: found != list(range(count))),
                "tails": st.lists(tail, min_size=count, max_size=count),
            }
        )

    return shapes.flatmap(of)


def _without_windows(sizes: Sizes) -> str:
    return "" if any(sizes.windows) else "no layer has a window"


def _windows_roll(sizes: Sizes) -> str:
    if any(sizes.windows):
        return "room of the size of a window is used again, so that such a cache is not cropped"
    return ""


def _reads_back(sizes: Sizes) -> str:
    if all(window == 1 for window in sizes.windows):
        return "no position reads another: all windows are of one"
    return ""


LAWS = (
    Law(
        id="cache-chunks",
        says="A sequence that is fed token by token, or in any other pieces, over a cache has the "
        "logits that it has when it is fed in one go without a cache, within the length that the "
        "model was made for. Beyond it, dynamic scaling gives earlier tokens another rotation in "
        "one pass than they had when they were fed, so that their hidden states differ: no cache "
        "can undo that.",
        source=_VASWANI + "; Peng et al. 2023, YaRN, section 3.3, for dynamic scaling",
        check=check_chunks,
        arguments=_in_pieces,
        mutants=("position-restarted", "cache-step-lost", "cache-stale"),
    ),
    Law(
        id="cache-replay",
        says="Every op over a cache computes on its own inputs what the op is defined as, in every "
        "pass: replay names the first that does not. Rows may be padded on the left.",
        source="the definitions of the ops, with the bounds of docs/rounding.md",
        check=check_replay,
        arguments=_few_passes,
        needs=("padding",),
        taps=("attn.keys", "attn.values"),
        bound="8 rounding units of each op",
        mutants=("position-restarted", "cache-stale", "cache-window-short"),
    ),
    Law(
        id="cache-unwindowed",
        says="A cache that keeps all keys of layers with windows, too, gives the same logits: it "
        "is the mask that hides them.",
        source=_VASWANI,
        check=functools.partial(check_kind, kind="unwindowed"),
        arguments=_padded_pieces,
        applies=_without_windows,
        needs=("cache:unwindowed", "padding"),
        mutants=("window-ignored-later",),
    ),
    Law(
        id="cache-static",
        says="A cache that has its room from the beginning gives the same logits: room that no "
        "token has taken yet is not read. Sequences are longer than windows, too.",
        source=_VASWANI,
        check=functools.partial(check_kind, kind="static"),
        arguments=_padded_pieces,
        needs=("cache:static", "padding"),
        mutants=("room-read",),
    ),
    Law(
        id="cache-crop",
        says="Tokens that are fed and cropped away again leave nothing behind: what comes next has "
        "the logits that it has without them. Once a layer with a window may have dropped a column "
        "(the sequence is as long as the window) an engine may refuse to crop, and not go on.",
        source="follows from cache-chunks: the columns that stay are those of the sequence without "
        "them",
        check=check_crop,
        arguments=_steps,
        needs=("crop",),
        mutants=("crop-forgotten", "crop-short"),
    ),
    Law(
        id="cache-crop-static",
        says="As cache-crop, with a cache that has its room from the beginning.",
        source="as cache-crop",
        check=functools.partial(check_crop, kind="static"),
        arguments=_steps,
        applies=_windows_roll,
        needs=("crop", "cache:static"),
        mutants=("crop-forgotten",),
    ),
    Law(
        id="cache-crop-recorded",
        says="As cache-crop, with a cache that goes back over windows, as speculative decoding "
        "does when tokens of a draft are refused: it never refuses to crop.",
        source="as cache-crop; Leviathan et al. 2023, Fast Inference from Transformers via "
        "Speculative Decoding, section 2.3, for feeding tokens that may be refused",
        check=functools.partial(check_crop, kind="recorded"),
        arguments=_steps,
        needs=("crop", "cache:recorded"),
        mutants=("crop-forgotten", "crop-short"),
    ),
    Law(
        id="cache-reorder",
        says="Rows of a batch that are put in another order, also one in place of several, go on "
        "as if that had been their order from the beginning; and with other logits than in the "
        "order before.",
        source="rows of a batch do not see each other, so that a row of the cache is what one of "
        "the sequence alone would be",
        check=check_reorder,
        arguments=_reordered,
        applies=_reads_back,
        needs=("reorder",),
        mutants=("reorder-forgotten", "reorder-of-keys-alone"),
    ),
    Law(
        id="cache-reorder-static",
        says="As cache-reorder, with a cache that has its room from the beginning.",
        source="as cache-reorder",
        check=functools.partial(check_reorder, kind="static"),
        arguments=_reordered,
        applies=_reads_back,
        needs=("reorder", "cache:static"),
        mutants=("reorder-forgotten",),
    ),
    *cache_narrow.LAWS,
    *cache_search.LAWS,
)
