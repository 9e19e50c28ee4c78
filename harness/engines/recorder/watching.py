"""Watches a forward pass: every module by hooks, and the functions of torch inside them."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .attention import SDPA, Attention
from .products import PRODUCTS
from .store import Taps

_GROUPED = ("grouped_mm", "_grouped_mm")
_STARTS = (SDPA, *PRODUCTS)


class Watch:
    """Taps of every module of a model.

    Args:
        model: Any model.
        taps: Receives them.
        batch: Rows of the pass.
    """

    def __init__(self, model: torch.nn.Module, taps: Taps, batch: int) -> None:
        self._model = model
        self._taps = taps
        self._batch = batch
        self._length = 0
        self._running: list[_Call] = []
        self._calls: Counter[str] = Counter()

    def begin(self, name: str, chunk: int, length: int) -> None:
        """A chunk of a pass begins, with so many tokens in a row."""
        self._taps.begin(name, chunk)
        self._length = length
        self._running.clear()
        self._calls.clear()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put hooks on every module but the whole model; they are gone afterwards."""
        with ExitStack() as stack:
            for path, module in self._model.named_modules():
                if path:
                    enter, leave = self._hooks(path, type(module).__name__)
                    before = module.register_forward_pre_hook(enter, with_kwargs=True)
                    stack.callback(before.remove)
                    stack.callback(module.register_forward_hook(leave).remove)
            stack.enter_context(_Functions(self))
            yield

    def _hooks(self, path: str, class_name: str) -> tuple[Any, Any]:
        def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            self._calls[path] += 1
            times = self._calls[path]
            call = _Call(self, path, class_name, path if times == 1 else f"{path}#{times}")
            self._running.append(call)
            given = _first(args) if args else None
            given = _first_named(kwargs) if given is None else given
            if given is not None:
                call.emit("in", given)

        def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
            call = self._running.pop()
            made = _first(output)
            if made is not None:
                call.emit("out", made)

        return enter, leave

    def offer(self, call: "_Call", role: str, tensor: torch.Tensor, scale: float | None) -> None:
        """Pass a tap on under its name."""
        name = {"out": call.label, "in": f"{call.label}.in"}.get(role, f"{call.label}:{role}")
        self._taps.offer(
            name,
            tensor,
            module=call.path,
            class_name=call.class_name,
            role=role,
            new_only=role == "in",
            scale=scale,
        )

    def called(self, name: str, args: tuple[Any, ...], kwargs: Any, out: Any) -> None:
        """A function of torch was called: attention, perhaps, in a module that is running."""
        if not self._running:
            return
        call = self._attending(name, args)
        if call is None or call.attention is None:
            return
        try:
            call.attention.see(name, args, kwargs, out)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
            call.attention = None  # code unlike any that is known: its modules are tapped anyway
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"{call.path}: taps inside attention left out: {why}", stacklevel=1)

    def _attending(self, name: str, args: tuple[Any, ...]) -> "_Call | None":
        """The call whose attention a function may belong to; the innermost of several."""
        above = [(call, call.attention) for call in reversed(self._running) if call.attention]
        if name not in _STARTS:
            return next((call for call, attention in above if attention.open), None)
        waiting = next((call for call, attention in above if attention.awaits(args)), None)
        if waiting is not None:
            return waiting
        call = self._running[-1]
        call.attention = call.attention or Attention(call.emit, self._batch, self._length)
        return call


class _Call:
    """A call of a module that is running."""

    def __init__(self, watch: Watch, path: str, class_name: str, label: str) -> None:
        self._watch = watch
        self.path = path
        self.class_name = class_name
        self.label = label
        self.attention: Attention | None = None

    def emit(self, role: str, tensor: torch.Tensor, scale: float | None = None) -> None:
        """Pass a tap on."""
        self._watch.offer(self, role, tensor, scale)


class _Functions(TorchFunctionMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self._watch.called(getattr(func, "__name__", ""), args, kwargs or {}, out)
        return out


class Wide(TorchFunctionMode):
    """Computes in float64 what a model would compute in float32, whatever its dtype."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function with every mention of float32 replaced."""
        if func is torch.Tensor.float:
            return torch.Tensor.double(*args, **(kwargs or {}))
        named = {key: _wide(value) for key, value in (kwargs or {}).items()}
        if getattr(func, "__name__", "") in _GROUPED and args[0].dtype == torch.float64:
            return _grouped(*args, **named)
        return func(*map(_wide, args), **named)


def _grouped(rows: torch.Tensor, experts: torch.Tensor, **given: Any) -> torch.Tensor:
    """Rows [N, C] times each one's expert [E, C, F], for which torch has no kernel in float64.

    Args:
        rows: Sorted by expert.
        experts: The matrices.
        **given: ``offs``, where each expert's rows end, and perhaps ``bias`` [E, F].
    """
    out = rows.new_zeros(rows.shape[0], experts.shape[-1])
    bias, start = given.get("bias"), 0
    for number, end in enumerate(given["offs"].tolist()):
        out[start:end] = rows[start:end] @ experts[number]
        if bias is not None:
            out[start:end] += bias[number]
        start = end
    return out


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def _first(given: Any) -> torch.Tensor | None:
    """The first tensor of numbers in what a module takes or hands out."""
    if isinstance(given, torch.Tensor):
        return given if given.is_floating_point() or given.is_complex() else None
    parts = given.values() if isinstance(given, Mapping) else given
    if isinstance(given, Mapping | list | tuple):
        for part in parts:
            found = _first(part)
            if found is not None:
                return found
    return None


def _first_named(given: dict[str, Any]) -> torch.Tensor | None:
    """The same of named arguments: hidden states before anything else, and no masks."""
    names = sorted(given, key=lambda name: name != "hidden_states")
    wanted = [given[name] for name in names if not {"mask", "position"} & set(name.split("_"))]
    return _first(wanted)
