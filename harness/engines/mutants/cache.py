"""Mutants that break laws of caches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ...padding import Padding
from .. import hf
from ..hf import HFEngine
from ..hf_caches import make_cache
from ..plants.attending import Seen, masks
from ..plants.plant import Planting, Tensor
from ..ways import CACHE_GROUP, CACHE_RECENT, Way
from .mutant import Mutant, Wrap, plant

#: Changes a session that was begun.
Change = Callable[[Any], None]


class _Seam:
    """An engine whose sessions and search are not its own.

    Args:
        engine: The engine.
        change: Made to each session.
        make: Makes its caches.
        reorder: What becomes of the cache in a search when beams change their order.
    """

    def __init__(
        self,
        engine: HFEngine,
        *,
        change: Change = lambda session: None,
        make: Callable[[Any, str], Any] = make_cache,
        reorder: Callable[[Any, Tensor], None] = transformers.Cache.reorder_cache,
    ) -> None:
        self._engine = engine
        self._change = change
        self._make = make
        self._reorder = reorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def open(
        self, *, cache: bool, padding: Padding | None = None, way: Way | None = None
    ) -> Iterator[Any]:
        """Begin a new sequence, with the mistake."""
        with (
            patch.object(hf, "make_cache", self._make),
            self._engine.open(cache=cache, padding=padding, way=way) as session,
        ):
            self._change(session)
            yield session

    def generate(self, token_ids: NDArray[Any], count: int, **kwargs: Any) -> NDArray[Any]:
        """Search, with the mistake."""
        with patch.object(transformers.Cache, "reorder_cache", self._reorder):
            return self._engine.generate(token_ids, count, **kwargs)


def _seam(**changed: Any) -> Wrap:
    def wrap(engine: HFEngine) -> Any:
        return _Seam(engine, **changed)

    return wrap


def _crop_forgotten(session: Any) -> None:
    session.crop = lambda length: None


def _crop_short(session: Any) -> None:
    crop = session.crop
    session.crop = lambda length: crop(length + 1)


def _reorder_forgotten(session: Any) -> None:
    session.reorder = lambda rows: None


def _keys_alone(session: Any) -> None:
    reorder = session.reorder

    def changed(rows: Sequence[int]) -> None:
        before = [layer.values for layer in session._cache.layers]
        reorder(rows)
        for layer, values in zip(session._cache.layers, before, strict=True):
            layer.values = values

    session.reorder = changed


def _two_bits(model: Any, kind: str) -> Any:
    if kind != "quantised":
        return make_cache(model, kind)
    return transformers.QuantizedCache(
        "quanto",
        model.config,
        nbits=2,
        q_group_size=CACHE_GROUP,
        residual_length=CACHE_RECENT,
    )


def _two_bits_of_mantissa(model: Any, kind: str) -> Any:
    cache = make_cache(model, kind)
    for layer in cache.layers if kind == "float8" else ():
        layer.fp8_dtype, layer.fp8_max = torch.float8_e5m2, torch.finfo(torch.float8_e5m2).max
    return cache


def _stale(session: Any) -> None:
    """The cache is one that another sequence of four tokens was fed over."""
    feed, used = session.feed, session._cache is None

    def changed(token_ids: NDArray[Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal used
        if not used:
            used = True
            feed(np.tile(np.arange(4), (len(token_ids), 1)))
            session._fed = 0
        return feed(token_ids, *args, **kwargs)

    session.feed = changed


def _window_ignored_later(at: Planting) -> None:
    def change(kwargs: dict[str, Any], cache: Any) -> None:
        past = 0 if cache is None else int(cache.get_seq_length())
        if not past:
            return
        batch, length = kwargs["input_ids"].shape
        hidden = torch.arange(past + length) > past + torch.arange(length)[:, None]
        lowest = torch.finfo(at.model.dtype).min
        mask = torch.zeros(hidden.shape).masked_fill(hidden, lowest).expand(batch, 1, -1, -1)
        kwargs["attention_mask"] = dict.fromkeys(set(at.config.layer_types), mask)

    at.arguments(change)


def _room_read(seen: Tensor, at: Seen) -> Tensor:
    return torch.ones_like(seen) if at.past else seen


MUTANTS = (
    Mutant(
        name="position-restarted",
        says="positions begin at 0 again in every forward pass",
        put=plant("rope-position-restarted", "from 0").put,
    ),
    Mutant(
        name="cache-step-lost",
        says="the last position of the cache is lost before each step",
        put=plant("cache-step-lost", "the last one is 0").put,
    ),
    Mutant(
        name="cache-stale",
        says="four positions of another sequence are in the cache already",
        wrap=_seam(change=_stale),
    ),
    Mutant(
        name="cache-window-short",
        says="the oldest column that is held is lost before each step",
        put=plant("cache-window", "W - 1").put,
        family="qwen3",
        everywhere=True,
    ),
    Mutant(
        name="window-ignored-later",
        says="windows are for the first forward pass alone",
        put=_window_ignored_later,
        family="qwen3",
    ),
    Mutant(
        name="room-read",
        says="steps read the whole room of the cache, also where no token is yet",
        put=masks(_room_read),
    ),
    Mutant(
        name="crop-forgotten",
        says="a crop leaves the cache as it is",
        wrap=_seam(change=_crop_forgotten),
    ),
    Mutant(
        name="crop-short",
        says="a crop leaves one column too many",
        wrap=_seam(change=_crop_short),
    ),
    Mutant(
        name="reorder-forgotten",
        says="rows of the cache stay where they are",
        wrap=_seam(change=_reorder_forgotten),
    ),
    Mutant(
        name="reorder-of-keys-alone",
        says="keys are put in the new order, values stay in the old one",
        wrap=_seam(change=_keys_alone),
    ),
    Mutant(
        name="beams-not-reordered",
        says="a beam goes on with the cache of another",
        wrap=_seam(reorder=lambda cache, order: None),
    ),
    Mutant(
        name="quantised-coarser",
        says="the cache rounds to 2 bits",
        wrap=_seam(make=_two_bits),
    ),
    Mutant(
        name="float8-coarser",
        says="the cache rounds to e5m2, with a bit less behind the point",
        wrap=_seam(make=_two_bits_of_mantissa),
    ),
)
