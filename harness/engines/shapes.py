"""Shapes of all taps of a model, without computing a number."""

from collections.abc import Sequence
from typing import Any

import torch

from ..references_seam import model as models
from ..references_seam import step as seam
from .protocol import TokenIds


def tap_shapes(
    model: models.Model, chunks: Sequence[TokenIds]
) -> dict[tuple[int, str], tuple[int, ...]]:
    """Shape of every tap by chunk and name, in data-flow order.

    The reference runs on torch's meta device, where tensors have shapes and no numbers.

    Args:
        model: The reference's model.
        chunks: Token ids [B, T] of each forward pass.
    """
    shapes: dict[tuple[int, str], tuple[int, ...]] = {}
    chunk = 0

    def lift(weight: seam.Weight) -> torch.Tensor:
        return torch.empty(weight.array.shape, dtype=torch.float32, device="meta")

    compute = seam.Compute(lift, torch.float32)

    def step(tap: str | None, op: seam.Op, *inputs: seam.Handle, **constants: Any) -> seam.Handle:
        result = compute(tap, op, *inputs, **constants)
        if tap is not None:
            shapes[chunk, tap] = tuple(result.shape)
        return result

    position = 0
    for chunk, tokens in enumerate(chunks):
        if chunk == 0:
            _, cache = model.prefill(step, tokens)
        else:
            model.extend(step, tokens, cache, position=position)
        position += tokens.shape[1]
    return shapes
