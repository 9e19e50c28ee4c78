"""Running an engine into a trace file."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engines.protocol import Engine, TokenIds
from ..subject import Subject
from ..taps import split
from .head import TracedModel, TraceHead
from .write import TraceWriter, room_for

Array = NDArray[Any]


def record_trace(
    subject: Subject,
    engine: Engine,
    tokens: TokenIds,
    path: Path,
    *,
    decode: int = 0,
    taps: Sequence[str] = ("*",),
) -> TraceHead:
    """Run an engine and write what it computes, tap by tap as it appears.

    Args:
        subject: The model.
        engine: What runs.
        tokens: Token ids [B, T] of the prompt.
        path: The file to write.
        decode: Number of decoding steps after the prompt, each on the token with the largest
            logit.
        taps: Patterns of the taps to keep, by name or kind; others are declared unavailable.

    Raises:
        UsageError: The file cannot be written.
        EngineError: The engine broke, or gave a tap twice.
    """
    dropped: set[str] = set()
    fed = [tokens]
    room = room_for(subject.model.config.layers, 1 + decode)
    with TraceWriter(path, room=room) as writer:
        with engine.open(cache=decode > 0) as session:
            for chunk in range(1 + decode):

                def keep(tap: str, array: Array, chunk: int = chunk) -> None:
                    if _wanted(tap, taps):
                        writer.put(chunk, tap, array)
                    else:
                        dropped.add(tap)

                logits = session.feed(fed[-1], keep)
                if chunk < decode:
                    fed.append(np.argmax(logits[:, -1].astype(np.float64), axis=-1)[:, None])
        head = TraceHead(
            engine=engine.info(),
            model=TracedModel(
                family=str(subject.checkpoint.config["model_type"]),
                fingerprint=subject.checkpoint.fingerprint,
                origin=subject.checkpoint.origin,
            ),
            token_ids=tuple(map(tuple, np.concatenate(fed, axis=1).tolist())),
            chunks=tuple(chunk.shape[1] for chunk in fed),
            unavailable={**engine.unavailable, **dict.fromkeys(sorted(dropped), "not asked for")},
        )
        writer.finish(head)
    return head


def _wanted(tap: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(tap, p) or fnmatchcase(split(tap).kind, p) for p in patterns)
