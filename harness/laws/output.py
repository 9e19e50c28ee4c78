"""Laws of outputs: what an engine hands out does not go by how it is asked."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..engines.ways import Way
from ..taps import AXES_OF_TAP
from . import output_replay, output_saved
from .candidate import Candidate, Rows
from .examples import batch, passes
from .law import Law, LawBroken
from .sizes import Sizes

_ORDER = (
    "1e-4, times the largest value where that is above 1: kernels cut another matrix into other "
    "blocks, so that sums are in another order, and any order is within the same bound (Higham "
    "2002, Accuracy and Stability, section 3.1)"
)

#: What enters the first layer: the last of these that there is.
_ENTERS = ("embed", "embed_sum", "embed_scaled")


def check_keep(candidate: Candidate, rows: Rows, keep: int) -> None:
    """Logits of the last positions alone as the last of all."""
    whole = candidate.logits(rows)
    with candidate.able.open(cache=False) as session:
        last = session.feed(np.array(rows), keep=keep)
    candidate.same(f"logits of the last {keep} positions", whole[:, -keep:], last, rows=rows)


def _kept(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return batch(sizes, 2, 12).flatmap(
        lambda rows: st.integers(1, len(rows[0])).map(lambda keep: {"rows": rows, "keep": keep})
    )


def check_batch_order(candidate: Candidate, rows: Rows, order: list[int]) -> None:
    """Rows in another order have their logits in that order."""
    expected = candidate.logits(rows)[order]
    ordered = [rows[index] for index in order]
    found = candidate.logits(ordered)
    candidate.same(f"logits of rows in the order {order}", expected, found, rows=ordered)


def _ordered(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    def more(rows: list[list[int]]) -> st.SearchStrategy[dict[str, Any]]:
        orders = st.permutations(range(len(rows))).filter(lambda order: order != sorted(order))
        return orders.map(lambda order: {"rows": rows, "order": order})

    return batch(sizes, 1, 10, rows=(2, 4)).flatmap(more)


def check_runs(candidate: Candidate, rows: Rows, chunks: list[int] | None) -> None:
    """A second run as the first, intermediates included."""
    first = candidate.taps(rows, *AXES_OF_TAP, chunks=chunks)
    second = candidate.taps(rows, *AXES_OF_TAP, chunks=chunks)
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())
        raise LawBroken("intermediates of a second run", expected="the same", found=f"other {odd}")
    for tap, array in first.items():
        candidate.same(f"{tap} of a second run", array, second[tap], exact=True)


def _fed(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return batch(sizes, 1, 12).flatmap(
        lambda rows: passes(len(rows[0])).map(lambda chunks: {"rows": rows, "chunks": chunks})
    )


def check_threads(candidate: Candidate, rows: Rows, times: int, threads: int) -> None:
    """Rows, so many times over, with one thread as with several."""
    # Kernels of small models leave little work to one thread: the longer, the more is shared.
    longer = [(list(row) * times)[: candidate.sizes.longest] for row in rows]
    one = candidate.logits(longer, way=Way(threads=1))
    several = candidate.logits(longer, way=Way(threads=threads))
    candidate.same(f"logits with {threads} threads", one, several, rows=longer)


def _threaded(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    rows = batch(sizes, 1, 12, rows=(1, 4))
    times, threads = st.sampled_from([1, 16]), st.integers(2, 4)
    return st.fixed_dictionaries({"rows": rows, "times": times, "threads": threads})


def check_hidden_states(candidate: Candidate, rows: Rows) -> None:
    """Hidden states are what enters each layer, and what enters the head."""
    states = candidate.able.hidden_states(np.array(rows))
    taps = candidate.taps(rows, *_ENTERS, "resid_post", "final_norm")
    enters = next(taps[kind] for kind in reversed(_ENTERS) if kind in taps)
    layers = candidate.sizes.layers
    between = [(f"resid_post of layer {n}", taps[f"layers.{n}.resid_post"]) for n in range(layers)]
    expected = [("what enters layer 0", enters), *between[:-1], ("final_norm", taps["final_norm"])]
    if len(states) != len(expected):
        raise LawBroken("hidden states", expected=f"{len(expected)}", found=f"{len(states)}")
    for index, (state, (what, tap)) in enumerate(zip(states, expected, strict=True)):
        candidate.same(f"hidden state {index}, against {what}", tap, state, exact=True)
    if np.array_equal(states[-1], between[-1][1]):
        raise LawBroken(
            "the last hidden state",
            expected="what the final norm makes of the last layer's output",
            found="that output itself",
        )


def _fed_at_once(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    return batch(sizes, 1, 12).map(lambda rows: {"rows": rows})


LAWS = (
    Law(
        id="output-keep",
        says="The logits of the last n positions alone are the last n of all.",
        source="the head is applied to each position by itself",
        check=check_keep,
        arguments=_kept,
        needs=("keep",),
        bound=_ORDER,
        mutants=("keep-shifted", "keep-uncapped"),
    ),
    Law(
        id="output-batch-order",
        says="Rows of a batch in another order have the same logits in that order.",
        source="no row reads another, so that a batch has no first row",
        check=check_batch_order,
        arguments=_ordered,
        bound=_ORDER,
        mutants=("keys-of-first-row",),
    ),
    Law(
        id="output-runs",
        says="Two runs on the same tokens, in the same pieces and with as many threads, give the "
        "same bits, of every intermediate as well.",
        source="the same operations on the same numbers in the same order; nothing is drawn at "
        "random in inference, and nothing is left behind by a run",
        check=check_runs,
        arguments=_fed,
        bound="bit for bit",
        mutants=("dropout-on", "run-kept"),
    ),
    Law(
        id="output-threads",
        says="The number of threads changes logits by no more than another order of sums may.",
        source="threads share rows, columns or parts of sums among them",
        check=check_threads,
        arguments=_threaded,
        needs=("threads",),
        bound=_ORDER,
        mutants=("threads-tail-lost",),
    ),
    Law(
        id="output-hidden-states",
        says="Hidden states are what enters layer 0 and the residual stream behind each layer but "
        "the last; the last of them is behind the final norm.",
        source="their number is layers + 1, and that they count from what enters layer 0; that the "
        "last one is normalised is how transformers defines them, and not what others make of it: "
        "docs/taps.md",
        check=check_hidden_states,
        arguments=_fed_at_once,
        needs=("hidden_states",),
        taps=("resid_post",),
        bound="bit for bit: they are the very same arrays",
        mutants=("hidden-states-raw", "hidden-states-late"),
    ),
    *output_replay.LAWS,
    *output_saved.LAWS,
)
