"""Laws of searching over a cache: greedy tokens and beams are those without."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from .candidate import Candidate, Floats, Rows
from .examples import batch
from .law import Law
from .sizes import Sizes


def check_greedy(candidate: Candidate, rows: Rows, count: int) -> None:
    """The same greedy tokens with a cache and without."""
    _check(candidate, rows, count, beams=1)


def check_beams(candidate: Candidate, rows: Rows, count: int, beams: int) -> None:
    """The same tokens of a beam search with a cache and without."""
    _check(candidate, rows, count, beams=beams)


def _check(candidate: Candidate, rows: Rows, count: int, *, beams: int) -> None:
    table = np.array(rows)
    found = candidate.able.generate(table, count, cache=True, beams=beams)
    expected = candidate.able.generate(table, count, cache=False, beams=beams)
    judged = found.copy()
    for index in range(len(rows)):
        if not np.array_equal(expected[index], found[index]):
            # A greedy token depends on those before it alone, a beam on all.
            differs = int(np.flatnonzero(expected[index] != found[index])[0])
            length = differs + 1 if beams == 1 else count
            if _too_close(candidate, list(rows[index]), length, beams):
                judged[index] = expected[index]
    what = f"tokens of {beams} beams with a cache" if beams > 1 else "greedy tokens with a cache"
    candidate.same(what, expected, judged, exact=True)


def _too_close(candidate: Candidate, row: list[int], count: int, beams: int) -> bool:
    """Whether one choice of a beam search is closer than rounding can tell.

    The plain search: all beams are extended by all tokens, the best sums of log probabilities
    stay. Two sums are compared at a time. Rounding moves a logit by the tolerance at most, a log
    probability by twice that, and a sum by as many times as it has parts.
    """
    ends = candidate.sizes.config.get("eos_token_id")
    kept, sums = [row], np.zeros(1)
    for step in range(count):
        logits = candidate.logits(kept)[:, -1]
        probabilities = _log_softmax(logits)
        if ends is not None:  # a search of a given length chooses no end
            probabilities[:, ends] = -np.inf
        totals = (sums[:, None] + probabilities).ravel()
        order = np.argsort(-totals)
        last = step == count - 1
        stay = 1 if last else beams
        best = totals[order[: beams + 1]]
        allowed = 2 * 2 * candidate.tolerance(logits) * (step + 1)
        if best[stay - 1] - best[stay] <= allowed:
            return True
        chosen = order[:beams]
        sums = totals[chosen]
        vocab = logits.shape[1]
        kept = [[*kept[at // vocab], int(at % vocab)] for at in map(int, chosen)]
    return False


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def _continued(sizes: Sizes, *, most: int = 8) -> st.SearchStrategy[dict[str, Any]]:
    """Rows and a number of tokens that stay within what the model was made for."""

    def counted(rows: list[list[int]]) -> st.SearchStrategy[dict[str, Any]]:
        room = min(most, sizes.longest - len(rows[0]))
        return st.integers(1, max(1, room)).map(lambda count: {"rows": rows, "count": count})

    return batch(sizes, 1, max(1, min(8, sizes.longest - 1))).flatmap(counted)


def _of_beams(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    examples = st.tuples(_continued(sizes, most=4), st.integers(2, 3))
    return examples.map(lambda found: {**found[0], "beams": found[1]})


LAWS = (
    Law(
        id="cache-greedy",
        says="Greedy decoding gives the same tokens with a cache and without, up to the first that "
        "is chosen by less than rounding, within the length that the model was made for.",
        source="follows from cache-chunks",
        check=check_greedy,
        arguments=_continued,
        needs=("beams",),
        bound="no token may differ, unless the two best logits lie closer together than twice the "
        "tolerance of both",
        mutants=("position-restarted",),
    ),
    Law(
        id="cache-beams",
        says="A beam search gives the same tokens with a cache and without, unless a choice on the "
        "way is by less than rounding, within the length that the model was made for.",
        source="follows from cache-chunks and cache-reorder; Sutskever et al. 2014, Sequence to "
        "Sequence Learning with Neural Networks, section 3.2, for the search",
        check=check_beams,
        arguments=_of_beams,
        needs=("beams",),
        bound="no token may differ, unless the sums of log probabilities of two beams of t tokens "
        "lie closer together than 4 t times the tolerance of a logit",
        mutants=("beams-not-reordered",),
    ),
)
