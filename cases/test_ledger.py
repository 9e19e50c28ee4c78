"""What is known not to hold still does not; a release that mends it fails here."""

from collections.abc import Iterator
from importlib import metadata

import pytest
from packaging.version import Version

from harness.laws.again import check_law
from harness.laws.catalogue import laws
from harness.laws.law import LawBroken
from harness.laws.ledger import BREAKS, LACKS, Break, breaks_known
from harness.laws.makers import DEFAULTS, make_of
from harness.laws.models import Shelf, pooled

ENTRIES = [
    pytest.param(entry, engine, id=f"{entry.name}-{engine}")
    for entry in BREAKS
    for engine in entry.engines
]

#: What laws ask of engines.
NEEDS = sorted({need for law in laws() for need in law.needs})


def installed() -> str:
    import transformers

    return f"transformers {transformers.__version__}"


def broken_by(entry: Break, engine: str) -> LawBroken | None:
    """How an engine breaks the law on the entry's example; None if it obeys."""
    model = entry.model
    try:
        check_law(
            entry.law,
            engine,
            family=model.family,
            config=model.config,
            seed=model.seed,
            arguments=entry.arguments,
        )
    except LawBroken as error:
        return error
    return None


@pytest.mark.parametrize(("entry", "engine"), ENTRIES)
def test_known_break(entry: Break, engine: str) -> None:
    broken = broken_by(entry, engine)
    assert broken is not None, (
        f"{entry.name}: {engine} obeys {entry.law}; {installed()} mends what {entry.releases} "
        "has: remove the entry from harness/laws/ledger.py"
    )
    assert not broken.crashed, broken


@pytest.mark.parametrize("entry", BREAKS, ids=lambda entry: entry.name)
def test_break_is_looked_at_again_in_time(entry: Break) -> None:
    assert Version(metadata.version("transformers")) < Version(entry.until), (
        f"{entry.name}: see whether it is still there and reported, and set `until` anew"
    )


@pytest.mark.parametrize(("entry", "engine"), ENTRIES)
def test_break_covers_its_own_example(entry: Break, engine: str) -> None:
    assert breaks_known(entry.law, engine, entry.model, entry.arguments)


@pytest.fixture(scope="module")
def abilities() -> Iterator[dict[str, frozenset[str]]]:
    shelves = {engine: Shelf(make_of(engine)) for engine in DEFAULTS}
    yield {
        engine: shelf.candidate(pooled("llama", 0)).abilities for engine, shelf in shelves.items()
    }
    for shelf in shelves.values():
        shelf.close()


@pytest.mark.parametrize(("engine", "need"), sorted(LACKS))
def test_lack_is_still_one(engine: str, need: str, abilities: dict[str, frozenset[str]]) -> None:
    assert need not in abilities[engine], f"{engine} has {need} now: remove it from LACKS"


@pytest.mark.parametrize("engine", DEFAULTS)
def test_whatever_an_engine_lacks_has_a_reason(
    engine: str, abilities: dict[str, frozenset[str]]
) -> None:
    lacks = {need for need in NEEDS if need not in abilities[engine]}
    reasons = {need for name, need in LACKS if name == engine}
    assert sorted(lacks - reasons) == []
