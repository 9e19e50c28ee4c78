"""A transformers model asked directly, in the ways in which callers get it wrong.

An engine feeds a model as it should be fed. These functions also pass positions, caches and
constants that are wrong, and call single functions of transformers and torch, so that a claim
about them can be measured. NumPy arrays go in and come out.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers.models.llama import modeling_llama

from .hf import cache_argument, to_numpy

Array = NDArray[Any]
TokenIds = NDArray[np.int64]


def forward(
    model: torch.nn.Module,
    token_ids: TokenIds,
    *,
    positions: TokenIds | None = None,
    keep: int = 0,
    cache: Any = None,
) -> Array:
    """One forward pass without any tap.

    Args:
        model: A causal language model of transformers.
        token_ids: [B, T].
        positions: [B, T] to rotate by, None for what transformers counts itself.
        keep: Compute the logits of so many last positions, 0 for all.
        cache: What :func:`new_cache` gave, used before or not; None for no cache.

    Returns:
        Logits [B, T or keep, V].
    """
    extra: dict[str, Any] = {"use_cache": cache is not None, "logits_to_keep": keep}
    if positions is not None:
        extra["position_ids"] = torch.as_tensor(positions)
    if cache is not None:
        extra[cache_argument(model)] = cache
    with torch.no_grad():
        return to_numpy(model(input_ids=torch.as_tensor(token_ids), **extra).logits)


def new_cache(model: Any) -> Any:
    """An empty KV cache."""
    return transformers.DynamicCache(config=model.config)


@contextmanager
def frequencies_replaced(model: Any, frequencies: Array) -> Iterator[None]:
    """The model with other rotary frequencies [D/2], as it has them with another theta."""
    rotary = model.model.rotary_emb
    before = rotary.inv_freq
    rotary.inv_freq = torch.as_tensor(frequencies, dtype=before.dtype)
    try:
        yield
    finally:
        rotary.inv_freq = before


def rotary_table(model: Any, positions: TokenIds) -> tuple[Array, Array]:
    """The model's own cosines and sines [B, T, D], float32, at positions [B, T]."""
    with torch.no_grad():
        cos, sin = model.model.rotary_emb(torch.zeros(1), torch.as_tensor(positions))
    return to_numpy(cos), to_numpy(sin)


def rotate(model: Any, q: Array, positions: TokenIds) -> Array:
    """Transformers' rotation of q [B, H, T, D] at positions [B, T]."""
    cos, sin = (torch.as_tensor(x) for x in rotary_table(model, positions))
    rotated, _ = modeling_llama.apply_rotary_pos_emb(
        torch.as_tensor(q), torch.as_tensor(q), cos, sin
    )
    return to_numpy(rotated)


def additive_softmax(scores: Array, visible: Array) -> Array:
    """Softmax of scores [B, H, T, S] after the lowest float is added to what is hidden [T, S]."""
    hidden = torch.as_tensor(~visible)
    mask = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
    return to_numpy(torch.softmax(torch.as_tensor(scores) + mask, dim=-1))


def kernel_probs(q: Array, k: Array, *, causal: bool) -> Array:
    """Probabilities of torch's fused attention, which never hands them out.

    With the identity as values, the context is the probabilities.

    Args:
        q: [B, H, T, D].
        k: [B, H, S, D].
        causal: Whether the kernel is told to mask; it is given no mask.
    """
    keys = torch.as_tensor(k)
    identity = torch.eye(k.shape[2]).expand(*k.shape[:2], -1, -1)
    return to_numpy(
        torch.nn.functional.scaled_dot_product_attention(
            torch.as_tensor(q), keys, identity, is_causal=causal
        )
    )


def saved_config(path: Path | str) -> dict[str, Any]:
    """config.json as transformers writes it after it has read the one in a folder."""
    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        saved: dict[str, Any] = json.loads((Path(folder) / "config.json").read_text())
    return saved
