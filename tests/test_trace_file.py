"""Writing and reading traces: what was put in comes out, wherever the header has to go."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.errors import EngineError, UsageError
from harness.result import EngineInfo
from harness.trace.container import scan
from harness.trace.head import METADATA_KEY, TracedModel, TraceHead, read_head, write_head
from harness.trace.layout import Layout, stored_sizes, to_standard
from harness.trace.write import PADDING, TraceWriter

HEAD = TraceHead(
    engine=EngineInfo("mine", "rust", "float32", {"mine": "0.1"}),
    model=TracedModel("llama", "ab" * 32, "here"),
    token_ids=((1, 2, 3, 4),),
    chunks=(3, 1),
    unavailable={"attn.scores": "fused"},
    layout={
        "attn.q": Layout(axes="BT(HD)", heads=6, pairing="interleaved"),
        "attn.k": Layout(repeats=3),
        "attn.mask": Layout(values="hidden"),
        "logits": Layout(positions="last"),
    },
)
DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.bool_]


def floats(values: list[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def write(path: Path, arrays: dict[str, Any], *, room: int = 1 << 12) -> None:
    with TraceWriter(path, room=room) as writer:
        for name, array in arrays.items():
            chunk, _, tap = name.partition("/")
            writer.put(int(chunk), tap, array)
        writer.finish(HEAD)


def test_head_survives_writing_and_reading() -> None:
    found, problems = read_head({METADATA_KEY: write_head(HEAD)})
    assert problems == []
    assert found == HEAD


@given(
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=8),
    lengths=st.lists(st.integers(0, 9), min_size=8, max_size=8),
    room=st.sampled_from([0, 64, 1 << 14]),
    seed=st.integers(0, 100),
)
def test_tensors_survive_and_lie_at_multiples_of_their_size(
    tmp_path_factory: pytest.TempPathFactory,
    dtypes: list[Any],
    lengths: list[int],
    room: int,
    seed: int,
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.safetensors"
    random = np.random.default_rng(seed)
    arrays = {
        f"0/x{i}": random.normal(size=(length, 3)).astype(dtype)
        for i, (dtype, length) in enumerate(zip(dtypes, lengths, strict=False))
    }
    write(path, arrays, room=room)
    container = scan(path)
    assert container.problems == ()
    found = container.map()
    assert set(found) - {PADDING} == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        assert container.entries[name].start % array.dtype.itemsize == 0


def test_trace_is_read_by_the_safetensors_library(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = tmp_path / "t.safetensors"
    mask = np.array([[[True, False, True]]])
    write(path, {"0/a": floats([1, 2]), "0/mask": mask, "0/b": floats([3])}, room=0)
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("0/b").tolist() == [3]
        assert file.get_tensor("0/mask").tolist() == mask.tolist()
        assert json.loads(file.metadata()[METADATA_KEY])["engine"]["name"] == "mine"


def test_unfinished_trace_leaves_nothing_and_an_earlier_one_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(b"earlier")
    with TraceWriter(path) as writer:
        writer.put(0, "embed", floats([1]))
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_second_tap_of_a_name_is_refused(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.safetensors") as writer:
        writer.put(0, "embed", floats([1]))
        writer.put(0, "mask", np.array([True]))
        for tap, again in (("embed", floats([1])), ("mask", np.array([True]))):
            with pytest.raises(EngineError, match=f"0/{tap}: expected each tap once in a chunk"):
                writer.put(0, tap, again)


def test_dtype_that_traces_do_not_have_is_refused(tmp_path: Path) -> None:
    with (
        TraceWriter(tmp_path / "t.safetensors") as writer,
        pytest.raises(EngineError, match=r"0/embed: expected dtype .*found complex128"),
    ):
        writer.put(0, "embed", np.array([1j]))


def test_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="expected a file that can be written, found"):
        TraceWriter(tmp_path / "file" / "t.safetensors")


class FullDisk:
    """A file on a disk that is full."""

    def write(self, data: Any) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        """Nothing is held."""


def test_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TraceWriter(tmp_path / "t.safetensors") as writer:
        writer._file.close()
        monkeypatch.setattr(writer, "_file", FullDisk())
        with pytest.raises(UsageError, match=r"found no space left on device: .* make room"):
            writer.put(0, "embed", floats([1]))
    assert list(tmp_path.iterdir()) == []


AXES = {"BHTD": (2, 6, 5, 8), "BKTD": (2, 2, 5, 8), "BTC": (2, 5, 7), "BTS": (2, 5, 9)}


@given(
    axes=st.sampled_from(sorted(AXES)),
    order=st.permutations(range(4)),
    merged=st.booleans(),
    pairing=st.sampled_from(["half", "interleaved"]),
    repeats=st.integers(1, 3),
    no_batch=st.booleans(),
    values=st.sampled_from(["visible", "hidden", "additive"]),
)
def test_layout_notes_lead_back_to_the_table(
    *,
    axes: str,
    order: list[int],
    merged: bool,
    pairing: str,
    repeats: int,
    no_batch: bool,
    values: str,
) -> None:
    shape = (1, *AXES[axes][1:]) if no_batch else AXES[axes]
    standard: NDArray[Any] = np.random.default_rng(0).normal(size=shape)
    if axes == "BTS":
        standard = standard > 0
    stored, letters = standard, axes
    layout: dict[str, Any] = {}
    if "D" in axes and pairing == "interleaved":
        half = standard.shape[-1] // 2
        stored = np.stack([standard[..., :half], standard[..., half:]], axis=-1).reshape(shape)
        layout["pairing"] = pairing
    if "K" in axes and repeats > 1:
        stored = np.repeat(stored, repeats, axis=1)
        layout["repeats"] = repeats
    if axes == "BTS" and values != "visible":
        stored = ~stored if values == "hidden" else np.where(stored, 0, -1e9)
        layout["values"] = values
    if "D" in axes and merged:
        stored = stored.transpose(0, 2, 1, 3)
        layout["heads"] = stored.shape[2]
        stored = stored.reshape(*stored.shape[:2], -1)
        letters = f"BT({axes[1]}D)"
    elif "D" in axes:
        stored = stored.transpose(order)
        letters = "".join(axes[i] for i in order)
    if no_batch:
        stored = stored.reshape(
            [n for n, a in zip(stored.shape, letters.replace("(", ""), strict=False) if a != "B"]
        )
        letters = letters.replace("B", "")
    note = Layout(axes=letters, **layout)
    sizes = stored_sizes(note, axes, stored.shape)
    assert sizes is not None
    assert sizes == {a: n for a, n in zip(axes, shape, strict=True) if a != "B" or not no_batch}
    np.testing.assert_array_equal(to_standard(stored, note, axes), standard)


def test_repeated_heads_that_differ_are_handed_over_as_they_are() -> None:
    stored = np.random.default_rng(0).normal(size=(1, 6, 5, 8))
    assert to_standard(stored, Layout(repeats=3), "BKTD").shape == (1, 6, 5, 8)
