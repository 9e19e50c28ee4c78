"""The data block of the page: it says what the result says, stays small, and holds text as data."""

import base64
import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.report import page_data
from harness.report.html import digest, script, to_html
from harness.report.side_by_side import (
    decade,
    errors_by_token,
    fits,
    greedy_texts,
    matrix,
    slots_of,
    weights,
)
from harness.report.story import report_links, tell, token_of
from harness.result import (
    Cause,
    Diagnosis,
    Evidence,
    Fit,
    Greedy,
    RunResult,
    TapStatus,
    Verdict,
    WeightDifference,
)
from harness.spread import encode

Make = Callable[..., RunResult]
EVIL = "</script><img src=x onerror=1>\u202e\x1b[2J"


def read(block: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(block)))


def unpack(blocks: page_data.Blocks) -> Any:
    """What all blocks say, the columns of each prompt side by side."""
    data = read(blocks.main)
    for prompt, details in zip(data["prompts"], blocks.details, strict=True):
        more = read(details)
        assert not set(more) & set(prompt["taps"])
        prompt["taps"] |= more
    return data


def test_block_says_what_the_result_says(sample: Make, spread_out: Make) -> None:
    result = spread_out(sample(Verdict.FAIL))
    data = unpack(page_data.to_blocks(result))
    table, prompt = data["prompts"][0]["taps"], result.prompts[0]
    names = data["names"]
    for i, c in enumerate(prompt.comparisons):
        said = [names[table[key][i]] for key in ("candidate", "tap", "op", "status")]
        assert said == [c.candidate, c.tap, c.op, c.status.value]
        if c.local is None or c.difference is None:
            assert table["units"][i] is table["max_abs"][i] is table["own_spread"][i] is None
            continue
        assert table["units"][i] == pytest.approx(c.local.units, rel=1e-3)
        assert table["max_abs"][i] == pytest.approx(c.difference.max_abs, rel=1e-3)
        assert table["end_worst"][i][2] == c.difference.worst.reference
        assert c.local.spread is not None
        assert table["own_spread"][i][:3] == [
            c.local.spread.sizes,
            c.local.spread.positions,
            c.local.spread.heads,
        ]
        assert len(table["end_spread"][i][3]) == 5
    assert data["start"]["tap"] == names.index("layers.1.attn.q_rope")
    assert [names[number] for number, _ in data["candidates"]] == [
        c.candidate for c in result.candidates
    ]
    assert data["candidates"][0][1] == 2.0**-24


def test_block_is_the_same_for_the_same_result(sample: Make) -> None:
    assert page_data.to_blocks(sample()) == page_data.to_blocks(sample())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (None, None),
        (0.000123456, 0.0001235),
        (3.0, 3),
    ],
)
def test_digits_are_those_shown_and_json_has_no_nan(value: float | None, said: object) -> None:
    assert page_data.digits(value) == said


def test_block_leaves_out_spreads_of_the_healthiest_first(sample: Make, spread_out: Make) -> None:
    result = spread_out(sample(Verdict.FAIL, layers=4), tokens=64)
    whole = page_data.to_blocks(result)
    small = page_data.to_blocks(result, most_bytes=whole.size // 2)
    assert small.size <= whole.size // 2
    table = unpack(small)["prompts"][0]["taps"]
    rows = list(zip(table["units"], table["own_spread"], strict=True))
    kept = [units for units, spread in rows if spread is not None]
    left_out = [units for units, spread in rows if spread is None and units is not None]
    assert kept
    assert left_out
    assert min(kept) >= max(left_out)
    assert 15760 in kept
    none = unpack(page_data.to_blocks(result, most_bytes=1))["prompts"][0]["taps"]
    assert set(none["own_spread"]) == {None}
    assert none["units"] == table["units"]


def test_page_of_32_layers_10_prompts_4_engines_is_below_6_megabytes(
    sample: Make, spread_out: Make
) -> None:
    result = spread_out(
        sample(
            Verdict.FAIL,
            layers=32,
            prompts={f"prompt {i}": "text" for i in range(10)},
            engines=("hf:eager", "hf:sdpa", "reference", "trace:candle"),
        ),
        tokens=64,
    )
    page = to_html(result)
    assert len(page.encode("utf-8")) < 6_000_000
    # The check can fail: without leaving anything out it would be more.
    some = result.prompts[:3]
    assert page_data.pack(replace(result, prompts=some)).size * 10 / len(some) > 6_000_000
    # And what the page opens with is a small part of it.
    (main,) = re.findall('id="data">([^<]*)<', page)
    assert 100_000 < len(main) < 1_000_000


def test_hostile_text_stays_in_the_block_as_text_made_visible(sample: Make) -> None:
    result = sample()
    prompt = result.prompts[0]
    evil = tuple(replace(c, tap=EVIL, note=EVIL, op=EVIL) for c in prompt.comparisons)
    data = unpack(
        page_data.to_blocks(replace(result, prompts=(replace(prompt, comparisons=evil),)))
    )
    assert "</script><img src=x onerror=1>\\u202e\\x1b[2J" in data["names"]
    assert not [name for name in data["names"] if "\u202e" in name or "\x1b" in name]


def test_script_reads_no_markup_and_is_the_one_that_the_policy_names(sample: Make) -> None:
    code = script()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert word not in code, word
    assert "</script" not in code
    page = to_html(sample())
    assert f"script-src '{digest(code)}'" in page
    assert page.count(f"<script>{code}</script>") == 1


def test_results_without_spreads_have_a_block_too(sample: Make) -> None:
    table = unpack(page_data.to_blocks(sample()))["prompts"][0]["taps"]
    assert set(table["own_spread"]) == {None}
    assert any(units is not None for units in table["units"])


def test_story_says_what_since_why_and_what_to_do(sample: Make) -> None:
    result = sample(Verdict.FAIL)
    told = tell(result)
    assert [t.title for t in told] == ["hf:eager"]
    questions = [question for question, _ in told[0].rows]
    assert questions == ["What disagrees", "Since which op", "What to do"]
    assert "layers.1.attn.q_rope" in dict(told[0].rows)["Since which op"]
    cause = Cause(
        "rope.theta",
        "another theta",
        "10000.0",
        Evidence.FIT,
        1.0,
        None,
        "read rope_theta",
        "",
        (
            "https://github.com/huggingface/candle/issues/2714",
            "javascript:alert(1)//https://github.com/a/b/issues/1",
            "https://github.com/a/b/issues/1?x=<script>",
            "https://elsewhere.com/a/b/issues/1",
        ),
    )
    diagnosis = Diagnosis("hf:eager", "hello", 0, "layers.1.attn.q_rope", (), (cause,), ())
    rows = tell(replace(result, diagnoses=(diagnosis,)))[0].rows
    assert dict(rows)["Why"] == "another theta (rope.theta): 10000.0"
    assert dict(rows)["What to do"] == "read rope_theta"
    assert report_links(diagnosis) == [
        ("huggingface/candle#2714", "https://github.com/huggingface/candle/issues/2714")
    ]


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.ROUNDING])
def test_story_of_engines_that_agree_asks_for_nothing(sample: Make, verdict: Verdict) -> None:
    (told,) = tell(sample(verdict))
    assert told.rows[0][1].startswith("Nothing")


def test_token_of_a_divergence_is_the_one_at_its_worst_element(sample: Make) -> None:
    result = sample(Verdict.FAIL)
    assert token_of(result.candidates[0], result) == " of"
    assert token_of(result.candidates[1], result) is None


def test_matrix_is_the_worst_of_all_prompts(sample: Make) -> None:
    result = sample(prompts={"a": "x", "b": "y"})
    second = result.prompts[1]
    worse = replace(second.logits[0], max_abs=0.5, top1_agreement=0.25)
    result = replace(
        result,
        prompts=(result.prompts[0], replace(second, logits=(worse, *second.logits[1:]))),
    )
    found = matrix(result)
    assert found is not None
    assert found.engines == ("float64", "hf:eager", "hf:sdpa", "reference")
    rows = dict(found.rows)
    assert rows["float64"] == ("", "0.5", "9.2e-05", "9.2e-05")
    assert rows["hf:eager"] == ("25.0%", "", "9.2e-05", "9.2e-05")
    assert matrix(replace(result, prompts=())) is None


def test_greedy_texts_are_cut_where_they_differ_first(sample: Make) -> None:
    one = Greedy("float64", (1, 2, 3), " It is so")
    other = Greedy("hf:eager", (1, 2, 9), " It is not")
    prompt = replace(sample().prompts[0], greedy=(one, other, replace(one, engine="c")))
    first, second, third = greedy_texts(prompt)
    assert (first.same, first.other) == (" It is so", "")
    assert (second.same, second.other) == (" It is ", "not")
    assert second.note == "token 3 is the first that differs: id 9, float64 has 3"
    assert third.note == "the same 3 tokens"
    untold = replace(prompt, greedy=(replace(one, text=""), replace(other, text="")))
    assert [(t.same, t.other) for t in greedy_texts(untold)] == [("1 2 3", ""), ("1 2 ", "9")]


def test_positions_of_logits_find_their_tokens_past_pads_and_passes(sample: Make) -> None:
    prompt = replace(
        sample().prompts[0],
        token_ids=((0, 0, 5, 6), (1, 2, 3, 4)),
        chunks=(3, 1, 1),
        prefill=2,
        padding="left",
        pads=(2, 0),
    )
    slots = [(0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
    assert slots_of(prompt) == slots
    errors = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert errors_by_token(prompt, encode(errors)) == dict(zip(slots, errors, strict=True))
    assert errors_by_token(prompt, encode(errors[:-1])) == {}
    assert errors_by_token(prompt, "\x00") == {}
    long = replace(prompt, token_ids=(tuple(range(1500)),), chunks=(1500,), prefill=1, pads=())
    found = errors_by_token(long, encode([float(2**-i) for i in range(30)] * 25))
    assert found[0, 0] == found[0, 1] == 1.0
    assert found[0, 2] == 0.5
    assert len(found) == 1500
    last = errors_by_token(long, encode([1.0]))
    assert last == {(0, 1499): 1.0}


@pytest.mark.parametrize(
    ("error", "shade"),
    [(None, ""), (0.0, "g0"), (1e-7, "g0"), (1.1e-7, "g1"), (1e-4, "g3"), (2e-4, "g4"),
     (1.0, "g7"), (1e9, "g7"), (float("inf"), "g7"), (float("nan"), "g7")],
)  # fmt: skip
def test_decade_is_one_shade_a_power_of_ten(error: float | None, shade: str) -> None:
    assert decade(error) == shade


def test_audit_lists_weights_and_the_worst_fit_of_each_constant(sample: Make) -> None:
    result = sample()
    prompt = result.prompts[0]
    weight = WeightDifference("q.weight", 2, 9, 0.5, (0, 1), 1.0, 1.5)
    near = Fit("rope_theta", 1e5, 100001.0, 2.0, 10.0, excluded=False, written="rope_parameters")
    far = replace(near, fitted=9e4, excluded=True)
    touched = [
        replace(c, weights=(weight,), fits=(near if i else far,)) if c.local else c
        for i, c in enumerate(prompt.comparisons)
        if c.candidate == "hf:eager" and c.status is TapStatus.COMPARED
    ]
    result = replace(result, prompts=(replace(prompt, comparisons=tuple(touched)),))
    ((candidate, said),) = weights(result)
    assert candidate == "hf:eager"
    assert said.startswith("q.weight differs in 2 of 9 elements")
    (fitted,) = fits(result)
    assert (fitted.fitted, fitted.excluded) == ("90000 \N{PLUS-MINUS SIGN} 2", 1)
    assert fitted.places == len(touched)
    assert f"1 of {len(touched)}</td>" in to_html(result)
