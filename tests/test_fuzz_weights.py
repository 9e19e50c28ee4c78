"""Weight files at random: the same content as the official library reads, or a ParityError.

Never another exception, a hang, or memory beyond what the file's size accounts for. Whatever was
found once stays as an example. `make fuzz` draws many more, and new ones each time.
"""

import re
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors
from hypothesis import example, given
from hypothesis import strategies as st

from harness.checkpoint import load_checkpoint
from harness.checkpoint.from_gguf.gguf_file import read_gguf
from harness.checkpoint.safetensors_file import map_safetensors
from harness.errors import CheckpointError

SECONDS = 30
MEGABYTES = 512
NUMBERS = (0, 1, 7, 255, 1 << 16, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, 1 << 60, (1 << 64) - 1)


def start_peak() -> int:
    """Forget the peak so far, where the system can; MiB in use."""
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Largest use of memory, MiB: since :func:`start_peak` on Linux, ever on another system."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.findall(r"VmHWM:\s*(\d+)", status.read_text())[0]) >> 10
    unit = 20 if sys.platform == "darwin" else 10  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> unit


@contextmanager
def bounded() -> Iterator[None]:
    """A hang is an error, and so is memory that no small file accounts for."""

    def hang(*_: object) -> None:
        raise AssertionError(f"not done after {SECONDS} seconds")

    before = start_peak()
    handler = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    used = peak() - before
    assert used < MEGABYTES, f"{used} MiB"


@st.composite
def damaged(draw: st.DrawFn, original: bytes, *, head: int) -> bytes:
    """One to four mutations of a file, most of them within its first ``head`` bytes."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        end = max(len(data) - 1, 0)
        at = draw(st.integers(0, min(end, head)) | st.integers(0, end))
        kind = draw(st.sampled_from(["flip", "set", "cut", "remove", "insert", "copy", "number"]))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at:]
        elif kind == "remove":
            del data[at : at + draw(st.integers(1, 32))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif kind == "copy":
            source = draw(st.integers(0, end))
            piece = data[source : source + draw(st.integers(1, 64))]
            data[at : at + len(piece)] = piece
        elif kind == "number":
            width = draw(st.sampled_from(["<Q", "<I"]))
            number = draw(st.sampled_from(NUMBERS)) % (1 << 8 * struct.calcsize(width))
            data[at : at + struct.calcsize(width)] = struct.pack(width, number)
    return bytes(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def pack_safetensors(header: str, data: bytes) -> bytes:
    raw = header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw + data


SAFETENSORS = pack_safetensors(
    '{"__metadata__":{"format":"pt"},'
    '"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},'
    '"b.c":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},'
    '"d":{"dtype":"I8","shape":[],"data_offsets":[32,33]},'
    '"e":{"dtype":"F16","shape":[0,5],"data_offsets":[33,33]}}',
    bytes(range(33)),
)
SAFETENSORS_HEAD = 8 + struct.unpack("<Q", SAFETENSORS[:8])[0]
CODES = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL"}
CODES |= {f"int{n}": f"I{n}" for n in (8, 16, 32, 64)} | {"uint8": "U8"}


@given(content=damaged(SAFETENSORS, head=SAFETENSORS_HEAD))
@example(SAFETENSORS)
def test_law_safetensors_are_read_as_the_library_reads_them(folder: Path, content: bytes) -> None:
    path = folder / "x.safetensors"
    path.unlink(missing_ok=True)  # an earlier map stays as it is
    path.write_bytes(content)
    with bounded():
        try:
            arrays = map_safetensors(path)
        except CheckpointError:
            return
    deserialize: Callable[[bytes], Any] = safetensors.deserialize  # it has no types
    expected = dict(deserialize(content))
    assert set(arrays) == set(expected)
    for name, array in arrays.items():
        assert list(array.shape) == list(expected[name]["shape"])
        assert CODES[array.dtype.name] == expected[name]["dtype"]
        assert array.tobytes() == bytes(expected[name]["data"])


TYPES: dict[type, int] = {bool: 7, int: 4, float: 6, str: 8, list: 9}
Value = bool | int | float | str | list[Any]


def pack_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pack_value(value: Value) -> bytes:
    """A metadata value by the written format, sharing no code with the library."""
    if isinstance(value, list):
        kind = TYPES[type(value[0])] if value else 4
        return struct.pack("<IQ", kind, len(value)) + b"".join(map(pack_value, value))
    if isinstance(value, str):
        return pack_string(value)
    if isinstance(value, bool):
        return struct.pack("<?", value)
    return struct.pack("<f" if isinstance(value, float) else "<I", value)


def pack_gguf(facts: dict[str, Value], tensors: dict[str, tuple[int, ...]]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts))
    for key, value in facts.items():
        head += pack_string(key) + struct.pack("<I", TYPES[type(value)]) + pack_value(value)
    offset, data = 0, b""
    for name, shape in tensors.items():
        head += pack_string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", 0, offset)
        values = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).tobytes()
        data += values + bytes(-len(values) % 32)
        offset = len(data)
    return head + bytes(-len(head) % 32) + data


C = 8
FACTS: dict[str, Value] = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": C,
    "llama.feed_forward_length": C,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
    "tokenizer.ggml.bos_token_id": 3,
    "tokenizer.ggml.add_bos_token": True,
}
SQUARE = [f"attn_{n}" for n in ("q", "k", "v", "output")] + ["ffn_gate", "ffn_up", "ffn_down"]
TENSORS: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (C, C),
    "output_norm.weight": (C,),
    "blk.0.attn_norm.weight": (C,),
    "blk.0.ffn_norm.weight": (C,),
    **{f"blk.0.{name}.weight": (C, C) for name in SQUARE},
}
GGUF = pack_gguf(FACTS, TENSORS)
GGUF_HEAD = len(GGUF) - 4 * sum(int(np.prod(shape)) for shape in TENSORS.values())


def test_the_packed_gguf_is_a_healthy_one(folder: Path) -> None:
    (folder / "m.gguf").write_bytes(GGUF)
    assert set(gguf.GGUFReader(folder / "m.gguf").fields) >= set(FACTS)
    checkpoint = load_checkpoint(folder / "m.gguf", cache_dir=folder / "cache")
    assert (checkpoint.path / "tokenizer.json").is_file()


@given(content=damaged(GGUF, head=GGUF_HEAD))
@example(GGUF)
def test_law_gguf_is_read_as_the_library_reads_it(folder: Path, content: bytes) -> None:
    path = folder / "x.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    with bounded():
        try:
            file = read_gguf(path)
            values = {name: file.dequantise(name) for name in file.tensors}
        except CheckpointError:
            return
    reader = gguf.GGUFReader(path)
    assert list(file.metadata) == list(reader.fields)
    assert list(values) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        with np.errstate(all="ignore"):
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert values[tensor.name].shape == tuple(reversed(tensor.shape.tolist()))
        np.testing.assert_array_equal(values[tensor.name].reshape(-1), expected.reshape(-1))


def load_or_refuse(folder: Path, content: bytes) -> None:
    path = folder / "y.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    with bounded():
        try:
            checkpoint = load_checkpoint(path, cache_dir=folder / "cache")
        except CheckpointError:
            return
    assert set(checkpoint.config) >= {"model_type", "hidden_size", "num_hidden_layers"}


@given(content=damaged(GGUF, head=GGUF_HEAD))
@example(GGUF)
def test_law_gguf_is_converted_or_refused(folder: Path, content: bytes) -> None:
    load_or_refuse(folder, content)


NAMES = [*FACTS, "llama.vocab_size", "llama.rope.freq_base", "llama.rope.dimension_count"]
NAMES += [f"llama.attention.{n}" for n in ("head_count_kv", "key_length", "value_length", "causal")]
NAMES += [f"llama.rope.scaling.{n}" for n in ("type", "factor", "original_context_length")]
NAMES += [f"tokenizer.ggml.{n}" for n in ("eos_token_id", "padding_token_id", "add_space_prefix")]
NAMES += ["tokenizer.chat_template", "tokenizer.chat_template.tool", "split.count", "general.type"]
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.integers(0, (1 << 32) - 1) | st.integers(0, 16),
    st.floats(width=32),
    st.sampled_from(["linear", "yarn", "none", "qwen3", "gpt2", "a b", "a  b", ""]) | st.text(),
)
LISTS: st.SearchStrategy[Any] = st.one_of(
    st.lists(st.booleans()), st.lists(st.integers(0, 9)), st.lists(st.text(max_size=4))
)


@given(changes=st.dictionaries(st.sampled_from(NAMES), SCALARS | LISTS, min_size=1, max_size=3))
@example({"split.count": "many"})
@example({"tokenizer.ggml.tokens": [1, 2]})
@example({"tokenizer.ggml.merges": "a b"})
def test_law_gguf_with_any_metadata_is_converted_or_refused(
    folder: Path, changes: dict[str, Value]
) -> None:
    load_or_refuse(folder, pack_gguf(FACTS | changes, TENSORS))


SIZES = st.lists(st.integers(0, 9), max_size=5)


@given(shapes=st.dictionaries(st.sampled_from(list(TENSORS)), SIZES))
@example({"token_embd.weight": []})
def test_law_gguf_with_any_shapes_is_converted_or_refused(
    folder: Path, shapes: dict[str, list[int]]
) -> None:
    changed = {name: tuple(shape) for name, shape in shapes.items()}
    load_or_refuse(folder, pack_gguf(FACTS, TENSORS | changed))


def endless() -> None:
    while True:
        pass


def greedy() -> None:
    bytes(np.zeros((MEGABYTES + 64) << 20, dtype=np.uint8))


@pytest.mark.parametrize("fault", [endless, greedy])
def test_the_bounds_can_fail(monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None]) -> None:
    monkeypatch.setitem(globals(), "SECONDS", 1 if fault is endless else SECONDS)
    with pytest.raises(AssertionError, match=r"not done after 1 seconds|MiB"), bounded():
        fault()
