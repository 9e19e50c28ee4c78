"""Which intermediate of one side is which of the other, though modules may have other names.

Names that are on both sides are pairs. What is left is matched in order, first by what is most
telling (role, layer, last part of the path, number of elements), then by less. Nothing is matched
by its values alone: two that are equal by chance would hide a difference.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import prod

from .side import Tap

_NUMBER = re.compile(r"\.(\d+)(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Pairs:
    """How the intermediates of one chunk of one pass belong together.

    Attributes:
        pairs: Before and after, in the order after.
        only_before: Without a partner after.
        only_after: Without a partner before.
    """

    pairs: tuple[tuple[Tap, Tap], ...]
    only_before: tuple[Tap, ...]
    only_after: tuple[Tap, ...]


def pair(before: Sequence[Tap], after: Sequence[Tap]) -> Pairs:
    """Match the intermediates of one chunk of one pass, both in the order in which they came."""
    partner: dict[str, Tap] = {}
    left_before, left_after = list(before), list(after)
    for signature in _SIGNATURES:
        waiting: dict[Hashable, list[Tap]] = defaultdict(list)
        for tap in left_before:
            waiting[signature(tap)].append(tap)
        for tap in left_after:
            found = waiting.get(signature(tap))
            if found:
                partner[tap.name] = found.pop(0)
        taken = {tap.name for tap in partner.values()}
        left_before = [tap for tap in left_before if tap.name not in taken]
        left_after = [tap for tap in left_after if tap.name not in partner]
    pairs = tuple((partner[tap.name], tap) for tap in after if tap.name in partner)
    return Pairs(pairs, tuple(left_before), tuple(left_after))


def layer_of(module: str) -> int | None:
    """Index of the layer that a module lies in, None outside the layers."""
    found = _NUMBER.search(module)
    return int(found[1]) if found else None


def _last(module: str) -> str:
    return module.rsplit(".", 1)[-1]


_SIGNATURES: tuple[Callable[[Tap], Hashable], ...] = (
    lambda tap: tap.name,
    lambda tap: (tap.role, layer_of(tap.module), _last(tap.module), prod(tap.shape)),
    lambda tap: (tap.role, layer_of(tap.module), tap.cls, prod(tap.shape)),
    # What happens inside attention has one role in a layer, wherever attention has moved to.
    lambda tap: (
        (tap.role, layer_of(tap.module), prod(tap.shape))
        if tap.role not in ("out", "in")
        else object()
    ),
)
