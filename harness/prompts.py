"""From a prompt to token ids that the model has room for."""

import numpy as np

from .case import Prompt
from .checkpoint import encode
from .engines.protocol import TokenIds
from .errors import UsageError
from .subject import Subject


def tokens_of(subject: Subject, prompt: Prompt) -> TokenIds:
    """Token ids [B, T] of a prompt.

    Raises:
        UsageError: It has fewer tokens than it is to be cut to, or none.
    """
    rows = prompt.token_ids
    if rows is None:
        rows = (tuple(encode(subject.checkpoint, prompt.text or "")),)
    length = len(rows[0]) if prompt.length is None else prompt.length
    if len(rows[0]) < length or length == 0:
        raise UsageError(
            f"prompt {prompt.name!r}",
            expected=f"at least {max(length, 1)} tokens",
            found=str(len(rows[0])),
            advice="give a longer text, or a smaller length",
        )
    return np.array([row[:length] for row in rows], dtype=np.int64)


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
