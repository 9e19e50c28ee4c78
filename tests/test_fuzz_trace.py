"""Damaged traces: problems are told, nothing else is ever raised."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.result import EngineInfo
from harness.trace.check import inspect, judge_values
from harness.trace.container import scan
from harness.trace.head import METADATA_KEY, TracedModel, TraceHead, read_head, write_head
from harness.trace.layout import Layout
from harness.trace.write import TraceWriter

HEAD = TraceHead(
    engine=EngineInfo("mine", "rust", "float32", {"mine": "0.1"}),
    model=TracedModel("llama", "ab" * 32, "here"),
    token_ids=((1, 2, 3, 4),),
    chunks=(3, 1),
    unavailable={"attn.scores": "fused"},
    layout={"attn.q": Layout(axes="BT(HD)", heads=6), "logits": Layout(positions="last")},
)


def write(path: Path, arrays: dict[str, Any]) -> None:
    with TraceWriter(path, room=0) as writer:
        for name, array in arrays.items():
            chunk, _, tap = name.partition("/")
            writer.put(int(chunk), tap, array)
        writer.finish(HEAD)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "t.safetensors"
    arrays = {"0/embed": np.zeros((1, 3, 4), np.float32), "1/embed": np.ones((1, 1, 4), np.float32)}
    write(path, arrays)
    return path.read_bytes()


@given(data=st.data())
def test_damaged_trace_gives_problems_or_the_same_never_an_exception(
    data: Any, sound: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "cut", "length", "insert"]))
        at = data.draw(st.integers(0, max(0, len(damaged) - 1)))
        if kind == "flip" and damaged:
            damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del damaged[at:]
        elif kind == "insert":
            damaged[at:at] = data.draw(st.binary(max_size=9))
        elif len(damaged) >= 8:
            damaged[:8] = struct.pack("<Q", data.draw(st.integers(0, 2**64 - 1)))
    path = tmp_path_factory.mktemp("damaged") / "t.safetensors"
    path.write_bytes(damaged)
    container = scan(path)
    findings = inspect(container)
    judge_values(container)
    if not findings.problems:
        assert findings.head is not None
        assert len(findings.taps) == 2


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    key=st.sampled_from(["engine", "model", "token_ids", "chunks", "unavailable", "layout", "x"]),
)
def test_head_with_any_value_gives_problems_or_a_head(value: Any, key: str) -> None:
    head = json.loads(write_head(HEAD))
    head[key] = value
    found, problems = read_head({METADATA_KEY: json.dumps(head)})
    assert found is not None or problems
    if key == "x":
        assert [p.where for p in problems] == ["metadata: x"]
