"""Attention inside a module's code: queries, keys, scores, mask and the rest, of any release.

A call of ``scaled_dot_product_attention`` says all of it. Eager code is known by its pattern, a
product of two activations whose result goes through a softmax into a second product; what is added
to the scores on the way is followed, so that a mask is told from a bias.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from .products import PRODUCTS, Product, product

SDPA = "scaled_dot_product_attention"
SOFTMAX = ("softmax", "_softmax")
_ADD = ("add", "__add__", "__radd__", "add_", "__iadd__")
_TIMES = ("mul", "__mul__", "__rmul__", "mul_", "__imul__", "multiply")
_OVER = ("div", "__truediv__", "div_", "__itruediv__", "true_divide", "divide")
_BENDS = ("tanh", "tanh_", "pow", "clamp", "clamp_", "sigmoid", "relu")

#: What hides a key is added as this or less; old code adds -10000, and no score is as low.
_HIDDEN = -5000.0

#: Called with a role, a tensor and, for queries, the scale.
Emit = Callable[[str, torch.Tensor, float | None], None]


class Attention:
    """What one call of one module does that may be attention.

    Args:
        emit: Receives what is found.
        batch: Number of rows.
        length: Number of tokens of a row.
    """

    def __init__(self, emit: Emit, batch: int, length: int) -> None:
        self._emit = emit
        self._batch = batch
        self._length = length
        self._found: Product | None = None
        self._scale: float | None = 1.0
        self._terms: list[torch.Tensor] = []
        self._made: dict[int, torch.Tensor] = {}  # made of the product; kept so that ids stay
        self._probs: tuple[int, ...] = ()

    @property
    def open(self) -> bool:
        """Whether a product was seen, and its softmax not yet."""
        return self._found is not None

    def awaits(self, args: tuple[Any, ...]) -> bool:
        """Whether a product of these arguments would be the one of probabilities and values."""
        first = args[0] if args else None
        return isinstance(first, torch.Tensor) and tuple(first.shape[-2:]) == self._probs

    def see(self, name: str, args: tuple[Any, ...], kwargs: Any, out: Any) -> None:
        """Look at a call that was made: its function's name, arguments and result."""
        if name == SDPA:
            self._fused(args, kwargs, out)
        elif name in PRODUCTS:
            seen = product(name, args, kwargs, out)
            if seen is not None:
                self._multiplied(seen, out)
        elif self._found is not None and isinstance(out, torch.Tensor):
            if name in SOFTMAX:
                self._softmax(args[0] if args else kwargs["input"], out)
            else:
                self._follow(name, args, kwargs, out)

    def _multiplied(self, seen: Product, out: torch.Tensor) -> None:
        if self._probs and tuple(seen.left.shape[-2:]) == self._probs:
            self._emit("value", _once(self._heads(seen.right)), None)
            self._emit("context", self._heads(seen.out), None)
            self._probs = ()
            return
        self._found, self._made, self._probs = seen, {id(out): out}, ()
        self._terms = [] if seen.added is None else [seen.added.expand(out.shape)]
        self._scale = seen.factor

    def _follow(self, name: str, args: tuple[Any, ...], kwargs: Any, out: torch.Tensor) -> None:
        """Follow the scores through one function."""
        mine = [x for x in args if id(x) in self._made]
        if not mine or self._found is None or out.numel() < self._found.out.numel():
            return
        others = [x for x in args if id(x) not in self._made] + list(kwargs.values())
        self._made[id(out)] = out
        if name in _ADD and len(mine) == 1 and others:
            self._added(others[0], out)
        elif name in _TIMES or name in _OVER:
            self._scaled(others[0] if others else None, over=name in _OVER)
        elif name in _BENDS:
            self._scale = None

    def _added(self, other: Any, out: torch.Tensor) -> None:
        if isinstance(other, torch.Tensor) and other.dim() > 1 and other.is_floating_point():
            self._terms.append(other.expand(out.shape))

    def _scaled(self, factor: Any, *, over: bool) -> None:
        if isinstance(factor, torch.Tensor) and factor.numel() == 1:
            factor = factor.item()
        if not isinstance(factor, int | float) or factor == 0:
            self._scale = None
            return
        factor = 1 / factor if over else float(factor)
        self._scale = None if self._scale is None else self._scale * factor
        self._terms = [term * factor for term in self._terms]

    def _softmax(self, given: torch.Tensor, probs: torch.Tensor) -> None:
        """Emit all that led to the probabilities, if what went in was made of the product."""
        found = self._found
        rows, keys = found.out.shape[-2:] if found is not None else (0, 0)
        if found is None or given.dim() < 3 or given.shape[-2] != rows or given.shape[-1] < keys:
            return
        self._emit("query", self._heads(found.left), self._scale)
        self._emit("key", _once(self._heads(found.right.transpose(-1, -2))), None)
        scores = self._heads(given)[..., :keys]  # behind these may be a sink
        hidden = scores < _HIDDEN
        self._emit("scores", scores.masked_fill(hidden, 0.0), None)
        self._emit("mask", _for_all_heads(~hidden), None)
        self._bias(hidden)
        self._emit("probs", self._heads(probs)[..., :keys], None)
        self._found, self._made, self._terms = None, {}, []
        self._probs = (rows, keys)

    def _bias(self, hidden: torch.Tensor) -> None:
        """Emit what was added to scores that are seen, if that is anything."""
        total: torch.Tensor | None = None
        for term in self._terms:
            laid = self._heads(term)[..., : hidden.shape[-1]]
            total = laid if total is None else total + laid
        if total is not None and total.shape == hidden.shape:
            told = total.masked_fill(hidden, 0.0)
            if bool((told != 0).any()):
                self._emit("bias", told, None)

    def _fused(self, args: tuple[Any, ...], kwargs: Any, out: torch.Tensor) -> None:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
        given = dict(zip(names, args, strict=False)) | kwargs
        query, key = self._heads(given["query"]), self._heads(given["key"])
        scale = given.get("scale")
        self._emit(
            "query", self._apart(query), 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        )
        self._emit("key", _once(key), None)
        self._emit("value", _once(self._heads(given["value"])), None)
        shape = (*query.shape[:3], key.shape[2])
        mask = given.get("attn_mask")
        if mask is None:
            seen = torch.ones(shape, dtype=torch.bool, device=query.device)
            seen = seen.tril() if given.get("is_causal") else seen
        else:
            whole = torch.broadcast_to(mask, shape)
            seen = whole if mask.dtype == torch.bool else whole >= _HIDDEN
        self._emit("mask", _for_all_heads(self._apart(seen)), None)
        if mask is not None and mask.dtype != torch.bool:
            self._terms = [self._apart(whole)]
            self._bias(~self._apart(seen))
            self._terms = []
        self._emit("context", self._apart(self._heads(out)), None)

    def _apart(self, tensor: torch.Tensor) -> torch.Tensor:
        """[B, H, 1, ...] of a single token whose query heads are packed as [B, K, H/K, ...].

        Since 5.24 the heads of one kv head may be handed over as if they were positions.
        """
        if self._length != 1 or tensor.shape[2] == 1:
            return tensor
        return tensor.reshape(tensor.shape[0], -1, 1, tensor.shape[-1])

    def _heads(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor [..., T, D] as [B, H, T, D], wherever its heads are."""
        if tensor.dim() == 4:
            return tensor
        batch = self._batch if tensor.shape[0] % self._batch == 0 else tensor.shape[0]
        return tensor.reshape(batch, -1, *tensor.shape[-2:])


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Heads [B, H, S, D] without repeats, [B, K, S, D]: a kv head that is repeated is told once."""
    heads = tensor.shape[1]
    if heads < 2 or not torch.equal(tensor[:, 0], tensor[:, 1]):
        return tensor
    for times in range(heads, 1, -1):
        if heads % times == 0:
            grouped = tensor.reshape(tensor.shape[0], heads // times, times, *tensor.shape[2:])
            if torch.equal(grouped, grouped[:, :, :1].expand_as(grouped)):
                return grouped[:, :, 0]
    return tensor


def _for_all_heads(seen: torch.Tensor) -> torch.Tensor:
    """A mask [B, H, T, S], as [B, T, S] where it is the same for all heads."""
    if torch.equal(seen, seen[:, :1].expand_as(seen)):
        return seen[:, 0]
    return seen
