"""SentencePiece tokenizers of the BPE kind (`tokenizer.ggml.model` llama), as Gemma has one.

SentencePiece joins, again and again, the two neighbours whose joint piece has the highest score,
the leftmost where scores are equal (Kudo and Richardson 2018, section 3; its BPE mode). The
tokenizers library wants a ranked list of merges instead: every way to cut a piece in two pieces,
in the order of the joint piece's score. Text that no piece covers becomes bytes.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .tokenizer_problem import TokenizerProblem

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPACE = "\u2581"
_NORMAL, _UNKNOWN, _BYTE = 1, 2, 6  # of the token types in tokenizer.ggml.token_type

#: Settings of the normaliser, and the only values under which text is left as it is.
_AS_IT_IS = {
    "add_space_prefix": (False, True),  # value, and what an absent key means
    "remove_extra_whitespaces": (False, False),
    "treat_whitespace_as_suffix": (False, False),
    "escape_whitespaces": (True, True),
    "precompiled_charsmap": (None, None),
}


def build_sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> "Tokenizer":
    """Make the tokenizer, without its special tokens.

    Args:
        metadata: Of the GGUF file.
        tokens: Its pieces.

    Raises:
        TokenizerProblem: Scores or types are absent, bytes are incomplete, or text is normalised
            before it is cut.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    _refuse_normalisation(metadata)
    types, scores = _listed(metadata, "token_type", tokens), _listed(metadata, "scores", tokens)
    vocab = {token: index for index, token in enumerate(tokens)}
    absent = [byte for byte in range(256) if types[vocab.get(_named(byte), -1)] != _BYTE]
    if absent:
        raise TokenizerProblem(f"{len(absent)} bytes have no piece, first {_named(absent[0])}")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    model = models.BPE(
        vocab=vocab,
        merges=rank_merges(tokens, scores, types),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def rank_merges(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """Every way to cut a piece in two pieces, those of the highest score first.

    Args:
        tokens: All pieces; only those of the normal type are joined or come of joining.
        scores: Of each piece.
        types: Of each piece.
    """
    rank = {
        token: score
        for token, score, kind in zip(tokens, scores, types, strict=True)
        if kind == _NORMAL
    }
    ordered = sorted(rank, key=lambda token: -rank[token])
    return [
        (piece[:cut], piece[cut:])
        for piece in ordered
        for cut in range(1, len(piece))
        if piece[:cut] in rank and piece[cut:] in rank
    ]


def _listed(metadata: Mapping[str, Any], key: str, tokens: Sequence[str]) -> list[Any]:
    values: list[Any] | None = metadata.get(f"tokenizer.ggml.{key}")
    if values is None or len(values) != len(tokens):
        count = 0 if values is None else len(values)
        raise TokenizerProblem(f"{len(tokens)} tokens but {count} in tokenizer.ggml.{key}")
    return values


def _named(byte: int) -> str:
    return f"<0x{byte:02X}>"


def _refuse_normalisation(metadata: Mapping[str, Any]) -> None:
    for name, (wanted, default) in _AS_IT_IS.items():
        value = metadata.get(f"tokenizer.ggml.{name}", default)
        if value != wanted:
            shown = value if isinstance(value, bool) else "set"
            raise TokenizerProblem(f"tokenizer.ggml.{name} is {shown}, which is not rebuilt")
