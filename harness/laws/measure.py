"""Try many laws on many engines, and mutants on laws."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .candidate import Make
from .law import Law
from .ledger import broken_throughout, lacking
from .models import Shelf, fits
from .search import Outcome, Profile, known, models_of, plainest, search


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a law with an engine, on models of a family or a checkpoint.

    Attributes:
        law: Id.
        engine: Name.
        family: ``model_type``, empty for a checkpoint.
        outcome: Of the search; None where it was not tried.
        lacks: Why it was not.
    """

    law: str
    engine: str
    family: str
    outcome: Outcome | None
    lacks: str = ""


def try_all(
    laws: Sequence[Law],
    engines: Sequence[str],
    *,
    make: Callable[[str], Make],
    families: Sequence[str],
    folder: str = "",
    profile: Profile,
) -> Iterator[Tried]:
    """Try laws on engines, one after the other.

    Args:
        laws: What to try.
        engines: Names of engines.
        make: From a name to what loads such an engine.
        families: Families of random models; unused with a folder.
        folder: HF directory of a checkpoint, empty for random models.
        profile: How long to search.
    """
    for engine in engines:
        shelf = Shelf(make(engine))
        try:
            for law in laws:
                for family in [""] if folder else families:
                    tried = _try(law, engine, shelf, family, folder, profile)
                    if tried is not None:
                        yield tried
        finally:
            shelf.close()


def _try(
    law: Law, engine: str, shelf: Shelf, family: str, folder: str, profile: Profile
) -> Tried | None:
    """None where the law says nothing of the models, or the engine does not run them."""
    model = plainest(law, family, folder)
    if model is None or not fits(engine, model):
        return None
    lacks = lacking(law, engine, shelf.candidate(model))
    if lacks:
        return Tried(law.id, engine, family, None, lacks)
    broken = broken_throughout(law.id, engine, known(law, family, folder))
    if broken is not None:
        return Tried(law.id, engine, family, None, f"known break: {broken.name}")
    models = models_of(family, folder, profile)
    key = "-".join([law.id, family, engine.replace(":", "-")])
    outcome = search(law, shelf, models, profile, engine=engine, key=key)
    return Tried(law.id, engine, family, outcome)


def caught(laws: Sequence[Law], name: str, make: Make, family: str, profile: Profile) -> list[str]:
    """Ids of the laws that a mutant breaks by a difference.

    Args:
        laws: What to try.
        name: Of the mutant.
        make: Loads it.
        family: Of the models.
        profile: How long to search.
    """
    shelf, found = Shelf(make), []
    try:
        for law in laws:
            model = plainest(law, family, "")
            if model is None or lacking(law, name, shelf.candidate(model)):
                continue
            models = models_of(family, "", profile)
            outcome = search(law, shelf, models, profile, engine=name, shrink=False)
            if outcome.broken is not None and not outcome.broken.error.crashed:
                found.append(law.id)
    finally:
        shelf.close()
    return found
