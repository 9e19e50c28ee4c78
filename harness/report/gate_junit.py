"""The JUnit view of a gate: a suite with a test case for each pass, and one for what decides."""

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from ..gate.result import FactChange, GateResult, GateVerdict, PassChange
from . import causes, gate_story
from . import gate_words as words
from .junit_xml import Outcome, add, counted, document, new_suite, plain

#: Test case of what makes another model whatever the numbers are.
DECIDES = "weights, tokens and config"


def to_junit(result: GateResult) -> bytes:
    """Render a result as a JUnit XML document."""
    return document([suite(result)]).encode("utf-8", "backslashreplace")


def suite(result: GateResult) -> ET.Element:
    """One gate. A verdict that no pass accounts for is a test case of its own."""
    found = new_suite(f"gate: {result.model}", dict(_properties(result)))
    found.set("time", f"{result.seconds:.3f}")
    if result.started:
        found.set("timestamp", plain(result.started))
    classname = f"{result.model}.gate"
    for each in result.passes:
        add(found, classname, each.name, _passed(each, result), dict(_numbers(each)))
    add(found, classname, DECIDES, _decides(result), {})
    told = any(case.find(tag) is not None for case in found for tag in ("failure", "error"))
    if result.exit_code and not told:
        kind = result.verdict.value
        tag = "failure" if result.verdict is GateVerdict.CHANGED else "error"
        outcome = Outcome(tag, kind, result.summary, _story(result))
        add(found, classname, "the whole run", outcome, {})
    return counted(found)


def _properties(result: GateResult) -> Iterator[tuple[str, str]]:
    yield "verdict", result.verdict.value
    yield "summary", result.summary
    yield "model", result.model
    yield "command", result.command
    for label, side in (("before", result.before), ("after", result.after)):
        yield label, side.name
        for name, version in side.versions.items():
            yield f"{label}.version.{name}", version


def _passed(each: PassChange, result: GateResult) -> Outcome:
    """What a pass came to: an error where it does not run, a failure where it differs."""
    if each.failed and each.failed_before:
        return Outcome("skipped", "not comparable", "it runs on neither side", each.failed)
    if each.failed:
        return Outcome("error", "failing", each.failed, each.failed)
    found = each.divergence
    if found is not None:
        rows = words.divergence_rows(found)
        lines = [f"{label}: {value}" for label, value in rows]
        for diagnosis in result.diagnoses if found == result.divergence else ():
            lines += ["", f"cause: {causes.title(diagnosis)}"]
            lines += [f"{label}: {value}" for label, value in causes.rows(diagnosis)]
        message = f"parts at {found.change.tap}: {words.difference(found.change)}"
        return Outcome("failure", "changed", message, "\n".join(lines))
    before, after = each.generated_before, each.generated
    if before is not None and after is not None and before != after:
        message = f"greedy tokens differ: {words.greedy(each)} are the same"
        return Outcome("failure", "changed", message, f"before: {before}\nafter: {after}")
    if result.verdict is GateVerdict.NOT_COMPARABLE:
        return Outcome("error", "not comparable", result.summary, result.summary)
    return Outcome()


def _numbers(each: PassChange) -> Iterator[tuple[str, str]]:
    yield from zip(words.PASS_HEADINGS[1:], words.pass_cells(each)[1:], strict=True)


def _decides(result: GateResult) -> Outcome:
    """Fails on what makes another model alone, whatever the numbers are."""
    deciding = [each for each in result.facts if each.decides]
    if not deciding:
        return Outcome()
    lines = "\n".join(map(_fact, deciding))
    return Outcome("failure", "changed", _fact(deciding[0]), lines)


def _fact(each: FactChange) -> str:
    return f"{words.kind_name(each.kind)}: {each.what}, {words.moved(each)}"


def _story(result: GateResult) -> str:
    rows = [*gate_story.tell(result), *words.failures(result)]
    return "\n".join(f"{label}: {value}" for label, value in rows)
