"""Search for an example that breaks a law, and shrink it."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from .examples import examples
from .law import Law, LawBroken, try_law
from .ledger import breaks_known
from .models import Model, Shelf, drawn, pool, sizes_of


@dataclass(frozen=True, slots=True)
class Profile:
    """How long to search.

    Attributes:
        examples: Number of examples of each law, engine and family.
        random: Whether models are drawn, and examples differ from run to run; otherwise models
            are of a small pool and examples always the same.
        patience: Seconds that are spent on finding a smaller example.
        database: Folder in which examples are kept that broke a law, None for none.
    """

    examples: int
    random: bool
    patience: float = 5.0
    database: Path | None = None


#: Short enough for every change, and one for a night.
PROFILES = {"ci": Profile(4, random=False), "nightly": Profile(150, random=True, patience=10.0)}


class _EnoughError(BaseException):
    """Ends the search for a smaller example; hypothesis lets through what is no Exception."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The smallest example found on which an engine does not obey a law.

    Attributes:
        error: How.
        model: The model.
        arguments: Of the check.
    """

    error: LawBroken
    model: Model
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search came to.

    Attributes:
        tried: Number of examples that the law applied to.
        worst: Largest difference met on the way, in parts of what is allowed.
        broken: None if the law holds on all of them.
    """

    tried: int
    worst: float
    broken: Broken | None


def models_of(family: str, folder: str, profile: Profile) -> st.SearchStrategy[Model]:
    """Models that a search draws from: those of a family, or one checkpoint."""
    if folder:
        return st.just(Model(folder=folder))
    if profile.random:
        return drawn(family)
    return st.sampled_from(pool(family))


def plainest(law: Law, family: str, folder: str) -> Model | None:
    """The first model of a short search that a law applies to, None if there is none."""
    return next(iter(known(law, family, folder)), None)


def known(law: Law, family: str, folder: str) -> list[Model]:
    """The models of a short search that a law applies to."""
    models = [Model(folder=folder)] if folder else pool(family)
    return [model for model in models if not law.applies(sizes_of(model))]


def search(
    law: Law,
    shelf: Shelf,
    models: st.SearchStrategy[Model],
    profile: Profile,
    *,
    engine: str,
    key: str = "",
    shrink: bool = True,
) -> Outcome:
    """Try a law on examples.

    Args:
        law: The law.
        shelf: Has the engine.
        models: Models to draw from.
        profile: How long.
        engine: Name of the engine, for breaks that are known: such examples are left out.
        key: Name of the folder of kept examples of this search.
        shrink: Whether to look for the smallest example that breaks it.

    Returns:
        What it came to; never zero examples and no break.

    Raises:
        LawBroken: Never; it becomes part of the outcome.
        Unsatisfiable: hypothesis found no example at all that the law applies to.
    """
    tried, worst, last, until = 0, 0.0, None, float("inf")
    healthy = examples(law, models).filter(
        lambda example: not breaks_known(law.id, engine, *example)
    )

    def check(example: tuple[Model, dict[str, Any]]) -> None:
        nonlocal tried, worst, last, until
        if time.monotonic() > until:
            raise _EnoughError
        model, arguments = example
        candidate = shelf.candidate(model)
        candidate.worst = 0.0
        try:
            try_law(law, candidate, arguments)
        except LawBroken as error:
            # While hypothesis shrinks, each that breaks is smaller than the one before.
            last = Broken(error, model, arguments)
            until = min(until, time.monotonic() + profile.patience)
            raise
        tried, worst = tried + 1, max(worst, candidate.worst)

    given = hypothesis.given(healthy)(check)
    run = _settings(profile, key, shrink=shrink)(given)
    # An engine that is not the same from run to run breaks a law at times: that is a break too.
    with contextlib.suppress(LawBroken, hypothesis.errors.Flaky, _EnoughError):
        run()
        last = None
    return Outcome(tried, worst, last)


def _settings(profile: Profile, key: str, *, shrink: bool) -> hypothesis.settings:
    database: ExampleDatabase | None = None
    if profile.database is not None:
        database = DirectoryBasedExampleDatabase(profile.database / key)
    return hypothesis.settings(
        max_examples=profile.examples,
        derandomize=not profile.random,
        database=database,
        deadline=None,
        phases=[
            phase for phase in hypothesis.Phase if shrink or phase is not hypothesis.Phase.shrink
        ],
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
