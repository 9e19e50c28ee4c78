"""One pass of one model: chunk by chunk, with whatever cache the release has."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import transformers

from .store import Taps
from .watching import Watch, Wide

#: What the cache is called, as an argument of ``forward`` and in what it hands out.
_CACHES = ("cache", "past_key_values", "cache_params", "state")

State = dict[torch.nn.Module, tuple[dict[str, Any], dict[str, Any]]]


def state_of(model: torch.nn.Module) -> State:
    """Buffers and attributes of all modules: some change as they run, rope's of long texts say."""
    return {module: (dict(module._buffers), _attributes(module)) for module in model.modules()}


def run_pass(
    model: Any, asked: dict[str, Any], taps: Taps, before: State, *, wide: bool = False
) -> dict[str, Any]:
    """Run a pass, sending its taps on.

    Args:
        model: The model.
        asked: The pass.
        taps: Receives the taps.
        before: State of the model's modules, put back before and after.
        wide: Whether float32 is read as float64 everywhere; nothing is generated then.

    Returns:
        ``cache_class`` and ``generated``.
    """
    ids = torch.tensor(asked["token_ids"], dtype=torch.long)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(_restored(before))
        if wide:
            stack.enter_context(_default_dtype(torch.float64))
            stack.enter_context(Wide())
        torch.manual_seed(0)
        cache = _forward(model, asked, ids, taps)
        named = None if cache is None else type(cache).__name__
    generated = None
    if asked["generate"] and not wide:
        with torch.no_grad(), _restored(before):
            torch.manual_seed(0)
            generated = _generate(model, asked, ids)
    return {"cache_class": named, "generated": generated}


def _forward(model: Any, asked: dict[str, Any], ids: torch.Tensor, taps: Taps) -> Any:
    """Feed all chunks; hand back the cache, None without one."""
    known = inspect.signature(model.forward).parameters
    cache_name = next((name for name in _CACHES if name in known), None)
    cache = _own_cache(model, ids) if asked["cache"] else None
    ours = cache is not None
    watch = Watch(model, taps, ids.shape[0])
    start = 0
    for chunk, length in enumerate(asked["chunks"] or [ids.shape[1]]):
        end = start + length
        given = _arguments(asked, start, end, known)
        if cache is not None and cache_name is not None:
            given[cache_name] = cache
            ours = ours or cache_name == "cache_params"
            if ours and "cache_position" in known:
                given["cache_position"] = torch.arange(start, end)
        watch.begin(asked["name"], chunk, length)
        with ExitStack() as stack:
            if asked["taps"]:
                stack.enter_context(watch.installed())
            out = model(input_ids=ids[:, start:end], **given)
        logits = out.get("logits")
        result = out[0] if logits is None else logits
        taps.offer(
            "output" if logits is None else "logits",
            _at_tokens(result, asked, start, end),
            module="",
            class_name=type(model).__name__,
            role="out" if logits is None else "logits",
        )
        there = list(out.keys())  # asking for a name that is deprecated would warn
        cache = next((out[name] for name in _CACHES if name in there), None)
        if cache is None and length < ids.shape[1] - start:
            raise RuntimeError(
                "expected a cache in what the model hands out, found " + ", ".join(map(str, there))
            )
        start = end
    return cache


def _at_tokens(result: torch.Tensor, asked: dict[str, Any], start: int, end: int) -> torch.Tensor:
    """What came out, with zeros at pads: what stands there is nobody's, and any kernel's."""
    if asked["attention_mask"] is None:
        return result
    real = torch.tensor(asked["attention_mask"])[:, start:end].bool()
    if result.shape[:2] != real.shape:
        return result
    return torch.where(real[..., None], result, torch.zeros((), dtype=result.dtype))


def _arguments(asked: dict[str, Any], start: int, end: int, known: Any) -> dict[str, Any]:
    """Arguments of ``forward`` for one chunk."""
    given: dict[str, Any] = {}
    if "use_cache" in known:
        given["use_cache"] = bool(asked["cache"])
    if asked["attention_mask"] is not None:
        given["attention_mask"] = torch.tensor(asked["attention_mask"])[:, :end]
    for key, value in asked["forward"].items():
        given[key] = torch.tensor(value) if isinstance(value, list) else value
    if isinstance(given.get("position_ids"), torch.Tensor):
        given["position_ids"] = given["position_ids"][..., start:end]
    return given


def _own_cache(model: Any, ids: torch.Tensor) -> Any:
    """A new cache where a model makes none by itself, or none that is long enough.

    Models of attention and recurrence mixed had a class each in their own file, before caches could
    hold both; models with windows had one of a fixed length, which ``generate`` made for them.
    """
    scope = vars(sys.modules[type(model).__module__])
    names = sorted(n for n in scope if n.startswith("Hybrid") and n.endswith("Cache"))
    names = [n for n in names if scope[n].__module__ == type(model).__module__]
    batch, length = ids.shape
    if names:
        return scope[names[0]](model.config, batch, dtype=model.dtype, device=ids.device)
    fixed: Any = getattr(transformers, "HybridCache", None)
    implementation = getattr(model.config, "cache_implementation", None)
    if implementation == "hybrid" and len(inspect.signature(fixed).parameters) > 4:
        return fixed(model.config, batch, length, ids.device, model.dtype)
    return None


def _generate(model: Any, asked: dict[str, Any], ids: torch.Tensor) -> list[list[int]]:
    mask = asked["attention_mask"]
    given: dict[str, Any] = {
        "max_new_tokens": asked["generate"],
        "do_sample": False,
        "num_beams": 1,
        "use_cache": bool(asked["cache"]),
    }
    if mask is not None or "attention_mask" in inspect.signature(model.forward).parameters:
        given["attention_mask"] = torch.ones_like(ids) if mask is None else torch.tensor(mask)
    if model.generation_config.pad_token_id is None:
        given["pad_token_id"] = 0
    found = model.generate(ids, **(given | asked["generate_kwargs"]))
    tokens: list[list[int]] = found[:, ids.shape[1] :].tolist()
    return tokens


@contextmanager
def _restored(before: State) -> Iterator[None]:
    """Begin and end with the same state, whatever a run leaves in the modules."""
    _put_back(before)
    try:
        yield
    finally:
        _put_back(before)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Masks are made in the default dtype: one of float32 cannot hold what hides in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _put_back(before: State) -> None:
    for module, (buffers, attributes) in before.items():
        module._buffers.clear()
        module._buffers.update(buffers)
        for name in set(_attributes(module)) - set(attributes):
            del module.__dict__[name]
        module.__dict__.update(attributes)


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    """What a module holds of its own: no hooks, parameters, buffers or modules."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") or name == "_attn_implementation"
    }
