"""Laws from outside: somebody's repository, with an engine of their own."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import check

pytest_plugins = ["pytester"]

LAWS = """
import pytest

@pytest.mark.parity_laws("cache")
def test_law(parity_law):
    parity_law.check()
"""

#: An engine that forgets its cache: every forward pass begins a sequence.
ENGINE = """
import contextlib
from logits_parity import HFEngine

class Forgetful:
    def __init__(self, inner):
        self.inner = inner
        self.name, self.dtype = "mine", inner.dtype
        self.unavailable, self.parameters = inner.unavailable, inner.parameters
        self.info = inner.info

    @contextlib.contextmanager
    def open(self, *, cache):
        yield self

    def feed(self, token_ids, emit=None):
        with self.inner.open(cache=False) as session:
            return session.feed(token_ids, emit)

def make(folder):
    return Forgetful(HFEngine.load(folder))

def nothing(folder):
    return object()
"""

ONE = ["-k", "cache-chunks-llama"]


@pytest.fixture(scope="module", autouse=True)
def loaded(tiny: Callable[..., Path]) -> None:
    """Loads torch and a model's code: what is there before pytest runs inside stays there."""
    model = tiny()
    assert check(["hf:eager"], checkpoint=model, token_ids=[[1, 2]], decode=1, greedy=1).candidates


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_mine=LAWS, mine=ENGINE)
    pytester.makeini("[pytest]\npythonpath = .\n")
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run pytest here: to load torch in a process of its own would take most of the time."""
    return project.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def test_laws_are_items_by_law_family_and_engine(project: pytest.Pytester) -> None:
    ran = run(project, "--junitxml=out.xml", "--parity-engine=hf:eager", *ONE, "-v")
    assert ran.ret == 0
    ran.stdout.fnmatch_lines(["*test_law[[]cache-chunks-llama-hf:eager] PASSED*"])
    tree = ET.parse(project.path / "out.xml")
    properties = {p.get("name"): str(p.get("value")) for p in tree.iter("property")}
    assert int(properties["parity_law_examples"]) > 3
    assert 0 < float(properties["parity_law_worst"]) < 1


def test_a_broken_law_prints_the_smallest_example_and_a_snippet_that_runs(
    project: pytest.Pytester,
) -> None:
    ran = run(project, "--parity-engine=mine:make", *ONE)
    assert ran.ret == 1
    text = ran.stdout.str()
    assert "mine:make does not obey cache-chunks with a random llama" in text
    difference = text.partition(" with a random llama\n  ")[2].partition("\n")[0]
    assert "over a cache" in difference
    assert "The law: A sequence that is fed token by token" in text
    assert "Vaswani et al. 2017" in text
    start = text.index("from logits_parity import check_law")
    snippet = text[start : text.index("\n)\n", start) + 2]
    again = subprocess.run(
        [sys.executable, "-c", snippet],
        check=False,
        capture_output=True,
        text=True,
        cwd=project.path,
    )
    assert again.returncode == 1
    assert f"LawBroken: {difference}" in again.stderr


def test_what_an_engine_does_not_say_it_can_is_skipped_with_the_reason(
    project: pytest.Pytester,
) -> None:
    ran = run(project, "--parity-engine=mine:make", "-k", "cache-greedy-llama", "-rs")
    assert ran.ret == 0
    assert "mine:make lacks beams: it does not say that it can" in ran.stdout.str()


def test_an_engine_that_is_none_fails_and_says_what_is_wanted(project: pytest.Pytester) -> None:
    wrong = {
        "mine:nothing": "an object with name, dtype, unavailable, parameters, info and open, found "
        "object without name",
        "mine:absent": "'mine:absent' (AttributeError",
        "nowhere:make": "'nowhere:make' (ModuleNotFoundError",
        "hf": "'hf'",
    }
    ran = run(project, *(f"--parity-engine={name}" for name in wrong), *ONE)
    ran.assert_outcomes(failed=len(wrong))
    text = ran.stdout.str()
    for name, found in wrong.items():
        part = text.partition(f"test_law[cache-chunks-llama-{name}] _")[2].partition("\n___")[0]
        assert "expected hf:<attention implementation>" in part or "expected an engine: an" in part
        assert found in part


def test_a_model_that_cannot_be_read_is_an_error_of_collection(project: pytest.Pytester) -> None:
    ran = run(project, "--parity-model=/nowhere", *ONE)
    assert ran.ret == 2
    text = ran.stdout.str()
    assert "/nowhere: expected an existing directory" in text
    assert "Traceback" not in text
    assert "harness/" not in text


def test_a_night_keeps_the_examples_that_broke_a_law(project: pytest.Pytester) -> None:
    ran = run(project, "--parity-engine=mine:make", "--parity-laws=nightly", *ONE)
    assert ran.ret == 1
    kept = list((Path(project.path) / ".hypothesis" / "laws").rglob("*"))
    assert any(path.is_file() for path in kept)
