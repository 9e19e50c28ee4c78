"""Write a checkpoint that differs from another in its config and tensors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ..checkpoint.load import load_checkpoint

#: Tensors by name; float32.
Tensors = dict[str, NDArray[Any]]


def edit_checkpoint(
    source: Path, target: Path, change: Callable[[dict[str, Any], Tensors], None]
) -> None:
    """Write a changed copy of an HF directory.

    Args:
        source: HF directory.
        target: Folder that is there.
        change: Changes the config and the tensors in place; arrays are replaced, not written to.

    Raises:
        CheckpointError: The source cannot be read.
    """
    checkpoint = load_checkpoint(source)
    config = json.loads(json.dumps(dict(checkpoint.config)))
    tensors: Tensors = dict(checkpoint.tensors)
    change(config, tensors)
    for path in source.iterdir():
        if (
            path.is_file()
            and path.suffix not in (".safetensors", ".gguf")
            and (path.name not in ("config.json", "model.safetensors.index.json"))
        ):
            shutil.copy(path, target / path.name)
    (target / "config.json").write_text(json.dumps(config, indent=1))
    stored = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
