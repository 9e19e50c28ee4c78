"""Weights that were quantised or rounded, and products in narrow dtypes, in transformers models."""

from collections.abc import Callable
from typing import Any

import torch

from .plant import Plant, Planting, float32_only
from .weights import OUT, is_affine, weight

Tensor = torch.Tensor


def _blocks(held: Tensor, size: int = 32) -> Tensor:
    return held.float().reshape(-1, size)


def _q8_0(held: Tensor) -> Tensor:
    """GGUF: blocks of 32, a float16 scale, 8 bits."""
    blocks = _blocks(held)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    inverse = torch.where(scale > 0, 1 / scale, 0)
    steps = blocks * inverse
    steps = torch.trunc(steps + torch.copysign(torch.full_like(steps, 0.5), steps))
    return (steps * scale.half().float()).reshape(held.shape)


def _q4_0(held: Tensor) -> Tensor:
    """GGUF: blocks of 32, a float16 scale of the value of largest size, 4 bits."""
    blocks = _blocks(held)
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = largest / -8
    inverse = torch.where(scale != 0, 1 / scale, 0)
    steps = torch.trunc(blocks * inverse + 8.5).clamp(0, 15) - 8
    return (steps * scale.half().float()).reshape(held.shape)


def _q4_1(held: Tensor) -> Tensor:
    """GGUF: blocks of 32, a float16 scale and minimum, 4 bits."""
    blocks = _blocks(held)
    low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
    scale = (high - low) / 15
    inverse = torch.where(scale > 0, 1 / scale, 0)
    steps = torch.trunc((blocks - low) * inverse + 0.5).clamp(0, 15)
    return (steps * scale.half().float() + low.half().float()).reshape(held.shape)


def _int8(held: Tensor) -> Tensor:
    scale = held.abs().amax(-1, keepdim=True) / 127
    return (held / scale).round().clamp(-127, 127) * scale


def _int8_tensor(held: Tensor) -> Tensor:
    scale = held.abs().max() / 127
    return (held / scale).round().clamp(-127, 127) * scale


def _int4_groups(held: Tensor) -> Tensor:
    groups = _blocks(held)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = (high - low).clamp(min=1e-9) / 15
    zero = (-low / scale).round().clamp(0, 15)
    steps = ((groups / scale).round() + zero).clamp(0, 15)
    return ((steps - zero) * scale).reshape(held.shape)


def _float8(held: Tensor) -> Tensor:
    scale = held.abs().max() / 448
    return (held / scale).to(torch.float8_e4m3fn).float() * scale


def _offset(held: Tensor) -> Tensor:
    """Each block of 32 one step of its scale too high."""
    blocks = _blocks(held)
    scale = blocks.abs().amax(-1, keepdim=True) / 7
    return (blocks + scale).reshape(held.shape)


def _cast(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda held: held.to(dtype).to(held.dtype)


def _product(dtype: torch.dtype) -> Callable[[Planting], None]:
    """The projection with input, weight, bias and result in a narrow dtype."""

    def put(at: Planting) -> None:
        module = at.module(OUT)

        def forward(inner: Any, x: Tensor) -> Tensor:
            held = module.weight.T if is_affine(at.config) else module.weight
            bias = None if module.bias is None else module.bias.to(dtype)
            y = torch.nn.functional.linear(x.to(dtype), held.to(dtype), bias)
            return y.to(x.dtype)

        at.forward(OUT, forward)

    return put


def _tf32(at: Planting) -> None:
    """Input and weight with 10 bits of mantissa."""

    def kept(x: Tensor) -> Tensor:
        bits = x.contiguous().view(torch.int32)
        bits = bits + 0xFFF + ((bits >> 13) & 1)
        return (bits & ~0x1FFF).view(torch.float32)

    at.parameter(OUT, kept)
    at.forward(OUT, lambda inner, x: inner(kept(x)))


def _width(config: Any) -> int:
    """Inputs of the projection of merged heads."""
    given = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(given * config.num_attention_heads)


def _in_blocks(config: Any) -> str:
    width = _width(config)
    return f"{width} inputs are no multiple of 32" if width % 32 else ""


def _quantised(name: str, keep: Callable[[Tensor], Tensor], *, blocks: bool = False) -> Plant:
    return Plant(
        fault="weights-quantised",
        name=name,
        put=weight(OUT, lambda held: keep(held.float())),
        first=OUT,
        reason=_in_blocks if blocks else lambda config: "",
    )


PLANTS = (
    _quantised("Q8_0", _q8_0, blocks=True),
    _quantised("Q4_0", _q4_0, blocks=True),
    _quantised("Q4_1", _q4_1, blocks=True),
    _quantised("int8, a scale for each output", _int8),
    _quantised("int8, one scale", _int8_tensor),
    _quantised("int4, groups of 32", _int4_groups, blocks=True),
    _quantised("float8 e4m3", _float8),
    Plant(
        fault="weights-dequantised",
        name="blocks of 32 one step too high",
        put=weight(OUT, _offset),
        first=OUT,
        reason=_in_blocks,
    ),
    Plant(
        fault="weights-rounded",
        name="bfloat16",
        put=weight(OUT, _cast(torch.bfloat16)),
        first=OUT,
        equivalent=float32_only,
    ),
    Plant(
        fault="weights-rounded",
        name="float16",
        put=weight(OUT, _cast(torch.float16)),
        first=OUT,
        equivalent=float32_only,
    ),
    Plant(
        fault="weights-rounded",
        name="float8 e5m2",
        put=weight(OUT, _cast(torch.float8_e5m2)),
        first=OUT,
    ),
    Plant(
        fault="linear-low-precision",
        name="bfloat16",
        put=_product(torch.bfloat16),
        first=OUT,
        equivalent=float32_only,
    ),
    Plant(
        fault="linear-low-precision",
        name="TF32",
        put=_tf32,
        first=OUT,
        equivalent=float32_only,
    ),
    Plant(
        fault="linear-input-rounded",
        name="to float16",
        put=lambda at: at.forward(OUT, lambda inner, x: inner(x.half().to(x.dtype))),
        first=OUT,
        equivalent=float32_only,
    ),
)
