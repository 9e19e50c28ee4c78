"""Where two sides part: the first intermediate whose difference is carried on.

A release may compute an intermediate in another way with the same outcome: queries scaled before
the rotation and not after it, a mask of other values. That is no difference of the model. So the
place is looked for backwards: first the layer whose output differs, or the logits, then the first
difference behind the last layer that agrees, leaving out those that what reads them does not show.
"""

import re
from collections.abc import Sequence

from .comparing import Compared
from .result import Divergence

#: Inside attention, what reads an intermediate; the first of these that is there tells.
_READ_BY = {
    "query": ("scores", "probs", "context"),
    "key": ("scores", "probs", "context"),
    "bias": ("probs", "context"),
    "mask": ("probs", "context"),
    "scores": ("probs", "context"),
    "value": ("context",),
    "probs": ("context",),
}

_LAYER = re.compile(r"[^\d.]*(?:\.[^\d.][^.]*)*\.\d+")


def carries(each: Compared) -> bool:
    """Whether an intermediate is all that later ones read: a layer's output, or the logits."""
    tap = each.after
    return tap.role == "logits" or (tap.role == "out" and bool(_LAYER.fullmatch(tap.module)))


def place(compared: Sequence[Compared]) -> Divergence | None:
    """The first intermediate of one chunk whose difference is carried on; None if none is.

    Args:
        compared: All intermediates of the chunk that are on both sides, in order.
    """
    carried = next(
        (i for i, each in enumerate(compared) if carries(each) and each.state.differs), None
    )
    if carried is None:
        return None
    since = next((i + 1 for i in reversed(range(carried)) if carries(compared[i])), 0)
    here = compared[since : carried + 1]
    differing = [each for each in here if each.state.differs]
    shown = [each for each in differing if not _aside(each, here)]
    first = _cause(shown[0], shown) if shown else compared[carried]
    before = differing[: differing.index(shown[0] if shown else first)]
    return Divergence(
        change=first.change,
        carried_to=compared[carried].after.name,
        aside=tuple(each.after.name for each in before),
    )


def _cause(first: Compared, shown: Sequence[Compared]) -> Compared:
    """Scores are 0 where the mask hides: where both differ and nothing before, it is the mask."""
    if first.after.role != "scores":
        return first
    masks = [c for c in shown if c.after.role == "mask" and c.after.module == first.after.module]
    return masks[0] if masks else first


def aside(compared: Sequence[Compared]) -> list[Compared]:
    """Intermediates that differ although no layer's output does: computed in another way."""
    if place(compared) is not None:
        return []
    return [each for each in compared if each.state.differs]


def _aside(each: Compared, here: Sequence[Compared]) -> bool:
    """Whether what reads an intermediate does not show its difference."""
    tap = each.after
    if tap.role in _READ_BY:
        inside = {other.after.role: other for other in here if other.after.module == tap.module}
        readers = [inside[role] for role in _READ_BY[tap.role] if role in inside]
        return bool(readers) and not readers[0].state.differs
    if "rotary" in tap.module:  # cosines and sines, in whatever form attention takes them
        rotated = [other for other in here if other.after.role in ("query", "key")]
        return bool(rotated) and not any(other.state.differs for other in rotated)
    return False
