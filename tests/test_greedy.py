"""Greedy tokens of an engine, and of the float64 reference by checking a draft."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import HFEngine, ReferenceEngine
from harness.greedy import greedy, greedy_from_draft
from harness.logits import count_equal
from harness.subject import Subject, load_subject
from references.step import Compute, Weight

Tiny = Callable[..., Path]

TOKENS = np.array([[85, 64, 51, 27, 31, 4]])
COUNT = 12
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


class Counting:
    """A float64 step that counts forward passes."""

    def __init__(self) -> None:
        self.passes = 0
        self._compute = Compute(self.lift, np.dtype(np.float64))

    @staticmethod
    def lift(weight: Weight) -> Any:
        return np.asarray(weight.array, dtype=np.float64)

    def __call__(self, tap: str | None, op: Any, *inputs: Any, **constants: Any) -> Any:
        self.passes += tap == "logits"
        return self._compute(tap, op, *inputs, **constants)


@pytest.fixture(
    scope="module",
    params=[("llama", {}), ("qwen3", {}), ("llama", {"rope_parameters": DYNAMIC})],
    ids=["llama", "qwen3", "dynamic"],
)
def subject(request: pytest.FixtureRequest, tiny: Tiny) -> Subject:
    family, overrides = request.param
    if overrides:  # the sequence outgrows the trained length on the way
        overrides = overrides | {"max_position_embeddings": 8}
    return load_subject(tiny(family, **overrides))


@pytest.fixture(scope="module")
def one_by_one(subject: Subject) -> Any:
    return greedy(ReferenceEngine(subject.model, dtype="float64"), TOKENS, COUNT)


def test_greedy_takes_the_largest_logit_each_time(subject: Subject, one_by_one: Any) -> None:
    engine = ReferenceEngine(subject.model, dtype="float64")
    assert one_by_one.shape == (1, COUNT)
    assert len(set(one_by_one[0].tolist())) > 2
    with engine.open(cache=True) as session:
        tokens = TOKENS
        for chosen in one_by_one[0]:
            assert session.feed(tokens)[0, -1].argmax() == chosen
            tokens = np.array([[chosen]])


def test_greedy_is_that_of_a_transformers_model(
    subject: Subject, one_by_one: Any, load_model: Callable[..., Any]
) -> None:
    engine = HFEngine(load_model(subject.checkpoint.path))
    assert np.array_equal(greedy(engine, TOKENS, COUNT), one_by_one)


def test_greedy_gives_each_row_its_own_tokens(subject: Subject, one_by_one: Any) -> None:
    rows = np.concatenate([TOKENS, TOKENS[:, ::-1]])
    both = greedy(ReferenceEngine(subject.model, dtype="float64"), rows, COUNT)
    assert np.array_equal(both[:1], one_by_one)
    assert not np.array_equal(both[1:], one_by_one)


def test_greedy_chooses_nothing_when_nothing_is_asked_for(subject: Subject) -> None:
    assert greedy(ReferenceEngine(subject.model), TOKENS, 0).shape == (1, 0)


@given(data=st.data())
@settings(max_examples=8)
def test_law_a_draft_does_not_change_what_is_chosen(
    subject: Subject, one_by_one: Any, data: st.DataObject
) -> None:
    wrong = data.draw(st.lists(st.integers(0, COUNT - 1), max_size=4))
    draft = one_by_one.copy()
    for place in wrong:
        draft[0, place] = data.draw(st.integers(0, 100))
    before = draft.copy()
    chosen = greedy_from_draft(subject.model, Counting(), TOKENS, draft)
    assert np.array_equal(chosen, one_by_one)
    assert np.array_equal(draft, before)


def test_draft_of_zeros_does_not_change_what_is_chosen(subject: Subject, one_by_one: Any) -> None:
    draft = np.zeros((1, COUNT), dtype=np.int64)
    chosen = greedy_from_draft(subject.model, Counting(), TOKENS, draft)
    assert np.array_equal(chosen, one_by_one)


def test_good_draft_takes_one_pass(tiny: Tiny) -> None:
    model = load_subject(tiny()).model
    right = greedy(ReferenceEngine(model, dtype="float64"), TOKENS, COUNT)
    step = Counting()
    greedy_from_draft(model, step, TOKENS, right)
    assert step.passes == 1
    right[0, 4] = (right[0, 4] + 1) % 101
    step = Counting()
    greedy_from_draft(model, step, TOKENS, right)
    assert 2 <= step.passes <= COUNT - 3


def test_empty_draft_takes_no_pass(subject: Subject) -> None:
    step = Counting()
    empty = np.zeros((1, 0), dtype=np.int64)
    assert greedy_from_draft(subject.model, step, TOKENS, empty).shape == (1, 0)
    assert step.passes == 0


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [([1, 2, 3], [1, 2, 3], 3), ([1, 2, 3], [1, 9, 3], 1), ([1], [1, 2], 1), ([], [1], 0),
     ([7, 2], [1, 2], 0)],
)  # fmt: skip
def test_count_equal_counts_leading_tokens(a: list[int], b: list[int], equal: int) -> None:
    assert count_equal(np.array(a, dtype=np.int64), np.array(b, dtype=np.int64)) == equal
