"""Text to token ids and back, from the tokenizer.json of a checkpoint.

Each call opens the file anew (a tenth of a second for 100,000 tokens): nothing is kept between
calls.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import CheckpointError
from .checkpoint import Checkpoint
from .from_gguf.conversion_record import read_record

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def encode(checkpoint: Checkpoint, text: str) -> list[int]:
    """Token ids of a text, with the special tokens (a BOS, say) that the tokenizer itself adds.

    Raises:
        CheckpointError: If the checkpoint has no usable tokenizer.json.
    """
    ids: list[int] = _open(checkpoint).encode(text, add_special_tokens=True).ids
    return ids


def decode(checkpoint: Checkpoint, ids: Sequence[int]) -> str:
    """Text of token ids, special tokens included.

    Raises:
        CheckpointError: If the checkpoint has no usable tokenizer.json, or an id is not in it.
    """
    tokenizer = _open(checkpoint)
    for token_id in ids:
        _raw_token(checkpoint, tokenizer, token_id)
    text: str = tokenizer.decode(list(ids), skip_special_tokens=False)
    return text


def token_texts(checkpoint: Checkpoint, ids: Sequence[int]) -> list[str]:
    """One text per id, for people to read.

    A token that is only part of a character is given as the tokenizer spells it.

    Raises:
        CheckpointError: If the checkpoint has no usable tokenizer.json, or an id is not in it.
    """
    tokenizer = _open(checkpoint)
    return [_readable(_raw_token(checkpoint, tokenizer, i), tokenizer, i) for i in ids]


def _readable(raw: str, tokenizer: "Tokenizer", token_id: int) -> str:
    text: str = tokenizer.decode([token_id], skip_special_tokens=False)
    if "\N{REPLACEMENT CHARACTER}" in text:
        return raw
    if raw.startswith("\N{LOWER ONE EIGHTH BLOCK}") and not text.startswith(" "):
        return " " + text  # sentencepiece drops the space at the start of a text
    return text


def _raw_token(checkpoint: Checkpoint, tokenizer: "Tokenizer", token_id: int) -> str:
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    raw: str | None = tokenizer.id_to_token(token_id) if token_id >= 0 else None
    if raw is None:
        raise CheckpointError(
            str(checkpoint.path / "tokenizer.json"),
            expected=f"token ids of its {size} tokens",
            found=str(token_id),
            advice="these ids belong to another tokenizer",
        )
    return raw


def _open(checkpoint: Checkpoint) -> "Tokenizer":
    from tokenizers import Tokenizer

    path = checkpoint.path / "tokenizer.json"
    if not path.is_file():
        raise _describe_absence(checkpoint)
    try:
        return Tokenizer.from_file(str(path))
    # The tokenizers library raises a bare Exception for whatever is wrong with the file.
    except Exception as error:
        raise CheckpointError(
            str(path),
            expected="a tokenizer",
            found=f"a damaged file ({error})",
            advice="fetch it again, or pass token ids instead of text",
        ) from error


def _describe_absence(checkpoint: Checkpoint) -> CheckpointError:
    record = read_record(checkpoint.path)
    if record is not None and record.tokenizer_problem is not None:
        return CheckpointError(
            checkpoint.origin,
            expected="a tokenizer that can be rebuilt from the GGUF file",
            found=record.tokenizer_problem,
            advice="pass token ids instead of text",
        )
    return CheckpointError(
        str(checkpoint.path),
        expected="tokenizer.json",
        found="no such file",
        advice="let transformers write it, AutoTokenizer.from_pretrained(DIR)"
        ".save_pretrained(DIR), or pass token ids instead of text",
    )
