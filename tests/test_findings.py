"""Scripts of findings run by themselves, on the installed release, and show what they say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FINDINGS = Path(__file__).parent.parent / "docs" / "findings.md"

#: Runs scripts one after the other, with one import of the libraries.
RUN = """
import contextlib, io, json, sys
found = []
for script in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(script, "finding", "exec"), {"__name__": "__main__"})
    found.append(said.getvalue().split()[-1])
json.dump(found, sys.stdout)
"""


def scripts() -> list[tuple[str, str, float]]:
    """Title, script, and the number that its last line is said to print."""
    found = []
    for section in FINDINGS.read_text().split("\n## ")[1:]:
        for script in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
            number = script.rstrip().rpartition("#")[2]
            found.append((section.partition("\n")[0], script, float(number)))
    return found


@pytest.fixture(scope="module")
def printed() -> list[float]:
    asked = json.dumps([script for _, script, _ in scripts()])
    ran = subprocess.run(
        [sys.executable, "-c", RUN], input=asked, check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: list[float] = [float(each) for each in json.loads(ran.stdout)]
    return found


@pytest.mark.parametrize("index", range(len(scripts())), ids=[title for title, _, _ in scripts()])
def test_a_finding_is_still_there(printed: list[float], index: int) -> None:
    title, _, said = scripts()[index]
    assert printed[index] == pytest.approx(said, rel=0.05), (
        f"{title}: if the release has mended it, say so in docs/findings.md and in its case"
    )


def test_most_findings_of_history_have_a_script() -> None:
    assert len(scripts()) >= 8
