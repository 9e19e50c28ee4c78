import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.report import wording
from harness.result import Element, LogitsPair, RunResult, TapStatus, Verdict, WeightDifference

Sample = Callable[..., RunResult]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (0.0, "0"),
        (1e-4, "0.0001"),
        (9.2e-5, "9.2e-05"),
        (0.012345, "0.0123"),
        (99.96, "100"),
        (26112.4, "26,112"),
        (2.5e7, "2.5e+07"),
        (-1.5, "-1.5"),
    ],
)
def test_number_has_three_digits(value: float | None, shown: str) -> None:
    assert wording.number(value) == shown


@pytest.mark.parametrize("value", [1.2345e-5, 0.00012345, 99_999.0, 1.2345e30, 0.5, math.nan])
def test_short_fits_seven_characters(value: float) -> None:
    assert len(wording.short(value)) <= 7


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (math.inf, "inf"),
        (0.0, "0"),
        (0.04, "0.0"),
        (18.21, "18.2"),
        (15756.2, "15,756"),
        (3e12, "3.0e+12"),
    ],
)
def test_units_are_readable_at_every_size(value: float | None, shown: str) -> None:
    assert wording.units(value) == shown


@pytest.mark.parametrize(
    ("fraction", "shown"),
    [
        (1.0, "100%"),
        (0.9999, "99.9%"),
        (0.00001, "0.1%"),
        (0.0, "0%"),
        (None, "-"),
        (math.nan, "nan"),
    ],
)
def test_percent_is_whole_only_when_all_or_none_agree(fraction: float | None, shown: str) -> None:
    assert wording.percent(fraction) == shown


def test_precise_tells_neighbouring_floats_apart() -> None:
    one = 1.0 + 2.0**-23
    assert wording.precise(1.0) != wording.precise(one)
    assert wording.precise(None) == "-"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \N{SNOWMAN}", "plain \N{SNOWMAN}"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[2J\x00", r"\x1b[2J\x00"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}x", r"\u202ex"),
        ("\ud800", r"\ud800"),
    ],
)
def test_visible_spells_out_what_a_terminal_would_obey(text: str, shown: str) -> None:
    assert wording.visible(text) == shown


def test_visible_keeps_what_it_is_told_to() -> None:
    assert wording.visible("a\n\x07", keep="\n") == "a\n\\x07"


def test_place_names_the_axes_and_the_position_in_the_sequence() -> None:
    element = Element((0, 2, 1, 5), "BHTD", 7, 2, 5, 0.0, 0.0)
    assert wording.place(element) == "head 2, position 7, head element 5"
    assert wording.place(replace(element, index=(3, 2, 1, 5))).startswith("batch 3, head 2")
    assert wording.place(replace(element, axes="", index=(4,))) == "index [4]"


def test_divergence_rows_hold_everything_of_the_first_divergence(sample: Sample) -> None:
    result = sample(Verdict.FAIL)
    assert result.first_divergence is not None
    assert dict(wording.divergence_rows(result.first_divergence, result)) == {
        "candidate": "hf:eager",
        "prompt": "hello",
        "chunk": "0 (prefill)",
        "tap": "layers.1.attn.q_rope",
        "layer": "1",
        "op": "q_rope",
        "shape": "[B=1, H=9, T=5, D=64]",
        "position": "2",
        "head": "1",
        "element": "3 (index B=0, H=1, T=2, D=3)",
        "reference": "1.5 (reference op on its inputs)",
        "candidate value": "1.75",
        "local error": "15,756 rounding units, 985 times the limit of 16 (median 3,939;"
        " 0.000945 absolute, one unit is 6e-08)",
        "elements over": "1 beyond the limit",
        "end to end": wording._difference_words(result.first_divergence.comparison, result),
        "own or inherited": "its own: the op fails on the candidate's own inputs",
    }


def test_divergence_says_that_it_is_weaker_evidence_when_it_is_not_replayed(
    sample: Sample,
) -> None:
    result = sample(Verdict.FAIL)
    first = result.first_divergence
    assert first is not None
    weak = replace(first, fresh=False, comparison=replace(first.comparison, local=None))
    assert wording.divergence_sentence(weak).endswith("end to end, not replayed")
    rows = dict(wording.divergence_rows(weak, result))
    assert rows["own or inherited"].startswith("unknown: only the end-to-end difference")
    assert rows["reference"] == "1.25"
    assert "local error" not in rows


def test_divergence_gives_status_and_note_when_there_is_nothing_to_compare(
    sample: Sample,
) -> None:
    result = sample(Verdict.FAIL)
    first = result.first_divergence
    assert first is not None
    missing = replace(
        first.comparison, status=TapStatus.MISSING, note="never given", local=None, difference=None
    )
    gone = replace(first, comparison=missing)
    rows = dict(wording.divergence_rows(gone, result))
    assert (rows["status"], rows["note"]) == ("missing", "never given")
    assert wording.divergence_sentence(gone).endswith(": missing")


def test_failing_lists_the_first_taps_and_counts_the_rest(sample: Sample) -> None:
    candidate = replace(
        sample().candidates[0], failing=tuple(("p", i % 2, f"layers.{i}.attn.q") for i in range(4))
    )
    assert wording.failing(candidate, most=2) == (
        "layers.0.attn.q, layers.1.attn.q (decoding step 1) and 2 more"
    )


def test_greedy_counts_of_what_was_generated(sample: Sample) -> None:
    prompt = sample().prompts[0]
    pair = prompt.logits[0]
    assert wording.greedy(pair, prompt) == "20/20"
    assert wording.greedy(replace(pair, greedy_agreement=None), prompt) == "-"
    assert wording.greedy(replace(pair, greedy_agreement=3), replace(prompt, greedy=())) == "3"


def test_pair_cells_survive_values_that_are_not_finite(sample: Sample) -> None:
    nan = math.nan
    pair = LogitsPair("a", "b", nan, math.inf, nan, nan, nan, None)
    assert wording.pair_cells(pair, sample().prompts[0]) == ("nan", "inf", "nan", "nan", "-")


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_words(sample: Sample, verdict: Verdict) -> None:
    result = replace(sample(), verdict=verdict)
    assert wording.headline(verdict)
    assert wording.meaning(result)
    assert "{" not in wording.meaning(result)


def test_prompt_title_counts_rows_tokens_and_steps(sample: Sample) -> None:
    prompt = sample().prompts[0]
    assert wording.prompt_title(prompt) == "hello (5 tokens, 1 decoding step)"
    rows = replace(prompt, token_ids=((1,), (2,)), chunks=(1,))
    assert wording.prompt_title(rows) == "hello (2 rows of 1 token)"


def test_a_differing_weight_is_what_the_card_says(sample: Callable[..., RunResult]) -> None:
    result = sample(Verdict.FAIL)
    divergence = result.first_divergence
    assert divergence is not None
    moved = WeightDifference("w.weight", 1, 6, 1e-4, (0, 1), 0.5, 0.5001)
    changed = replace(divergence, comparison=replace(divergence.comparison, weights=(moved,)))
    assert "runs on other weights than the checkpoint's" in wording.divergence_sentence(changed)
    assert "other weights" in wording.origin(changed)
    rows = dict(wording.divergence_rows(changed, result))
    expected = "w.weight differs in 1 of 6 elements, most at [0, 1]: 0.5 in the checkpoint, 0.5001"
    assert rows["weights"].startswith(expected)
    assert "weights" not in dict(wording.divergence_rows(divergence, result))
