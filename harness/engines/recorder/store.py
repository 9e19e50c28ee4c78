"""Where taps go: kept as computed in the first run, measured against those in the second."""

import hashlib
import math
from typing import Any, Protocol

import torch


class Taps(Protocol):
    """Receives taps in execution order."""

    def begin(self, name: str, chunk: int) -> None:
        """A chunk of a pass begins."""

    def offer(
        self,
        tap: str,
        tensor: torch.Tensor,
        *,
        module: str,
        class_name: str,
        role: str,
        new_only: bool = False,
        scale: float | None = None,
    ) -> None:
        """Take a tensor; with ``new_only``, unless the same was taken in this chunk before."""


class Kept:
    """The taps of a run.

    Attributes:
        arrays: Tensors by key.
        taps: Entries of each pass, as the document has them.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, torch.Tensor] = {}
        self.taps: dict[str, list[dict[str, Any]]] = {}
        self._at = ("", 0)
        self._keys: dict[tuple[Any, ...], str] = {}
        self.entries: dict[tuple[str, int, str], dict[str, Any]] = {}

    def begin(self, name: str, chunk: int) -> None:
        """Nothing before is the same as what follows."""
        self._at = (name, chunk)
        self._keys.clear()
        self.taps.setdefault(name, [])

    def offer(
        self,
        tap: str,
        tensor: torch.Tensor,
        *,
        module: str,
        class_name: str,
        role: str,
        new_only: bool = False,
        scale: float | None = None,
    ) -> None:
        """Keep a copy, or a second name of an equal one."""
        name, chunk = self._at
        place = (name, chunk, tap)
        if place in self.entries:  # the first one is meant by its name
            return
        copied = laid_out(tensor)
        same = (str(copied.dtype), tuple(copied.shape), digest(copied))
        key = self._keys.get(same)
        if key is not None and new_only:
            return
        if key is None:
            key = self._keys[same] = f"{name}/{chunk}/{tap}"
            self.arrays[key] = copied.clone() if shares(copied, tensor) else copied
        self.entries[place] = {
            "tap": tap,
            "chunk": chunk,
            "key": key,
            "module": module,
            "class_name": class_name,
            "role": role,
            "shape": list(copied.shape),
            "dtype": str(copied.dtype).removeprefix("torch."),
            "noise": None,
            "scale": scale,
        }
        self.taps[name].append(self.entries[place])


class Noise:
    """Holds a run in float64 against the one that was kept.

    Args:
        kept: Its entries receive ``noise``.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._at = ("", 0)

    def begin(self, name: str, chunk: int) -> None:
        """What follows is of this chunk."""
        self._at = (name, chunk)

    def offer(self, tap: str, tensor: torch.Tensor, **more: Any) -> None:
        """Measure the first tensor of each name, where its like was kept."""
        entry = self._kept.entries.get((*self._at, tap))
        if entry is None or entry["noise"] is not None:
            return
        before, exact = self._kept.arrays[entry["key"]], laid_out(tensor)
        if before.shape != exact.shape or before.dtype == torch.bool:
            return
        norm = float(torch.linalg.vector_norm(before.double() - exact.double()))
        entry["noise"] = norm if math.isfinite(norm) else None

    def forget(self, name: str) -> None:
        """A pass did not come to its end: what was measured of it counts for nothing."""
        for entry in self._kept.taps[name]:
            entry["noise"] = None


def laid_out(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in main memory, row by row; complex numbers as pairs."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.cpu().contiguous()


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors lie in one place."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 of the bytes of a contiguous tensor."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()
