"""What rounding alone does to logits of some tokens is allowed there, and nowhere else."""

from collections.abc import Iterator

import numpy as np
import pytest

from harness.errors import CheckpointError
from harness.laws import candidate as module
from harness.laws.candidate import Candidate
from harness.laws.conditioning import DRAWS, rounding_of
from harness.laws.law import LawBroken
from harness.laws.makers import make_of
from harness.laws.models import Shelf, pooled

ROWS = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]


@pytest.fixture
def candidate() -> Iterator[Candidate]:
    shelf = Shelf(make_of("reference"))
    yield shelf.candidate(pooled("llama", 0))
    shelf.close()


def test_rounding_of_a_well_conditioned_model_is_far_below_the_tolerance(
    candidate: Candidate,
) -> None:
    errors = rounding_of(candidate.subject, ROWS)
    assert errors.shape == (2, 5)
    assert np.all(errors > 0)
    assert DRAWS * errors.max() < candidate.tolerance(candidate.logits(ROWS))


def test_a_difference_is_allowed_where_rounding_is_that_large_and_only_there(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = np.zeros((2, 5))
    errors[1, 4] = 0.02
    monkeypatch.setattr(module, "rounding_of", lambda subject, rows: errors)
    logits = candidate.logits(ROWS)

    def moved(position: int, by: float) -> None:
        found = logits.copy()
        found[1, position, 7] += by
        # The last three positions alone, as of engines that keep the last ones.
        candidate.same("logits", logits[:, -3:], found[:, -3:], rows=ROWS)

    moved(4, DRAWS * 0.019)
    for position, by in ((4, DRAWS * 0.021), (3, 0.019)):
        with pytest.raises(LawBroken, match=rf"logits at \[1, {position - 2}, 7\]"):
            moved(position, by)


def test_nothing_more_is_allowed_where_the_reference_cannot_say(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(subject: object, rows: object) -> None:
        raise CheckpointError("config", expected="a", found="b", advice="c")

    monkeypatch.setattr(module, "rounding_of", refuse)
    logits = candidate.logits(ROWS)
    with pytest.raises(LawBroken):
        candidate.same("logits", logits, logits + 0.02, rows=ROWS)
