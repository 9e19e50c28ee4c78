"""JUnit XML: a suite a case, a test case a candidate and prompt; nothing that fails looks green."""

from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from harness.report.junit import error_suite, suite, to_junit
from harness.report.junit_xml import document
from harness.result import Cause, Diagnosis, Evidence, RunResult, TapStatus, Verdict

Sample = Callable[..., RunResult]
EVIL = "]]></failure><testcase name='x'/>&\"'\x00\x1b\ud800\ufffe\uffff\u202e\n\t|"


def parsed(result: RunResult) -> ET.Element:
    root = ET.fromstring(to_junit(result).encode())
    (found,) = root
    assert root.tag == "testsuites"
    assert {k: root.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        k: found.get(k) for k in ("tests", "failures", "errors", "skipped")
    }
    assert found.get("tests") == str(len(found.findall("testcase")))
    return found


def outcomes(found: ET.Element) -> dict[tuple[str, str], str]:
    """``failure``, ``error`` or nothing for each class and name."""
    return {
        (case.get("classname", ""), case.get("name", "")): next(
            (child.tag for child in case if child.tag in ("failure", "error")), ""
        )
        for case in found.findall("testcase")
    }


def properties(element: ET.Element | None) -> dict[str | None, str | None]:
    assert element is not None
    return {p.get("name"): p.get("value") for p in element.findall("properties/property")}


def test_junit_has_a_test_case_for_each_candidate_and_prompt(sample: Sample) -> None:
    found = parsed(sample(Verdict.ROUNDING, prompts={"a": "x", "b": "y"}))
    engines = ("hf:eager", "hf:sdpa", "reference")
    assert outcomes(found) == {(f"smollm2.{e}", p): "" for e in engines for p in "ab"}
    assert (found.get("name"), found.get("failures"), found.get("errors")) == ("smollm2", "0", "0")
    assert (found.get("time"), found.get("timestamp")) == ("12.500", "2030-01-02T03:04:05Z")
    assert properties(found)["command"] == "parity run cases/smollm2.toml"
    assert properties(found)["version.torch"] == "2.13.0"
    said = properties(found.find("testcase"))
    assert said["candidate_verdict"] == "rounding"
    assert said["compared"] == said["replayed"]
    assert said["worst_tap"]


def test_junit_failure_holds_the_first_divergence_and_its_cause(sample: Sample) -> None:
    result = sample(Verdict.FAIL, prompts={"a": "x", "b": "y"})
    cause = Cause(
        "rope-theta", "Another base", "10000", Evidence.REPLAY, 1.0, 0.6, "take it", "", ()
    )
    place = ("a", 0, "layers.1.attn.q_rope")
    result = replace(result, diagnoses=(Diagnosis("hf:eager", *place, (place,), (cause,), ()),))
    found = parsed(result)
    assert {key for key, tag in outcomes(found).items() if tag} == {("smollm2.hf:eager", "a")}
    failure = found.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "fail"
    assert "hf:eager at layers.1.attn.q_rope" in (failure.get("message") or "")
    text = failure.text or ""
    for part in ("tap: layers.1.attn.q_rope", "own or inherited: its own", "change: take it"):
        assert part in text
    assert "cause: Another base (rope-theta)" in text.splitlines()


def test_junit_shows_failures_on_later_prompts(sample: Sample) -> None:
    result = sample(Verdict.FAIL, prompts={"a": "x", "b": "y"})
    first = result.candidates[0]
    first = replace(first, failing=(*first.failing, ("b", 1, "layers.1.attn.q_rope")))
    found = parsed(replace(result, candidates=(first, *result.candidates[1:])))
    assert [key for key, tag in outcomes(found).items() if tag == "failure"] == [
        ("smollm2.hf:eager", "a"),
        ("smollm2.hf:eager", "b"),
    ]


@pytest.mark.parametrize(
    ("status", "tag"),
    [
        (TapStatus.MISSING, "error"),
        (TapStatus.MISSHAPEN, "error"),
        (TapStatus.NOT_FINITE, "failure"),
        (TapStatus.UNAVAILABLE, ""),
    ],
)
def test_junit_tells_what_was_not_compared(sample: Sample, status: TapStatus, tag: str) -> None:
    result = sample(Verdict.ROUNDING)
    prompt = result.prompts[0]
    first, *others = prompt.comparisons
    gone = replace(first, status=status, difference=None, local=None, note="why")
    found = parsed(replace(result, prompts=(replace(prompt, comparisons=(gone, *others)),)))
    assert outcomes(found)[("smollm2.hf:eager", "hello")] == tag


def test_junit_is_red_where_nothing_was_compared(sample: Sample) -> None:
    result = sample(Verdict.ROUNDING)
    prompt = replace(result.prompts[0], comparisons=())
    assert set(outcomes(parsed(replace(result, prompts=(prompt,)))).values()) == {"error"}
    for bare in (replace(result, prompts=()), replace(result, candidates=())):
        assert set(outcomes(parsed(bare)).values()) == {"error"}


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.NOT_FINITE, Verdict.NOT_COMPARABLE])
def test_junit_is_red_where_no_prompt_accounts_for_the_verdict(
    sample: Sample, verdict: Verdict
) -> None:
    result = sample(Verdict.PASS)
    one = replace(result.candidates[0], verdict=verdict, reason="because")
    found = parsed(replace(result, verdict=verdict, candidates=(one, *result.candidates[1:])))
    tag = "error" if verdict is Verdict.NOT_COMPARABLE else "failure"
    assert outcomes(found)[("smollm2.hf:eager", "all prompts")] == tag
    found = parsed(replace(result, verdict=verdict))
    assert outcomes(found)[("smollm2", "the whole run")] == "error"


def test_junit_is_valid_xml_for_any_strings(sample: Sample) -> None:
    result = sample(Verdict.FAIL)
    first = result.candidates[0]
    assert first.first_divergence is not None
    divergence = replace(
        first.first_divergence,
        candidate=EVIL,
        prompt=EVIL,
        tap=EVIL,
        comparison=replace(first.first_divergence.comparison, note=EVIL, op=EVIL, tap=EVIL),
    )
    first = replace(first, candidate=EVIL, reason=EVIL, first_divergence=divergence)
    prompt = replace(
        result.prompts[0],
        name=EVIL,
        comparisons=tuple(replace(c, candidate=EVIL) for c in result.prompts[0].comparisons[:3]),
    )
    evil = replace(
        result,
        case=EVIL,
        summary=EVIL,
        candidates=(first,),
        prompts=(prompt,),
        model=replace(result.model, origin=EVIL, fingerprint=EVIL),
        environment=replace(result.environment, command=EVIL, started=EVIL, versions={EVIL: EVIL}),
    )
    found = parsed(evil)
    assert len(found.findall("testcase")) == 1
    shown = "\\x00\\x1b\\ud800\\ufffe\\uffff\\u202e\\n\\t|"
    assert (found.get("name") or "").endswith(shown)
    assert "]]></failure><testcase name='x'/>&\"'" in (found.findtext("testcase/failure") or "")


def test_the_parser_refuses_what_is_not_valid() -> None:
    with pytest.raises(ET.ParseError):
        ET.fromstring("<testsuite name='\x00'/>")


def test_document_adds_up_its_suites(sample: Sample) -> None:
    root = ET.fromstring(
        document([suite(sample(Verdict.FAIL)), error_suite("gone", "no such file")]).encode()
    )
    assert [each.get("name") for each in root] == ["smollm2", "gone"]
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "1", "1")
    assert root[1][0][0].get("message") == "no such file"
