"""Mutants that break laws of group gqa."""

from .mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
