"""How text is cut before BPE, by the names that GGUF gives to the ways of doing it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

# The two differ in how many digits make one piece.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_PATTERN = _WORDS % r"\p{N}{1,3}"
_QWEN2_PATTERN = _WORDS % r"\p{N}"


@dataclass(frozen=True, slots=True)
class Pretokenizer:
    """One way of cutting.

    Attributes:
        build: Makes it, as an object of the tokenizers library.
        normalizer: Makes the normaliser that goes before it, if any.
        ignore_merges: Whether a piece that is a token as a whole is taken without merging.
        add_bos: Whether a BOS goes before the text where the file does not say.
    """

    build: Callable[[], Any]
    normalizer: Callable[[], Any] | None = None
    ignore_merges: bool = False
    add_bos: bool = False


def _gpt2() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(pattern: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _llama3() -> Any:
    return _split(_LLAMA3_PATTERN)


def _qwen2() -> Any:
    return _split(_QWEN2_PATTERN)


def _nfc() -> Any:
    from tokenizers import normalizers

    return normalizers.NFC()


_LLAMA3 = Pretokenizer(_llama3, ignore_merges=True, add_bos=True)

PRETOKENIZERS: Mapping[str, Pretokenizer] = MappingProxyType(
    {
        "default": Pretokenizer(_gpt2),  # files older than the names; all were GPT-2's then
        "gpt-2": Pretokenizer(_gpt2),
        "smollm": Pretokenizer(_smollm),
        "llama-bpe": _LLAMA3,
        "llama-v3": _LLAMA3,
        "llama3": _LLAMA3,
        "qwen2": Pretokenizer(_qwen2, normalizer=_nfc),
    }
)
"""`tokenizer.ggml.pre` to what it means."""
