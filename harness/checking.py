"""The Python entry: check model objects in memory against a checkpoint."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .case import Case, Prompt
from .engines.protocol import Engine
from .pipeline import compare
from .result import RunResult
from .subject import load_subject


def check(
    engine: Engine | Sequence[Engine],
    *,
    checkpoint: str | Path,
    token_ids: Sequence[Sequence[int]],
    decode: int = 0,
    greedy: int = 0,
    name: str = "check",
) -> RunResult:
    """Compare engines with the independent reference over a checkpoint's files.

    Args:
        engine: One engine or several of different names; for a transformers model in memory,
            patched or fine-tuned as it may be, ``HFEngine(model)``.
        checkpoint: What the engines claim to compute: an HF directory, a GGUF file or a hub id.
        token_ids: One row of ids a sequence; rows of equal length.
        decode: Number of decoding steps after the prompt that are compared too.
        greedy: Number of greedy tokens to compare; only with one row.
        name: Of the case in the result.

    Returns:
        The result; ``.verdict``, ``.first_divergence.tap`` and ``.comparisons`` say most.

    Raises:
        ParityError: The checkpoint or the token ids cannot be used.
    """
    engines = list(engine) if isinstance(engine, Sequence) else [engine]
    prompt = Prompt(name="tokens", token_ids=tuple(tuple(int(t) for t in row) for row in token_ids))
    case = Case(
        name=name,
        model=str(checkpoint),
        prompts=(prompt,),
        engines=tuple(e.name for e in engines),
        dtype=engines[0].dtype,
        greedy=greedy,
        decode=decode,
    )
    tokens = [np.array(prompt.token_ids, dtype=np.int64)]
    return compare(load_subject(checkpoint), engines, tokens, case)
