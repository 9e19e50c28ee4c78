"""Parts of JUnit XML documents: suites, test cases, and text that XML can hold."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from .wording import visible

#: What XML 1.0 has no way to write and :func:`visible` lets pass.
_UNWRITABLE = re.compile("[\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a test case says: ``failure`` or ``error`` with words, empty where all is well."""

    tag: str = ""
    kind: str = ""
    message: str = ""
    text: str = ""


def document(suites: Sequence[ET.Element]) -> str:
    """The document of some suites, for example those of the cases of one run."""
    root = ET.Element("testsuites", name="logits-parity")
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(each.get(count, "0")) for each in suites)))
    root.extend(suites)
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def new_suite(name: str, properties: Mapping[str, str]) -> ET.Element:
    """A suite without test cases."""
    found = ET.Element("testsuite", name=plain(name))
    _add_properties(found, properties)
    return found


def add(
    into: ET.Element, classname: str, name: str, outcome: Outcome, properties: Mapping[str, str]
) -> None:
    """Add a test case to a suite."""
    case = ET.SubElement(into, "testcase", classname=plain(classname), name=plain(name))
    _add_properties(case, properties)
    if outcome.tag:
        said = ET.SubElement(case, outcome.tag, type=outcome.kind, message=plain(outcome.message))
        said.text = plain(outcome.text, keep="\n")


def counted(found: ET.Element) -> ET.Element:
    """A suite that says how many test cases it has, and of which outcome."""
    cases = found.findall("testcase")
    found.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        found.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    return found


def plain(text: str, *, keep: str = "") -> str:
    """Text that XML can hold, with control and direction characters spelt out."""
    return _UNWRITABLE.sub(lambda c: f"\\u{ord(c[0]):04x}", visible(text, keep=keep))


def _add_properties(into: ET.Element, properties: Mapping[str, str]) -> None:
    if properties:
        listed = ET.SubElement(into, "properties")
        for name, value in properties.items():
            ET.SubElement(listed, "property", name=plain(name), value=plain(value))
