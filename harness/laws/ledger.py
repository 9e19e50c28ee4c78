"""What is known not to hold, and why: laws that released engines break, and what engines lack.

Every entry is strict: it carries an example that must still break the law, so that a release that
mends it is noticed, and whatever breaks without an entry fails.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..taps import declared
from .candidate import Candidate
from .law import Law
from .models import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A law that a released engine breaks.

    Attributes:
        name: Short name, in the names of tests.
        law: Id of the law.
        engines: Names of engines that break it.
        when: Whether a model is one of those with which it is broken, by family and config.
        given: Whether it is broken with such a model and these arguments; with all if not said.
        model: The smallest one.
        arguments: Of the check that breaks on it.
        says: What goes wrong, and why.
        releases: Releases that were tried and have it, for example ``transformers 5.24.0``.
        link: Public report, empty if there is none that we know.
    """

    name: str
    law: str
    engines: tuple[str, ...]
    when: Callable[[Model], bool]
    given: Callable[[Model, Mapping[str, Any]], bool] = lambda model, arguments: True
    model: Model
    arguments: Mapping[str, Any] = field(default_factory=dict)
    says: str
    releases: str
    link: str = ""


#: Abilities that our own engines lack, with the reason.
LACKS = {
    ("reference", "beams"): "it has no search of its own; greedy tokens come from the harness",
    ("reference", "blank"): "it has no columns without a token",
    ("reference", "hidden_states"): "it has taps in their place",
    ("reference", "packed"): "it runs one sequence a row",
    ("reference", "resave"): "it writes no checkpoints",
    ("reference", "rope:longrope"): "it refuses configs of that type",
    ("reference", "mask:additive"): "it makes its own masks",
    ("reference", "mask:additive-inf"): "it makes its own masks",
    ("reference", "mask:boolean"): "it makes its own masks",
    ("reference", "mask:columns"): "it makes its own masks",
    ("reference", "dtype:bfloat16"): "NumPy computes in float32 and float64",
    ("reference", "dtype:float16"): "NumPy computes in float32 and float64",
    ("reference", "cache:static"): "it has one kind of cache",
    ("reference", "cache:quantised"): "it has one kind of cache",
    ("reference", "cache:unwindowed"): "it has one kind of cache",
}


#: All known breaks.
BREAKS: tuple[Break, ...] = ()


def lacking(law: Law, engine: str, candidate: Candidate) -> str:
    """Why a law is not tried with an engine: what it lacks, with the reason; empty if nothing."""
    lacks = [
        f"lacks {need}: {LACKS.get((engine, need), 'it does not say that it can')}"
        for need in law.needs
        if need not in candidate.abilities
    ]
    for kind in law.taps:
        reason = declared(candidate.engine.unavailable, f"layers.0.{kind}")
        if reason is not None:
            lacks.append(f"lacks tap {kind}: {reason}")
    return "; ".join(lacks)


def breaks_known(law: str, engine: str, model: Model, arguments: Mapping[str, Any]) -> bool:
    """Whether it is known that an engine breaks a law on an example."""
    return any(
        entry.law == law
        and engine in entry.engines
        and entry.when(model)
        and entry.given(model, arguments)
        for entry in BREAKS
    )
