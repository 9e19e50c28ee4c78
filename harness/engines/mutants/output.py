"""Mutants that break laws of group output."""

from .mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
