"""Taps inside attention: rotated queries and keys, scores, mask, probabilities, context.

transformers looks the attention function up by a name in the config that the attention module
holds. While a :class:`AttentionTap` is installed, each attention module holds a copy of that
config with a name of ours, registered for this run alone, whose function taps its inputs, calls
the function that would have been called, and taps its output. The model's own config keeps the
real name, so masks are made exactly as without us, and nothing that others registered is touched.
"""

import copy
import inspect
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import EngineError
from .hf_modules import ModuleMap

Emit = Callable[[str, torch.Tensor], None]

#: Attribute of an attention module that has the taps of a run in it.
_CLAIM = "_parity_tap"

#: Below this, an additive mask hides a key: half of what the narrowest dtype can hold.
_HIDDEN = -3.0e4


class AttentionTap:
    """Taps of all attention modules of one model.

    Args:
        layers: Layer index of each attention module.
        module_map: What the attention function is called with in this layout.
        emit: Receives taps; replaced at every forward pass.
        cached: Whether keys are tapped before they enter the cache (see :meth:`watch_cache`).
    """

    def __init__(self, layers: Mapping[torch.nn.Module, int], module_map: ModuleMap) -> None:
        self._layers = layers
        self._map = module_map
        self._inner: dict[torch.nn.Module, Callable[..., Any]] = {}
        self._configs: dict[torch.nn.Module, Any] = {}
        self.emit: Emit | None = None
        self.cached = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put the taps in, and leave every module as it was.

        Raises:
            EngineError: Another run has its taps in these modules: the two would mix.
        """
        from transformers import AttentionInterface

        name = f"{_implementation(next(iter(self._layers)))}-parity-{uuid.uuid4().hex}"
        with ExitStack() as stack:
            for module in self._layers:
                self._claim(module)
                stack.callback(module.__dict__.pop, _CLAIM)
            AttentionInterface.register(name, self._attend)
            stack.callback(AttentionInterface._global_mapping.pop, name)
            for module in self._layers:
                config = module.config
                self._configs[module] = config
                self._inner[module] = self._find_function(module, _name_in(config))
                renamed: Any = copy.copy(config)
                renamed._attn_implementation_internal = name
                stack.callback(setattr, module, "config", config)
                module.config = renamed
            yield

    def _claim(self, module: torch.nn.Module) -> None:
        if module.__dict__.setdefault(_CLAIM, self) is not self:
            raise EngineError(
                f"layers.{self._layers[module]}.attn",
                expected="a model that no other engine is running",
                found="taps of another run in it",
                advice="give each engine a model of its own (copy.deepcopy), or run them in turn",
            )

    def watch_cache(self, cache: Any) -> None:
        """Tap keys and values on their way into a cache of ours, before the past joins them."""
        update = cache.update

        def watched(
            key: torch.Tensor, value: torch.Tensor, layer: int, *args: Any, **kw: Any
        ) -> Any:
            self._emit_inputs(layer, None, key, value)
            return update(key, value, layer, *args, **kw)

        cache.update = watched
        self.cached = True

    def _emit_inputs(self, layer: int, *given: torch.Tensor | None) -> None:
        """Emit queries, keys and values, those that are given and that no module makes."""
        for kind, tensor in zip(self._map.inputs, given, strict=True):
            if self.emit is not None and tensor is not None and kind:
                self.emit(f"layers.{layer}.{kind}", tensor)

    def _find_function(self, module: torch.nn.Module, name: str) -> Callable[..., Any]:
        """The attention function that runs under ``name``, or what the module runs in its place."""
        for flag, method in self._map.own_eager.items():
            if name == "eager" and getattr(module.config, flag, False):
                return _own_eager(method)
        return _find_function(module, name)

    def _attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> Any:
        """What transformers calls in place of the attention function."""
        inner = partial(self._call_inner, module)
        emit, at = self.emit, f"layers.{self._layers[module]}.attn"
        if emit is None:
            return inner(query, key, value, attention_mask, **kwargs)
        new = (None, None) if self.cached else (key, value)
        self._emit_inputs(self._layers[module], query, *new)
        emit(f"{at}.keys", key)
        emit(f"{at}.values", value)
        with _SoftmaxWatch(attention_mask) as watch:
            result = inner(query, key, value, attention_mask, **kwargs)
        output, probs = result[0], result[1]
        if watch.scores is not None:
            mask = _visible(attention_mask, query, key)
            if mask is not None:
                emit(f"{at}.mask", mask)
            if watch.uncapped is not None:
                emit(f"{at}.scores", watch.uncapped)
            emit(f"{at}.scores" + ("_capped" if watch.capped else ""), watch.scores)
        if probs is not None:
            emit(f"{at}.probs", probs)
        emit(f"{at}.context", output.transpose(1, 2))
        return result

    def _call_inner(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call the function that would have been called, on a module that has its own config.

        Some functions look their kernel up by the name in it.
        """
        renamed, module.config = module.config, self._configs[module]
        try:
            return self._inner[module](module, *args, **kwargs)
        finally:
            module.config = renamed


class _SoftmaxWatch(TorchFunctionMode):
    """Sees the scores on their way through an attention function that forms them.

    The scores are what the mask is added to or, without a mask, what goes into the softmax. Where
    they have gone through a tanh they are capped, and what was divided before it is not.
    """

    _SOFTMAX = (torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax)
    _ADD = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)
    _DIVIDE = (torch.div, torch.Tensor.div, torch.Tensor.__truediv__)
    _TANH = (torch.tanh, torch.Tensor.tanh)
    _ADD_INTO = (torch.Tensor.add_, torch.Tensor.__iadd__)

    def __init__(self, mask: torch.Tensor | None) -> None:
        super().__init__()
        self._mask = mask
        self.scores: torch.Tensor | None = None
        self.uncapped: torch.Tensor | None = None
        self.capped = False
        self._divided: torch.Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the function and keep what it tells of the scores."""
        if self.scores is None and args:
            if func in self._SOFTMAX:
                self.scores = args[0]
            elif func in self._ADD and len(args) > 1:
                other = [x for x in args[:2] if not self._is_mask(x)]
                self.scores = other[0] if len(other) == 1 else None
            elif func in self._ADD_INTO and self._is_mask(args[1]):
                self.scores = args[0].clone()
            elif func in self._DIVIDE:
                self._divided = args[0]
            elif func in self._TANH:
                self.uncapped, self.capped = self._divided, True
        return func(*args, **(kwargs or {}))

    def _is_mask(self, x: Any) -> bool:
        """Whether ``x`` is the mask or a slice of it."""
        return (
            self._mask is not None
            and isinstance(x, torch.Tensor)
            and x.untyped_storage().data_ptr() == self._mask.untyped_storage().data_ptr()
        )


def _visible(
    mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor | None:
    """Booleans [B, T, S] of the keys that a mask lets through; None if it says more than that."""
    shape = (query.shape[0], query.shape[2], key.shape[2])
    if mask is None:
        return torch.ones(shape, dtype=torch.bool)
    mask = mask[..., : key.shape[2]]
    if mask.dim() != 4 or mask.shape[1] != 1:
        return None
    seen = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not bool((seen | (mask < _HIDDEN)).all()):
        return None
    return seen[:, 0].expand(shape)


def _name_in(config: Any) -> str:
    name = config._attn_implementation
    return "eager" if name is None else str(name)


def _implementation(module: torch.nn.Module) -> str:
    return _name_in(module.config)


def _find_function(module: torch.nn.Module, name: str) -> Callable[..., Any]:
    """The attention function that the module would look up under ``name``.

    The registered one; for eager, the one that the module's own file defines.
    """
    from transformers import AttentionInterface

    forward = inspect.unwrap(getattr(module.forward, "__func__", module.forward))
    scopes = [
        getattr(forward, "__globals__", {}),
        vars(sys.modules[type(module).__module__]),
    ]
    for scope in scopes:
        registry = scope.get("ALL_ATTENTION_FUNCTIONS", AttentionInterface._global_mapping)
        if name in registry:
            found: Callable[..., Any] = registry[name]
            return found
        if name == "eager" and "eager_attention_forward" in scope:
            return _late(scope)
    raise LookupError(f"{type(module).__name__} has no attention function named {name}")


def _own_eager(method: str) -> Callable[..., Any]:
    """A method of the attention module in the signature of an attention function."""

    def call(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> Any:
        return getattr(module, method)(query, key, value, attention_mask)

    return call


def _late(scope: Mapping[str, Any]) -> Callable[..., Any]:
    """The eager function as its file names it when it is called, patched or not."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return scope["eager_attention_forward"](*args, **kwargs)

    return call
