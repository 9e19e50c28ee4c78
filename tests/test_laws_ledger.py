"""The ledger of laws is strict: what it says is broken is, on the example that it carries."""

import pytest

from harness.laws.again import check_law
from harness.laws.catalogue import law_named
from harness.laws.law import LawBroken
from harness.laws.ledger import BREAKS, LACKS, Break, breaks_known, broken_throughout
from harness.laws.makers import DEFAULTS

#: Breaks with any arguments.
THROUGHOUT = ("eager-boolean-mask", "gpt-oss-packed")

PAIRS = [(entry, engine) for entry in BREAKS for engine in entry.engines]
OTHERS = [(entry, engine) for entry in BREAKS for engine in DEFAULTS if engine not in entry.engines]


@pytest.mark.parametrize(
    ("entry", "engine"), PAIRS, ids=[f"{entry.name}-{engine}" for entry, engine in PAIRS]
)
def test_a_known_break_is_still_there(entry: Break, engine: str) -> None:
    model = entry.model
    with pytest.raises(LawBroken) as caught:
        check_law(
            entry.law,
            engine,
            family=model.family,
            config=model.config,
            seed=model.seed,
            arguments=entry.arguments,
        )
    assert not caught.value.crashed, caught.value


@pytest.mark.parametrize("entry", BREAKS, ids=lambda entry: entry.name)
def test_a_known_break_covers_its_own_example(entry: Break) -> None:
    assert law_named(entry.law).id == entry.law
    for engine in entry.engines:
        assert breaks_known(entry.law, engine, entry.model, entry.arguments)


@pytest.mark.parametrize(
    ("entry", "engine"), OTHERS, ids=[f"{entry.name}-{engine}" for entry, engine in OTHERS]
)
def test_a_known_break_covers_no_other_engine(entry: Break, engine: str) -> None:
    assert not breaks_known(entry.law, engine, entry.model, entry.arguments)


def test_an_engine_breaks_a_law_throughout_only_whatever_the_arguments() -> None:
    for entry in BREAKS:
        found = broken_throughout(entry.law, entry.engines[0], [entry.model])
        assert (found is entry) == (entry.name in THROUGHOUT), entry.name
    assert broken_throughout(BREAKS[0].law, BREAKS[0].engines[0], []) is None


def test_whatever_an_engine_lacks_has_a_reason() -> None:
    assert LACKS
    assert all(LACKS.values())
