"""KV caches of transformers, by kind."""

import importlib.util
from collections.abc import Callable
from typing import Any

import transformers

#: Columns that a static cache has room for.
ROOM = 64

#: Bits of a number in a quantised cache, and of so many numbers one scale.
BITS, GROUP = 4, 8


def _dynamic(model: Any) -> Any:
    return transformers.DynamicCache(config=model.config)


def _unwindowed(model: Any) -> Any:
    """A dynamic cache that knows no config, and so keeps all keys of every layer."""
    return transformers.DynamicCache()


def _static(model: Any) -> Any:
    return transformers.StaticCache(config=model.config, max_cache_len=ROOM)


def _quantised(model: Any) -> Any:
    return transformers.QuantizedCache(
        "quanto", model.config, nbits=BITS, q_group_size=GROUP, residual_length=4
    )


_CACHES: dict[str, Callable[[Any], Any]] = {
    "": _dynamic,
    "unwindowed": _unwindowed,
    "static": _static,
    "quantised": _quantised,
}


def kinds() -> tuple[str, ...]:
    """Kinds that can be made here, the usual one left out."""
    found = [kind for kind in _CACHES if kind]
    if importlib.util.find_spec("optimum") is None or (
        importlib.util.find_spec("optimum.quanto") is None
    ):
        found.remove("quantised")
    return tuple(found)


def make_cache(model: Any, kind: str) -> Any:
    """A new KV cache for a model.

    Args:
        model: A transformers model.
        kind: One of :func:`kinds`, or empty for the usual one, a dynamic cache.
    """
    return _CACHES[kind](model)
