"""Mistakes in weights, in transformers models: layout, layer, heads, values, precision."""

from collections.abc import Callable
from typing import Any

import torch

from .plant import Plant, Planting

Tensor = torch.Tensor
Put = Callable[[Planting], None]

#: A projection that every family has: of the merged heads.
OUT = "attn.out"


def is_affine(config: Any) -> bool:
    """Whether weights of the layers are [in, out]."""
    return bool(config.model_type == "gpt2")


def weight(tap: str, change: Callable[[Tensor], Tensor]) -> Put:
    """A plant that changes a weight, given and taken as [out, in]."""

    def put(at: Planting) -> None:
        if is_affine(at.config) and tap != "logits":
            at.parameter(tap, lambda held: change(held.T).T.contiguous())
        else:
            at.parameter(tap, change)

    return put


def _transposed(at: Planting) -> None:
    def change(held: Tensor) -> Tensor:
        return held.reshape(held.shape[1], held.shape[0]).T.contiguous()

    at.parameter(OUT, change)


def _from_layer(tap: str, step: int) -> Put:
    """The parameters of a tap's module in a neighbouring layer."""

    def put(at: Planting) -> None:
        own, layer = at.module(tap), at.layer
        at.layer = (layer + step) % at.config.num_hidden_layers
        other = at.module(tap)
        at.layer = layer
        for name, parameter in list(other.named_parameters()):
            setattr(own, name, torch.nn.Parameter(parameter.detach().clone()))

    return put


def _with(tap: str, other: str) -> Put:
    """The weight of another projection."""

    def put(at: Planting) -> None:
        one, two = at.module(tap), at.module(other)
        one.weight, two.weight = two.weight, one.weight

    return put


def _rope_rows(tap: str, heads: Callable[[Any], int], *, back: bool) -> Put:
    """Rows of each head moved between the two pairings of RoPE."""

    def change(held: Tensor, count: int) -> Tensor:
        half = len(held) // (2 * count)
        pairs = held.reshape(count, *((half, 2) if back else (2, half)), held.shape[1])
        return pairs.transpose(1, 2).reshape(held.shape)

    def put(at: Planting) -> None:
        at.parameter(tap, lambda held: change(held, heads(at.config)))

    return put


def _heads_reversed(at: Planting) -> None:
    def change(held: Tensor) -> Tensor:
        return held.reshape(-1, at.head_dim, held.shape[1]).flip(0).reshape(held.shape)

    at.parameter("attn.q", change)


def _columns(order: Callable[[Tensor], Tensor]) -> Put:
    """Inputs of the projection of merged heads, [out, H, D], in another order."""

    def put(at: Planting) -> None:
        def change(held: Tensor) -> Tensor:
            return order(held.reshape(len(held), -1, at.head_dim)).reshape(held.shape)

        weight(OUT, change)(at)

    return put


def _half_of_inputs(held: Tensor) -> Tensor:
    held[:, held.shape[1] // 2 :] = 0
    return held


def _added_bias(at: Planting) -> None:
    def forward(inner: Any, x: Tensor) -> Any:
        y = inner(x)
        return y + torch.linspace(-0.3, 0.4, y.shape[-1], dtype=y.dtype)

    at.forward(OUT, forward)


def _other_bias(at: Planting) -> None:
    at.module(OUT).bias = at.module("mlp.out").bias


def _factors(held: Tensor) -> Tensor:
    return held * torch.linspace(0.8, 1.3, len(held), dtype=held.dtype)[:, None]


def _zero_rows(held: Tensor) -> Tensor:
    held[8:16] = 0
    return held


def _one_element(held: Tensor) -> Tensor:
    held[5, 7] += 0.25
    return held


def _one_row(held: Tensor) -> Tensor:
    held[3] = held[3].roll(1)
    return held


def _one_column(held: Tensor) -> Tensor:
    held[:, 9] = held[:, 9].roll(1)
    return held


def _one_channel(held: Tensor) -> Tensor:
    held[4] += 0.5
    return held


def _one_token(held: Tensor) -> Tensor:
    held[44] = held[44].roll(1)
    return held


def _adapter(held: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    up = torch.randn(len(held), 2, generator=generator)
    down = torch.randn(2, held.shape[1], generator=generator)
    return held + (0.05 * up @ down).to(held.dtype)


def has_rows_like(config: Any) -> str:
    """Why rows of queries cannot be moved."""
    return "queries, keys and values are one projection" if is_affine(config) else ""


def _no_rope(config: Any) -> str:
    return "it has no rotary embedding" if is_affine(config) else ""


def _kv_rows(config: Any) -> str:
    if is_affine(config):
        return _no_rope(config)
    head_dim = getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    rows = config.num_key_value_heads * head_dim
    if config.num_attention_heads == config.num_key_value_heads:
        return "it has as many kv heads as heads"
    wrong = rows % (2 * config.num_attention_heads)
    return "rows of keys cannot be cut into as many heads as queries have" if wrong else ""


def _no_bias(config: Any) -> str:
    return "" if is_affine(config) else "its projections have no bias"


PLANTS = (
    Plant(fault="weights-transposed", name="the other layout", put=_transposed, first=OUT),
    Plant(
        fault="weights-layer",
        name="values of the layer before",
        put=_from_layer("attn.v", -1),
        first="attn.v",
        reason=has_rows_like,
    ),
    Plant(
        fault="weights-layer",
        name="a projection of the next layer",
        put=_from_layer(OUT, 1),
        first=OUT,
    ),
    Plant(
        fault="weights-layer",
        name="a norm of the next layer",
        put=_from_layer("mlp_norm", 1),
        first="mlp_norm",
    ),
    Plant(
        fault="weights-exchanged",
        name="keys and values",
        put=_with("attn.k", "attn.v"),
        first="attn.k",
        reason=has_rows_like,
        alike=("values-from-keys",),
    ),
    Plant(
        fault="weights-rope-permuted",
        name="queries from halves to neighbours",
        put=_rope_rows("attn.q", lambda config: config.num_attention_heads, back=False),
        first="attn.q",
        reason=_no_rope,
    ),
    Plant(
        fault="weights-rope-permuted",
        name="keys from neighbours to halves",
        put=_rope_rows("attn.k", lambda config: config.num_key_value_heads, back=True),
        first="attn.k",
        reason=_no_rope,
    ),
    Plant(
        fault="weights-rope-permuted",
        name="keys by the number of query heads",
        put=_rope_rows("attn.k", lambda config: config.num_attention_heads, back=False),
        first="attn.k",
        reason=_kv_rows,
    ),
    Plant(
        fault="weights-heads",
        name="heads of queries in reverse",
        put=_heads_reversed,
        first="attn.q",
        reason=has_rows_like,
    ),
    Plant(
        fault="weights-heads",
        name="merged heads in reverse",
        put=_columns(lambda held: held.flip(1)),
        first=OUT,
    ),
    Plant(
        fault="weights-heads",
        name="elements ahead of heads",
        put=_columns(lambda held: held.transpose(1, 2)),
        first=OUT,
    ),
    Plant(
        fault="weights-shard",
        name="half of the inputs",
        put=weight(OUT, _half_of_inputs),
        first=OUT,
    ),
    Plant(
        fault="weights-bias-missing",
        name="no bias",
        put=lambda at: at.parameter(OUT, torch.zeros_like, "bias"),
        first=OUT,
        reason=_no_bias,
    ),
    Plant(
        fault="weights-bias-other",
        name="the bias of the MLP",
        put=_other_bias,
        first=OUT,
        reason=_no_bias,
    ),
    Plant(fault="weights-bias-added", name="a bias", put=_added_bias, first=OUT),
    Plant(
        fault="weights-scaled",
        name="by 1.25",
        put=weight(OUT, lambda held: held * 1.25),
        first=OUT,
    ),
    Plant(
        fault="weights-scaled",
        name="each output by a factor of its own",
        put=weight(OUT, _factors),
        first=OUT,
    ),
    Plant(
        fault="weights-zeroed",
        name="all of it",
        put=weight("mlp.out", torch.zeros_like),
        first="mlp.out",
        reason=lambda config: "its MLPs are experts" if config.model_type == "qwen3_moe" else "",
    ),
    Plant(
        fault="weights-zeroed",
        name="some outputs",
        put=weight(OUT, _zero_rows),
        first=OUT,
    ),
    Plant(
        fault="weights-other-values",
        name="one element",
        put=weight(OUT, _one_element),
        first=OUT,
    ),
    Plant(
        fault="weights-other-values",
        name="one output",
        put=weight(OUT, _one_row),
        first=OUT,
    ),
    Plant(
        fault="weights-other-values",
        name="one input",
        put=weight(OUT, _one_column),
        first=OUT,
    ),
    Plant(
        fault="weights-other-values",
        name="one channel of a norm",
        put=lambda at: at.parameter("attn_norm", _one_channel),
        first="attn_norm",
    ),
    Plant(
        fault="weights-other-values",
        name="the row of one token",
        put=lambda at: at.parameter("embed", _one_token),
        first="embed",
    ),
    Plant(
        fault="weights-low-rank",
        name="an adapter of rank 2",
        put=weight(OUT, _adapter),
        first=OUT,
    ),
)
