"""All mutants, from one module for each group of laws."""

from . import cache, gqa, mask, output, rope
from .mutant import Mutant

#: Each has ``MUTANTS``.
_MODULES = (rope, gqa, mask, cache, output)


def mutants() -> tuple[Mutant, ...]:
    """Every mutant."""
    return tuple(mutant for module in _MODULES for mutant in module.MUTANTS)


def mutant_named(name: str) -> Mutant:
    """A mutant by its name.

    Raises:
        LookupError: There is none.
    """
    for mutant in mutants():
        if mutant.name == name:
            return mutant
    raise LookupError(f"no mutant {name!r}")
