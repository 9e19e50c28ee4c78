"""Who takes part in a comparison: a running engine, or a run that arrived as a trace file."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import NDArray

from .engines.protocol import Described, Engine, TokenIds
from .padding import Padding
from .replay.source import EngineSource, TapSource
from .result import EngineInfo

Array = NDArray[Any]


class Participant(Described, Protocol):
    """One side of a comparison, whatever its taps come from."""

    def source(
        self, chunks: Sequence[TokenIds], padding: Padding | None = None
    ) -> AbstractContextManager[TapSource]:
        """Its taps of these forward passes, one after another on one cache.

        Args:
            chunks: Token ids [B, T] of each forward pass.
            padding: Where the prompt has pads, None for nowhere.
        """
        ...


class RunningEngine:
    """An engine that computes its taps while they are compared."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name

    @property
    def dtype(self) -> str:
        """The engine's dtype."""
        return self.engine.dtype

    @property
    def unavailable(self) -> Mapping[str, str]:
        """What the engine declares."""
        return self.engine.unavailable

    @property
    def parameters(self) -> Mapping[str, Array]:
        """The engine's parameters in memory."""
        return self.engine.parameters

    def info(self) -> EngineInfo:
        """What ran."""
        return self.engine.info()

    def source(
        self, chunks: Sequence[TokenIds], padding: Padding | None = None
    ) -> AbstractContextManager[TapSource]:
        """Run the engine in a thread of its own."""
        return EngineSource(self.engine, chunks, padding)
