"""Every law has mutants, and catches each of them."""

from pathlib import Path

import pytest

from harness.engines.mutants.catalogue import mutant_named, mutants
from harness.laws.catalogue import law_named, laws
from harness.laws.models import Shelf
from harness.laws.search import Profile, models_of, search

#: More examples than of a healthy engine in CI, for the search ends with the first that breaks.
PROFILE = Profile(25, random=False)

PAIRS = [(law.id, mutant) for law in laws() for mutant in law.mutants]


@pytest.mark.parametrize("law", [law.id for law in laws()])
def test_a_law_has_a_mutant(law: str) -> None:
    assert law_named(law).mutants


@pytest.mark.parametrize("mutant", [mutant.name for mutant in mutants()])
def test_a_mutant_is_named_by_a_law(mutant: str) -> None:
    assert any(mutant in law.mutants for law in laws())


@pytest.mark.parametrize(("law", "mutant"), PAIRS, ids=["-by-".join(pair) for pair in PAIRS])
def test_a_law_catches_its_mutant(law: str, mutant: str, tmp_path: Path) -> None:
    made = mutant_named(mutant)
    shelf = Shelf(made.make)
    try:
        models = models_of(made.family, "", PROFILE)
        outcome = search(law_named(law), shelf, models, PROFILE, engine=mutant, shrink=False)
    finally:
        shelf.close()
    assert outcome.broken is not None, f"{law} holds on {outcome.tried} examples of {mutant}"
    assert not outcome.broken.error.crashed, outcome.broken.error
