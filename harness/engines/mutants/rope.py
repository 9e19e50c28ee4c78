"""Mutants that break laws of group rope."""

from .mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
