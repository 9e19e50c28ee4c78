import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.compare import difference, local_error
from harness.logits import all_pairs, most_likely
from harness.spread import LOWEST, MOST_POSITIONS, SIGNS, count_sizes, decode, encode, rows_of


@given(st.lists(st.floats(2.0**LOWEST, 2.0**10)))
def test_law_signs_say_sizes_within_a_quarter_octave(values: list[float]) -> None:
    again = decode(encode(values))
    assert len(again) == len(values)
    assert all(abs(np.log2(x / y)) <= 0.2501 for x, y in zip(values, again, strict=True))


def test_signs_of_zero_and_of_what_is_out_of_reach() -> None:
    largest = decode(SIGNS[-1])[0]
    assert decode(encode([0.0, 1e-300, 1e300, np.inf, np.nan])) == [
        0.0, 2.0**LOWEST, largest, largest, largest,
    ]  # fmt: skip
    assert largest > 1000


def test_signs_need_no_escapes() -> None:
    assert json.dumps(SIGNS) == f'"{SIGNS}"'
    assert not set(SIGNS) & set("<>&'\"`\\")
    assert len(set(SIGNS)) == len(SIGNS)


def test_sizes_are_counted_by_octave() -> None:
    counts = decode(count_sizes(np.array([0.0, 2.0**-40, 2.0**-26, 1.0, 1.5, 1.9, 2.0])))
    assert {at: count for at, count in enumerate(counts) if count} == {
        0: 2.0, 1: 1.0, 27: pytest.approx(3.0, rel=0.19), 28: 1.0,
    }  # fmt: skip


def test_rows_are_told_apart_by_position_and_head() -> None:
    largest = np.zeros((2, 3, 5))  # B H T
    largest[1, 2, 4], largest[0, 0, 1] = 1.0, 4.0
    positions, heads = rows_of("BHTD", (2, 3, 5, 7), largest.reshape(-1))
    assert decode(positions) == [0.0, 4.0, 0.0, 0.0, 1.0]
    assert decode(heads) == [4.0, 0.0, 1.0]
    assert rows_of("BTC", (1, 2, 7), np.ones(2))[1] == ""
    assert rows_of("", (2, 3), np.ones(2)) == ("", "")


def test_long_passes_are_told_apart_by_stretches() -> None:
    largest = np.zeros(1000)
    largest[999] = 1.0
    positions, _ = rows_of("BTC", (1, 1000, 7), largest)
    assert len(positions) <= MOST_POSITIONS
    assert decode(positions)[-1] == 1.0
    assert not any(decode(positions)[:-1])


def test_a_difference_says_how_it_is_spread() -> None:
    x = np.zeros((1, 2, 4, 3))
    y = x.copy()
    y[0, 1, 2, 1], y[0, 0, 3, 0] = 8.0, -2.0
    spread = difference(x, y, "BHTD").spread
    assert spread is not None
    assert decode(spread.positions) == [0.0, 0.0, 8.0, 2.0]
    assert decode(spread.heads) == [2.0, 8.0]
    assert spread.worst[:2] == ((19, 0.0, 8.0), (9, 0.0, -2.0))
    assert sum(decode(spread.sizes)) == pytest.approx(24, rel=0.1)


def test_a_local_error_is_spread_in_units() -> None:
    x = np.zeros((1, 4, 3))
    y = x.copy()
    y[0, 2, 1] = 8.0
    spread = local_error(x, y, np.full(x.shape, 2.0), "BTC").spread
    assert spread is not None
    assert decode(spread.positions) == [0.0, 0.0, 4.0, 0.0]
    assert spread.worst[0] == (7, 0.0, 8.0)


def test_nothing_is_said_of_rows_with_pads() -> None:
    x = np.zeros((1, 4, 3))
    counted = np.ones(x.shape, dtype=bool)
    counted[0, 0] = False
    assert difference(x, x, "BTC", counted=counted).spread is None


def test_logits_are_told_apart_by_position() -> None:
    a = np.zeros((1, 70, 5))
    b = a.copy()
    b[0, 66, 2] = 0.5
    positions = decode(all_pairs({"a": a, "b": b})[0].positions)
    assert [at for at, size in enumerate(positions) if size] == [66]
    assert positions[66] == 0.5


def test_most_likely_tokens_come_first_and_ties_by_id() -> None:
    ids, logits, shares = most_likely(np.array([1.0, 3.0, 3.0, 0.0], dtype=np.float32), 3)
    assert ids.tolist() == [1, 2, 0]
    assert logits.tolist() == [3.0, 3.0, 1.0]
    whole = np.exp([1.0, 3.0, 3.0, 0.0])
    assert shares == pytest.approx(whole[[1, 2, 0]] / whole.sum())
    assert len(most_likely(np.zeros(2), 8)[0]) == 2
