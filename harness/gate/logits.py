"""What is kept of logits: for each position the most likely tokens, the rest as a sketch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .result import PositionChange
from .sketch import Floats, estimate, sketch

Array = NDArray[Any]

#: Number of most likely tokens that are kept of each position.
TOP = 10


@dataclass(frozen=True, slots=True)
class PositionLogits:
    """Logits of one position.

    Attributes:
        row: Of the batch.
        position: Within the chunk.
        token_ids: The most likely tokens, the most likely first; of equal ones the lower id.
        logits: Their logits.
        log_sum: Logarithm of the sum of the exponentials of all logits.
        sketch: Of all logits of the position.
    """

    row: int
    position: int
    token_ids: tuple[int, ...]
    logits: tuple[float, ...]
    log_sum: float
    sketch: Floats

    def log_probability(self, token_id: int) -> float | None:
        """Log-probability of a token that is among the most likely, None of another."""
        if token_id not in self.token_ids:
            return None
        return self.logits[self.token_ids.index(token_id)] - self.log_sum


def look(logits: Array) -> tuple[PositionLogits, ...]:
    """Look at logits [B, T, V]; what is not finite counts as the lowest number there is."""
    values = logits.astype(np.float64)
    values = np.where(np.isfinite(values), values, -1e300)
    best = np.argsort(-values, axis=-1, kind="stable")[..., :TOP]
    largest = values.max(axis=-1, keepdims=True)
    log_sums = largest[..., 0] + np.log(np.sum(np.exp(values - largest), axis=-1))
    return tuple(
        PositionLogits(
            row=row,
            position=position,
            token_ids=tuple(best[row, position].tolist()),
            logits=tuple(values[row, position, best[row, position]].tolist()),
            log_sum=float(log_sums[row, position]),
            sketch=sketch(values[row, position]),
        )
        for row in range(values.shape[0])
        for position in range(values.shape[1])
    )


def compare_position(
    before: PositionLogits, after: PositionLogits, *, start: int, token_id: int
) -> PositionChange:
    """One position on both sides.

    Args:
        before: Before.
        after: After.
        start: Position of the chunk's first token.
        token_id: The token at the position.
    """
    changes = []
    for each in before.token_ids:
        was, now = before.log_probability(each), after.log_probability(each)
        if was is not None and now is not None:
            changes.append(abs(now - was))
    return PositionChange(
        position=start + before.position,
        row=before.row,
        token_id=token_id,
        distance=estimate(before.sketch, after.sketch).value,
        log_probability=max(changes, default=None),
        top_before=before.token_ids[0],
        top=after.token_ids[0],
    )
