"""KV caches of transformers, by kind; :data:`harness.engines.ways.CACHES` says what each is."""

import importlib.util
from collections.abc import Callable
from typing import Any

import transformers
from transformers import cache_utils

from .ways import CACHE_BITS, CACHE_GROUP, CACHE_RECENT, CACHE_ROOM


def _dynamic(model: Any) -> Any:
    return transformers.DynamicCache(config=model.config)


def _unwindowed(model: Any) -> Any:
    """A dynamic cache that knows no config, and so keeps all keys of every layer."""
    return transformers.DynamicCache()


def _recorded(model: Any) -> Any:
    cache: Any = transformers.DynamicCache(config=model.config)
    cache.activate_past_recording()
    return cache


def _static(model: Any) -> Any:
    return transformers.StaticCache(config=model.config, max_cache_len=CACHE_ROOM)


def _quantised(model: Any) -> Any:
    return transformers.QuantizedCache(
        "quanto",
        model.config,
        nbits=CACHE_BITS,
        q_group_size=CACHE_GROUP,
        residual_length=CACHE_RECENT,
    )


def _float8(model: Any) -> Any:
    return transformers.QuantizedCache("fp8", model.config)


_CACHES: dict[str, Callable[[Any], Any]] = {
    "": _dynamic,
    "unwindowed": _unwindowed,
    "recorded": _recorded,
    "static": _static,
    "quantised": _quantised,
    "float8": _float8,
}


def kinds() -> tuple[str, ...]:
    """Kinds that can be made here, the usual one left out."""
    absent = set()
    if not _installed("optimum.quanto"):
        absent.add("quantised")
    # Later releases than the first that we run with.
    if not hasattr(transformers.DynamicCache, "activate_past_recording"):
        absent.add("recorded")
    if not hasattr(cache_utils, "Fp8QuantizedLayer"):
        absent.add("float8")
    return tuple(kind for kind in _CACHES if kind and kind not in absent)


def _installed(package: str) -> bool:
    parent = package.partition(".")[0]
    return (
        importlib.util.find_spec(parent) is not None
        and importlib.util.find_spec(package) is not None
    )


def make_cache(model: Any, kind: str) -> Any:
    """A new KV cache for a model.

    Args:
        model: A transformers model.
        kind: One of :func:`kinds`, or empty for the usual one, a dynamic cache.
    """
    return _CACHES[kind](model)
