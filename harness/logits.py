"""Comparison of whole logits, of any two engines."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compare import kl_divergence
from .result import LogitsPair

Array = NDArray[Any]

#: Positions whose vocabulary rows are held in float64 at a time.
_BLOCK = 64


def pairwise(a: str, logits_a: Array, b: str, logits_b: Array) -> LogitsPair:
    """Compare two engines' logits [B, T, V] over all positions."""
    rows_a = logits_a.reshape(-1, logits_a.shape[-1])
    rows_b = logits_b.reshape(-1, logits_b.shape[-1])
    largest, total, agree, divergence = 0.0, 0.0, 0, []
    for start in range(0, rows_a.shape[0], _BLOCK):
        x = rows_a[start : start + _BLOCK].astype(np.float64)
        y = rows_b[start : start + _BLOCK].astype(np.float64)
        error = np.abs(x - y)
        largest = max(largest, float(error.max()))
        total += float(error.sum())
        agree += int(np.count_nonzero(x.argmax(axis=-1) == y.argmax(axis=-1)))
        divergence.append(kl_divergence(x, y))
    kl = np.concatenate(divergence)
    return LogitsPair(
        a=a,
        b=b,
        max_abs=largest,
        mean_abs=total / rows_a.size,
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
        top1_agreement=agree / rows_a.shape[0],
    )


def count_equal(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Number of leading tokens that two sequences share."""
    length = min(a.size, b.size)
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if differs.size else length
