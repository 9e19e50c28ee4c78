"""The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json.

Byte-level BPE (`tokenizer.ggml.model` gpt2) is rebuilt. Whatever cannot be rebuilt faithfully is a
`TokenizerProblem`: the weights are still of use, with token ids instead of text.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .gguf_file import GgufFile
from .pretokenizers import PRETOKENIZERS, Pretokenizer

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
_LISTS: Mapping[str, type] = {"tokens": str, "merges": str, "token_type": int}


class TokenizerProblem(Exception):
    """Why a tokenizer cannot be rebuilt from a GGUF file."""


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
    pretokenizer = _find_pretokenizer(file.metadata)
    tokens = _read_tokens(file.metadata, vocab_size)
    special = _read_special(file.metadata, tokens)
    tokenizer = _build(file.metadata, pretokenizer, tokens, special)
    text = tokenizer.to_str(pretty=True)  # its own save raises a bare Exception on a full disk
    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    config = _make_config(file.metadata, pretokenizer, special)
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


def _find_pretokenizer(metadata: Mapping[str, Any]) -> Pretokenizer:
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise TokenizerProblem("the file holds no tokenizer (no tokenizer.ggml.model)")
    if model != "gpt2":
        raise TokenizerProblem(
            f"tokenizer.ggml.model is {model!r}; only byte-level BPE (gpt2) is rebuilt"
        )
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in PRETOKENIZERS:
        known = ", ".join(sorted(PRETOKENIZERS))
        raise TokenizerProblem(f"tokenizer.ggml.pre is {pre!r}; known are {known}")
    if metadata.get("tokenizer.ggml.add_space_prefix", False):
        raise TokenizerProblem("tokenizer.ggml.add_space_prefix is set, which is not rebuilt")
    return PRETOKENIZERS[pre]


def _read_tokens(metadata: Mapping[str, Any], vocab_size: int) -> list[str]:
    for key in ("tokens", "merges"):
        if not metadata.get(f"tokenizer.ggml.{key}"):
            raise TokenizerProblem(f"there are no tokenizer.ggml.{key}")
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


def _build(
    metadata: Mapping[str, Any],
    pretokenizer: Pretokenizer,
    tokens: list[str],
    special: Mapping[str, str],
) -> "Tokenizer":
    from tokenizers import AddedToken, Tokenizer, decoders, models

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
    # They are in the vocabulary already and so keep their ids; this makes them indivisible.
    types = metadata.get("tokenizer.ggml.token_type", [])
    kinds = list(zip(tokens, types, strict=False))
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in kinds if kind == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) for t, kind in kinds if kind == _USER_DEFINED]
    )
    if pretokenizer.normalizer is not None:
        tokenizer.normalizer = pretokenizer.normalizer()
    tokenizer.pre_tokenizer = pretokenizer.build()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _make_post_processor(metadata, pretokenizer, vocab, special)
    return tokenizer


def _make_post_processor(
    metadata: Mapping[str, Any],
    pretokenizer: Pretokenizer,
    vocab: Mapping[str, int],
    special: Mapping[str, str],
) -> Any:
    from tokenizers import processors

    byte_level = processors.ByteLevel(trim_offsets=False)
    around = {}
    for side, default in (("bos", pretokenizer.add_bos), ("eos", False)):
        if metadata.get(f"tokenizer.ggml.add_{side}_token", default):
            if f"{side}_token" not in special:
                raise TokenizerProblem(f"add_{side}_token is set, but {side}_token_id is absent")
            around[side] = special[f"{side}_token"]
    if not around:
        return byte_level
    single = [around["bos"]] if "bos" in around else []
    single += ["$A", around["eos"]] if "eos" in around else ["$A"]
    second = [f"{'$B' if piece == '$A' else piece}:1" for piece in single]
    template = processors.TemplateProcessing(
        single=single,
        pair=[*single, *second],
        special_tokens=[(token, vocab[token]) for token in sorted(set(around.values()))],
    )
    return processors.Sequence([byte_level, template])


def _make_config(
    metadata: Mapping[str, Any], pretokenizer: Pretokenizer, special: Mapping[str, str]
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", pretokenizer.add_bos),
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
