"""The JUnit view of a gate's result."""

from xml.etree import ElementTree

from ..gate.result import GateResult


def to_junit(result: GateResult) -> bytes:
    """Render a result as JUnit XML."""
    suite = ElementTree.Element("testsuite", name=result.model, tests="1")
    ElementTree.SubElement(suite, "testcase", name=result.verdict.value)
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
