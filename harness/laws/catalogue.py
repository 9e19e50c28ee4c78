"""All laws, from one module a group."""

import difflib
from collections.abc import Sequence

from ..errors import UsageError
from . import cache, gqa, mask, output, rope
from .law import Law

_MODULES = (rope, gqa, mask, cache, output)


def laws(group: str = "") -> tuple[Law, ...]:
    """Laws of a group, all of them if none is named."""
    every = tuple(law for module in _MODULES for law in module.LAWS)
    return tuple(law for law in every if group in ("", law.group))


def law_named(name: str) -> Law:
    """A law by its id.

    Raises:
        UsageError: There is none.
    """
    known: Sequence[str] = [law.id for law in laws()]
    if name in known:
        return next(law for law in laws() if law.id == name)
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        "law",
        expected=f"one of {', '.join(known)}",
        found=repr(name),
        advice=f"did you mean {near[0]}?" if near else "docs/laws.md has what each of them says",
    )
