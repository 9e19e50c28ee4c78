"""The document of the laws: what it says, and that it is of the laws that there are."""

import re
from pathlib import Path

from harness.engines.mutants.catalogue import mutant_named, mutants
from harness.laws.catalogue import law_named, laws
from harness.laws.document import Measured, document
from harness.laws.law import LawBroken
from harness.laws.ledger import BREAKS
from harness.laws.measure import Tried
from harness.laws.models import pooled
from harness.laws.search import Broken, Outcome

WRITTEN = Path(__file__).parent.parent / "docs" / "laws-table.md"
AGAIN = "run: parity laws table --markdown docs/laws-table.md"


def test_document_of_the_laws_is_of_those_that_there_are() -> None:
    text = WRITTEN.read_text()
    assert re.findall(r"^### (.+)$", text, re.M) == [law.id for law in laws()], AGAIN
    for law in laws():
        part = text.partition(f"### {law.id}\n")[2].partition("\n##")[0]
        for said in (law.says, f"- Source: {law.source}", f"- Allowed: {law.bound}"):
            assert said in part, f"{law.id}: {AGAIN}"


def test_document_of_the_laws_has_every_mutant_and_break() -> None:
    text = WRITTEN.read_text()
    rows = dict(re.findall(r"^\| ([a-z0-9-]+) \| (.+) \|$", text, re.M))
    rows.pop("mutant")  # the heading
    assert list(rows) == [mutant.name for mutant in mutants()], AGAIN
    for mutant in mutants():
        must = {law.id for law in laws() if mutant.name in law.mutants}
        assert must == set(re.findall(r"\*\*(.+?)\*\*", rows[mutant.name])), AGAIN
        assert mutant.says in rows[mutant.name], AGAIN
    for entry in BREAKS:
        assert f"- **{entry.name}** ({entry.law}; " in text, AGAIN


def test_document_says_how_close_engines_come_and_what_is_broken() -> None:
    law, mutant = law_named("cache-chunks"), mutant_named("position-restarted")
    broken = Broken(LawBroken("x", expected="1", found="2"), pooled("llama", 0), {})
    tried = [
        Tried(law.id, "hf:eager", "llama", Outcome(5, 0.25, None)),
        Tried(law.id, "hf:eager", "gpt2", Outcome(6, 0.125, None)),
        Tried(law.id, "hf:sdpa", "llama", Outcome(1, 0.5, broken)),
        Tried(law.id, "reference", "llama", None, "known break: of-long-ago"),
    ]
    caught = {mutant.name: [law.id, "cache-greedy"]}
    text = document([law], [mutant], [], Measured(tried, caught, {"torch": "1.2"}))
    assert "Measured with torch 1.2," in text
    closest = re.findall(r"^- Closest: (.+)$", text, re.M)
    assert closest == [
        "hf:eager 0.25 (11 examples), hf:sdpa **broken**, reference known break: of-long-ago"
    ]
    assert "| **cache-chunks**, cache-greedy |" in text
