"""Mistakes in mixtures of experts, in transformers models."""

from collections.abc import Callable
from typing import Any

import torch

from .mlp import is_mixture
from .plant import Plant, Planting, replace_forward

Tensor = torch.Tensor
Put = Callable[[Planting], None]

#: Logits [N, E], weights [N, k] and indices [N, k] of the chosen experts.
Routed = tuple[Tensor, Tensor, Tensor]


def router(change: Callable[[Tensor, Tensor, Tensor], Routed]) -> Put:
    """A plant that changes what the router gives."""

    def put(at: Planting) -> None:
        replace_forward(at.layer_module().mlp.gate, lambda inner, x: change(*inner(x)))

    return put


def weights(change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Put:
    """A plant that weights the chosen experts otherwise."""
    return router(lambda logits, held, chosen: (logits, change(logits, held, chosen), chosen))


def choice(change: Callable[[Tensor, Tensor], Tensor]) -> Put:
    """A plant that chooses other experts, and weights those as configured."""

    def put(at: Planting) -> None:
        def changed(logits: Tensor, held: Tensor, chosen: Tensor) -> Routed:
            other = change(logits, chosen)
            probs = logits.float().softmax(-1).gather(-1, other)
            if at.config.norm_topk_prob:
                probs = probs / probs.sum(-1, keepdim=True)
            return logits, probs.to(held.dtype), other

        router(changed)(at)

    return put


def experts(change: Callable[[Any, Tensor, Tensor, Tensor], Tensor]) -> Put:
    """A plant that lets ``change(inner, x, indices, weights)`` stand for the experts."""

    def put(at: Planting) -> None:
        replace_forward(at.layer_module().mlp.experts, change)

    return put


def matrices(name: str, change: Callable[[Tensor], Tensor]) -> Put:
    """A plant that replaces the matrices of all experts, [E, ...]."""

    def put(at: Planting) -> None:
        module = at.layer_module().mlp.experts
        changed = change(getattr(module, name).detach()).contiguous()
        setattr(module, name, torch.nn.Parameter(changed, requires_grad=False))

    return put


def _several(*puts: Put) -> Put:
    def put(at: Planting) -> None:
        for one in puts:
            one(at)

    return put


def _softmax(logits: Tensor, held: Tensor, chosen: Tensor) -> Tensor:
    return logits.softmax(-1).gather(-1, chosen)


def _divided(made: Tensor) -> Tensor:
    return made / made.sum(-1, keepdim=True)


def _softmax_of_chosen(logits: Tensor, held: Tensor, chosen: Tensor) -> Tensor:
    return logits.gather(-1, chosen).softmax(-1)


def _sigmoid(logits: Tensor, held: Tensor, chosen: Tensor) -> Tensor:
    return _divided(logits.sigmoid().gather(-1, chosen))


def _twice(logits: Tensor, held: Tensor, chosen: Tensor) -> Tensor:
    return _divided(logits.softmax(-1).softmax(-1).gather(-1, chosen))


def _reversed(logits: Tensor, held: Tensor, chosen: Tensor) -> Tensor:
    return held.flip(-1)


def _fewer(logits: Tensor, chosen: Tensor) -> Tensor:
    return logits.topk(chosen.shape[-1] - 1, -1).indices


def _more(logits: Tensor, chosen: Tensor) -> Tensor:
    return logits.topk(chosen.shape[-1] + 1, -1).indices


def _smallest(logits: Tensor, chosen: Tensor) -> Tensor:
    return (-logits).topk(chosen.shape[-1], -1).indices


def _next(logits: Tensor, chosen: Tensor) -> Tensor:
    return (chosen + 1) % logits.shape[-1]


def _on_inputs(inner: Any, x: Tensor, chosen: Tensor, held: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    for n in range(chosen.shape[-1]):
        one = chosen[:, n : n + 1]
        total = total + inner(x * held[:, n : n + 1], one, torch.ones_like(held[:, :1]))
    return total


def _without_one(inner: Any, x: Tensor, chosen: Tensor, held: Tensor) -> Tensor:
    first = chosen[0, 0]
    made: Tensor = inner(x, chosen, torch.where(chosen == first, 0, held))
    return made


def _halves_exchanged(held: Tensor) -> Tensor:
    return torch.cat([*reversed(held.chunk(2, dim=1))], dim=1)


def mixtures(config: Any) -> str:
    """Why there are no experts."""
    return "" if is_mixture(config) else "it has no experts"


def _divides(config: Any) -> str:
    return mixtures(config) or ("" if config.norm_topk_prob else "weights are not divided")


def _keeps(config: Any) -> str:
    return mixtures(config) or ("weights are divided" if config.norm_topk_prob else "")


def _plant(fault: str, name: str, put: Put, first: str, **more: Any) -> Plant:
    return Plant(fault=fault, name=name, put=put, first=first, **{"reason": mixtures, **more})


_CHOSEN, _WEIGHTS, _OUT = "mlp.chosen", "mlp.router_weights", "mlp.out"

PLANTS = (
    _plant("experts-count", "one less", choice(_fewer), _CHOSEN),
    _plant("experts-count", "one more", choice(_more), _CHOSEN),
    _plant("experts-smallest", "the smallest", choice(_smallest), _CHOSEN),
    _plant("experts-index", "the next ones", choice(_next), _CHOSEN),
    _plant(
        "router-not-normalised", "softmax over all", weights(_softmax), _WEIGHTS, reason=_divides
    ),
    _plant(
        *("router-normalised", "softmax over the chosen", weights(_softmax_of_chosen), _WEIGHTS),
        reason=_keeps,
    ),
    _plant("router-sigmoid", "sigmoids, divided by their sum", weights(_sigmoid), _WEIGHTS),
    _plant("router-softmax-twice", "twice", weights(_twice), _WEIGHTS),
    _plant(
        *("router-uniform", "all have weight 1"),
        *(weights(lambda logits, held, chosen: torch.ones_like(held)), _WEIGHTS),
    ),
    _plant("router-order", "in reverse", weights(_reversed), _WEIGHTS),
    _plant("router-scale", "by 2.5", weights(lambda logits, held, chosen: held * 2.5), _WEIGHTS),
    _plant(
        *("router-probabilities", "probabilities for logits"),
        router(lambda logits, held, chosen: (logits.softmax(-1), held, chosen)),
        "mlp.router",
    ),
    _plant(
        *("experts-unweighted", "a plain sum"),
        experts(lambda inner, x, chosen, held: inner(x, chosen, torch.ones_like(held))),
        _OUT,
    ),
    _plant("experts-input-weighted", "weighted inputs", experts(_on_inputs), _OUT),
    _plant(
        *("experts-gate-up-exchanged", "halves exchanged"),
        *(matrices("gate_up_proj", _halves_exchanged), _OUT),
    ),
    _plant(
        *("experts-shifted", "those of the one before"),
        _several(
            matrices("gate_up_proj", lambda held: held.roll(1, 0)),
            matrices("down_proj", lambda held: held.roll(1, 0)),
        ),
        _OUT,
    ),
    _plant("experts-dropped", "one is not summed", experts(_without_one), _OUT),
)
