"""Facts about attention: the order of repeated heads, and masks in three forms."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..references_seam import ops
from .bench import Array, Bench, apart
from .fact import Fact

Repeat = Callable[[Array, int], Array]

_AT = "layers.0.attn"


def in_order(heads: Array, times: int) -> Array:
    """KV heads [B, K, S, D] as 0, 0, 0, 1, 1, 1, ...: [B, H, S, D]."""
    return np.repeat(heads, times, axis=1)


def tiled(heads: Array, times: int) -> Array:
    """KV heads as 0, 1, 2, 0, 1, 2, ...: what is wrong."""
    return np.tile(heads, (1, times, 1, 1))


def repeated(bench: Bench, repeat: Repeat = in_order) -> float:
    """Attention with KV heads repeated by a function, against transformers' context, relative.

    Args:
        bench: Holds queries, keys, values and context of the first layer.
        repeat: From KV heads and a number to one for each query head.
    """
    q, k, v = (bench.taps[f"{_AT}.{name}"] for name in ("q_rope", "keys", "values"))
    times = q.shape[1] // k.shape[1]
    scores = ops.scores(q, repeat(k, times), scale=q.shape[-1] ** -0.5)
    probs = ops.masked_softmax(scores, _causal(q.shape[2])[None])
    context = bench.taps[f"{_AT}.context"]
    return apart(ops.context(probs, repeat(v, times)), context) / float(np.abs(context).max())


def repeated_in_tiles(bench: Bench) -> float:
    """The wrong order."""
    return repeated(bench, tiled)


def mask_forms(bench: Bench, visible: Array | None = None) -> float:
    """Largest difference between the probabilities of three forms of the causal mask.

    Args:
        bench: Holds queries and keys of the first layer.
        visible: [T, S] of the boolean form; the causal one if None.
    """
    from ..engines.hf_probe import additive_softmax, kernel_probs

    q, k = bench.taps[f"{_AT}.q_rope"], bench.taps[f"{_AT}.keys"]
    scores = ops.scores(q, k, scale=q.shape[-1] ** -0.5)
    causal = _causal(q.shape[2])
    additive = additive_softmax(scores, causal)
    kernel = kernel_probs(q, in_order(k, q.shape[1] // k.shape[1]), causal=True)
    boolean = ops.masked_softmax(scores, (causal if visible is None else visible)[None])
    return max(apart(additive, kernel), apart(additive, boolean), apart(kernel, boolean))


def single_query(bench: Bench, query: int = -1) -> float:
    """One query over all keys: with the causal mask and without any.

    Args:
        bench: Holds queries and keys of the first layer.
        query: Which one; the last sees every key, as the query of a decoding step does.
    """
    from ..engines.hf_probe import kernel_probs

    q, k = bench.taps[f"{_AT}.q_rope"], bench.taps[f"{_AT}.keys"]
    causal = _causal(q.shape[2])[query]
    q = q[:, :, query, None]
    scores = ops.scores(q, k, scale=q.shape[-1] ** -0.5)
    masked = ops.masked_softmax(scores, causal[None, None])
    return apart(masked, kernel_probs(q, in_order(k, q.shape[1] // k.shape[1]), causal=False))


def _causal(length: int) -> NDArray[np.bool_]:
    return np.tril(np.ones((length, length), dtype=bool))


FACTS = (
    # Float32 attention over 5 keys and 64 elements: some dozen rounding errors of 6e-8.
    Fact("KV heads repeated 0,0,0,1,1,1, relative to the context", "right", repeated, 0.0, 1e-5),
    # Other heads' keys and values: a difference as large as the context itself.
    Fact(
        "KV heads tiled 0,1,2,0,1,2, relative to the context", "wrong", repeated_in_tiles, 0.1, 10.0
    ),
    # Probabilities up to 1 from scores of some dozens: a few dozen rounding errors of 6e-8.
    Fact("mask as float minimum, is_causal, boolean", "same probabilities", mask_forms, 0.0, 1e-5),
    Fact("one query: mask against no mask", "none needed", single_query, 0.0, 1e-5),
)
