"""The JUnit view: a suite for each case, a test case for each candidate and prompt of it."""

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from ..result import CandidateVerdict, PromptResult, RunResult, TapStatus, Verdict
from . import causes, wording
from .junit_xml import Outcome, add, counted, document, new_suite, plain

_BAD = (Verdict.FAIL, Verdict.NOT_FINITE)
_LACKING = (TapStatus.MISSING, TapStatus.MISSHAPEN)


def to_junit(result: RunResult) -> str:
    """Render a result as a JUnit XML document."""
    return document([suite(result)])


def suite(result: RunResult) -> ET.Element:
    """One case. A verdict that no prompt accounts for is a test case of its own."""
    environment = result.environment
    properties = {
        "verdict": result.verdict.value,
        "summary": result.summary,
        "model": result.model.origin,
        "fingerprint": result.model.fingerprint,
        "command": environment.command,
        "threads": str(environment.threads),
        **{f"version.{name}": version for name, version in environment.versions.items()},
    }
    found = new_suite(result.case, properties)
    found.set("time", f"{environment.seconds:.3f}")
    if environment.started:
        found.set("timestamp", plain(environment.started))
    for candidate in result.candidates:
        _add_candidate(found, candidate, result)
    told = any(case.find("failure") is not None or case.find("error") is not None for case in found)
    healthy = result.verdict in (Verdict.PASS, Verdict.ROUNDING)
    if not (told or healthy) or not result.candidates:
        kind, text = result.verdict.value, wording.meaning(result)
        add(found, result.case, "the whole run", Outcome("error", kind, result.summary, text), {})
    return counted(found)


def error_suite(name: str, message: str) -> ET.Element:
    """What stands for a case of which there is no result."""
    found = new_suite(name, {})
    add(found, name, "the whole run", Outcome("error", "no result", message, message), {})
    return counted(found)


def _add_candidate(into: ET.Element, candidate: CandidateVerdict, result: RunResult) -> None:
    classname = f"{result.case}.{candidate.candidate}"
    told = False
    for prompt in result.prompts:
        outcome = _outcome(candidate, prompt, result)
        told |= bool(outcome.tag)
        add(into, classname, prompt.name, outcome, dict(_properties(candidate, prompt)))
    healthy = candidate.verdict in (Verdict.PASS, Verdict.ROUNDING)
    if not told and (not healthy or not result.prompts):
        tag = "failure" if candidate.verdict in _BAD else "error"
        outcome = Outcome(tag, candidate.verdict.value, candidate.reason, candidate.reason)
        add(into, classname, "all prompts", outcome, {"verdict": candidate.verdict.value})


def _outcome(candidate: CandidateVerdict, prompt: PromptResult, result: RunResult) -> Outcome:
    """What one candidate came to on one prompt."""
    own = [c for c in prompt.comparisons if c.candidate == candidate.candidate]
    failing = [(chunk, tap) for name, chunk, tap in candidate.failing if name == prompt.name]
    broken = [c for c in own if c.status is TapStatus.NOT_FINITE]
    first = candidate.first_divergence
    here = first is not None and first.prompt == prompt.name
    if first is not None and here and candidate.verdict in _BAD:
        message = wording.divergence_sentence(first)
        return Outcome(
            "failure", candidate.verdict.value, message, _explained(candidate, prompt, result)
        )
    if failing or broken:
        places = [*failing, *((c.chunk, c.tap) for c in broken)]
        words = ", ".join(dict.fromkeys(tap if not chunk else f"{tap} (pass {chunk})"
                                        for chunk, tap in places))  # fmt: skip
        kind = Verdict.FAIL if failing else Verdict.NOT_FINITE
        count = wording.count(len(places), "tap")
        return Outcome("failure", kind.value, f"{count}, first {places[0][1]}", words)
    lacking = [c for c in own if c.status in _LACKING]
    if lacking:
        lines = [f"{c.tap}: {c.status.value}; {c.note}" for c in lacking]
        return Outcome("error", Verdict.NOT_COMPARABLE.value, lines[0], "\n".join(lines))
    if not any(c.difference is not None for c in own):
        words = "no tap of it was compared on this prompt"
        return Outcome("error", Verdict.NOT_COMPARABLE.value, words, words)
    return Outcome()


def _explained(candidate: CandidateVerdict, prompt: PromptResult, result: RunResult) -> str:
    """The first divergence, row by row, and the causes that were found on this prompt."""
    first = candidate.first_divergence
    assert first is not None
    lines = [f"{label}: {value}" for label, value in wording.divergence_rows(first, result)]
    for diagnosis in result.diagnoses:
        if (diagnosis.candidate, diagnosis.prompt) == (candidate.candidate, prompt.name):
            lines += ["", f"cause: {causes.title(diagnosis)}"]
            lines += [f"{label}: {value}" for label, value in causes.rows(diagnosis)]
    return "\n".join(lines)


def _properties(candidate: CandidateVerdict, prompt: PromptResult) -> Iterator[tuple[str, str]]:
    own = [c for c in prompt.comparisons if c.candidate == candidate.candidate]
    yield "candidate_verdict", candidate.verdict.value
    yield "compared", str(sum(c.difference is not None for c in own))
    yield "replayed", str(sum(c.local is not None for c in own))
    judged = [(c.local.units, c.tap) for c in own if c.local is not None]
    if judged:
        units, tap = max(judged)
        yield "worst_units", wording.units(units)
        yield "worst_tap", tap
    sizes = [c.difference.max_abs for c in own if c.difference is not None]
    if sizes:
        yield "max_abs", wording.number(max(sizes))
