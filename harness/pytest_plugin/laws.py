"""Laws as test items: one for each law, engine and family."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .outcome import setting

if TYPE_CHECKING:
    from ..laws.law import Law
    from ..laws.models import Shelf

#: Marks a test function that is to be run for each law of a group.
MARKER = "parity_laws"

#: Properties of a test, in JUnit files.
WORST = "parity_law_worst"
EXAMPLES = "parity_law_examples"

#: Where a search of a night keeps the examples that broke a law.
DATABASE = ".hypothesis/laws"

_SHELVES = pytest.StashKey[dict[str, "Shelf"]]()


@dataclass(frozen=True, slots=True)
class LawOnFamily:
    """One law with one engine, on models of one family or on one checkpoint.

    Attributes:
        law: The law.
        engine: Name of the engine.
        family: ``model_type``, or empty.
        model: HF directory, or empty.
        named: The model as the user named it, or empty.
    """

    law: "Law"
    engine: str
    family: str
    model: str
    named: str

    @property
    def name(self) -> str:
        """As it stands in the id of the test."""
        return "-".join([self.law.id, self.family or Path(self.named).name, self.engine])


class LawCase:
    """What the ``parity_law`` fixture hands to a test.

    Args:
        item: The test.
        case: Law, engine and family.
    """

    def __init__(self, item: pytest.Item, case: LawOnFamily) -> None:
        self._item = item
        self._case = case

    def check(self) -> None:
        """Search for an example that breaks the law; fail with the smallest one.

        A law that needs what the engine says it cannot do is skipped, with the reason.
        """
        __tracebackhide__ = True
        from ..errors import ParityError
        from ..laws.again import explain
        from ..laws.search import PROFILES, models_of, search

        case, config = self._case, self._item.config
        profile = PROFILES[config.getoption("parity_laws")]
        if profile.random:
            profile = replace(profile, database=config.rootpath / DATABASE)
        dtype = setting(config, "parity_dtype") or "float32"
        try:
            shelf = _shelf(config, case.engine, dtype)
            models = models_of(case.family, case.model, profile)
            self._require(shelf)
            outcome = search(
                case.law, shelf, models, profile, engine=case.engine, key=self._item.name
            )
        except ParityError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        self._item.user_properties.append((EXAMPLES, outcome.tried))
        self._item.user_properties.append((WORST, f"{outcome.worst:.3g}"))
        if outcome.broken is not None:
            text = explain(case.law, case.engine, dtype, outcome.broken)
            raise pytest.fail.Exception(text, pytrace=False)
        if not outcome.tried:
            raise pytest.fail.Exception(f"{case.law.id} was tried on nothing", pytrace=False)

    def _require(self, shelf: "Shelf") -> None:
        from ..laws.ledger import broken_throughout, lacking
        from ..laws.search import known, plainest

        case = self._case
        model = plainest(case.law, case.family, case.model)
        reason = "" if model is None else lacking(case.law, case.engine, shelf.candidate(model))
        # An engine is asked for nothing that it does not say it can: what it lacks is shown.
        if reason:
            pytest.skip(f"{case.engine} {reason}")
        # Every model of this item is known to break the law: nothing would be tried. That the
        # break is still there is a strict test of its own, cases/test_ledger.py.
        models = known(case.law, case.family, case.model)
        entry = broken_throughout(case.law.id, case.engine, models)
        if entry is not None:
            where = f"; {entry.link}" if entry.link else ""
            pytest.skip(f"{case.engine} breaks it, {entry.name}: {entry.says}{where}")


def generate(metafunc: pytest.Metafunc) -> None:
    """Run a marked test function for each law of its group, engine and family."""
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is None or "parity_law" not in metafunc.fixturenames:
        return
    from ..errors import ParityError

    try:
        cases = list(_cases(metafunc.config, str(marker.args[0]) if marker.args else ""))
    except ParityError as error:
        raise pytest.Collector.CollectError(str(error)) from error
    metafunc.parametrize("parity_law", cases, indirect=True, ids=[case.name for case in cases])


def _cases(config: pytest.Config, group: str) -> Iterator[LawOnFamily]:
    from ..laws.catalogue import laws
    from ..laws.makers import DEFAULTS
    from ..laws.models import families, fits, folder_of
    from ..laws.search import plainest

    named = setting(config, "parity_model")
    model = folder_of(named)
    engines = config.getoption("parity_engines") or config.getini("parity_engines") or DEFAULTS
    for law in laws(group):
        for family in [""] if model else families():
            plain = plainest(law, family, model)
            for engine in engines if plain is not None else ():
                if plain is not None and fits(engine, plain):
                    yield LawOnFamily(law, engine, family, model, named)


def _shelf(config: pytest.Config, engine: str, dtype: str) -> "Shelf":
    from ..laws.makers import make_of
    from ..laws.models import Shelf

    if _SHELVES not in config.stash:
        config.stash[_SHELVES] = {}
        config.add_cleanup(lambda: close(config))
    shelves = config.stash[_SHELVES]
    if engine not in shelves:
        shelves[engine] = Shelf(make_of(engine, dtype=dtype))
    return shelves[engine]


def close(config: pytest.Config) -> None:
    """Remove the models that were written."""
    for shelf in config.stash.get(_SHELVES, dict[str, Any]()).values():
        shelf.close()
