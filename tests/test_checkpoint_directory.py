import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.checkpoint import Checkpoint, load_checkpoint
from harness.errors import CheckpointError

Arrays = Mapping[str, npt.NDArray[Any]]

CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def pack(arrays: Arrays, *, padding: int = 0) -> bytes:
    """A safetensors file by the written format, sharing no code with the library or the reader."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in arrays.items():
        end = len(data) + array.nbytes
        code = CODES[array.dtype.name]
        header[name] = {"dtype": code, "shape": array.shape, "data_offsets": [len(data), end]}
        data += array.tobytes()
    raw = json.dumps(header).encode() + b" " * padding
    return struct.pack("<Q", len(raw)) + raw + data


def write(path: Path, arrays: Arrays, config: Mapping[str, Any] | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    (path / "model.safetensors").write_bytes(pack(arrays))
    return path


def write_shards(path: Path, shards: Mapping[str, Arrays], weight_map: Mapping[str, str]) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text("{}")
    for name, arrays in shards.items():
        (path / name).write_bytes(pack(arrays))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def ones(*shape: int) -> npt.NDArray[np.float32]:
    return np.ones(shape, dtype=np.float32)


@pytest.mark.parametrize("dtype", [*CODES])
def test_directory_gives_the_stored_values(tmp_path: Path, dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    stored = np.array([[0, 1, 1], [3, 0, 100]]).astype(kind)
    array = load_checkpoint(write(tmp_path, {"w": stored, "v": stored[:1]})).tensors["w"]
    assert array.dtype == kind
    np.testing.assert_array_equal(array, stored)


def test_directory_reads_scalars_empty_and_unaligned_tensors(tmp_path: Path) -> None:
    write(tmp_path, {})
    arrays: dict[str, npt.NDArray[Any]] = {
        "odd": np.ones(3, dtype=np.int8),
        "none": ones(0, 4),
        "one": np.array(2.5),
        "w": ones(2),
    }
    (tmp_path / "model.safetensors").write_bytes(pack(arrays, padding=1))
    tensors = load_checkpoint(tmp_path).tensors
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name], array)
        assert tensors[name].shape == array.shape


def test_directory_tensors_are_mapped_and_read_only(tmp_path: Path) -> None:
    path = write(tmp_path, {"w": ones(2), "v": ones(2)})
    tensors = load_checkpoint(path).tensors
    with pytest.raises(ValueError, match="read-only"):
        tensors["w"][0] = 2.0
    # A copy would not see what is written to the file afterwards.
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(struct.pack("<f", 7.0))
    assert tensors["v"][1] == 7.0


def test_directory_loads_without_touching_the_weights(tmp_path: Path) -> None:
    write(tmp_path, {"w": ones(1)})
    size = 1 << 37  # a sparse file of 128 GiB: reading it would take minutes
    header = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    raw = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + size)
    assert load_checkpoint(tmp_path).tensors["w"][-1] == 0


def test_directory_keeps_config_and_origin(tmp_path: Path) -> None:
    config = {"model_type": "llama", "rope_scaling": {"factor": 8.0}, "unheard_of": None}
    checkpoint = load_checkpoint(str(write(tmp_path, {"w": ones(1)}, config)))
    assert dict(checkpoint.config) == config
    assert checkpoint.origin == str(tmp_path)
    assert checkpoint.path == tmp_path


def test_fingerprint_is_of_the_content_not_of_the_files(tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"a": ones(2), "b": ones(3)}, {"x": 1, "y": 2})
    two = write_shards(
        tmp_path / "two",
        {"s1.safetensors": {"b": ones(3)}, "s2.safetensors": {"a": ones(2)}},
        {"a": "s2.safetensors", "b": "s1.safetensors"},
    )
    (two / "config.json").write_text('{"y": 2,\n "x": 1}')
    assert load_checkpoint(one).fingerprint == load_checkpoint(two).fingerprint


@pytest.mark.parametrize(
    ("arrays", "config"),
    [
        ({"w": np.array([1, 2], np.float32)}, {"x": 2}),
        ({"v": np.array([1, 2], np.float32)}, {"x": 1}),
        ({"w": np.array([1, 3], np.float32)}, {"x": 1}),
        ({"w": np.array([[1, 2]], np.float32)}, {"x": 1}),
        ({"w": np.array([1, 2], np.float32).view(np.int32)}, {"x": 1}),
    ],
    ids=["config", "name", "value", "shape", "dtype"],
)
def test_fingerprint_changes_with_every_part(
    tmp_path: Path, arrays: Arrays, config: Mapping[str, Any]
) -> None:
    original = write(tmp_path / "a", {"w": np.array([1, 2], np.float32)}, {"x": 1})
    changed = write(tmp_path / "b", arrays, config)
    assert load_checkpoint(original).fingerprint != load_checkpoint(changed).fingerprint


def test_shards_are_joined(tmp_path: Path) -> None:
    shards = {"s1.safetensors": {"a": ones(2)}, "s2.safetensors": {"b": 3 * ones(3)}}
    path = write_shards(tmp_path, shards, {"a": "s1.safetensors", "b": "s2.safetensors"})
    tensors = load_checkpoint(path).tensors
    assert set(tensors) == {"a", "b"}
    np.testing.assert_array_equal(tensors["b"], 3 * ones(3))


SHARDS: dict[str, dict[str, npt.NDArray[Any]]] = {
    "s1.safetensors": {"a": ones(2)},
    "s2.safetensors": {"b": ones(3)},
}
LISTED = {"a": "s1.safetensors", "b": "s2.safetensors"}


@pytest.mark.parametrize(
    ("shards", "weight_map", "message"),
    [
        (
            {**SHARDS, "s2.safetensors": {"a": ones(2), "b": ones(3)}},
            LISTED,
            r"every tensor in one shard, found 1 in two: a \(s1.safetensors and s2.safetensors\)",
        ),
        ({"s1.safetensors": {"a": ones(2)}}, LISTED, "found 1 absent: s2.safetensors"),
        (SHARDS, {**LISTED, "c": "s1.safetensors"}, "1 in the index but in no shard: c"),
        (
            {**SHARDS, "s2.safetensors": {"b": ones(3), "d": ones(1)}},
            LISTED,
            "1 in a shard but not in the index: d",
        ),
        (
            SHARDS,
            {"a": "s2.safetensors", "b": "s1.safetensors"},
            "2 in another shard than the index says: a, b",
        ),
        (SHARDS, {**LISTED, "c": "../s1.safetensors"}, "a file in the same directory for c"),
        (SHARDS, {}, "an object `weight_map`"),
    ],
    ids=["twice", "absent shard", "absent tensor", "unlisted", "moved", "outside", "empty"],
)
def test_shards_and_index_must_agree(
    tmp_path: Path, shards: Mapping[str, Arrays], weight_map: Mapping[str, str], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(write_shards(tmp_path, shards, weight_map))


def test_directory_refuses_two_sets_of_weights(tmp_path: Path) -> None:
    write_shards(tmp_path, SHARDS, LISTED)
    (tmp_path / "model.safetensors").write_bytes(pack({"a": ones(2)}))
    with pytest.raises(CheckpointError, match="both, so it is not clear"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_directory_never_unpickles(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(CheckpointError, match=f"only pickled weights \\({name}\\): they are never"):
        load_checkpoint(tmp_path)


def test_directory_without_config_or_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected config\.json, found an empty directory"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.safetensors or .*, found config\.json"):
        load_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(pack({}))
    with pytest.raises(CheckpointError, match="at least one tensor, found none"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [("{", "something else"), ("[]", "a JSON list"), ('{"a": 1, "a": 2}', "more than once: a")],
)
def test_config_must_be_one_object(tmp_path: Path, text: str, found: str) -> None:
    write(tmp_path, {"w": ones(1)})
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=found):
        load_checkpoint(tmp_path)


def entry(**changes: Any) -> bytes:
    described = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    raw = json.dumps({"w": described}).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(8)


GOOD = entry()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x01\x02", "at least 8 bytes, found 2"),
        (GOOD[:-1], f"expected {len(GOOD)} bytes, as the header says, found {len(GOOD) - 1} bytes"),
        (GOOD + b"\0", f"expected {len(GOOD)} bytes, as the header says, found {len(GOOD) + 1}"),
        (GOOD[:20], r"a header of at most 12 bytes, found a header length of \d+"),
        (struct.pack("<Q", 1 << 62) + GOOD[8:], "found a header length of 4611686018427387904"),
        (struct.pack("<Q", 5) + GOOD[8:], "one JSON object, found something else"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a git-lfs pointer: run `git lfs pull`"),
        (entry(shape=[3]), "a valid safetensors file, found a damaged one"),
        (entry(shape=[-2]), "dtype, shape and data_offsets for 'w'"),
        (entry(data_offsets=[0]), "dtype, shape and data_offsets for 'w'"),
        (entry(dtype=7), "dtype, shape and data_offsets for 'w'"),
        (entry(dtype="F8_E4M3", shape=[8]), "found F8_E4M3 in 1 tensors, first w"),
        (entry(dtype="U64", shape=[1]), "F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL, found"),
        (entry(dtype="WHAT"), "a valid safetensors file, found a damaged one"),
    ],
)
def test_damaged_safetensors_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, {"w": ones(1)}) / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(tmp_path)
    assert str(path) in str(caught.value)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    described = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    raw = json.dumps({"w": described, "v": described}).encode()
    path = write(tmp_path, {"w": ones(1)}) / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(8))
    with pytest.raises(CheckpointError, match="a valid safetensors file"):
        load_checkpoint(tmp_path)


@given(place=st.integers(0, len(GOOD) - 9), bit=st.integers(0, 7))
def test_any_flipped_header_bit_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "flipped", {"w": ones(1)})
    damaged = bytearray(GOOD)
    damaged[place] ^= 1 << bit
    (path / "model.safetensors").write_bytes(damaged)
    try:
        checkpoint = load_checkpoint(path)
    except CheckpointError:
        return
    # A flip can only pass where the header still says something valid about these 8 bytes.
    assert sum(array.nbytes for array in checkpoint.tensors.values()) == 8


def test_checkpoint_refuses_arrays_that_can_be_written_to() -> None:
    with pytest.raises(CheckpointError, match="1 that can be written to, first w"):
        Checkpoint(path=Path(), config={}, tensors={"w": ones(1)}, origin="made here")
