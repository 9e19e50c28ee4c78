"""A safetensors file written tensor by tensor, so that only one tensor is in memory at a time.

The library's own writer wants all tensors at once: a second copy of the model.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .gguf_file import Shape

Produce = Callable[[], npt.NDArray[np.float32]]


def write_float32(path: Path, tensors: Mapping[str, tuple[Shape, Produce]]) -> None:
    """Write a safetensors file of float32 tensors.

    Args:
        path: The file.
        tensors: Name to shape and to the function that makes the values, called once, in order.

    Raises:
        ValueError: If a function makes an array of another shape than was announced.
        OSError: If the file cannot be written.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    offset = 0
    for name, (shape, _) in tensors.items():
        end = offset + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)  # keeps the data aligned in a memory map
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for name, (shape, produce) in tensors.items():
            values = np.ascontiguousarray(produce(), dtype="<f4")
            if values.shape != shape:
                raise ValueError(f"{name}: announced as {shape}, made as {values.shape}")
            file.write(values.data)
