"""Damaged checkpoints, seen from outside: exit code 2, one message, earlier reports intact.

One row is one kind of damage: what is done to a healthy checkpoint, and what the command then
says. Words of a library stand as ``*`` in a row.
"""

import fnmatch
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load, save

from harness import check
from harness.engines.hf import HFEngine
from harness.errors import CheckpointError

Tensors = dict[str, npt.NDArray[Any]]
Spoil = Callable[[Path], object]

FETCH = "the file is damaged or its download stopped early; fetch it again"
JSON = "the file is damaged or incomplete; fetch it again"
BELONG = (
    "config and weights do not belong together, or the model reads too little: a tensor that"
    " nobody reads (a bias, say) changes the result silently"
)
WEIGHTS = "model/model.safetensors"
HEADER = f"{WEIGHTS} (header)"


def pack(header: bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(*offsets: int, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def weights(content: bytes) -> Spoil:
    return lambda model: (model / "model.safetensors").write_bytes(content)


def header(entries: dict[str, Any], data: int) -> Spoil:
    return weights(pack(json.dumps(entries).encode(), bytes(data)))


def tensors(change: Callable[[Tensors], Tensors]) -> Spoil:
    def spoil(model: Path) -> None:
        path = model / "model.safetensors"
        path.write_bytes(save(change(load(path.read_bytes())), metadata={"format": "pt"}))

    return spoil


def resized(size: Callable[[int], int]) -> Spoil:
    def spoil(model: Path) -> None:
        path = model / "model.safetensors"
        content = path.read_bytes()
        path.write_bytes((content + b"\0" * 9)[: size(len(content))])

    return spoil


def length_of_header(length: int) -> Spoil:
    def spoil(model: Path) -> None:
        path = model / "model.safetensors"
        path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])

    return spoil


def config(text: str | bytes | None = None, **changes: Any) -> Spoil:
    def spoil(model: Path) -> None:
        path = model / "config.json"
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        else:
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def pickled(model: Path) -> None:
    (model / "model.safetensors").unlink()
    # Unpickling this would make a file.
    (model / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch unpickled'\ntR.")


def sharded(model: Path) -> None:
    whole = load((model / "model.safetensors").read_bytes())
    (model / "model.safetensors").unlink()
    names = sorted(whole)
    homes = {n: f"model-0000{1 + (i > 9)}-of-00002.safetensors" for i, n in enumerate(names)}
    first = {n: whole[n] for n in names[:10]}
    (model / homes[names[0]]).write_bytes(save(first, metadata={"format": "pt"}))
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": homes}))


def without_layer(whole: Tensors) -> Tensors:
    return {n: a for n, a in whole.items() if not n.startswith("model.layers.1.")}


def with_biases(whole: Tensors) -> Tensors:
    extra = {n: a for n, a in whole.items() if n.endswith("q_proj.weight")}
    return whole | {n.replace("weight", "bias"): a[:, 0].copy() for n, a in extra.items()}


def transposed(whole: Tensors) -> Tensors:
    return whole | {"lm_head.weight": np.ascontiguousarray(whole["lm_head.weight"].T)}


def whole_numbers(whole: Tensors) -> Tensors:
    return whole | {"lm_head.weight": whole["lm_head.weight"].astype(np.int8)}


def poisoned(value: float) -> Callable[[Tensors], Tensors]:
    def poison(whole: Tensors) -> Tensors:
        changed = whole["model.norm.weight"].copy()
        changed[7] = value
        return whole | {"model.norm.weight": changed}

    return poison


def make_gguf(folder: Path) -> Path:
    import gguf

    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_block_count, 1),
        (writer.add_context_length, 64),
        (writer.add_embedding_length, 8),
        (writer.add_feed_forward_length, 8),
        (writer.add_head_count, 2),
        (writer.add_layer_norm_rms_eps, 1e-6),
    ):
        add(value)
    square = [f"attn_{n}" for n in ("q", "k", "v", "output")] + ["ffn_gate", "ffn_up", "ffn_down"]
    names = ["token_embd", "output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"]
    for name in [*names, *(f"blk.0.{n}" for n in square)]:
        shape = (8,) if name.endswith("norm") else (8, 8)
        writer.add_tensor(f"{name}.weight", np.ones(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def as_gguf(change: Callable[[bytearray], bytes | bytearray]) -> Spoil:
    """Puts a damaged GGUF file in the place of the directory."""

    def spoil(model: Path) -> None:
        case = model.parent / "case.toml"
        case.write_text(case.read_text().replace("./model", "model.gguf"))
        path = make_gguf(model.parent)
        path.write_bytes(change(bytearray(path.read_bytes())))

    return spoil


def put(at: int, kind: str, value: int) -> Callable[[bytearray], bytearray]:
    def change(content: bytearray) -> bytearray:
        content[at : at + struct.calcsize(kind)] = struct.pack(kind, value)
        return content

    return change


GGUF = ("model.gguf", "a complete GGUF file")

#: Damage, then what is said: where, expected, found, advice.
ROWS: dict[str, tuple[Spoil, str, str, str, str]] = {
    "empty file": (weights(b""), WEIGHTS, "at least 8 bytes", "0", FETCH),
    "cut short": (
        resized(lambda n: n - 100),
        WEIGHTS,
        "328880 bytes, as the header says",
        "328780 bytes",
        FETCH,
    ),
    "with more behind it": (
        resized(lambda n: n + 1),
        WEIGHTS,
        "328880 bytes, as the header says",
        "328881 bytes",
        FETCH,
    ),
    "a git-lfs pointer": (
        weights(b"version https://git-lfs.github.com/spec/v1\n"),
        WEIGHTS,
        "weights",
        "a git-lfs pointer",
        "run `git lfs pull` in that repository",
    ),
    "header longer than the file": (
        length_of_header(1 << 40),
        WEIGHTS,
        "a header of at most 328872 bytes",
        "a header length of 1099511627776",
        FETCH,
    ),
    "header of no length": (
        length_of_header(0),
        HEADER,
        "one JSON object",
        "something else (Expecting value: line 1 column 1 (char 0))",
        JSON,
    ),
    "header that ends too early": (
        length_of_header(100),
        HEADER,
        "one JSON object",
        "something else (*)",
        JSON,
    ),
    "header that runs into the data": (
        length_of_header(20_000),
        HEADER,
        "one JSON object",
        "something else (*)",
        JSON,
    ),
    "tensors that overlap": (
        header({"a": entry(0, 8), "b": entry(4, 12)}, 12),
        WEIGHTS,
        "a valid safetensors file",
        "a damaged one (*)",
        FETCH,
    ),
    "a hole between tensors": (
        header({"a": entry(0, 8), "b": entry(12, 20)}, 20),
        WEIGHTS,
        "a valid safetensors file",
        "a damaged one (*)",
        FETCH,
    ),
    "a name given twice": (
        weights(
            pack(b'{"a": %(e)s, "a": %(e)s}' % {b"e": json.dumps(entry(0, 8)).encode()}, bytes(8))
        ),
        HEADER,
        "one JSON object",
        "something else (given more than once: a)",
        JSON,
    ),
    "a header that is no UTF-8": (
        weights(pack(b'{"\xff": 1}')),
        HEADER,
        "one JSON object",
        "something else ('utf-8' codec can't decode byte 0xff in position 2: *)",
        JSON,
    ),
    "a header nested deep": (
        weights(pack(b'{"a":' + b"[" * 100_000)),
        HEADER,
        "one JSON object",
        "something else (maximum recursion depth exceeded*)",
        JSON,
    ),
    "a shape beyond 64 bits": (
        header({"a": entry(0, 8, shape=(1 << 40, 1 << 40))}, 8),
        WEIGHTS,
        "a valid safetensors file",
        "a damaged one (*)",
        FETCH,
    ),
    "a negative shape": (
        header({"a": entry(0, 8, shape=(-2,))}, 8),
        WEIGHTS,
        "dtype, shape and data_offsets for 'a' in the header",
        "{'dtype': 'F32', 'shape': [[]-2], 'data_offsets': [[]0, 8]}",
        FETCH,
    ),
    "pickled weights alone": (
        pickled,
        "model",
        "model.safetensors or model.safetensors.index.json",
        "only pickled weights (pytorch_model.bin)",
        "they are never opened, because unpickling can run any code; convert them to safetensors",
    ),
    "an absent shard": (
        sharded,
        "model/model.safetensors.index.json",
        "2 shards in the same directory",
        "1 absent: model-00002-of-00002.safetensors",
        "the download is incomplete; fetch the absent files",
    ),
    "an absent layer": (
        tensors(without_layer),
        "model",
        "exactly the 30 tensors that the model reads",
        "a different set\nmissing (9): "
        + ", ".join(
            f"model.layers.1.{n}.weight"
            for n in (
                "input_layernorm",
                "post_attention_layernorm",
                *(f"self_attn.{p}_proj" for p in "qkvo"),
                *(f"mlp.{p}_proj" for p in ("gate", "up", "down")),
            )
        ),
        BELONG,
    ),
    "biases that nobody reads": (
        tensors(with_biases),
        "model",
        "exactly the 30 tensors that the model reads",
        "a different set\nunexpected, read by nobody (3): model.layers.{0-2}.self_attn.q_proj.bias"
        " (3)",
        BELONG,
    ),
    "a transposed tensor": (
        tensors(transposed),
        "model",
        "exactly the 30 tensors that the model reads",
        "a different set\nmisshapen (1): lm_head.weight expected [[]101, 48], found [[]48, 101]",
        BELONG,
    ),
    "weights in whole numbers": (
        tensors(whole_numbers),
        "model",
        "floating-point weights",
        "int8 in 1 tensors: lm_head.weight",
        "a quantised checkpoint has to be converted to float32, bfloat16 or float16",
    ),
    "NaN among the weights": (
        tensors(poisoned(math.nan)),
        "model",
        "finite weights",
        "1 tensors with NaN or infinity: model.norm.weight (1 NaN, 0 infinite, first at [[]7])",
        "the weights are damaged or overflowed when they were converted; fetch them again or"
        " convert them from a wider dtype",
    ),
    "infinity among the weights": (
        tensors(poisoned(-math.inf)),
        "model",
        "finite weights",
        "1 tensors with NaN or infinity: model.norm.weight (0 NaN, 1 infinite, first at [[]7])",
        "the weights are damaged or overflowed when they were converted; fetch them again or"
        " convert them from a wider dtype",
    ),
    "config nested deep": (
        config("[" * 100_000),
        "model/config.json",
        "one JSON object",
        "something else (maximum recursion depth exceeded*)",
        JSON,
    ),
    "config cut short": (
        config('{"model_type": "lla'),
        "model/config.json",
        "one JSON object",
        "something else (Unterminated string starting at: line 1 column 16 (char 15))",
        JSON,
    ),
    "config that says NaN": (
        config(rms_norm_eps=math.nan),
        "config.json: rms_norm_eps",
        "a positive number",
        "nan",
        "correct the config, or use a family that implements this value",
    ),
    "config with more layers than the memory could list": (
        config(num_hidden_layers=10**9),
        "config.json: num_hidden_layers",
        "a positive integer up to 10000",
        "1000000000",
        "correct the config, or use a family that implements this value",
    ),
    "config with a size beyond 32 bits": (
        config(vocab_size=1 << 31),
        "config.json: vocab_size",
        "a positive integer up to 2147483647",
        "2147483648",
        "correct the config, or use a family that implements this value",
    ),
    "config with a number beyond float64": (
        config(
            '{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9,'
            '"intermediate_size": 8, "num_hidden_layers": 1, "rms_norm_eps": 1' + "0" * 400 + "}"
        ),
        "config.json: rms_norm_eps",
        "a positive number",
        "10*",
        "correct the config, or use a family that implements this value",
    ),
    "config whose yarn has no wavelengths": (
        config(rope_parameters={"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}),
        "config.json: rope_theta",
        "another number than 1 for rope type yarn",
        "1.0",
        "correct the config, or use a family that implements this value",
    ),
    "config whose dynamic rope has one wavelength": (
        config(
            head_dim=2, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 9.0}
        ),
        "config.json: head_dim",
        "more than 2 for rope type dynamic",
        "2",
        "correct the config, or use a family that implements this value",
    ),
    "GGUF cut short": (
        as_gguf(lambda content: content[:-1]),
        *GGUF,
        "* bytes that end early or make no sense (blk.0.ffn_down.weight ends at byte *)",
        FETCH,
    ),
    "GGUF without content": (
        as_gguf(lambda content: b""),
        *GGUF,
        "0 bytes that end early or make no sense (it is empty)",
        FETCH,
    ),
    "GGUF of an unknown version": (
        as_gguf(put(4, "<I", 99)),
        *GGUF,
        "* bytes that end early or make no sense (version 99; known are 2 and 3)",
        FETCH,
    ),
    "GGUF of the other byte order": (
        as_gguf(put(4, ">I", 3)),
        "model.gguf",
        "a GGUF file in little-endian byte order",
        "the other one",
        "convert it there, or fetch the file for this kind of machine",
    ),
    "GGUF that claims 2**60 tensors": (
        as_gguf(put(8, "<Q", 1 << 60)),
        *GGUF,
        "* bytes that end early or make no sense (7 keys and 1152921504606846976 tensors: *)",
        FETCH,
    ),
    "GGUF with a flipped bit in a key": (
        as_gguf(put(32, "<B", 0xFF)),
        *GGUF,
        "* bytes that end early or make no sense (metadata key 0 is no UTF-8)",
        FETCH,
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_damage_is_refused_in_one_message(desk: Any, row: tuple[Spoil, str, str, str, str]) -> None:
    spoil, *expected = row
    spoil(desk.model)
    for said, pattern in zip(desk.refuses(), expected, strict=True):
        assert fnmatch.fnmatchcase(said, pattern), said
    assert not (desk.folder / "unpickled").exists()
    assert not list(desk.folder.glob("cache/gguf/*-v*/"))


@pytest.mark.parametrize("kind", ["cut short", "an absent layer", "NaN among the weights"])
def test_damage_is_refused_from_python_with_the_same_words(
    desk: Any, tiny: Callable[..., Path], load_model: Callable[..., Any], kind: str
) -> None:
    spoil, where, expected, found, advice = ROWS[kind]
    spoil(desk.model)
    with pytest.raises(CheckpointError) as caught:
        check(HFEngine(load_model(tiny())), checkpoint=desk.model, token_ids=[[1, 2, 3]])
    assert Path(caught.value.where) == desk.folder / where
    assert caught.value.expected == expected
    assert fnmatch.fnmatchcase(caught.value.found.strip().replace("\n  ", "\n"), found)
    assert caught.value.advice == advice


def test_a_healthy_checkpoint_is_not_refused(desk: Any) -> None:
    with pytest.raises(AssertionError, match="PASS: The engines agree"):
        desk.refuses()
