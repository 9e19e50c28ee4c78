"""Parameters of a transformers model, as checkpoints and the reference name them."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]


def unpacked(
    name: str, parameter: torch.Tensor, packed: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """A parameter of the model as the checkpoint has it: one tensor for each expert and map.

    Args:
        name: Its name in the model.
        parameter: [E, ...], the rows of its maps one after another; any other parameter comes
            back as it is.
        packed: End of a name to the names of the maps.
    """
    for ending, maps in packed.items():
        if name.endswith(ending):
            prefix = name[: len(name) - len(ending)] + ending.rpartition(".")[0]
            for expert, rows in enumerate(parameter):
                for part, piece in zip(maps, rows.chunk(len(maps)), strict=True):
                    yield f"{prefix}.{expert}.{part}.weight", piece
            return
    yield name, parameter


def stacked(named: Mapping[str, Array], endings: Collection[str]) -> dict[str, Array]:
    """Parameters that differ in a number, one on top of the other: [*, 1, ...] of each ending.

    Args:
        named: Arrays by name.
        endings: Ends of names, with ``*`` for the number.
    """
    groups: dict[str, dict[int, Array]] = defaultdict(dict)
    for ending in endings:
        pattern = re.compile("(.*)" + re.escape(ending).replace(r"\*", r"(\d+)"))
        for name, array in named.items():
            match = pattern.fullmatch(name)
            if match is not None:
                groups[match[1] + ending][int(match[2])] = array
    return {
        name: np.stack([group[number] for number in sorted(group)])[:, None]
        for name, group in groups.items()
    }
