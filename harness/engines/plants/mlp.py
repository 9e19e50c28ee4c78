"""Mistakes in MLPs, in transformers models."""

import math
from collections.abc import Callable
from typing import Any

import torch

from .plant import Plant, Planting, float32_only, replace_forward
from .weights import is_affine

Tensor = torch.Tensor
Put = Callable[[Planting], None]


def is_mixture(config: Any) -> bool:
    """Whether MLPs are experts."""
    return bool(config.model_type == "qwen3_moe")


def gated(config: Any) -> str:
    """Why an MLP has no gate that stands alone."""
    if is_mixture(config):
        return "its MLPs are experts"
    return "its MLP has no gate" if is_affine(config) else ""


def dense(config: Any) -> str:
    """Why an activation is no module of its own."""
    return "its MLPs are experts" if is_mixture(config) else ""


def activation(function: Callable[[Tensor], Tensor]) -> Put:
    """A plant that activates otherwise."""
    return lambda at: at.forward("mlp.act", lambda inner, x: function(x))


def _unless(*names: str) -> Callable[[Any], str]:
    """A reason for configs whose activation it is."""

    def reason(config: Any) -> str:
        for key in ("hidden_activation", "activation_function", "hidden_act"):
            if getattr(config, key, None) is not None:
                own = getattr(config, key)
                return dense(config) or (f"its activation is {own}" if own in names else "")
        return dense(config)

    return reason


def _erf(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))


def _tanh(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


def _pair_exchanged(at: Planting) -> None:
    gate, up = at.module("mlp.gate"), at.module("mlp.up")
    gate.weight, up.weight = up.weight, gate.weight


def _by_turns(at: Planting) -> None:
    gate, up = at.module("mlp.gate"), at.module("mlp.up")
    fused = torch.cat([gate.weight, up.weight])
    gate.weight, up.weight = (torch.nn.Parameter(fused[n::2], requires_grad=False) for n in (0, 1))


def _halves_of_turns(at: Planting) -> None:
    gate, up = at.module("mlp.gate"), at.module("mlp.up")
    fused = torch.stack([gate.weight, up.weight], dim=1).flatten(0, 1)
    halves = fused.chunk(2)
    gate.weight, up.weight = (torch.nn.Parameter(half, requires_grad=False) for half in halves)


#: From gate, up and activation to what goes into the down projection.
Product = Callable[[Tensor, Tensor, Callable[[Tensor], Tensor]], Tensor]


def product(change: Product, *, of_up: bool = False) -> Put:
    """A plant that multiplies gate and up otherwise; the activation sees the gate, or up."""

    def put(at: Planting) -> None:
        gate, up, act, down = (at.module(f"mlp.{name}") for name in ("gate", "up", "act", "out"))
        activate = act.forward

        def forward(inner: Any, x: Tensor) -> Any:
            gated, plain = gate(x), up(x)
            act(plain if of_up else gated)  # so that it is tapped
            return down(change(gated, plain, activate))

        replace_forward(at.layer_module().mlp, forward)

    return put


def _half_gate(at: Planting) -> None:
    at.forward("mlp.act", lambda inner, x: inner(x.bfloat16().float()))


def _narrow_gelu(config: Any, dtype: str) -> str:
    """GELU by tanh and by erf differ by 5e-4."""
    if dtype == "float32" or "gelu" not in str(_name_of(config)):
        return ""
    return "the two GELUs differ by less than a rounding in half precision"


def _name_of(config: Any) -> Any:
    keys = ("hidden_activation", "activation_function", "hidden_act")
    return next((v for key in keys if (v := getattr(config, key, None)) is not None), "")


def _act(
    fault: str, name: str, function: Callable[[Tensor], Tensor], *same: str, **more: Any
) -> Plant:
    return Plant(
        fault=fault,
        name=name,
        put=activation(function),
        first="mlp.act",
        reason=_unless(*same),
        **more,
    )


_BY_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")

#: They differ by 5e-4, which half precision hides.
_GELUS = ("mlp-gelu-exact", "mlp-gelu-tanh")

PLANTS = (
    _act("mlp-gelu-exact", "by erf", _erf, "gelu", equivalent=_narrow_gelu, alike=_GELUS),
    _act("mlp-gelu-tanh", "by tanh", _tanh, *_BY_TANH, alike=_GELUS),
    _act("mlp-gelu-quick", "1.702", lambda x: x * torch.sigmoid(1.702 * x), "quick_gelu"),
    _act("mlp-silu", "silu", torch.nn.functional.silu, "silu", "swish"),
    _act("mlp-relu", "relu", torch.relu, "relu"),
    _act("mlp-relu-squared", "relu squared", lambda x: torch.relu(x) ** 2, "relu2"),
    _act("mlp-sigmoid", "sigmoid", torch.sigmoid),
    _act("mlp-activation-missing", "none", lambda x: x),
    Plant(
        fault="mlp-activation-low-precision",
        name="its input in bfloat16",
        put=_half_gate,
        first="mlp.act",
        reason=dense,
        equivalent=float32_only,
    ),
    Plant(
        fault="mlp-activation-low-precision",
        name="in float16",
        put=lambda at: at.forward("mlp.act", lambda inner, x: inner(x.half()).float()),
        first="mlp.act",
        reason=dense,
        equivalent=float32_only,
    ),
    Plant(
        fault="mlp-activation-up",
        name="gate * activation(up)",
        put=product(lambda gate, up, activate: gate * activate(up), of_up=True),
        first="mlp.act",
        reason=gated,
    ),
    Plant(
        fault="mlp-gate-up-exchanged",
        name="each other's weights",
        put=_pair_exchanged,
        first="mlp.gate",
        reason=gated,
    ),
    Plant(
        fault="mlp-gate-up-interleaved",
        name="cut by turns",
        put=_by_turns,
        first="mlp.gate",
        reason=gated,
    ),
    Plant(
        fault="mlp-gate-up-interleaved",
        name="cut in halves",
        put=_halves_of_turns,
        first="mlp.gate",
        reason=gated,
    ),
    Plant(
        fault="mlp-product-missing",
        name="the gate alone",
        put=product(lambda gate, up, activate: activate(gate)),
        first="mlp.prod",
        reason=gated,
    ),
    Plant(
        fault="mlp-product-missing",
        name="up alone",
        put=product(lambda gate, up, activate: up),
        first="mlp.prod",
        reason=gated,
    ),
    Plant(
        fault="mlp-product-sum",
        name="a sum",
        put=product(lambda gate, up, activate: activate(gate) + up),
        first="mlp.prod",
        reason=gated,
    ),
    Plant(
        fault="mlp-activation-after",
        name="of the product",
        put=product(lambda gate, up, activate: activate(gate * up)),
        first="mlp.prod",
        reason=gated,
    ),
)
