"""The JUnit view: a suite for each case, a test case for each candidate and prompt of it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from ..result import CandidateVerdict, PromptResult, RunResult, TapStatus, Verdict
from . import causes, wording
from .wording import visible

#: What XML 1.0 has no way to write and :func:`visible` lets pass.
_UNWRITABLE = re.compile("[\ufffe\uffff]")

_BAD = (Verdict.FAIL, Verdict.NOT_FINITE)
_LACKING = (TapStatus.MISSING, TapStatus.MISSHAPEN)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a test case says: ``failure`` or ``error`` with words, empty where all is well."""

    tag: str = ""
    kind: str = ""
    message: str = ""
    text: str = ""


def to_junit(result: RunResult) -> str:
    """Render a result as a JUnit XML document."""
    return document([suite(result)])


def document(suites: Sequence[ET.Element]) -> str:
    """The document of some suites, for example those of the cases of one run."""
    root = ET.Element("testsuites", name="logits-parity")
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(each.get(count, "0")) for each in suites)))
    root.extend(suites)
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


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
    found = _suite(result.case, properties)
    found.set("time", f"{environment.seconds:.3f}")
    if environment.started:
        found.set("timestamp", _plain(environment.started))
    for candidate in result.candidates:
        _add_candidate(found, candidate, result)
    told = any(case.find("failure") is not None or case.find("error") is not None for case in found)
    healthy = result.verdict in (Verdict.PASS, Verdict.ROUNDING)
    if not (told or healthy) or not result.candidates:
        kind, text = result.verdict.value, wording.meaning(result)
        _add(found, result.case, "the whole run", _Outcome("error", kind, result.summary, text), {})
    return _counted(found)


def error_suite(name: str, message: str) -> ET.Element:
    """What stands for a case of which there is no result."""
    found = _suite(name, {})
    _add(found, name, "the whole run", _Outcome("error", "no result", message, message), {})
    return _counted(found)


def _add_candidate(into: ET.Element, candidate: CandidateVerdict, result: RunResult) -> None:
    classname = f"{result.case}.{candidate.candidate}"
    told = False
    for prompt in result.prompts:
        outcome = _outcome(candidate, prompt, result)
        told |= bool(outcome.tag)
        _add(into, classname, prompt.name, outcome, dict(_properties(candidate, prompt)))
    healthy = candidate.verdict in (Verdict.PASS, Verdict.ROUNDING)
    if not told and (not healthy or not result.prompts):
        tag = "failure" if candidate.verdict in _BAD else "error"
        outcome = _Outcome(tag, candidate.verdict.value, candidate.reason, candidate.reason)
        _add(into, classname, "all prompts", outcome, {"verdict": candidate.verdict.value})


def _outcome(candidate: CandidateVerdict, prompt: PromptResult, result: RunResult) -> _Outcome:
    """What one candidate came to on one prompt."""
    own = [c for c in prompt.comparisons if c.candidate == candidate.candidate]
    failing = [(chunk, tap) for name, chunk, tap in candidate.failing if name == prompt.name]
    broken = [c for c in own if c.status is TapStatus.NOT_FINITE]
    first = candidate.first_divergence
    here = first is not None and first.prompt == prompt.name
    if first is not None and here and candidate.verdict in _BAD:
        message = wording.divergence_sentence(first)
        return _Outcome(
            "failure", candidate.verdict.value, message, _explained(candidate, prompt, result)
        )
    if failing or broken:
        places = [*failing, *((c.chunk, c.tap) for c in broken)]
        words = ", ".join(dict.fromkeys(tap if not chunk else f"{tap} (pass {chunk})"
                                        for chunk, tap in places))  # fmt: skip
        kind = Verdict.FAIL if failing else Verdict.NOT_FINITE
        count = wording.count(len(places), "tap")
        return _Outcome("failure", kind.value, f"{count}, first {places[0][1]}", words)
    lacking = [c for c in own if c.status in _LACKING]
    if lacking:
        lines = [f"{c.tap}: {c.status.value}; {c.note}" for c in lacking]
        return _Outcome("error", Verdict.NOT_COMPARABLE.value, lines[0], "\n".join(lines))
    if not any(c.difference is not None for c in own):
        words = "no tap of it was compared on this prompt"
        return _Outcome("error", Verdict.NOT_COMPARABLE.value, words, words)
    return _Outcome()


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


def _suite(name: str, properties: Mapping[str, str]) -> ET.Element:
    found = ET.Element("testsuite", name=_plain(name))
    _add_properties(found, properties)
    return found


def _add(
    into: ET.Element, classname: str, name: str, outcome: _Outcome, properties: Mapping[str, str]
) -> None:
    case = ET.SubElement(into, "testcase", classname=_plain(classname), name=_plain(name))
    _add_properties(case, properties)
    if outcome.tag:
        said = ET.SubElement(case, outcome.tag, type=outcome.kind, message=_plain(outcome.message))
        said.text = _plain(outcome.text, keep="\n")


def _add_properties(into: ET.Element, properties: Mapping[str, str]) -> None:
    if properties:
        listed = ET.SubElement(into, "properties")
        for name, value in properties.items():
            ET.SubElement(listed, "property", name=_plain(name), value=_plain(value))


def _counted(found: ET.Element) -> ET.Element:
    cases = found.findall("testcase")
    found.set("tests", str(len(cases)))
    found.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    found.set("errors", str(sum(case.find("error") is not None for case in cases)))
    found.set("skipped", "0")
    return found


def _plain(text: str, *, keep: str = "") -> str:
    """Text that XML can hold, with control and direction characters spelt out."""
    return _UNWRITABLE.sub(lambda c: f"\\u{ord(c[0]):04x}", visible(text, keep=keep))
