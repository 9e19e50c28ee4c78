"""Mutants that break laws of caches."""

from .mutant import Mutant, plant

MUTANTS = (
    Mutant(
        name="position-restarted",
        says="positions begin at 0 again in every forward pass",
        put=plant("rope-position-restarted", "from 0").put,
    ),
    Mutant(
        name="cache-step-lost",
        says="the last position of the cache is lost before each step",
        put=plant("cache-step-lost", "the last one is 0").put,
    ),
)
