"""What a loaded checkpoint is: a config, memory-mapped tensors and where they came from."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CheckpointError

_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Weights and config of one model, read without copying.

    Two checkpoints are equal only if they are the same object; compare `fingerprint` for content.

    Attributes:
        path: A directory in the Hugging Face layout, which transformers can load as it is.
        config: `config.json` as it is written there.
        tensors: Hugging Face name to a read-only array in the stored dtype (`bfloat16` as
            `ml_dtypes.bfloat16`). Each array is a view of a memory map: nothing is read from the
            disk until it is touched.
        origin: What the user named: a directory, a GGUF file or a hub id.

    Raises:
        CheckpointError: If there is no tensor, or an array could be written to.
    """

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, npt.NDArray[Any]]
    origin: str
    _memo: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.tensors:
            raise CheckpointError(
                str(self.path),
                expected="at least one tensor",
                found="none",
                advice="name a directory whose safetensors files hold weights",
            )
        writable = [name for name, array in self.tensors.items() if array.flags.writeable]
        if writable:
            raise CheckpointError(
                str(self.path),
                expected="read-only arrays",
                found=f"{len(writable)} that can be written to, first {writable[0]}",
                advice="engines share this storage; set array.flags.writeable = False",
            )
        object.__setattr__(self, "config", MappingProxyType(dict(self.config)))
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) over the config and over the name, dtype, shape and bytes of every tensor.

        It does not depend on how the tensors are spread over files, nor on the order or layout of
        the JSON. The first access reads all weights (about a second per gigabyte); the result is
        kept in this object.
        """
        if "fingerprint" not in self._memo:
            self._memo["fingerprint"] = _hash_content(self.config, self.tensors)
        return self._memo["fingerprint"]


def _hash_content(config: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(dict(config), sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name]
        # The JSON line says how many bytes follow it, so no two contents share one byte stream.
        digest.update(json.dumps([name, array.dtype.name, list(array.shape)]).encode() + b"\n")
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, data.size, _CHUNK_BYTES):
            digest.update(data[start : start + _CHUNK_BYTES].data)
    return digest.hexdigest()
