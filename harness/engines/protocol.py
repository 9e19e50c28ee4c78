"""The seam between the harness and whatever computes logits.

Everything that crosses it is a NumPy array (bfloat16 as :mod:`ml_dtypes` has it), so that the
core of the harness needs no array library of an engine's.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError
from ..padding import Padding
from ..result import EngineInfo

Array = NDArray[Any]
TokenIds = NDArray[np.int64]

#: Receives a tap's name and its array. The array is the receiver's to keep.
Emit = Callable[[str, Array], None]


class Session(Protocol):
    """One sequence (or batch of sequences) being fed to an engine."""

    def feed(self, token_ids: TokenIds, emit: Emit | None = None) -> Array:
        """Run the next tokens of the sequence.

        Args:
            token_ids: [B, T]; they follow those fed before.
            emit: Called with each intermediate as it appears, None to run plainly.

        Returns:
            Logits [B, T, V] in the engine's dtype.
        """
        ...


class Described(Protocol):
    """What is known of whatever hands over taps, an engine or a recorded run of one."""

    @property
    def name(self) -> str:
        """Short name, unique within a run, for example ``hf:eager``."""
        ...

    @property
    def dtype(self) -> str:
        """Name of the dtype of its weights and intermediates, for example ``float32``."""
        ...

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Taps that it cannot give, each with the reason; see :func:`harness.taps.declared`."""
        ...

    @property
    def parameters(self) -> Mapping[str, Array]:
        """Parameters in memory, by their name in the checkpoint; empty if it shows none."""
        ...

    def info(self) -> EngineInfo:
        """What ran: implementation, versions, device."""
        ...


class Engine(Described, Protocol):
    """Something that computes logits from token ids."""

    def open(self, *, cache: bool) -> AbstractContextManager[Session]:
        """Begin a new sequence.

        Args:
            cache: Whether more than one :meth:`Session.feed` will follow.
        """
        ...


class PaddedEngine(Engine, Protocol):
    """An engine that also runs batches whose rows are of unequal length."""

    def open(
        self, *, cache: bool, padding: Padding | None = None
    ) -> AbstractContextManager[Session]:
        """Begin a new sequence.

        Args:
            cache: Whether more than one :meth:`Session.feed` will follow.
            padding: Where the batch has pads, None for nowhere. Tokens are to be computed as if
                there were none: at the positions that :meth:`Padding.positions` says, reading
                tokens alone.
        """
        ...


def takes_padding(engine: Engine) -> bool:
    """Whether an engine runs batches whose rows are of unequal length."""
    return "padding" in inspect.signature(engine.open).parameters


def begin(
    engine: Engine, *, cache: bool, padding: Padding | None = None
) -> AbstractContextManager[Session]:
    """Begin a new sequence of an engine, padded or not.

    Raises:
        EngineError: There is padding, and the engine takes none.
    """
    if padding is None:
        return engine.open(cache=cache)
    if not takes_padding(engine):
        raise EngineError(
            f"engine {engine.name}",
            expected="an engine that runs padded batches: open(*, cache, padding)",
            found="one whose open takes no padding",
            advice="give the rows as prompts of their own, or teach the engine to take padding",
        )
    return cast(PaddedEngine, engine).open(cache=cache, padding=padding)
