"""What a transformers model is given besides token ids: positions and masks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ..padding import Padding
from .ways import Way


class Inputs(Protocol):
    """Arguments of one forward pass, over the columns ``start`` to ``stop - 1``."""

    def arguments(self, start: int, stop: int, *, batch: int) -> dict[str, Any]:
        """Keyword arguments by name: arrays, or arrays by layer type."""
        ...


class Plain:
    """Nothing, as most callers do."""

    def arguments(self, start: int, stop: int, *, batch: int) -> dict[str, Any]:
        """Empty."""
        return {}


@dataclass(frozen=True, slots=True)
class Padded:
    """A mask over all columns so far, and positions of the new ones.

    Attributes:
        padding: Where the batch has pads behind the blank columns, None for nowhere.
        blank: Number of columns in front in which every row has a pad.
    """

    padding: Padding | None
    blank: int = 0

    def arguments(self, start: int, stop: int, *, batch: int) -> dict[str, Any]:
        """``attention_mask`` [B, stop] and ``position_ids`` [B, stop - start]."""
        real = np.arange(stop) >= np.full((batch, 1), self.blank)
        if self.padding is not None and stop > self.blank:
            real[:, self.blank :] = self.padding.real(0, stop - self.blank)
        positions = np.maximum(np.cumsum(real, axis=1) - 1, 0)
        return {"attention_mask": real.astype(np.int64), "position_ids": positions[:, start:]}


@dataclass(frozen=True, slots=True)
class Shifted:
    """Positions that begin at another number."""

    first: int

    def arguments(self, start: int, stop: int, *, batch: int) -> dict[str, Any]:
        """``position_ids`` [B, stop - start]."""
        return {"position_ids": np.tile(np.arange(start, stop) + self.first, (batch, 1))}


@dataclass(frozen=True, slots=True)
class Packed:
    """Several sequences one behind the other in each row: positions begin anew."""

    lengths: tuple[int, ...]

    def arguments(self, start: int, stop: int, *, batch: int) -> dict[str, Any]:
        """``position_ids`` [B, stop - start]."""
        positions = np.concatenate([np.arange(length) for length in self.lengths])
        return {"position_ids": np.tile(positions[start:stop], (batch, 1))}


#: How a mask of booleans [B, 1, T, S], true where a key is read, is handed over in a dtype.
FORMS: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "additive": lambda seen, dtype: _added(seen, torch.finfo(dtype).min, dtype),
    "additive-inf": lambda seen, dtype: _added(seen, float("-inf"), dtype),
    "boolean": lambda seen, dtype: seen,
}

#: A mask over columns, true where a column holds a token: here everywhere.
COLUMNS = "columns"


def _added(seen: torch.Tensor, unseen: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, unseen)


@dataclass(frozen=True, slots=True)
class Masked:
    """The causal mask in some form.

    Attributes:
        form: A key of :data:`FORMS`, or :data:`COLUMNS`.
        windows: Size of the window by layer type, None for full attention; the empty type alone
            where all layers are of one.
        dtype: Of an additive mask.
    """

    form: str
    windows: dict[str, int | None]
    dtype: torch.dtype

    def arguments(self, start: int, stop: int, *, batch: int) -> dict[str, Any]:
        """``attention_mask``: [B, 1, T, S] booleans or numbers, by layer type where it differs."""
        if self.form == COLUMNS:
            return {"attention_mask": np.ones((batch, stop), dtype=np.int64)}
        masks = {
            kind: self._mask(start, stop, window, batch) for kind, window in self.windows.items()
        }
        return {"attention_mask": masks.get("", masks)}

    def _mask(self, start: int, stop: int, window: int | None, batch: int) -> torch.Tensor:
        # A cache of a layer with a window holds the last keys alone.
        low = 0 if window is None else max(0, start - window + 1)
        queries, keys = np.arange(start, stop)[:, None], np.arange(low, stop)
        seen = keys <= queries
        if window is not None:
            seen &= keys > queries - window
        seen = np.broadcast_to(seen, (batch, 1, *seen.shape))
        return FORMS[self.form](torch.from_numpy(seen.copy()), self.dtype)


def inputs_of(model: Any, padding: Padding | None, way: Way | None) -> Inputs:
    """What a sequence's forward passes are given."""
    blank = 0 if way is None else way.blank
    if padding is not None or blank:
        return Padded(padding, blank)
    if way is None:
        return Plain()
    if way.mask:
        return Masked(way.mask, _windows(model.config), next(model.parameters()).dtype)
    if way.lengths:
        return Packed(way.lengths)
    return Shifted(way.first) if way.first else Plain()


def _windows(config: Any) -> dict[str, int | None]:
    """Size of the window by layer type, as transformers takes masks."""
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return {"": None}
    window = config.sliding_window
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(set(kinds))}
