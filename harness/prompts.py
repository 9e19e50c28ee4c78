"""From a prompt to token ids that the model has room for."""

from typing import Any

import numpy as np

from .case import Prompt
from .checkpoint import encode
from .engines.protocol import TokenIds
from .errors import UsageError
from .padding import pad_rows, padding_of
from .subject import Subject


def tokens_of(subject: Subject, prompt: Prompt) -> TokenIds:
    """Token ids [B, T] of a prompt, filled up with its pad token where rows are shorter.

    Raises:
        UsageError: It has fewer tokens than it is to be cut to, or none.
    """
    rows = prompt.token_ids
    if rows is None:
        rows = (tuple(encode(subject.checkpoint, prompt.text or "")),)
    length, shortest = prompt.length, min(map(len, rows))
    if shortest < (length or 1):
        raise UsageError(
            f"prompt {prompt.name!r}",
            expected=f"at least {length or 1} tokens",
            found=str(shortest),
            advice="give a longer text, or a smaller length",
        )
    padding = padding_of(rows, prompt.padding, cut=length)
    cut = [row[:length] for row in rows]
    return pad_rows(cut, padding, pad_token(subject, prompt.pad_token))


def passes_of(prompt: Prompt, tokens: TokenIds) -> list[TokenIds]:
    """Token ids [B, T] of each forward pass that a prompt is fed in.

    Raises:
        UsageError: The passes are not as long as the prompt.
    """
    if not prompt.prefill:
        return [tokens]
    if sum(prompt.prefill) != tokens.shape[1]:
        raise UsageError(
            f"prompt {prompt.name!r}",
            expected=f"prefill that adds up to {tokens.shape[1]}, the number of tokens",
            found=f"{list(prompt.prefill)}, {sum(prompt.prefill)} together",
            advice="write how many tokens each pass is fed, for example prefill = [5, 4]",
        )
    return np.split(tokens, np.cumsum(prompt.prefill)[:-1].tolist(), axis=1)


def pad_token(subject: Subject, given: int | None = None) -> int:
    """The token that rows are filled up with: the given one, the config's, or 0."""
    if given is not None:
        return given
    named: Any = subject.checkpoint.config.get("pad_token_id")
    return named if type(named) is int and 0 <= named < subject.model.config.vocab else 0


def require_room(subject: Subject, name: str, tokens: TokenIds, *, more: int) -> None:
    """Require that the model has positions for a prompt and what is decoded after it.

    Args:
        subject: The model.
        name: Name of the prompt.
        tokens: [B, T].
        more: Number of tokens to decode.

    Raises:
        UsageError: It has not.
    """
    room = subject.model.config.max_positions
    if room is not None and tokens.shape[1] + more > room:
        raise UsageError(
            f"prompt {name!r}",
            expected=f"at most {room} positions, the config's max_position_embeddings",
            found=f"{tokens.shape[1]} tokens and {more} more to decode",
            advice="shorten the prompt with length, or lower decode and greedy",
        )
