import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from harness.checkpoint import Checkpoint, decode, encode, token_texts
from harness.checkpoint.from_gguf.conversion_record import ConversionRecord, write_record
from harness.checkpoint.from_gguf.gguf_file import GgufFile
from harness.checkpoint.from_gguf.pretokenizers import PRETOKENIZERS
from harness.checkpoint.from_gguf.tokenizer_files import TokenizerProblem, write_tokenizer
from harness.errors import CheckpointError

TEXT = "We'LL sell 12345 cafés, don't\n\n  you?  It's 1999!\tÀ côté… 你好 2²½\r\nend   "
CORPUS = [TEXT, "the cat sat on the mat 123 456", "  def f(x):\n    return x + 1\n"] * 3
SIZE = 320
SPECIAL = ["<bos>", "<eos>", "<pad>"]


@dataclass(frozen=True)
class Known:
    """A tokenizer that was trained here, and its entries as a GGUF file would hold them."""

    tokenizer: Tokenizer
    metadata: dict[str, Any]


def train(pre: str) -> Known:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = PRETOKENIZERS[pre].build()
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    described = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(described["vocab"], key=described["vocab"].__getitem__)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in described["merges"]],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 2,
    }
    return Known(tokenizer, metadata)


@pytest.fixture(scope="module")
def known() -> Callable[[str], Known]:
    made: dict[str, Known] = {}

    def get(pre: str) -> Known:
        if pre not in made:
            made[pre] = train(pre)
        return Known(made[pre].tokenizer, dict(made[pre].metadata))

    return get


def rebuild(metadata: dict[str, Any], directory: Path) -> Checkpoint:
    file = GgufFile(path=Path("m.gguf"), metadata=metadata, tensors={}, shapes={})
    write_tokenizer(file, directory, vocab_size=SIZE)
    return open_directory(directory)


def open_directory(directory: Path) -> Checkpoint:
    array = np.zeros(1)
    array.flags.writeable = False
    return Checkpoint(path=directory, config={}, tensors={"w": array}, origin="m.gguf")


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2"])
def test_rebuilt_tokenizer_gives_the_same_ids(
    tmp_path: Path, known: Callable[[str], Known], pre: str
) -> None:
    original = known(pre)
    checkpoint = rebuild(original.metadata, tmp_path)
    rebuilt = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert rebuilt.get_vocab() == original.tokenizer.get_vocab()

    @given(st.one_of(st.text(max_size=40), st.text(alphabet=TEXT, max_size=40)))
    def same(text: str) -> None:
        assert rebuilt.encode(text).ids == original.tokenizer.encode(text).ids

    same()
    ids = encode(checkpoint, TEXT)
    assert ids == original.tokenizer.encode(TEXT).ids
    assert decode(checkpoint, ids) == (normalizers.NFC().normalize_str(TEXT))


@pytest.mark.parametrize(("pre", "composes"), [("qwen2", True), ("gpt-2", False)])
def test_only_qwen2_composes_accents(
    tmp_path: Path, known: Callable[[str], Known], pre: str, *, composes: bool
) -> None:
    checkpoint = rebuild(known(pre).metadata, tmp_path)
    apart, together = "cafe\N{COMBINING ACUTE ACCENT}", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
    assert (encode(checkpoint, apart) == encode(checkpoint, together)) is composes


# Cut by hand, from the published patterns.
PIECES = {
    "gpt-2": ["a", " 1234", "'ll", " '", "LL", "  ", " b", "\n", "\n", "c"],
    "smollm": ["a", " ", "1", "2", "3", "4", "'ll", " '", "LL", "  ", " b", "\n", "\n", "c"],
    "llama-bpe": ["a", " ", "123", "4", "'ll", " '", "LL", "  ", " b", "\n\n", "c"],
    "qwen2": ["a", " ", "1", "2", "3", "4", "'ll", " '", "LL", "  ", " b", "\n\n", "c"],
}


@pytest.mark.parametrize("pre", [*PIECES])
def test_pretokenizer_cuts_where_its_pattern_says(pre: str) -> None:
    text = "a 1234'll 'LL   b\n\nc"
    pieces = PRETOKENIZERS[pre].build().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in pieces] == PIECES[pre]


def test_special_tokens_are_indivisible(tmp_path: Path, known: Callable[[str], Known]) -> None:
    metadata = known("gpt-2").metadata
    place = metadata["tokenizer.ggml.tokens"].index("Ġthe")
    for key, value in (("tokens", "<tool call>"), ("token_type", 4)):
        changed = list(metadata[f"tokenizer.ggml.{key}"])
        changed[place] = value
        metadata[f"tokenizer.ggml.{key}"] = changed
    metadata["tokenizer.ggml.merges"] = [
        merge
        for merge in metadata["tokenizer.ggml.merges"]
        if "Ġthe" not in (*merge.split(" "), merge.replace(" ", ""))
    ]
    checkpoint = rebuild(metadata, tmp_path)
    ids = encode(checkpoint, "a<eos><tool call>b")
    assert ids[1:-1] == [1, place]
    assert decode(checkpoint, ids) == "a<eos><tool call>b"


@pytest.mark.parametrize(
    ("pre", "flags", "expected"),
    [
        ("llama-bpe", {}, [0, "x"]),  # Llama 3 adds a BOS where the file does not say
        ("gpt-2", {}, ["x"]),
        ("gpt-2", {"add_bos_token": True}, [0, "x"]),
        ("gpt-2", {"add_eos_token": True}, ["x", 1]),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, [0, "x", 1]),
        ("llama-bpe", {"add_bos_token": False}, ["x"]),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says_and_as_transformers_does(
    tmp_path: Path,
    known: Callable[[str], Known],
    pre: str,
    flags: dict[str, bool],
    expected: list[int | str],
) -> None:
    from transformers import AutoTokenizer

    original = known(pre)
    metadata = dict(original.metadata)
    del metadata["tokenizer.ggml.add_bos_token"]
    metadata |= {f"tokenizer.ggml.{k}": v for k, v in flags.items()}
    checkpoint = rebuild(metadata, tmp_path)
    middle = original.tokenizer.encode("x").ids
    wanted = [i for e in expected for i in (middle if e == "x" else [e])]
    assert encode(checkpoint, "x") == wanted
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded("x").input_ids == wanted
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == tuple(SPECIAL)


def test_chat_templates_are_kept(tmp_path: Path, known: Callable[[str], Known]) -> None:
    metadata = known("gpt-2").metadata
    metadata["tokenizer.chat_template"] = "one"
    rebuild(metadata, tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"] == "one"
    metadata["tokenizer.chat_template.tool_use"] = "two"
    rebuild(metadata, tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"] == [
        {"name": "default", "template": "one"},
        {"name": "tool_use", "template": "two"},
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "the file holds no tokenizer"),
        ({"model": "bert"}, "is 'bert'; only byte-level BPE"),
        ({"pre": "tekken"}, "is 'tekken'; known are default, gpt-2, llama-bpe"),
        ({"add_space_prefix": True}, "add_space_prefix is set"),
        ({"tokens": None}, r"there are no tokenizer\.ggml\.tokens"),
        ({"merges": []}, r"there are no tokenizer\.ggml\.merges"),
        ({"tokens": ["a"] * 320}, "319 tokens are given twice"),
        ({"tokens": [str(n) for n in range(321)]}, "321 tokens for a vocabulary of 320"),
        ({"token_type": [1]}, "320 tokens but 1 token types"),
        ({"merges": ["a b c"]}, "1 merges are not two tokens"),
        ({"merges": ["nowhere to"]}, "vocabulary and merges do not fit"),
        ({"unknown_token_id": 320}, "unknown_token_id is 320, but there are 320 tokens"),
        ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id is absent"),
    ],
)
def test_tokenizer_that_cannot_be_rebuilt_is_a_problem_and_writes_nothing(
    tmp_path: Path, known: Callable[[str], Known], change: dict[str, Any], message: str
) -> None:
    metadata = known("gpt-2").metadata | {f"tokenizer.ggml.{k}": v for k, v in change.items()}
    with pytest.raises(TokenizerProblem, match=message):
        rebuild({k: v for k, v in metadata.items() if v is not None}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_encode_says_why_there_is_no_tokenizer(tmp_path: Path) -> None:
    checkpoint = open_directory(tmp_path)
    for call in (lambda: encode(checkpoint, "a"), lambda: token_texts(checkpoint, [0])):
        with pytest.raises(CheckpointError, match=r"tokenizer\.json, found no such file: let"):
            call()
    write_record(
        tmp_path,
        ConversionRecord(
            source_name="m.gguf",
            source_sha256="0" * 64,
            architecture="llama",
            tensor_types={"F32": 2},
            tokenizer_problem="it is of another kind",
        ),
    )
    with pytest.raises(CheckpointError) as caught:
        decode(checkpoint, [0])
    assert str(caught.value) == (
        "m.gguf: expected a tokenizer that can be rebuilt from the GGUF file, "
        "found it is of another kind: pass token ids instead of text"
    )


def test_damaged_tokenizer_and_record_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="a tokenizer, found a damaged file"):
        encode(open_directory(tmp_path), "a")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "gguf_conversion.json").write_text('{"format": "x", "version": 9}')
    with pytest.raises(CheckpointError, match=r"found format and version \('x', 9\): delete"):
        encode(open_directory(tmp_path), "a")


def test_token_texts_are_readable_one_by_one(tmp_path: Path, known: Callable[[str], Known]) -> None:
    original = known("gpt-2")
    checkpoint = rebuild(original.metadata, tmp_path)
    ids = encode(checkpoint, "the cat 🦊")
    texts = token_texts(checkpoint, ids)
    assert len(texts) == len(ids)
    assert texts[:2] == ["the", " cat"]
    # No single token is the fox: each part is told as the tokenizer spells it.
    assert texts[-1] == original.metadata["tokenizer.ggml.tokens"][ids[-1]]
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(texts)


@pytest.mark.parametrize("token_id", [-1, 320, 1 << 20])
def test_ids_outside_the_vocabulary_are_refused(
    tmp_path: Path, known: Callable[[str], Known], token_id: int
) -> None:
    checkpoint = rebuild(known("gpt-2").metadata, tmp_path)
    with pytest.raises(CheckpointError, match=f"of its 320 tokens, found {token_id}: these ids"):
        decode(checkpoint, [0, token_id])
    with pytest.raises(CheckpointError, match="another tokenizer"):
        token_texts(checkpoint, [token_id])
