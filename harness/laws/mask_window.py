"""Laws of sliding windows."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from .candidate import Candidate, Change, Rows
from .checkpoint_edit import Tensors
from .examples import batch, passes
from .law import Law, LawBroken
from .sizes import Sizes

_SOURCE = (
    "Beltagy et al. 2020, Longformer, section 3.1, and Jiang et al. 2023, Mistral 7B, section 2: "
    "a token reads W tokens; in the released models W of them with itself"
)

_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")


def check_fits(candidate: Candidate, rows: Rows, window: int, chunks: Sequence[int] | None) -> None:
    """A window that all tokens fit into is none."""
    windowed = candidate.altered(_all_of("sliding_attention", window))
    full = candidate.altered(_all_of("full_attention", window))
    try:
        candidate.same(
            f"logits of {len(rows[0])} tokens in a window of {window}",
            full.logits(rows, chunks=chunks),
            windowed.logits(rows, chunks=chunks),
        )
    finally:
        windowed.close()
        full.close()


def check_edge(
    candidate: Candidate,
    rows: Rows,
    at: int,
    shift: int,
    window: int,
    chunks: Sequence[int] | None,
) -> None:
    """With one layer, another token changes the logits of the W positions that see it."""
    sizes = candidate.sizes
    others = [list(row) for row in rows]
    for row in others:
        row[at] = (row[at] + shift) % sizes.vocab
    cut = candidate.altered(_first_layer(window))
    try:
        before, after = cut.logits(rows, chunks=chunks), cut.logits(others, chunks=chunks)
    finally:
        cut.close()
    length = before.shape[1]
    blind = [n for n in range(length) if not 0 <= n - at < window]
    candidate.same(
        f"logits that position {at} lies outside the window of {window} of",
        before[:, blind],
        after[:, blind],
        exact=not sizes.experts,
    )
    for query in range(at, min(at + window, length)):
        if any(
            np.array_equal(a, b) for a, b in zip(before[:, query], after[:, query], strict=True)
        ):
            raise LawBroken(
                f"logits of position {query}, {query - at} behind one with another token, in a "
                f"window of {window}",
                expected="others",
                found="the very same",
            )


def _all_of(kind: str, window: int) -> Change:
    def change(config: dict[str, Any], tensors: Tensors) -> None:
        config["layer_types"] = [kind] * int(config["num_hidden_layers"])
        config["sliding_window"] = window
        _one_rotation(config)

    return change


def _one_rotation(config: dict[str, Any]) -> None:
    """Give layers of both types one rotation, where a family has one for each."""
    rope = config.get("rope_parameters") or {}
    if "full_attention" in rope:
        config["rope_parameters"] = dict.fromkeys(rope, rope["full_attention"])


def _first_layer(window: int) -> Change:
    def change(config: dict[str, Any], tensors: Tensors) -> None:
        config["num_hidden_layers"] = 1
        config["layer_types"] = ["sliding_attention"]
        config["sliding_window"] = window
        for name in list(tensors):
            layer = _LAYER.search(name)
            if layer and int(layer[1]) > 0:
                del tensors[name]

    return change


def _slides(sizes: Sizes) -> str:
    return "" if any(sizes.windows) else "no layer has a window"


def _fitting(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    def more(rows: list[list[int]]) -> st.SearchStrategy[dict[str, Any]]:
        length = len(rows[0])
        windows = st.integers(length, length + 2)
        return st.fixed_dictionaries(
            {"rows": st.just(rows), "window": windows, "chunks": passes(length)}
        )

    return batch(sizes, 2, 10).flatmap(more)


def _at_an_edge(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    def more(rows: list[list[int]]) -> st.SearchStrategy[dict[str, Any]]:
        length = len(rows[0])
        # Position `at` is out of sight of the last position, and in sight of one before it.
        return st.integers(1, min(6, length - 1)).flatmap(
            lambda window: st.fixed_dictionaries(
                {
                    "rows": st.just(rows),
                    "window": st.just(window),
                    "at": st.integers(0, length - 1 - window),
                    "shift": st.integers(1, sizes.vocab - 1),
                    "chunks": passes(length),
                }
            )
        )

    return batch(sizes, 4, 12).flatmap(more)


LAWS = (
    Law(
        id="mask-window-fits",
        says="Layers with a sliding window of W tokens give what full attention gives, as long as "
        "there are no more than W tokens, in one pass and over a cache. Layers of both types are "
        "given one rotation first, where a family has one for each.",
        source=_SOURCE,
        check=check_fits,
        arguments=_fitting,
        applies=_slides,
        mutants=("window-narrow",),
    ),
    Law(
        id="mask-window-edge",
        says="A query in a layer with a sliding window of W tokens reads itself and the W - 1 "
        "before it: of a model that is cut to one such layer, another token changes the logits of "
        "its own position and of the W - 1 behind it, and of no other, in one pass and over a "
        "cache.",
        source=_SOURCE,
        check=check_edge,
        arguments=_at_an_edge,
        applies=_slides,
        bound="bit for bit, as for mask-causal; with experts 1e-4, times the largest value where "
        "that is above 1",
        mutants=("window-narrow", "window-wide", "window-missing"),
    ),
)
