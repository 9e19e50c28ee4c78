from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.checkpoint import (
    Checkpoint,
    NonFinite,
    check_finite,
    check_tensors,
    find_nonfinite,
    verify,
)
from harness.checkpoint.names import collapse_names
from harness.errors import CheckpointError


def make(tensors: Mapping[str, npt.NDArray[Any]]) -> Checkpoint:
    for array in tensors.values():
        array.flags.writeable = False
    return Checkpoint(path=Path("m"), config={}, tensors=tensors, origin="m")


def zeros(*names: str) -> dict[str, npt.NDArray[Any]]:
    return {name: np.zeros((2, 3), dtype=np.float32) for name in names}


def test_check_tensors_passes_an_exact_set() -> None:
    check_tensors(make(zeros("a", "b")), {"a": (2, 3), "b": (2, 3)})


def test_check_tensors_tells_all_differences_at_once() -> None:
    biases = [f"model.layers.{n}.self_attn.q_proj.bias" for n in range(30)]
    checkpoint = make(zeros("a", "b", "extra", *biases))
    with pytest.raises(CheckpointError) as caught:
        check_tensors(checkpoint, {"a": (2, 3), "b": (3, 2), "lost": (1,)})
    assert str(caught.value) == (
        "m: expected exactly the 3 tensors that the model reads, found a different set\n"
        "  missing (1): lost\n"
        "  unexpected, read by nobody (31): extra, "
        "model.layers.{0-29}.self_attn.q_proj.bias (30)\n"
        "  misshapen (1): b expected [3, 2], found [2, 3]\n"
        ": config and weights do not belong together, or the model reads too little: a tensor that "
        "nobody reads (a bias, say) changes the result silently"
    )


@pytest.mark.parametrize("fault", ["missing", "unexpected", "misshapen"])
def test_check_tensors_fails_on_each_kind_alone(fault: str) -> None:
    expected: dict[str, tuple[int, ...]] = {"a": (2, 3), "b": (2, 3)}
    if fault == "missing":
        expected["c"] = (1,)
    elif fault == "unexpected":
        del expected["b"]
    else:
        expected["b"] = (6,)
    with pytest.raises(CheckpointError) as caught:
        check_tensors(make(zeros("a", "b")), expected)
    found = caught.value.found
    assert [kind for kind in ("missing", "unexpected", "misshapen") if kind in found] == [fault]


def test_check_tensors_lets_derived_tensors_pass_by_whole_name() -> None:
    derived = [r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"]
    held = "model.layers.11.self_attn.rotary_emb.inv_freq"
    check_tensors(make(zeros("a", held)), {"a": (2, 3)}, derived=derived)
    with pytest.raises(CheckpointError, match=r"nobody \(1\): .*inv_freq\.scale"):
        check_tensors(make(zeros("a", f"{held}.scale")), {"a": (2, 3)}, derived=derived)


def test_check_tensors_of_nothing_is_refused() -> None:
    with pytest.raises(CheckpointError, match="a check of nothing proves nothing"):
        check_tensors(make(zeros("a")), {}, derived=["a"])


def test_collapse_names_keeps_the_count_when_it_cuts() -> None:
    names = [f"layers.{n}.{part}.w" for n in (0, 1, 2, 5) for part in "abcdefghij"]
    text = collapse_names(names, limit=3)
    assert text == (
        "layers.{0-2,5}.a.w (4), layers.{0-2,5}.b.w (4), layers.{0-2,5}.c.w (4), and 28 more"
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_find_nonfinite_counts_and_places(dtype: type) -> None:
    array: npt.NDArray[Any] = np.ones((4, 5), dtype=dtype)
    array[1, 3], array[2, 0], array[3, 4] = np.nan, -np.inf, np.inf
    checkpoint = make({"bad": array, "good": np.ones(3, dtype=dtype)})
    expected = (NonFinite(name="bad", nan=1, inf=2, first=(1, 3)),)
    assert find_nonfinite(checkpoint, checkpoint.tensors) == expected


@given(place=st.integers(0, 22), chunk=st.integers(1, 24))
def test_find_nonfinite_does_not_depend_on_chunks(place: int, chunk: int) -> None:
    array = np.ones(24, dtype=np.float32)
    array[place] = array[23] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "_CHUNK", chunk)
        (record,) = find_nonfinite(make({"w": array.reshape(2, 3, 4)}), ["w"])
    first = tuple(int(i) for i in np.unravel_index(place, (2, 3, 4)))
    assert record == NonFinite(name="w", nan=2, inf=0, first=first)


def test_check_finite_names_what_it_found() -> None:
    tensors = {f"t{n}": np.array([1.0, np.nan], dtype=np.float32) for n in range(10)}
    with pytest.raises(CheckpointError) as caught:
        check_finite(make(tensors), tensors)
    assert "found 10 tensors with NaN or infinity: t0 (1 NaN, 0 infinite, first at [1]);" in str(
        caught.value
    )
    assert "; and 2 more: the weights are damaged" in str(caught.value)


def test_check_finite_passes_finite_and_whole_numbers() -> None:
    tensors: dict[str, npt.NDArray[Any]] = {
        "w": np.full(3, np.finfo(np.float32).max, dtype=np.float32),
        "i": np.array([-1], dtype=np.int64),
        "b": np.array([True]),
    }
    check_finite(make(tensors), tensors)


def test_check_finite_refuses_unknown_names_and_no_names() -> None:
    checkpoint = make(zeros("a"))
    with pytest.raises(CheckpointError, match="found absent ones: c"):
        check_finite(checkpoint, ["a", "c"])
    with pytest.raises(CheckpointError, match="found no name at all"):
        check_finite(checkpoint, [])
