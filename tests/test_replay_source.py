"""Taps by name from an engine that runs in a thread of its own."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from harness.engines.protocol import Emit
from harness.replay.source import AHEAD, EngineSource, RecordedSource
from harness.result import EngineInfo

CHUNKS = [np.array([[1, 2, 3]]), np.array([[4]])]


class Scripted:
    """An engine that emits what it is told to.

    Args:
        taps: Names for each chunk.
        before: Called with chunk and name ahead of each tap.
        on_close: Called when the sequence is closed.
    """

    name = "scripted"
    dtype = "float32"
    unavailable: Mapping[str, str] = {}
    parameters: Mapping[str, Any] = {}

    def __init__(
        self,
        taps: list[list[str]],
        *,
        before: Callable[[int, str], None] = lambda chunk, tap: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.taps = taps
        self.before = before
        self.on_close = on_close
        self.cache: bool | None = None
        self.emitted: list[str] = []

    def info(self) -> EngineInfo:
        return EngineInfo(self.name, "test", self.dtype, {})

    @contextmanager
    def open(self, *, cache: bool) -> Iterator["Scripted"]:
        self.cache = cache
        self.chunk = 0
        try:
            yield self
        finally:
            self.on_close()

    def feed(self, token_ids: Any, emit: Emit | None = None) -> Any:
        assert emit is not None
        for order, tap in enumerate(self.taps[self.chunk]):
            self.before(self.chunk, tap)
            emit(tap, np.array([self.chunk, order, token_ids.shape[1]]))
            self.emitted.append(tap)
        self.chunk += 1
        return np.zeros((1, 1, 1))


def test_take_hands_over_taps_in_any_order_within_a_chunk() -> None:
    engine = Scripted([["a", "b", "c", "d"], ["a", "b"]])
    with EngineSource(engine, CHUNKS) as source:
        found = [source.take(0, tap) for tap in ("d", "a", "c", "b")]
        assert [x.tolist() for x in found if x is not None] == [
            [0, 3, 3],
            [0, 0, 3],
            [0, 2, 3],
            [0, 1, 3],
        ]
        later = source.take(1, "b")
        assert later is not None
        assert later.tolist() == [1, 1, 1]
    assert engine.cache is True


def test_take_forgets_what_it_handed_over() -> None:
    with EngineSource(Scripted([["a", "b"]]), CHUNKS[:1]) as source:
        assert source.take(0, "a") is not None
        assert source.take(0, "a") is None


def test_take_gives_none_for_a_tap_that_the_engine_does_not_emit() -> None:
    engine = Scripted([["a", "b"], ["a", "x"]])
    with EngineSource(engine, CHUNKS) as source:
        assert source.take(0, "x") is None  # chunk 1 has one, which is another tap
        assert source.take(0, "b") is not None
        assert source.take(1, "x") is not None
        assert source.take(1, "b") is None


def test_take_skips_what_nobody_took_from_an_earlier_chunk() -> None:
    with EngineSource(Scripted([["a"] * 100, ["a"]]), CHUNKS) as source:
        found = source.take(1, "a")
        assert found is not None
        assert found[0] == 1


def test_take_refuses_a_chunk_that_is_not_run() -> None:
    with (
        EngineSource(Scripted([["a"]]), CHUNKS[:1]) as source,
        pytest.raises(IndexError, match="chunk 1 of 1"),
    ):
        source.take(1, "a")


def test_engine_opens_without_cache_for_one_chunk() -> None:
    engine = Scripted([["a"]])
    with EngineSource(engine, CHUNKS[:1]) as source:
        source.take(0, "a")
    assert engine.cache is False


def test_engine_is_held_back_when_it_is_far_ahead() -> None:
    engine = Scripted([[f"tap{i}" for i in range(10 * AHEAD)]])
    with EngineSource(engine, CHUNKS[:1]) as source:
        assert source.take(0, "tap0") is not None
        threading.Event().wait(0.1)
        assert AHEAD - 1 <= len(engine.emitted) <= AHEAD
        assert source.take(0, f"tap{10 * AHEAD - 1}") is not None
    assert len(engine.emitted) >= 10 * AHEAD - 1  # the engine rests inside the last one


def test_exit_stops_an_engine_whose_taps_nobody_takes_and_lets_it_clean_up() -> None:
    closed = threading.Event()
    engine = Scripted([[f"tap{i}" for i in range(10 * AHEAD)]], on_close=closed.set)
    with EngineSource(engine, CHUNKS[:1]) as source:
        source.take(0, "tap1")
        assert not closed.is_set()
    assert closed.is_set()
    assert len(engine.emitted) < 10 * AHEAD


def consume_and_fail(source: EngineSource) -> None:
    source.take(0, "tap0")
    raise KeyError("consumer")


def test_exit_stops_the_engine_after_an_exception_of_the_consumer() -> None:
    closed = threading.Event()
    engine = Scripted([[f"tap{i}" for i in range(10 * AHEAD)]], on_close=closed.set)
    source = EngineSource(engine, CHUNKS[:1])
    with pytest.raises(KeyError, match="consumer"), source:
        consume_and_fail(source)
    assert closed.is_set()


def test_engine_whose_taps_nobody_waits_for_is_not_run() -> None:
    engine = Scripted([["a"]])
    with EngineSource(engine, CHUNKS[:1]):
        threading.Event().wait(0.05)
    assert engine.cache is None


def test_engine_rests_while_taps_are_compared() -> None:
    """Neither side runs while the other does: beside each other both would be slower."""
    engine = Scripted([[f"tap{i}" for i in range(3 * AHEAD)]])
    with EngineSource(engine, CHUNKS[:1]) as source:
        for index in range(AHEAD):
            assert source.take(0, f"tap{index}") is not None
            seen = len(engine.emitted)
            threading.Event().wait(0.001)
            assert len(engine.emitted) == seen


def fail_at(chunk: int, tap: str) -> Callable[[int, str], None]:
    def before(current: int, name: str) -> None:
        if (current, name) == (chunk, tap):
            raise ArithmeticError(f"{name} cannot be computed")

    return before


def test_take_raises_what_the_engine_raised_again_and_again() -> None:
    engine = Scripted([["a", "b", "c"]], before=fail_at(0, "c"))
    with EngineSource(engine, CHUNKS[:1]) as source:
        assert source.take(0, "b") is not None
        for _ in range(3):
            with pytest.raises(ArithmeticError, match="c cannot be computed"):
                source.take(0, "c")
        assert source.take(0, "a") is not None  # it came before


def test_take_gives_what_came_before_a_failure_in_a_later_chunk() -> None:
    engine = Scripted([["a", "b"], ["a", "b"]], before=fail_at(1, "b"))
    with EngineSource(engine, CHUNKS) as source:
        assert source.take(0, "b") is not None
        assert source.take(0, "x") is None
        assert source.take(1, "a") is not None
        with pytest.raises(ArithmeticError):
            source.take(1, "b")


def test_exit_raises_a_failure_that_no_take_has_shown() -> None:
    def broken() -> None:
        raise ArithmeticError("cannot clean up")

    engine = Scripted([["a"]], on_close=broken)
    with (
        pytest.raises(ArithmeticError, match="cannot clean up"),
        EngineSource(engine, CHUNKS[:1]) as source,
    ):
        assert source.take(0, "a") is not None


def test_exit_does_not_hide_the_consumers_exception() -> None:
    engine = Scripted([["a"]], before=fail_at(0, "a"))
    with pytest.raises(KeyError, match="consumer"), EngineSource(engine, CHUNKS[:1]):
        raise KeyError("consumer")


def test_recorded_source_hands_over_taps_of_each_chunk() -> None:
    source = RecordedSource([{"a": np.zeros(1)}, {"b": np.ones(1)}])
    assert source.take(0, "a") is not None
    assert source.take(0, "b") is None
    assert source.take(1, "b") is not None
