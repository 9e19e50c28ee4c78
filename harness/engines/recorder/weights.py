"""Weights of tiny models: drawn from each parameter's name, alike in every release."""

import hashlib
from typing import Any

import numpy as np
import torch

#: Deviation of the rows of embedding and head, in units of 1/sqrt(row length): logits then reach 5
#: to 10. It is the same for both, so that a release that ties them or not draws no other numbers.
_ROWS = 3.0
_BIAS = 0.1


def fill(model: Any) -> None:
    """Draw every parameter anew; buffers stay, and what is tied stays tied.

    Matrices are normal with deviation 1/sqrt(fan in), three times that for embeddings and the
    head, biases with 0.1, and other vectors, such as weights of norms, are 1 plus a tenth of a
    normal number.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    rows = getattr(head, "weight", None)
    owners = {
        f"{path}.{name}" if path else name: module
        for path, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = normal(name, tuple(parameter.shape))
            values = _scaled(drawn, name, owners[name], is_head=parameter is rows)
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))


def _scaled(drawn: Any, name: str, owner: torch.nn.Module, *, is_head: bool) -> Any:
    if "bias" in name.rpartition(".")[2]:
        return _BIAS * drawn
    if drawn.ndim < 2:
        return 1.0 + 0.1 * drawn
    if is_head or isinstance(owner, torch.nn.Embedding):
        return drawn * (_ROWS / drawn.shape[-1] ** 0.5)
    kind = type(owner).__name__
    if kind == "Conv1D":  # transformers' own linear layer, its matrix transposed
        fan_in = drawn.shape[0]
    elif kind.startswith("Conv"):
        fan_in = int(np.prod(drawn.shape[1:]))
    else:
        fan_in = drawn.shape[-1]
    return drawn / fan_in**0.5


def normal(name: str, shape: tuple[int, ...]) -> Any:
    """Numbers that are very nearly normal, the same with every release of NumPy.

    Only the raw words of a bit generator are promised to stay, so a number is made of these by
    whole-number arithmetic: a sum of twelve uniform ones, which has deviation 1.

    Args:
        name: Everything follows from it.
        shape: Of the array, float64.
    """
    count = int(np.prod(shape, dtype=np.int64))
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw(3 * count)
    parts = words.astype("<u8").view("<u2").reshape(count, 12)
    total = parts.astype(np.int64).sum(axis=1) - 6 * 65535
    return (total / 65536.0).reshape(shape)
