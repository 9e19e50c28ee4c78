"""Taps on module boundaries of a transformers model, by forward hooks."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..taps import split
from .hf_modules import Hook, ModuleMap

Emit = Callable[[str, torch.Tensor], None]

#: A layer and a module that runs in it; None for what lies outside the layers.
_Place = tuple[torch.nn.Module, int | None]


class ModuleTaps:
    """Hooks of one model, there only while installed.

    One module object may stand in several places, an activation that all layers share for example.
    So a call is told by the layer that is running and by how many calls of the module came before
    it in that layer. Calls beyond the places that the map knows give no tap.

    Args:
        model: The model.
        module_map: Which module makes which tap.

    Attributes:
        attention_layers: Layer index of each attention module.
        absent: Kinds of taps whose module this model does not have, with the reason.
    """

    def __init__(self, model: torch.nn.Module, module_map: ModuleMap) -> None:
        modules = dict(model.named_modules(remove_duplicate=False))
        config: Any = model.config
        self.attention_layers: dict[torch.nn.Module, int] = {}
        self.absent: dict[str, str] = {}
        self._emit: Emit | None = None
        self._layer: int | None = None
        self._calls: Counter[_Place] = Counter()
        self._entered: Counter[torch.nn.Module] = Counter()
        heads = int(getattr(config, "head_dim", 0) or 0)
        self._head_dim = heads or config.hidden_size // config.num_attention_heads
        self._layers: dict[torch.nn.Module, list[int]] = defaultdict(list)
        for layer in range(config.num_hidden_layers):
            attention = modules.get(module_map.attention.format(n=layer))
            if attention is not None:
                self.attention_layers[attention] = layer
            whole = modules.get(module_map.layer.format(n=layer))
            if whole is not None:
                self._layers[whole].append(layer)
        self._hooks: dict[_Place, dict[str, list[Hook]]] = defaultdict(lambda: defaultdict(list))
        self._batch = 1
        for hook in module_map.hooks:
            wanted, key = not hook.where.startswith("!"), hook.where.removeprefix("!")
            if key and bool(getattr(config, key, None)) is not wanted:
                continue
            self._place(hook, modules, config.num_hidden_layers)

    def _place(self, hook: Hook, modules: dict[str, torch.nn.Module], layers: int) -> None:
        for layer in range(layers) if "{n}" in hook.tap else (hook.layer,):
            name = hook.module.format(n=layer)
            if hook.unless and hook.unless.format(n=layer) in modules:
                continue
            if name in modules:
                self._hooks[modules[name], layer][name].append(hook)
            else:
                self.absent[split(hook.tap.format(n=0)).kind] = f"the model has no module {name}"

    def begin(self, emit: Emit | None, *, batch: int = 1) -> None:
        """Send the taps of the forward pass that follows to ``emit``, None for a plain one."""
        self._emit = emit
        self._batch = batch
        self._layer = None
        self._calls.clear()
        self._entered.clear()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put the hooks in; they are gone afterwards, whatever happens."""
        with ExitStack() as stack:
            for layer in self._layers:
                stack.callback(layer.register_forward_pre_hook(self._enter).remove)
            for module in dict.fromkeys(module for module, _ in self._hooks):
                stack.callback(module.register_forward_pre_hook(self._before).remove)
                stack.callback(module.register_forward_hook(self._after).remove)
            for layer in self._layers:
                stack.callback(layer.register_forward_hook(self._leave).remove)
            yield

    def _enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        entered, layers = self._entered[module], self._layers[module]
        self._entered[module] += 1
        self._layer = layers[entered] if entered < len(layers) else None

    def _leave(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._layer = None

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if args:
            self._send(module, "in", args)

    def _after(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._send(module, "out", output)
        self._calls[module, self._layer] += 1

    def _send(self, module: torch.nn.Module, side: str, passed: Any) -> None:
        names = list(self._hooks.get((module, self._layer), {}).values())
        call = self._calls[module, self._layer]
        if self._emit is None or call >= len(names):
            return
        for hook in names[call]:
            if hook.side == side:
                self._emit(hook.tap.format(n=self._layer), self._laid_out(hook.take(passed), hook))

    def _laid_out(self, tensor: torch.Tensor, hook: Hook) -> torch.Tensor:
        """The tensor with its axes as the table of taps has them."""
        if hook.layout == "1TC":
            return tensor.expand(self._batch, -1, -1) if tensor.shape[0] == 1 else tensor
        if hook.layout == "(BT)C":
            return tensor.reshape(self._batch, -1, tensor.shape[-1])
        if hook.layout == "BT(HD)":
            tensor = tensor.reshape(*tensor.shape[:-1], -1, self._head_dim)
        return tensor if hook.layout == "BTC" else tensor.transpose(1, 2)
