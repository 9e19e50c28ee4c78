"""The result document: what is written can be read again, and nothing else is."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.errors import UsageError
from harness.result import (
    FORMAT,
    VERSION,
    RunResult,
    TapStatus,
    Verdict,
    WeightDifference,
    from_json,
    to_json,
)

Sample = Callable[..., RunResult]


@pytest.mark.parametrize("verdict", Verdict)
def test_law_a_result_survives_writing_and_reading(sample: Sample, verdict: Verdict) -> None:
    result = sample(verdict)
    again = from_json(to_json(result))
    assert again == result
    assert again.verdict is verdict
    assert to_json(again) == to_json(result)


def test_result_that_is_not_finite_survives_with_its_first_divergence(sample: Sample) -> None:
    result = sample(Verdict.NOT_FINITE)
    text = to_json(result).decode()
    assert "NaN" not in text
    assert "Infinity" not in text
    first = from_json(to_json(result)).first_divergence
    assert first is not None
    assert first.comparison.status is TapStatus.NOT_FINITE
    assert first == result.first_divergence


def test_differing_weights_survive(sample: Sample) -> None:
    result = sample(Verdict.FAIL)
    first = result.prompts[0].comparisons[0]
    moved = (
        WeightDifference("w", 1, 12, 1e-4, (0, 3), 0.25, 0.2501),
        WeightDifference("v", 12, 12, None, (0,), 0.25, None),
    )
    prompt = replace(
        result.prompts[0],
        comparisons=(replace(first, weights=moved), *result.prompts[0].comparisons[1:]),
    )
    result = replace(result, prompts=(prompt,))
    assert from_json(to_json(result)).comparisons[0].weights == moved


def test_document_says_its_format_and_version(sample: Sample) -> None:
    document = json.loads(to_json(sample()))
    assert (document["format"], document["version"]) == (FORMAT, VERSION)
    assert document["verdict"] == "rounding"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"version": VERSION + 1}, f"('{FORMAT}', {VERSION + 1})"),
        ({"version": str(VERSION)}, f"('{FORMAT}', '{VERSION}')"),
        ({"version": None}, f"('{FORMAT}', None)"),
        ({"format": "somebody/else"}, f"('somebody/else', {VERSION})"),
    ],
)
def test_unknown_format_or_version_is_refused(
    sample: Sample, change: dict[str, Any], found: str
) -> None:
    document = json.loads(to_json(sample())) | change
    with pytest.raises(UsageError) as caught:
        from_json(json.dumps(document).encode(), where="old.json")
    assert caught.value.where == "old.json"
    assert f"expected format {FORMAT} version {VERSION}, found {found}" in str(caught.value)
    assert "write it again with `parity run --json`" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected a JSON document"),
        (b"not json", "expected a JSON document"),
        (b"[]", "found <class 'list'>"),
        (b"{}", "found (None, None)"),
        (b"\xff\xfe", "expected a JSON document"),
    ],
)
def test_what_is_no_result_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_json(data)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("verdict", "fine"), ("candidates", {}), ("tolerance", "small"), ("case", None)],
)
def test_document_with_a_wrong_value_is_refused_with_its_place(
    sample: Sample, key: str, value: Any
) -> None:
    document = json.loads(to_json(sample())) | {key: value}
    with pytest.raises(UsageError, match=rf"expected a valid result, found .*\$\.{key}"):
        from_json(json.dumps(document).encode())


def test_document_without_a_field_is_refused(sample: Sample) -> None:
    document = json.loads(to_json(sample()))
    del document["prompts"]
    with pytest.raises(UsageError, match="missing required field `prompts`"):
        from_json(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.PASS, 0),
        (Verdict.ROUNDING, 0),
        (Verdict.FAIL, 1),
        (Verdict.NOT_FINITE, 1),
        (Verdict.NOT_COMPARABLE, 3),
    ],
)
def test_exit_code_follows_the_verdict(sample: Sample, verdict: Verdict, code: int) -> None:
    assert sample(verdict).exit_code == code


def test_every_verdict_has_an_exit_code() -> None:
    from harness.result import EXIT_CODES

    assert set(EXIT_CODES) == set(Verdict)


def test_first_divergence_is_that_of_the_first_candidate_that_has_one(sample: Sample) -> None:
    result = sample(Verdict.FAIL)
    healthy = [c for c in result.candidates if c.first_divergence is None]
    bad = next(c for c in result.candidates if c.first_divergence is not None)
    assert healthy
    moved = replace(result, candidates=(*healthy, bad))
    assert moved.first_divergence == bad.first_divergence
    assert replace(result, candidates=tuple(healthy)).first_divergence is None


def test_comparisons_are_those_of_all_prompts_in_order(sample: Sample) -> None:
    result = sample(prompts={"a": "A", "b": "B"})
    assert result.comparisons == result.prompts[0].comparisons + result.prompts[1].comparisons


def test_a_result_without_its_prompts_is_the_same_otherwise(sample: Sample) -> None:
    result = sample(Verdict.FAIL)
    assert from_json(to_json(result), prompts=False) == replace(result, prompts=())


@pytest.mark.parametrize(
    ("cut", "message"), [(1000, "expected a JSON document"), (-2, "expected a JSON document")]
)
def test_a_torn_result_is_refused_without_its_prompts_too(
    sample: Sample, cut: int, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        from_json(to_json(sample())[:cut], prompts=False)
    assert message in str(caught.value)


@pytest.mark.parametrize("prompts", [True, False])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"rope":100000.0', b'"rope":' + b"[" * 100_000 + b"]" * 100_000),
        (b'"rope":100000.0', b'"rope":[1,]'),
        (b'"llama"', b'"\xff\xfe"'),
        (b'"version":1', b'"version":1e999'),
        (b'"version":1', b'"version":"\xff"'),
        (b'"version":1', b'"version":' + b"[" * 100_000 + b"]" * 100_000),
    ],
)
def test_values_that_cannot_be_read_are_refused(
    sample: Sample, old: bytes, new: bytes, *, prompts: bool
) -> None:
    data = to_json(sample())
    assert data.count(old) == 1
    with pytest.raises(UsageError, match=r"expected (a JSON document|format)"):
        from_json(data.replace(old, new), prompts=prompts)
