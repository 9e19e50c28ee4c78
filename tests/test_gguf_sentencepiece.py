"""SentencePiece tokenizers of GGUF files, against the algorithm written out."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, trainers

from harness.checkpoint import Checkpoint, decode, encode
from harness.checkpoint.from_gguf import sentencepiece
from harness.checkpoint.from_gguf.gguf_file import GgufFile
from harness.checkpoint.from_gguf.tokenizer_files import TokenizerProblem, write_tokenizer

SPACE = "\u2581"
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>"]
OWN = ["\n", "\n\n", "  "]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CORPUS = ["the cat sat on the mat", "that is the theme of these notes", "aaaa aaa aa", "é à la"] * 3


def pieces() -> list[str]:
    """Pieces in the order in which training joined them, with single characters last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=90, show_progress=False))
    vocab = tokenizer.get_vocab()
    found = sorted(vocab, key=vocab.__getitem__)
    return [t for t in found if len(t) > 1] + [t for t in found if len(t) == 1]


PIECES = pieces()
TOKENS = [*CONTROL, *OWN, *BYTES, *PIECES]
SCORES = [-1000.0] * 7 + [0.0] * 256 + [-float(n) for n in range(len(PIECES))]
TYPES = [3] * 4 + [4] * 3 + [6] * 256 + [1] * len(PIECES)
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.scores": SCORES,
    "tokenizer.ggml.token_type": TYPES,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 3,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_eos_token": False,
    "tokenizer.ggml.add_space_prefix": False,
}


def rebuild(metadata: dict[str, Any], directory: Path) -> Checkpoint:
    file = GgufFile(path=Path("m.gguf"), metadata=metadata, tensors={}, shapes={})
    write_tokenizer(file, directory, vocab_size=len(TOKENS))
    array = np.zeros(1)
    array.flags.writeable = False
    return Checkpoint(path=directory, config={}, tensors={"w": array}, origin="m.gguf")


def by_hand(text: str) -> list[int]:
    """Join the neighbours of the highest score, the leftmost first; what is left become bytes."""
    ids: list[int] = []
    rest = text
    while rest:
        own = max((t for t in OWN if rest.startswith(t)), key=len, default=None)
        if own is not None:
            ids.append(TOKENS.index(own))
            rest = rest[len(own) :]
            continue
        end = min((i for i in range(len(rest)) if rest.startswith(tuple(OWN), i)), default=None)
        ids += joined(list(rest[:end].replace(" ", SPACE)))
        rest = "" if end is None else rest[end:]
    return ids


def joined(symbols: list[str]) -> list[int]:
    score = dict(zip(PIECES, SCORES[7 + 256 :], strict=True))
    while True:
        pairs = [
            (-score[a + b], at)
            for at, (a, b) in enumerate(itertools.pairwise(symbols))
            if a + b in score
        ]
        if not pairs:
            break
        _, at = min(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        known = symbol in score
        ids += [TOKENS.index(symbol)] if known else [7 + byte for byte in symbol.encode()]
    return ids


texts = st.one_of(
    st.text(max_size=30),
    st.text(alphabet="theamso \n", max_size=40),
    st.lists(st.sampled_from([*PIECES, *OWN, "é", "猫"])).map("".join),
).map(lambda text: text.replace("<", "").replace(SPACE, " "))


@given(texts)
def test_law_ids_are_those_of_the_algorithm(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text, add_special_tokens=False).ids == by_hand(text)


@given(texts)
def test_law_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("spm")
    rebuild(METADATA, folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_a_bos_goes_first_and_control_tokens_are_told_from_text(tmp_path: Path) -> None:
    checkpoint = rebuild(METADATA, tmp_path)
    ids = encode(checkpoint, "the cat")
    assert ids[0] == TOKENS.index("<bos>")
    assert ids[1:] == by_hand("the cat")
    assert decode(checkpoint, ids[1:]) == "the cat"


def test_the_law_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranked = sentencepiece.rank_merges(TOKENS, SCORES, TYPES)
    monkeypatch.setattr(sentencepiece, "rank_merges", lambda *given: ranked[::-1])
    rebuild(METADATA, tmp_path)
    wrong = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert wrong.encode("that theme", add_special_tokens=False).ids != by_hand("that theme")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, f"{len(TOKENS)} tokens but 0 in tokenizer.ggml.scores"),
        ({"scores": SCORES[1:]}, f"but {len(TOKENS) - 1} in tokenizer.ggml.scores"),
        ({"token_type": None}, "but 0 in tokenizer.ggml.token_type"),
        ({"add_space_prefix": True}, "add_space_prefix is True, which is not rebuilt"),
        ({"add_space_prefix": None}, "add_space_prefix is True, which is not rebuilt"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces is True"),
        ({"precompiled_charsmap": [1, 2]}, "precompiled_charsmap is set"),
        (
            {"token_type": [1 if t == "<0x41>" else k for t, k in zip(TOKENS, TYPES, strict=True)]},
            "1 bytes have no piece, first <0x41>",
        ),
        ({"bos_token_id": None}, "add_bos_token is set, but bos_token_id is absent"),
    ],
)
def test_what_is_not_rebuilt_is_said(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    given_keys = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    metadata = {k: v for k, v in (METADATA | given_keys).items() if v is not None}
    with pytest.raises(TokenizerProblem) as caught:
        rebuild(metadata, tmp_path)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())
