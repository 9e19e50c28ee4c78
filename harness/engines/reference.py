"""The independent reference as an engine of its own, in float32 or half precision."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ..errors import UsageError
from ..padding import Padding
from ..references_seam import cache as caches
from ..references_seam import model as models
from ..references_seam import step as seam
from ..result import EngineInfo
from ..subject import refusals_as_errors
from .protocol import Emit
from .ways import Way

Array = NDArray[Any]
TokenIds = NDArray[np.int64]

#: NumPy has fast kernels for these; narrower dtypes run on torch.
NUMPY_DTYPES = {"float32": np.float32, "float64": np.float64}


class ReferenceEngine:
    """Runs the reference on NumPy, which shares no kernel with torch.

    Args:
        model: The reference's model, over memory-mapped parameters.
        dtype: float32 or float64.
        name: Short name within a run.

    Raises:
        UsageError: The dtype is none that it computes in.
    """

    unavailable: Mapping[str, str] = {}

    #: It computes on the checkpoint's own arrays: there is nothing else to show.
    parameters: Mapping[str, Array] = {}

    def __init__(
        self, model: models.Model, *, dtype: str = "float32", name: str = "reference"
    ) -> None:
        if dtype not in NUMPY_DTYPES:
            raise UsageError(
                f"engine {name}",
                expected="dtype float32 or float64, which NumPy computes in",
                found=dtype,
                advice="leave the reference out of a half-precision run: the float64 reference "
                "still takes part",
            )
        self._model = model
        self.dtype = dtype
        self.name = name

    def info(self) -> EngineInfo:
        """What ran."""
        detail = {"library": "numpy", "numpy": np.__version__}
        return EngineInfo(self.name, "reference", self.dtype, detail)

    #: It goes its own way from tokens to logits, and makes its own masks.
    abilities = frozenset({"crop", "first", "keep", "reorder", "threads"})

    @contextmanager
    def open(
        self, *, cache: bool, padding: Padding | None = None, way: Way | None = None
    ) -> Iterator["ReferenceSession"]:
        """Begin a new sequence."""
        way = way or Way()
        dtype = np.dtype(NUMPY_DTYPES[self.dtype])
        # Looking for libraries of threads reads files, so that it is left where nobody asks.
        with threadpool_limits(way.threads, user_api="blas") if way.threads else nullcontext():
            yield ReferenceSession(self._model, dtype, padding, first=way.first)


class ReferenceSession:
    """One sequence in the reference. It always has a cache; its length is the position."""

    def __init__(
        self,
        model: models.Model,
        dtype: np.dtype[Any],
        padding: Padding | None = None,
        *,
        first: int = 0,
    ) -> None:
        self._first = first
        self._model = model
        self._dtype = dtype
        self._padding = padding
        self._cache: caches.KVCache | None = None

    def feed(
        self, token_ids: TokenIds, emit: Emit | None = None, *, keep: int | None = None
    ) -> Array:
        """Run the next tokens: [B, T] to logits [B, T, V], or [B, keep, V] of the last ones."""
        step: seam.Step = seam.Compute(self._lift, self._dtype)
        if emit is not None:
            step = _Emitting(step, emit)
        start = 0 if self._cache is None else self._cache.length
        real = None
        if self._padding is not None:
            real = self._padding.real(start, start + token_ids.shape[1])
        if self._cache is None:
            logits, self._cache = self._model.prefill(step, token_ids, real=real, first=self._first)
        else:
            logits = self._model.extend(step, token_ids, self._cache, position=start, real=real)
        return np.asarray(logits)[:, -keep:] if keep else np.asarray(logits)

    def crop(self, length: int) -> None:
        """Forget all columns behind the first ``length``."""
        if self._cache is not None:
            with refusals_as_errors():
                self._cache.crop(length)

    def reorder(self, rows: Sequence[int]) -> None:
        """Let row ``i`` of the batch go on from what row ``rows[i]`` was."""
        if self._cache is not None:
            self._cache.reorder(rows)

    def _lift(self, weight: seam.Weight) -> Array:
        return np.asarray(weight.array, dtype=self._dtype)


class _Emitting:
    """A step that hands every tap on."""

    def __init__(self, step: seam.Step, emit: Emit) -> None:
        self._step = step
        self._emit = emit

    def __call__(
        self, tap: str | None, op: seam.Op, *inputs: seam.Handle, **constants: Any
    ) -> Array:
        result: Array = self._step(tap, op, *inputs, **constants)
        if tap is not None:
            self._emit(tap, result)
        return result
