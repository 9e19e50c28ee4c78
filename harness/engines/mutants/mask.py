"""Mutants that break laws of group mask."""

from .mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
