"""Mistakes in where norms stand and in the residual stream, in transformers models."""

from collections.abc import Callable
from typing import Any

import torch

from .norm import from_one
from .plant import Plant, Planting, float32_only, replace_forward

Tensor = torch.Tensor
Put = Callable[[Planting], None]

#: From stream and result of a block to the stream behind it.
Sum = Callable[[Tensor, Tensor], Tensor]


def left_out(tap: str) -> Put:
    """A plant that lets a norm do nothing."""
    return lambda at: at.forward(tap, lambda inner, x: x)


def twice(tap: str) -> Put:
    """A plant that norms twice."""
    return lambda at: at.forward(tap, lambda inner, x: inner(inner(x)))


def _head_norms(at: Planting) -> None:
    norm = at.module("final_norm").forward
    replace_forward(at.model.lm_head, lambda inner, x: inner(norm(x)))


def _swap(one: str, other: str) -> Put:
    def put(at: Planting) -> None:
        modules = at.module(one), at.module(other)
        for name in [name for name, _ in modules[0].named_parameters()]:
            held = [getattr(module, name) for module in modules]
            for module, parameter in zip(modules, reversed(held), strict=True):
                setattr(module, name, parameter)

    return put


def keep_input(module: Any, held: dict[str, Tensor], name: str) -> None:
    """Note what goes into a module."""

    def forward(inner: Any, x: Tensor, *rest: Any, **others: Any) -> Any:
        held[name] = x
        return inner(x, *rest, **others)

    replace_forward(module, forward)


def keep_output(module: Any, held: dict[str, Tensor], name: str) -> None:
    """Note what comes out of a module, of several things the first."""

    def forward(inner: Any, *given: Any, **others: Any) -> Any:
        made = inner(*given, **others)
        held[name] = made[0] if isinstance(made, tuple) else made
        return made

    replace_forward(module, forward)


def _reads_layer_input(at: Planting) -> None:
    held: dict[str, Tensor] = {}
    keep_input(at.module("attn_norm"), held, "input")
    at.forward("mlp_norm", lambda inner, x: inner(held["input"]))


def _norm_of_sum(at: Planting) -> None:
    held: dict[str, Tensor] = {}
    keep_input(at.module("attn_norm"), held, "input")
    at.forward("attn_post_norm", lambda inner, x: inner(held["input"] + x))


def residual(change: Callable[[dict[str, Tensor]], Tensor]) -> Put:
    """A plant that makes the stream behind the MLP of ``input``, ``stream``, ``normed``, ``block``.

    ``input`` is what the layer is given, ``stream`` what it is behind the attention, ``normed``
    that behind its norm.
    """

    def put(at: Planting) -> None:
        held: dict[str, Tensor] = {}
        last = "mlp_post_norm" if from_one(at.config) else "mlp.out"
        keep_input(at.module("attn_norm"), held, "input")
        keep_input(at.module("mlp_norm"), held, "stream")
        keep_output(at.module("mlp_norm"), held, "normed")
        keep_output(at.module(last), held, "block")

        def forward(inner: Any, *given: Any, **others: Any) -> Any:
            made = inner(*given, **others)
            changed = change(held)
            return (changed, *made[1:]) if isinstance(made, tuple) else changed

        replace_forward(at.layer_module(), forward)

    return put


def _no_post_norm(config: Any) -> str:
    return "" if from_one(config) else "no norm stands behind a block"


def _no_multiplier(config: Any) -> str:
    multiplied = getattr(config, "residual_multiplier", 1.0) != 1.0
    return "" if multiplied else "the config has no multiplier of residuals"


def _is_multiplied_so(config: Any, dtype: str) -> str:
    own = getattr(config, "residual_multiplier", 1.0)
    return "the config multiplies by 0.7" if own == 0.7 else ""


PLANTS = (
    Plant(fault="norm-skipped", name="no norm", put=left_out("attn_norm"), first="attn_norm"),
    Plant(
        fault="norm-skipped",
        name="the weight alone",
        put=lambda at: at.forward("mlp_norm", lambda inner, x: x * at.module("mlp_norm").weight),
        first="mlp_norm",
        reason=lambda config: "it multiplies by 1 + weight" if from_one(config) else "",
    ),
    Plant(
        fault="norm-post-missing",
        name="behind the attention",
        put=left_out("attn_post_norm"),
        first="attn_post_norm",
        reason=_no_post_norm,
    ),
    Plant(
        fault="norm-post-missing",
        name="behind the MLP",
        put=left_out("mlp_post_norm"),
        first="mlp_post_norm",
        reason=_no_post_norm,
    ),
    Plant(
        fault="norm-final-missing",
        name="no norm before the head",
        put=left_out("final_norm"),
        first="final_norm",
    ),
    Plant(
        fault="norm-twice",
        name="twice before the head",
        put=twice("final_norm"),
        first="final_norm",
    ),
    Plant(
        fault="norm-twice",
        name="once more in the head",
        put=_head_norms,
        first="head",
    ),
    Plant(fault="norm-twice", name="before the MLP", put=twice("mlp_norm"), first="mlp_norm"),
    Plant(
        fault="norm-weights-swapped",
        name="norms of attention and MLP",
        put=_swap("attn_norm", "mlp_norm"),
        first="attn_norm",
    ),
    Plant(
        fault="norm-weights-swapped",
        name="norms behind the attention and before the MLP",
        put=_swap("attn_post_norm", "mlp_norm"),
        first="attn_post_norm",
        reason=_no_post_norm,
    ),
    Plant(
        fault="norm-input",
        name="the MLP's norm reads the layer's input",
        put=_reads_layer_input,
        first="mlp_norm",
    ),
    Plant(
        fault="norm-post-of-sum",
        name="of the sum with the stream",
        put=_norm_of_sum,
        first="attn_post_norm",
        reason=_no_post_norm,
    ),
    Plant(
        fault="residual-missing",
        name="the MLP's result alone",
        put=residual(lambda held: held["block"]),
        first="resid_post",
    ),
    Plant(
        fault="residual-block-missing",
        name="without the MLP",
        put=residual(lambda held: held["stream"]),
        first="resid_post",
    ),
    Plant(
        fault="residual-twice",
        name="the stream twice",
        put=residual(lambda held: 2 * held["stream"] + held["block"]),
        first="resid_post",
        reason=lambda config: "" if _no_multiplier(config) else "the block is multiplied",
    ),
    Plant(
        fault="residual-twice",
        name="the MLP twice",
        put=residual(lambda held: held["stream"] + 2 * held["block"]),
        first="resid_post",
        reason=lambda config: "" if _no_multiplier(config) else "the block is multiplied",
    ),
    Plant(
        fault="residual-normed",
        name="the sum with the normed stream",
        put=residual(lambda held: held["normed"] + held["block"]),
        first="resid_post",
        reason=lambda config: "" if _no_multiplier(config) else "the block is multiplied",
    ),
    Plant(
        fault="residual-stale",
        name="the layer's input",
        put=residual(lambda held: held["input"] + held["block"]),
        first="resid_post",
        reason=lambda config: "" if _no_multiplier(config) else "the block is multiplied",
    ),
    Plant(
        fault="residual-multiplier",
        name="the MLP by 0.7",
        put=residual(lambda held: held["stream"] + 0.7 * held["block"]),
        first="resid_post",
        equivalent=_is_multiplied_so,
    ),
    Plant(
        fault="residual-multiplier",
        name="no multiplier",
        put=residual(lambda held: held["stream"] + held["block"]),
        first="resid_post",
        reason=_no_multiplier,
    ),
    Plant(
        fault="residual-low-precision",
        name="kept in bfloat16",
        put=residual(lambda held: (held["stream"].bfloat16() + held["block"].bfloat16()).float()),
        first="resid_post",
        reason=lambda config: "" if _no_multiplier(config) else "the block is multiplied",
        equivalent=float32_only,
    ),
)
