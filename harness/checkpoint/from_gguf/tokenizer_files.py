"""The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json.

Byte-level BPE (`tokenizer.ggml.model` gpt2) and SentencePiece's BPE (llama) are rebuilt. Whatever
cannot be rebuilt faithfully is a `TokenizerProblem`: the weights are still of use, with token ids
instead of text.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .gguf_file import GgufFile
from .pretokenizers import PRETOKENIZERS, Pretokenizer
from .sentencepiece import build_sentencepiece
from .tokenizer_problem import TokenizerProblem

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CONTROL, _USER_DEFINED = 3, 4  # of the token types in tokenizer.ggml.token_type
_SPECIAL_IDS = (
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
)
_TEMPLATE = "tokenizer.chat_template"
_TYPES: Mapping[str, type] = {
    "model": str,
    "pre": str,
    "add_space_prefix": bool,
    "add_bos_token": bool,
    "add_eos_token": bool,
    **{key.rpartition(".")[2]: int for _, key in _SPECIAL_IDS},
}
_LISTS: Mapping[str, type] = {"tokens": str, "merges": str, "token_type": int, "scores": float}

__all__ = ["TokenizerProblem", "write_tokenizer"]


def write_tokenizer(file: GgufFile, directory: Path, *, vocab_size: int) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    Args:
        file: The GGUF file.
        directory: Where to write them.
        vocab_size: Rows of the embedding; there must not be more tokens.

    Raises:
        TokenizerProblem: If the file holds no tokenizer or one that cannot be rebuilt; nothing is
            written then.
    """
    _require_types(file.metadata)
    kind = _KINDS.get(_read_kind(file.metadata))
    if kind is None:
        raise TokenizerProblem(
            f"tokenizer.ggml.model is {_read_kind(file.metadata)!r}; only byte-level BPE (gpt2) "
            "and SentencePiece's BPE (llama) are rebuilt"
        )
    tokens = _read_tokens(file.metadata, vocab_size)
    special = _read_special(file.metadata, tokens)
    tokenizer, adds_bos = kind(file.metadata, tokens)
    _add_tokens(tokenizer, tokens, file.metadata.get("tokenizer.ggml.token_type", []))
    around = _read_around(file.metadata, special, adds_bos=adds_bos)
    _add_template(tokenizer, around, tokens)
    text = tokenizer.to_str(pretty=True)  # its own save raises a bare Exception on a full disk
    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    config = _make_config(file.metadata, special, adds_bos=adds_bos)
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _require_types(metadata: Mapping[str, Any]) -> None:
    """A damaged file may hold anything under a key; None is a key that is not there."""
    for key, value in metadata.items():
        name = key.removeprefix("tokenizer.ggml.")
        kind = str if key.startswith(_TEMPLATE) else _TYPES.get(name)
        listed = _LISTS.get(name)
        if kind is not None and type(value) is not kind:
            raise TokenizerProblem(f"{key} is {type(value).__name__}, not {kind.__name__}")
        if listed is not None and not (
            isinstance(value, list) and all(type(item) is listed for item in value)
        ):
            raise TokenizerProblem(f"{key} is no list of {listed.__name__}")


def _read_kind(metadata: Mapping[str, Any]) -> str:
    model: str | None = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise TokenizerProblem("the file holds no tokenizer (no tokenizer.ggml.model)")
    return model


def _find_pretokenizer(metadata: Mapping[str, Any]) -> Pretokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in PRETOKENIZERS:
        known = ", ".join(sorted(PRETOKENIZERS))
        raise TokenizerProblem(f"tokenizer.ggml.pre is {pre!r}; known are {known}")
    if metadata.get("tokenizer.ggml.add_space_prefix", False):
        raise TokenizerProblem("tokenizer.ggml.add_space_prefix is set, which is not rebuilt")
    return PRETOKENIZERS[pre]


def _read_tokens(metadata: Mapping[str, Any], vocab_size: int) -> list[str]:
    if not metadata.get("tokenizer.ggml.tokens"):
        raise TokenizerProblem("there are no tokenizer.ggml.tokens")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    if len(tokens) > vocab_size:
        raise TokenizerProblem(f"{len(tokens)} tokens for a vocabulary of {vocab_size}")
    if len(set(tokens)) != len(tokens):
        raise TokenizerProblem(f"{len(tokens) - len(set(tokens))} tokens are given twice")
    types = metadata.get("tokenizer.ggml.token_type")
    if types is not None and len(types) != len(tokens):
        raise TokenizerProblem(f"{len(tokens)} tokens but {len(types)} token types")
    return tokens


def _read_special(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    special = {}
    for name, key in _SPECIAL_IDS:
        token_id = metadata.get(key)
        if token_id is None:
            continue
        if token_id not in range(len(tokens)):
            raise TokenizerProblem(f"{key} is {token_id}, but there are {len(tokens)} tokens")
        special[name] = tokens[token_id]
    return special


def _build_byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> tuple["Tokenizer", bool]:
    """Byte-level BPE, and whether a BOS goes before the text where the file does not say."""
    from tokenizers import Tokenizer, decoders, models, processors

    pretokenizer = _find_pretokenizer(metadata)
    if not metadata.get("tokenizer.ggml.merges"):
        raise TokenizerProblem("there are no tokenizer.ggml.merges")
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    odd = [merge for merge in merges if len(merge) != 2]
    if odd:
        raise TokenizerProblem(f"{len(odd)} merges are not two tokens, first {odd[0]!r}")
    vocab = {token: index for index, token in enumerate(tokens)}
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=pretokenizer.ignore_merges)
    # The tokenizers library raises a bare Exception, for a merge into an unknown token say.
    except Exception as error:
        raise TokenizerProblem(f"its vocabulary and merges do not fit: {error}") from error
    tokenizer = Tokenizer(model)
    if pretokenizer.normalizer is not None:
        tokenizer.normalizer = pretokenizer.normalizer()
    tokenizer.pre_tokenizer = pretokenizer.build()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, pretokenizer.add_bos


def _build_sentencepiece(
    metadata: Mapping[str, Any], tokens: list[str]
) -> tuple["Tokenizer", bool]:
    return build_sentencepiece(metadata, tokens), True


_KINDS: Mapping[str, Callable[[Mapping[str, Any], list[str]], tuple["Tokenizer", bool]]] = {
    "gpt2": _build_byte_level,
    "llama": _build_sentencepiece,
}


def _add_tokens(tokenizer: "Tokenizer", tokens: list[str], types: list[int]) -> None:
    """Make tokens indivisible; they are in the vocabulary already and so keep their ids."""
    from tokenizers import AddedToken

    kinds = list(zip(tokens, types, strict=False))
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in kinds if kind == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) for t, kind in kinds if kind == _USER_DEFINED]
    )


def _read_around(
    metadata: Mapping[str, Any], special: Mapping[str, str], *, adds_bos: bool
) -> dict[str, str]:
    """Tokens that go before and after every text: ``bos`` and ``eos``, those that do."""
    around = {}
    for side, default in (("bos", adds_bos), ("eos", False)):
        if metadata.get(f"tokenizer.ggml.add_{side}_token", default):
            if f"{side}_token" not in special:
                raise TokenizerProblem(f"add_{side}_token is set, but {side}_token_id is absent")
            around[side] = special[f"{side}_token"]
    return around


def _add_template(tokenizer: "Tokenizer", around: Mapping[str, str], tokens: Sequence[str]) -> None:
    from tokenizers import processors

    if not around:
        return
    single = [around["bos"]] if "bos" in around else []
    single += ["$A", around["eos"]] if "eos" in around else ["$A"]
    second = [f"{'$B' if piece == '$A' else piece}:1" for piece in single]
    template = processors.TemplateProcessing(
        single=single,
        pair=[*single, *second],
        special_tokens=[(token, tokens.index(token)) for token in sorted(set(around.values()))],
    )
    own = tokenizer.post_processor
    tokenizer.post_processor = template if own is None else processors.Sequence([own, template])


def _make_config(
    metadata: Mapping[str, Any], special: Mapping[str, str], *, adds_bos: bool
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", adds_bos),
        "add_eos_token": metadata.get("tokenizer.ggml.add_eos_token", False),
        "clean_up_tokenization_spaces": False,
        **special,
    }
    named = {
        key.removeprefix(f"{_TEMPLATE}."): value
        for key, value in metadata.items()
        if key.startswith(f"{_TEMPLATE}.")
    }
    if _TEMPLATE in metadata and named:
        named = {"default": metadata[_TEMPLATE], **named}
    if named:
        config["chat_template"] = [{"name": k, "template": v} for k, v in named.items()]
    elif _TEMPLATE in metadata:
        config["chat_template"] = metadata[_TEMPLATE]
    return config
