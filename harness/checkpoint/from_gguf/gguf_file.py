"""A GGUF file opened for reading: metadata as plain Python values, tensors still on the disk."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import CheckpointError
from .layout import check_layout

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """One GGUF file.

    Attributes:
        path: The file.
        metadata: Key to value. A float32 is the shortest decimal that means the same float32, so
            1e-05 is 1e-05 and not 9.999999747378752e-06.
        tensors: Name to the reader's own record (quantised bytes, memory-mapped).
        shapes: Name to shape in NumPy order, the reverse of how the file lists dimensions.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Any]
    shapes: Mapping[str, Shape]

    def count_types(self) -> dict[str, int]:
        """Storage types, such as `Q4_1`, with the number of tensors of each."""
        return dict(sorted(Counter(t.tensor_type.name for t in self.tensors.values()).items()))

    def dequantise(self, name: str) -> npt.NDArray[np.float32]:
        """Values of one tensor as float32, in the shape of `shapes`.

        Raises:
            CheckpointError: If the gguf package cannot decode its storage type.
        """
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        try:
            with np.errstate(all="ignore"):  # whoever uses the values asks whether they are finite
                values = dequantize(tensor.data, tensor.tensor_type)
        # A storage type that the package cannot decode, or bytes that do not fit their type.
        except (NotImplementedError, ValueError) as error:
            raise CheckpointError(
                f"{self.path}: {name}",
                expected="a storage type that the gguf package can decode",
                found=f"{tensor.tensor_type.name} ({error})",
                advice="update the gguf package, or requantise the file to another type",
            ) from error
        return np.asarray(values, dtype=np.float32).reshape(self.shapes[name])


def read_gguf(path: Path) -> GgufFile:
    """Open a GGUF file.

    Raises:
        CheckpointError: If it is truncated, damaged, one part of several, an adapter instead of a
            model, or written for the other byte order.
    """
    from gguf import GGUFReader

    check_layout(path)
    try:
        reader = GGUFReader(path)
        metadata = {name: _plain(field) for name, field in reader.fields.items()}
    # The reader has no errors of its own: what is left of damage shows as whatever NumPy raises.
    except Exception as error:
        raise CheckpointError(
            str(path),
            expected="a complete GGUF file",
            found=f"{path.stat().st_size} bytes that end early or make no sense "
            f"({type(error).__name__}: {error})",
            advice="the file is damaged or its download stopped early; fetch it again",
        ) from error
    _refuse_kinds(path, metadata)
    return GgufFile(
        path=path,
        metadata=metadata,
        tensors={tensor.name: tensor for tensor in reader.tensors},
        shapes={t.name: tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors},
    )


def _plain(field: Any) -> Any:
    from gguf import GGUFValueType

    value = field.contents()
    if field.types == [GGUFValueType.FLOAT32]:
        return float(str(np.float32(value)))
    return value


def _refuse_kinds(path: Path, metadata: Mapping[str, Any]) -> None:
    problems = []
    kind = metadata.get("general.type", "model")
    if kind != "model":
        problems.append(("general.type model", _short(kind), "name the file of the whole model"))
    parts = metadata.get("split.count", 0)
    if type(parts) is not int or parts > 1:
        merge = "merge the parts first (llama-gguf-split --merge)"
        problems.append(("one complete file", f"one of {_short(parts)} parts", merge))
    for expected, found, advice in problems:
        raise CheckpointError(str(path), expected=expected, found=found, advice=advice)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
