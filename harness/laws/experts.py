"""Logits of two models that are the same but for rounding, experts or not."""

import numpy as np

from .candidate import Candidate, Rows, by_layer


def same_logits(
    candidate: Candidate, what: str, rows: Rows, expected: Candidate, found: Candidate
) -> None:
    """Require the same logits.

    Where tokens choose experts, a choice may turn on a rounding, and what comes behind it is
    another computation. What decides a choice is compared in its place: logits of the routers, up
    to the first layer in which a choice differs.

    Args:
        candidate: Judges.
        what: What differs between the two, in words.
        rows: Token ids.
        expected: One of them.
        found: The other.

    Raises:
        LawBroken: They differ.
    """
    routed = candidate.sizes.experts and all(
        candidate.gives(kind) for kind in ("mlp.router", "mlp.chosen")
    )
    if routed:
        kinds = ("mlp.router", "mlp.chosen")
        one, other = (side.taps(rows, *kinds) for side in (expected, found))
        chosen = dict(by_layer(one, "mlp.chosen")), dict(by_layer(other, "mlp.chosen"))
        routers = dict(by_layer(other, "mlp.router"))
        for layer, router in by_layer(one, "mlp.router"):
            candidate.same(f"logits of router {layer} of {what}", router, routers[layer])
            if not np.array_equal(chosen[0][layer], chosen[1][layer]):
                return
    candidate.same(f"logits of {what}", expected.logits(rows), found.logits(rows))
