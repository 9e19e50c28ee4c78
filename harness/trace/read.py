"""A trace file as one side of a comparison."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engines.protocol import TokenIds
from ..errors import NotComparableError, UsageError
from ..padding import Padding
from ..replay.source import LastPositions
from ..result import EngineInfo
from ..taps import axes_of, split
from .check import Findings, chunks_of, inspect
from .container import scan
from .head import TraceHead
from .layout import to_standard

Array = NDArray[Any]


class Trace:
    """A run that arrived as a file; its taps stay on the disk until they are compared.

    Args:
        path: The file.
        name: Short name within a comparison; the engine's own if not given.

    Attributes:
        path: The file.
        head: The metadata.
        findings: What was found in the header; without errors.

    Raises:
        UsageError: The file is no sound trace; ``parity trace --check`` tells all that is wrong.
    """

    #: A trace shows what was computed, not what with.
    parameters: Mapping[str, Array] = {}

    def __init__(self, path: Path, *, name: str = "") -> None:
        container = scan(path)
        self.findings = inspect(container)
        self.head = _require_sound(path, self.findings)
        self.path = path
        self.name = name or self.head.engine.name
        self._tensors = container.map()

    @property
    def dtype(self) -> str:
        """The dtype that the engine computed in."""
        return self.head.engine.dtype

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Taps that the engine could not give, with the reason."""
        return self.head.unavailable

    @property
    def chunks(self) -> list[TokenIds]:
        """Token ids [B, T] of each forward pass."""
        return chunks_of(self.head)

    @property
    def logits_only(self) -> bool:
        """Whether no tap is there that an op of the model reads or that reads one."""
        kinds = {split(tap).kind for _, tap in self.findings.taps}
        return kinds <= {"embed", "attn.mask", "logits"}

    def info(self) -> EngineInfo:
        """What ran."""
        engine = self.head.engine
        detail = {**engine.detail, "trace": str(self.path)}
        return EngineInfo(self.name, engine.kind, engine.dtype, detail)

    @contextmanager
    def source(
        self, chunks: Sequence[TokenIds], padding: Padding | None = None
    ) -> Iterator["TraceSource"]:
        """The taps, for a comparison on the token ids that the trace is of.

        Raises:
            NotComparableError: The comparison is on other tokens, or is padded.
        """
        if padding is not None:
            raise NotComparableError(
                str(self.path),
                expected="a comparison without padding, as a trace file cannot say where pads are",
                found=f"rows padded on the {padding.side}",
                advice="trace each row by itself",
            )
        own = self.chunks
        same = len(own) == len(chunks)
        if not same or any(not np.array_equal(a, b) for a, b in zip(own, chunks, strict=True)):
            raise NotComparableError(
                str(self.path),
                expected=f"tokens {_shown(chunks)}",
                found=_shown(own),
                advice="feed both sides the same token ids in the same chunks, and trace again",
            )
        yield TraceSource(self.head, self._tensors)


class TraceSource:
    """Takes taps out of a trace, in the axes of the table of taps."""

    def __init__(self, head: TraceHead, tensors: Mapping[str, Array]) -> None:
        self._head = head
        self._tensors = tensors

    def take(self, chunk: int, tap: str) -> Array | LastPositions | None:
        """Hand over a tap; None if this chunk has no such tap."""
        stored = self._tensors.get(f"{chunk}/{tap}")
        if stored is None:
            return None
        layout = self._head.layout_of(split(tap).kind)
        array = to_standard(stored, layout, axes_of(tap))
        return LastPositions(array) if layout.positions == "last" else array


def _require_sound(path: Path, findings: Findings) -> TraceHead:
    errors = findings.errors
    if findings.head is not None and not errors:
        return findings.head
    first = errors[0]
    more = f"; and {len(errors) - 1} more problems" if len(errors) > 1 else ""
    raise UsageError(
        f"{path}: {first.where}",
        expected=first.expected,
        found=first.found + more,
        advice=f"{first.advice}; `parity trace --check {path}` tells all that is wrong",
    )


def _shown(chunks: Sequence[TokenIds]) -> str:
    sizes = ", ".join(str(chunk.shape[1]) for chunk in chunks)
    first = ", ".join(map(str, chunks[0][0, :6].tolist()))
    rows = chunks[0].shape[0]
    return f"{rows} x [{first}, ...] in chunks of {sizes}"
