"""Taps on module boundaries of a transformers model, by forward hooks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..taps import split
from .hf_modules import Hook, ModuleMap

Emit = Callable[[str, torch.Tensor], None]


class ModuleTaps:
    """Hooks of one model, there only while installed.

    Args:
        model: The model.
        module_map: Which module makes which tap.

    Attributes:
        attention_layers: Layer index of each attention module.
        absent: Kinds of taps whose module this model does not have, with the reason.
        emit: Receives taps while a forward pass runs, None for a plain one.
    """

    def __init__(self, model: torch.nn.Module, module_map: ModuleMap) -> None:
        modules = dict(model.named_modules(remove_duplicate=False))
        config: Any = model.config
        self.attention_layers: dict[torch.nn.Module, int] = {}
        self.absent: dict[str, str] = {}
        self.emit: Emit | None = None
        self._hooks: list[tuple[torch.nn.Module, str, Hook]] = []
        heads = int(getattr(config, "head_dim", 0) or 0)
        self._head_dim = heads or config.hidden_size // config.num_attention_heads
        for layer in range(config.num_hidden_layers):
            module = modules.get(module_map.attention.format(n=layer))
            if module is not None:
                self.attention_layers[module] = layer
        for hook in module_map.hooks:
            self._place(hook, modules, config.num_hidden_layers)

    def _place(self, hook: Hook, modules: dict[str, torch.nn.Module], layers: int) -> None:
        for layer in range(layers) if "{n}" in hook.tap else (0,):
            name, tap = hook.module.format(n=layer), hook.tap.format(n=layer)
            if name in modules:
                self._hooks.append((modules[name], tap, hook))
            else:
                self.absent[split(tap).kind] = f"the model has no module {name}"

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put the hooks in; they are gone afterwards, whatever happens."""
        with ExitStack() as stack:
            for module, tap, hook in self._hooks:
                if hook.side == "in":
                    handle = module.register_forward_pre_hook(self._before(tap, hook))
                else:
                    handle = module.register_forward_hook(self._after(tap, hook))
                stack.callback(handle.remove)
            yield

    def _before(self, tap: str, hook: Hook) -> Callable[..., None]:
        def tapped(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            if self.emit is not None and args:
                self.emit(tap, self._laid_out(args[0], hook))

        return tapped

    def _after(self, tap: str, hook: Hook) -> Callable[..., None]:
        def tapped(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if self.emit is not None:
                tensor = output[0] if isinstance(output, tuple) else output
                self.emit(tap, self._laid_out(tensor, hook))

        return tapped

    def _laid_out(self, tensor: torch.Tensor, hook: Hook) -> torch.Tensor:
        """The tensor with its axes as the table of taps has them."""
        if hook.layout == "BT(HD)":
            tensor = tensor.reshape(*tensor.shape[:-1], -1, self._head_dim)
        return tensor if hook.layout == "BTC" else tensor.transpose(1, 2)
