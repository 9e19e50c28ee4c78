"""What planting a fault in a transformers model takes.

The functions here patch one model object: submodules, parameters, attention functions, arguments.
They share no code with :mod:`harness.faults`, so that a score is about two implementations.
"""

import copy
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from ..hf import cache_argument
from ..hf_modules import MODULE_MAPS

Tensor = torch.Tensor

#: Kinds of taps outside the layers.
OUTSIDE = frozenset(
    {
        *("embed", "pos_embed", "embed_sum", "embed_scaled", "final_norm"),
        *("logits", "logits_uncapped", "logits_unscaled"),
    }
)

#: Stands for an attention function: ``change(inner, module, q, k, v, mask, **kw)``.
ChangedAttention = Callable[..., Any]


def twin(model: Any, *, attention: str | None = None) -> Any:
    """A copy of a transformers model that shares its parameters.

    What is patched into the copy stays in the copy as long as parameters are replaced and not
    written to.
    """
    copied = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    if attention is not None:
        copied.set_attn_implementation(attention)
    return copied


class Planting:
    """One model into which a fault is planted, at one layer.

    Args:
        model: A transformers model that may be changed.
        layer: The layer for faults of a layer.
        stack: Takes back what is global when it is closed.

    Attributes:
        config: The model's config.
    """

    def __init__(self, model: Any, layer: int, stack: ExitStack) -> None:
        self.model = model
        self.layer = layer
        self.config: Any = model.config
        self._stack = stack
        self._map = MODULE_MAPS[model.config.model_type]

    @property
    def head_dim(self) -> int:
        """D."""
        given = getattr(self.config, "head_dim", None)
        return int(given or self.config.hidden_size // self.config.num_attention_heads)

    def module(self, tap: str) -> Any:
        """The module that makes a tap, for example ``attn.q`` (of the layer) or ``embed``.

        Raises:
            LookupError: No module of this model makes it.
        """
        name = self._name(tap)
        return functools.reduce(getattr, name.split("."), self.model)

    def attention_module(self, layer: int | None = None) -> Any:
        """The attention module of a layer."""
        name = self._map.attention.format(n=self.layer if layer is None else layer)
        return functools.reduce(getattr, name.split("."), self.model)

    def layer_module(self) -> Any:
        """The layer."""
        name = self._map.layer.format(n=self.layer)
        return functools.reduce(getattr, name.split("."), self.model)

    def rotary(self) -> Any:
        """The module that makes cosines and sines, shared by all layers; its own copy."""
        return self.model.model.rotary_emb

    def forward(self, tap: str, change: Callable[..., Any]) -> None:
        """Let ``change(inner, *args, **kwargs)`` stand for the forward of a tap's module."""
        replace_forward(self.module(tap), change)

    def parameter(self, tap: str, change: Callable[[Tensor], Tensor], name: str = "weight") -> None:
        """Replace a parameter of a tap's module by what ``change`` makes of it.

        Raises:
            LookupError: The module has no such parameter of its own.
        """
        module = self.module(tap)
        old = module._parameters.get(name)
        if old is None:
            raise LookupError(f"the module of {tap} has no {name} of its own")
        new = change(old.detach().clone())
        setattr(module, name, torch.nn.Parameter(new.to(old.dtype), requires_grad=False))

    def no_parameter(self, tap: str, name: str = "bias") -> None:
        """Take a parameter out of a tap's module."""
        setattr(self.module(tap), name, None)

    def attention(self, change: ChangedAttention, *, layers: list[int] | None = None) -> None:
        """Let ``change(inner, module, q, k, v, mask, **kw)`` stand for the attention function.

        Args:
            change: Calls ``inner`` with what it likes, or computes all of it: q [B, H, T, D], k and
                v [B, K, S, D], an additive or boolean mask or None; context [B, T, H, D] and
                probabilities or None.
            layers: In which layers; this one if None.
        """
        for layer in [self.layer] if layers is None else layers:
            module = self.attention_module(layer)
            inner = _attention_function(module)
            name = f"{module.config._attn_implementation or 'eager'}-planted-{id(module):x}"
            AttentionInterface.register(name, functools.partial(change, inner))
            self._stack.callback(AttentionInterface._global_mapping.pop, name, None)
            renamed = copy.copy(module.config)
            renamed._attn_implementation_internal = name
            module.config = renamed

    def rotation(self, apply: Callable[..., tuple[Tensor, Tensor]]) -> None:
        """Let ``apply(q, k, cos, sin, ...)`` rotate queries and keys of this layer.

        Its forward is given globals of its own, so that no other model is touched.
        """
        module = self.attention_module()
        forward: Any = inspect.unwrap(type(module).forward)
        own = types.FunctionType(
            forward.__code__,
            {**forward.__globals__, "apply_rotary_pos_emb": apply},
            forward.__name__,
            forward.__defaults__,
            forward.__closure__,
        )
        own.__kwdefaults__ = forward.__kwdefaults__
        module.forward = types.MethodType(own, module)

    def arguments(self, change: Callable[[dict[str, Any], Any], None]) -> None:
        """Let ``change(kwargs, cache)`` touch the arguments of every forward pass of the model.

        ``cache`` is the KV cache that is passed, None if there is none.
        """
        inner, name = self.model.forward, cache_argument(self.model)

        @functools.wraps(inner)
        def forward(**kwargs: Any) -> Any:
            change(kwargs, kwargs.get(name))
            return inner(**kwargs)

        self.model.forward = forward

    def _name(self, tap: str) -> str:
        for hook in self._map.hooks:
            kind = hook.tap.removeprefix("layers.{n}.")
            if kind == tap and hook.side == "out":
                return hook.module.format(n=self.layer)
        raise LookupError(f"no module of {self.config.model_type} makes {tap}")


def replace_forward(module: Any, change: Callable[..., Any]) -> None:
    """Let ``change(inner, *args, **kwargs)`` stand for a module's forward, in this object alone."""
    module.forward = functools.partial(change, module.forward)


def _attention_function(module: Any) -> Callable[..., Any]:
    """The function that this module calls, by the name in its config."""
    import sys

    name = module.config._attn_implementation or "eager"
    if name != "eager":
        found: Callable[..., Any] = AttentionInterface._global_mapping[name]
        return found
    eager: Callable[..., Any] = vars(sys.modules[type(module).__module__])[
        "eager_attention_forward"
    ]
    return eager


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One way to make a mistake in a transformers model.

    Attributes:
        fault: Id in the catalogue.
        name: What exactly is done, in a few words.
        put: Does it.
        first: Kind of the tap that fails first with eager attention; ``head`` for what the head's
            matrix makes, whose name depends on the config.
        fused: The same with a kernel that forms neither scores nor probabilities.
        everywhere: Whether it changes all layers, so that the first one fails.
        reason: Why it cannot be planted into a model of such a config, empty if it can.
        equivalent: Why it changes no number of a model of such a config and dtype, empty if it
            does.
        chunk: Forward pass in which it shows first: 1 for the first decoding step.
        alike: Ids of faults that give the same numbers in this op on any input, so that either may
            be named first.
        length: Least number of tokens of the prompt on which it shows.
        padding: ``left`` or ``right`` for what shows only in a batch that is padded on that side.
        cached: Whether it shows only with a cache, although in the first forward pass.
        tapped: Whether only tapped probabilities tell its name; with a fused kernel it is caught
            and placed.
        at: From a config and the layer that is asked for to the first layer that it changes.
    """

    fault: str
    name: str
    put: Callable[[Planting], None]
    first: str
    fused: str = ""
    everywhere: bool = False
    reason: Callable[[Any], str] = lambda config: ""
    equivalent: Callable[[Any, str], str] = lambda config, dtype: ""
    chunk: int = 0
    alike: tuple[str, ...] = ()
    length: int = 2
    padding: str = ""
    cached: bool = False
    tapped: bool = False
    at: Callable[[Any, int], int] | None = None

    def tap(self, layer: int, *, fused: bool, config: Any) -> str:
        """Name of the tap at which a run of a model of that config must fail first."""
        kind = (self.fused or self.first) if fused else self.first
        if kind == "head":
            return head_tap(config)
        if kind in OUTSIDE:
            return kind
        return f"layers.{self.place(layer, config)}.{kind}"

    @property
    def decodes(self) -> bool:
        """Whether forward passes behind the first one are needed."""
        return self.cached or self.chunk > 0

    def place(self, layer: int, config: Any) -> int:
        """First layer that it changes in a model of that config."""
        if self.at is not None:
            return self.at(config, layer)
        return 0 if self.everywhere else layer

    @contextmanager
    def planted(self, model: Any, layer: int) -> Iterator[Any]:
        """A twin of the model with the fault in it."""
        with ExitStack() as stack:
            faulty = twin(model)
            own = layer if self.at is None else self.at(model.config, layer)
            self.put(Planting(faulty, own, stack))
            yield faulty


def head_tap(config: Any) -> str:
    """What the head's matrix makes: the logits, or what they are made of."""
    if getattr(config, "final_logit_softcapping", None):
        return "logits_uncapped"
    return "logits_unscaled" if config.model_type == "granite" else "logits"


def model_type(config: Any) -> str:
    """Family of a config."""
    return str(config.model_type)


def only(*families: str, why: str = "") -> Callable[[Any], str]:
    """A reason for every family but these."""

    def reason(config: Any) -> str:
        fits = model_type(config) in families
        return "" if fits else why or f"{model_type(config)} has no such part"

    return reason


def float32_only(config: Any, dtype: str) -> str:
    """Why rounding to a narrow dtype changes nothing in a model that is of one."""
    return "" if dtype == "float32" else "the model is in half precision"


def one_kv_head(config: Any, dtype: str) -> str:
    """Why another order of kv heads changes nothing."""
    kv = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return "there is one kv head" if kv == 1 else ""


def rope_of(config: Any) -> Mapping[str, Any]:
    """Rope parameters of a config; of the full layers where each layer type has its own."""
    given = getattr(config, "rope_parameters", None) or {}
    return dict(given.get("full_attention", given))
