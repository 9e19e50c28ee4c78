"""Greedy continuation: of an engine by feeding, of the float64 reference by checking a draft."""

import numpy as np
from numpy.typing import NDArray

from .engines.protocol import Engine, TokenIds, begin
from .padding import Padding
from .references_seam import model as models
from .references_seam import step as seam


def greedy(
    engine: Engine, token_ids: TokenIds, count: int, *, padding: Padding | None = None
) -> NDArray[np.int64]:
    """The ``count`` tokens that an engine chooses after a prompt, one by one with its cache.

    Args:
        engine: The engine.
        token_ids: [B, T].
        count: Number of tokens.
        padding: Where the prompt has pads.

    Returns:
        [B, count]; of equal logits the first is chosen.
    """
    if count == 0:
        return np.zeros((token_ids.shape[0], 0), dtype=np.int64)
    chosen: list[NDArray[np.int64]] = []
    last = -1 if padding is None else padding.last
    with begin(engine, cache=count > 1, padding=padding) as session:
        tokens = token_ids
        for _ in range(count):
            logits = session.feed(tokens)
            following = logits[np.arange(len(logits)), last]  # [B, V]
            tokens = np.argmax(following.astype(np.float64), axis=-1)[:, None]
            chosen.append(tokens)
            last = -1
    return np.concatenate(chosen, axis=1)


def greedy_from_draft(
    model: models.Model, step: seam.Step, token_ids: TokenIds, draft: TokenIds
) -> NDArray[np.int64]:
    """The tokens that the model behind ``step`` chooses after a prompt, in few forward passes.

    One pass over prompt and draft shows what the model would choose after each prefix. Up to the
    first token that is not the draft's, those prefixes are the model's own; from there the draft
    is replaced and checked again. With a good draft that is one pass in place of one a token
    (the verification of Leviathan et al. 2023, Fast Inference by Speculative Decoding).

    A model whose rotation grows with the sequence (dynamic RoPE) computes something else when it
    sees all tokens at once than when they come one by one: it is fed one by one.

    Args:
        model: The reference.
        step: A plain step, for example in float64.
        token_ids: [1, T], one sequence.
        draft: [1, N] tokens that somebody else chose.

    Returns:
        [1, N].
    """
    count = draft.shape[1]
    if model.config.max_positions is None:
        return _one_by_one(model, step, token_ids, count)
    tokens = np.array(draft)
    known = 0
    while known < count:
        logits, _ = model.prefill(step, np.concatenate([token_ids, tokens[:, :-1]], axis=1))
        own = np.argmax(np.asarray(logits)[:, token_ids.shape[1] - 1 :], axis=-1)
        differs = np.flatnonzero(own[0] != tokens[0])
        if differs.size == 0:
            break
        known = int(differs[0]) + 1
        tokens[:, known - 1 :] = own[:, known - 1 :]
    return tokens


def _one_by_one(
    model: models.Model, step: seam.Step, token_ids: TokenIds, count: int
) -> NDArray[np.int64]:
    tokens = np.array(token_ids)
    length = token_ids.shape[1]
    for known in range(count):
        if known == 0:
            logits, cache = model.prefill(step, token_ids)
        else:
            position = length + known - 1
            logits = model.extend(step, tokens[:, -1:], cache, position=position)
        chosen = np.argmax(np.asarray(logits)[:, -1:], axis=-1)
        tokens = np.concatenate([tokens, chosen], axis=1)
    return tokens[:, length:]
