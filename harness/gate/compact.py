"""Facts of a baseline in fewer letters: what repeats from layer to layer is written once."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def pack_modules(modules: Sequence[Mapping[str, str]]) -> list[list[Any]]:
    """Rows [paths, class]; the paths of a row differ in the number of a layer alone.

    ``["model.layers.*.mlp", "LlamaMLP", 0, 29]`` stands for 30 modules. A module whose class is
    another in some layers, or which some layers lack, is written out.
    """
    groups: dict[str, list[Mapping[str, str]]] = {}
    for module in modules:
        groups.setdefault(_LAYER.sub("*", module["path"], count=1), []).append(module)
    rows: list[list[Any]] = []
    for pattern, each in groups.items():
        numbers = [int(found[0]) for one in each if (found := _LAYER.search(one["path"]))]
        classes = {one["class_name"] for one in each}
        if len(classes) == 1 and len(numbers) > 1 and _run(numbers):
            rows.append([pattern, each[0]["class_name"], numbers[0], numbers[-1]])
        else:
            rows += [[one["path"], one["class_name"]] for one in each]
    return rows


def unpack_modules(rows: Sequence[Sequence[Any]]) -> list[dict[str, str]]:
    """The inverse of :func:`pack_modules`, but for the order."""
    modules = []
    for path, class_name, *numbers in rows:
        if numbers:
            first, last = numbers
            paths = [path.replace("*", str(n), 1) for n in range(first, last + 1)]
        else:
            paths = [path]
        modules += [{"path": each, "class_name": class_name} for each in paths]
    return modules


def _run(numbers: Sequence[int]) -> bool:
    return list(numbers) == list(range(numbers[0], numbers[0] + len(numbers)))


def pack_parameters(parameters: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Rows [name, shape, dtype, digest]."""
    keys = ("name", "shape", "dtype", "digest")
    return [[each[key] for key in keys] for each in parameters]


def unpack_parameters(rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """The inverse of :func:`pack_parameters`."""
    return [
        {"name": name, "shape": shape, "dtype": dtype, "digest": digest}
        for name, shape, dtype, digest in rows
    ]
