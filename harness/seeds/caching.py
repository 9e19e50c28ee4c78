"""Facts about the KV cache: what goes wrong in silence, and the check that catches it."""

import numpy as np

from ..engines.protocol import Engine
from ..references_seam import errors
from .bench import Array, Bench, TokenIds, apart
from .fact import Fact

#: A difference of logits that no rounding makes here; the engines are 1e-4 apart at most.
NOTICED = 1e-2

#: So many tokens are decoded to see which is the first one that is off.
_DECODED = 4


def stale_cache_refused(bench: Bench) -> float:
    """Whether the reference refuses a second prompt at position 0 on a used cache: 1 or 0."""
    model = bench.subject.model
    _, cache = model.prefill(bench.step, bench.tokens)
    try:
        model.extend(bench.step, bench.second, cache, position=0)
    except errors.CacheError:
        return 1.0
    return 0.0


def stale_cache(bench: Bench) -> float:
    """A second prompt on transformers' used cache: how far its last logits are off, silently."""
    return _second_prompt(bench, bench.second)


def stale_cache_single(bench: Bench) -> float:
    """The same with a second prompt of one token."""
    return _second_prompt(bench, bench.second[:, :1])


def _second_prompt(bench: Bench, tokens: TokenIds) -> float:
    from ..engines.hf_probe import forward, new_cache

    model = bench.eager.model
    used = new_cache(model)
    forward(model, bench.tokens, cache=used)
    return apart(forward(model, tokens, cache=used)[0, -1], forward(model, tokens)[0, -1])


def position_zero(bench: Bench) -> float:
    """Positions 0 while decoding: ordinal of the first greedy token whose logits are off."""
    right, wrong = _decoded(bench, stuck=False), _decoded(bench, stuck=True)
    off = [n for n, (x, y) in enumerate(zip(right, wrong, strict=True), 1) if apart(x, y) > NOTICED]
    return float(off[0]) if off else float("inf")


def position_zero_logits(bench: Bench) -> float:
    """Positions 0 while decoding: how far the logits of the second token are off."""
    return apart(_decoded(bench, stuck=False)[1], _decoded(bench, stuck=True)[1])


def _decoded(bench: Bench, *, stuck: bool) -> list[Array]:
    """Logits that each of the first greedy tokens is chosen by, positions right or always 0."""
    from ..engines.hf_probe import forward, new_cache

    model, cache = bench.eager.model, new_cache(bench.eager.model)
    length = bench.tokens.shape[1]
    logits = [forward(model, bench.tokens, cache=cache)[0, -1]]
    for done in range(_DECODED - 1):
        positions = np.array([[0 if stuck else length + done]])
        token = bench.greedy[:, done : done + 1]
        logits.append(forward(model, token, cache=cache, positions=positions)[0, -1])
    return logits


def one_by_one(bench: Bench, engine: Engine | None = None) -> float:
    """The paragraph's first 16 tokens one by one with a cache, against all at once: last logits.

    Args:
        bench: Holds the paragraph.
        engine: Eager if None.
    """
    engine = engine or bench.eager
    tokens = bench.paragraph[:, :16]
    with engine.open(cache=False) as session:
        at_once = session.feed(tokens)
    with engine.open(cache=True) as session:
        for place in range(tokens.shape[1]):
            logits = session.feed(tokens[:, place : place + 1])
    return apart(at_once[0, -1], logits[0, -1])


def one_by_one_reference(bench: Bench) -> float:
    """The same for the reference."""
    return one_by_one(bench, bench.reference)


FACTS = (
    Fact("used cache, second prompt: the reference refuses", "an error", stale_cache_refused, 1, 1),
    # Another text in front: the logits of another sequence, whole units apart.
    Fact("used cache, second prompt in transformers: logits", "silent", stale_cache, 0.1, 100.0),
    Fact("the same with a prompt of one token", "silent", stale_cache_single, 0.1, 100.0),
    # The first token comes from the prompt; the second from the first step that is off.
    Fact("position 0 while decoding: first token that is off", "2", position_zero, 2, 2, figure=2),
    # Five positions of 64 elements turned by up to 5 radians: no rounding, no error message.
    Fact("the same: logits of the second token", "wrong, silent", position_zero_logits, 0.1, 100.0),
    Fact(
        "one by one with a cache against all at once, eager", "within 1e-4", one_by_one, 0.0, 1e-4
    ),
    Fact("the same, reference", "within 1e-4", one_by_one_reference, 0.0, 1e-4),
)
