"""Mutants of the cache, against the law of chunks and against the harness's own comparison."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from harness.checking import check
from harness.engines.hf import HFEngine
from harness.engines.mutants.catalogue import mutant_named
from harness.laws.cache import check_chunks, check_crop
from harness.laws.cache_narrow import of_float8, of_integers
from harness.laws.cache_replay import check_replay
from harness.laws.cache_search import check_beams, check_greedy
from harness.laws.candidate import Candidate
from harness.laws.law import LawBroken
from harness.result import Verdict

ROW = [5, 17, 90, 3, 44, 61, 8]

MUTANTS = ["cache-stale", "position-restarted"]

#: First wrong tap: over a stale cache positions go on from where the other sequence ended.
WRONG = "layers.0.attn.q_rope"


@pytest.fixture
def candidate(tiny: Callable[..., Path]) -> Callable[[str], Candidate]:
    return lambda mutant: Candidate(tiny(), mutant_named(mutant).make)


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("chunks", [[3, 4], [6, 1]], ids=["several tokens", "one token"])
def test_law_of_chunks_catches_it(
    candidate: Callable[[str], Candidate], mutant: str, chunks: list[int]
) -> None:
    with pytest.raises(LawBroken, match="logits of pieces") as caught:
        check_chunks(candidate(mutant), [ROW], chunks)
    assert caught.value.worst > 100


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("chunks", [[3, 4], [6, 1]], ids=["several tokens", "one token"])
def test_law_of_replay_names_the_op(
    candidate: Callable[[str], Candidate], mutant: str, chunks: list[int]
) -> None:
    with pytest.raises(LawBroken) as caught:
        check_replay(candidate(mutant), [ROW], chunks)
    assert caught.value.what.startswith(WRONG)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_check_fails_over_decoding_steps(tiny: Callable[..., Path], mutant: str) -> None:
    """One token a step: where transformers says nothing."""
    path = tiny()
    result = check(mutant_named(mutant).make(path), checkpoint=path, token_ids=[ROW], decode=2)
    assert result.verdict is Verdict.FAIL
    assert result.first_divergence is not None
    assert result.first_divergence.tap == WRONG


class Changed:
    """An engine with another method."""

    def __init__(self, engine: Any, **methods: Any) -> None:
        self._engine = engine
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def never_crops(path: Path) -> Any:
    engine: Any = HFEngine.load(path)

    def refuse(length: int) -> None:
        raise RuntimeError("not today")

    @contextmanager
    def begin(*, cache: bool, padding: Any = None, way: Any = None) -> Iterator[Any]:
        with engine.open(cache=cache, padding=padding, way=way) as session:
            session.crop = refuse
            yield session

    return Changed(engine, open=begin)


def test_crop_is_not_refused_without_need(tiny: Callable[..., Path]) -> None:
    with pytest.raises(LawBroken, match="as no window has dropped a column, found RuntimeError"):
        check_crop(Candidate(tiny(), never_crops), [ROW], [[3, 1], [4, 0]])


def test_crop_may_be_refused_where_a_window_has_dropped_columns(tiny: Callable[..., Path]) -> None:
    check_crop(Candidate(tiny("qwen3", sliding_window=4), never_crops), [ROW], [[3, 1], [4, 0]])
    with pytest.raises(LawBroken, match="as no window has dropped a column"):
        check_crop(Candidate(tiny("qwen3", sliding_window=5), never_crops), [ROW], [[3, 1], [4, 0]])


def other_token(closeness: float) -> Callable[[Path], Any]:
    """An engine that takes another greedy token with a cache, next to the best by so much."""

    def make(path: Path) -> Any:
        engine: Any = HFEngine.load(path)
        head = engine.model.get_output_embeddings().weight
        with torch.no_grad():
            first = int(engine.generate(np.array([ROW]), 1, cache=False)[0, 0])
            other = (first + 1) % len(head)
            head[other] = head[first] * (1 - closeness)

        def generate(token_ids: Any, count: int, *, cache: bool, beams: int = 1) -> Any:
            found = engine.generate(token_ids, count, cache=cache, beams=beams)
            return np.where(found == first, other, found) if cache else found

        return Changed(engine, generate=generate)

    return make


@pytest.mark.parametrize("beams", [1, 2])
def test_tokens_may_differ_by_rounding_alone(tiny: Callable[..., Path], beams: int) -> None:
    def search(closeness: float) -> None:
        candidate = Candidate(tiny(), other_token(closeness))
        if beams == 1:
            check_greedy(candidate, [ROW], 1)
        else:
            check_beams(candidate, [ROW], 1, beams)

    search(1e-7)
    with pytest.raises(LawBroken, match="with a cache"):
        search(0.1)


@pytest.mark.parametrize("bound", [of_integers, of_float8])
def test_bounds_of_rounding_are_met_and_not_wide(bound: Callable[[Any, float], Any]) -> None:
    """Made with plain NumPy and ml_dtypes; half the steps, or double, are not within."""
    held = np.random.default_rng(3).normal(1.0, 3.0, (2, 3, 50, 16))
    if bound is of_integers:
        groups = held.reshape(2, 3, 50, 2, 8)
        low = groups.min(-1, keepdims=True)
        step = (groups.max(-1, keepdims=True) - low) / 15
        back = (np.round((groups - low) / step) * step + low).reshape(held.shape)
    else:
        scale = np.abs(held).max() / 448
        back = (held / scale).astype(ml_dtypes.float8_e4m3fn).astype(float) * scale
    parts = np.abs(back - held) / bound(held, 2.0**-53)
    assert 0.9 < parts.max() <= 1.0
