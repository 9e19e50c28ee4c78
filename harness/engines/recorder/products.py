"""Products of two activations, however they are written: as rows times columns."""

from dataclasses import dataclass
from typing import Any

import torch

_MATMUL = ("matmul", "__matmul__", "bmm")
PRODUCTS = (*_MATMUL, "baddbmm", "einsum")


@dataclass
class Product:
    """One product.

    Attributes:
        left: Rows, [..., T, D].
        right: Columns, [..., D, S].
        out: Left times right, [..., T, S]: a view of what the function handed out.
        added: What the function added to it before it handed it out, None for nothing.
        factor: What it multiplied the product by.
    """

    left: torch.Tensor
    right: torch.Tensor
    out: torch.Tensor
    added: torch.Tensor | None = None
    factor: float = 1.0


def product(name: str, args: tuple[Any, ...], kwargs: Any, out: Any) -> Product | None:
    """The product that a call of torch made, None if it is no product of two activations.

    Args:
        name: Name of the function.
        args: Its arguments.
        kwargs: Its named arguments.
        out: What it handed out.
    """
    if not isinstance(out, torch.Tensor) or out.dim() < 3:
        return None
    if name in _MATMUL:
        both = (*args, *kwargs.values())[:2]
        return Product(both[0], both[1], out) if _activations(both) else None
    if name == "baddbmm":
        left, right = args[1:3] if len(args) > 2 else (kwargs["batch1"], kwargs["batch2"])
        beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
        given = args[0] if args else kwargs["input"]
        added = given * beta if beta != 0 else None
        return Product(left, right, out, added, float(alpha))
    return _einsum(args, out)


def _activations(both: tuple[Any, ...]) -> bool:
    return len(both) == 2 and all(
        isinstance(x, torch.Tensor) and x.dim() > 2 and not isinstance(x, torch.nn.Parameter)
        for x in both
    )


def _einsum(args: tuple[Any, ...], out: torch.Tensor) -> Product | None:
    """A product written as an equation, if it sums over one letter and keeps one of each side."""
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    if not isinstance(args[0], str) or not _activations(tuple(operands)):
        return None
    given, _, made = args[0].replace(" ", "").partition("->")
    left, _, right = given.partition(",")
    batch = [x for x in made if x in left and x in right]
    rows = [x for x in made if x in left and x not in right]
    columns = [x for x in made if x in right and x not in left]
    summed = [x for x in left if x in right and x not in made]
    if "." in given or [len(rows), len(columns), len(summed)] != [1, 1, 1]:
        return None
    if len(left) + len(right) + len(made) != 3 * len(batch) + 6:
        return None

    def laid(tensor: torch.Tensor, letters: str, wanted: list[str]) -> torch.Tensor:
        return tensor.permute([letters.index(x) for x in wanted])

    return Product(
        laid(operands[0], left, batch + rows + summed),
        laid(operands[1], right, batch + summed + columns),
        laid(out, made, batch + rows + columns),
    )
