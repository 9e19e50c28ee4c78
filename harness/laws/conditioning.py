"""How far rounding alone moves logits, on the very tokens that a law is about.

A trained model can be ill-conditioned at a token: where attention hangs in the balance, rounding
errors of 1e-7 come out as 1e-2, in every engine alike, although each op is within rounding. No
bound that looks at the size of logits alone can tell that from a fault. So it is measured beside
the law, with our own reference, which shares no kernel with a candidate: float32 against float64.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engines.reference import ReferenceEngine
from ..subject import Subject

Floats = NDArray[np.float64]

#: So many times what the reference is off by is no fault of a candidate. One run is one draw of
#: rounding errors, and so are both sides of a law; the same factor as for an op alone.
DRAWS = 8.0


def rounding_of(subject: Subject, rows: Sequence[Sequence[int]]) -> Floats:
    """How far float32 alone is from float64: the largest error of a logit [B, T].

    The larger one of several float32 runs, which round otherwise: in one pass, token by token, and
    in two halves. A single one may be close to float64 by luck.

    Args:
        subject: The model.
        rows: Token ids [B][T].
    """
    table = np.array(rows, dtype=np.int64)
    length = table.shape[1]
    truth = _logits(subject, "float64", table, [length])
    half = max(1, length // 2)
    pieces = ([length], [1] * length, [half, length - half] if length > half else [length])
    runs = [_logits(subject, "float32", table, chunks) for chunks in pieces]
    errors: Floats = np.max([np.abs(run - truth).max(-1) for run in runs], axis=0)
    return errors


def _logits(subject: Subject, dtype: str, table: NDArray[np.int64], chunks: list[int]) -> Floats:
    engine = ReferenceEngine(subject.model, dtype=dtype)
    parts: list[Any] = []
    with engine.open(cache=True) as session:
        for fed in np.split(table, np.cumsum(chunks)[:-1], axis=1):
            parts.append(session.feed(fed))
    return np.concatenate(parts, axis=1).astype(np.float64)
