"""What a law is, and how it is broken."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ParityError
from .sizes import Sizes

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


#: Arguments of a check: plain lists, numbers and words, so that they can be printed and used again.
Arguments = Mapping[str, Any]

GROUPS = {
    "rope": "Rotary position embedding",
    "gqa": "Grouped-query attention",
    "mask": "Masks, padding and packing",
    "cache": "Caches",
    "output": "Outputs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One law.

    Attributes:
        id: Its name, the group in front: ``rope-relative``.
        says: The law in a sentence or two.
        source: Where the claim comes from: a paper with its section, or the argument.
        check: ``check(candidate, **arguments)`` raises :class:`LawBroken`.
        arguments: Strategy for the arguments of a check, from the sizes of a model.
        applies: Why it says nothing of a model, by its sizes; empty if it does.
        needs: Abilities that an engine must have; see :mod:`harness.engines.ways`.
        taps: Kinds of taps that an engine must give.
        mutants: Names of mutants that break it; see :mod:`.mutants`.
        bound: How far two results may lie apart, and why, in words.
    """

    id: str
    says: str
    source: str
    check: Callable[..., None]
    arguments: Callable[[Sizes], "SearchStrategy[dict[str, Any]]"]
    applies: Callable[[Sizes], str] = lambda sizes: ""
    needs: tuple[str, ...] = ()
    taps: tuple[str, ...] = ()
    mutants: tuple[str, ...] = ()
    bound: str = "1e-4, times the largest value where that is above 1"

    @property
    def group(self) -> str:
        """Key of :data:`GROUPS`."""
        return self.id.partition("-")[0]


class LawBroken(Exception):
    """An engine does not obey a law: a finding, not an error of the harness.

    Args:
        what: What was compared, in words.
        expected: What the law asks for.
        found: What there is.
        worst: Largest difference, in parts of what is allowed; inf for what may not differ.
        crashed: Whether the engine raised an error in place of a result.
    """

    def __init__(
        self,
        what: str,
        *,
        expected: str,
        found: str,
        worst: float = float("inf"),
        crashed: bool = False,
    ) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}")
        self.what = what
        self.expected = expected
        self.found = found
        self.worst = worst
        self.crashed = crashed


def try_law(law: Law, candidate: Any, arguments: Arguments) -> None:
    """Check a law; an engine that raises an error does not obey it.

    Raises:
        LawBroken: The engine does not obey it, or cannot be run so.
        ParityError: The harness itself cannot go on.
    """
    try:
        law.check(candidate, **arguments)
    except (LawBroken, ParityError):
        raise
    except Exception as error:
        last = str(error).strip().partition("\n")[0]
        raise LawBroken(
            "a run of the engine",
            expected="a result",
            found=f"{type(error).__name__}: {last}",
            crashed=True,
        ) from error
