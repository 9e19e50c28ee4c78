"""The side that laws are about: an engine over a checkpoint, which may be altered."""

import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..contract import TOLERANCE
from ..engines.protocol import Array, Engine
from ..engines.ways import AbleEngine, Way, abilities, begin_in
from ..errors import ParityError
from ..padding import Padding, pad_rows, padding_of
from ..subject import Subject, load_subject
from ..taps import declared, split
from .checkpoint_edit import Tensors, edit_checkpoint
from .conditioning import DRAWS, rounding_of
from .law import LawBroken
from .sizes import Sizes

Floats = NDArray[np.float64]
Rows = Sequence[Sequence[int]]

#: Loads an engine from an HF directory.
Make = Callable[[Path], Engine]

#: Changes a config and tensors by name, in place.
Change = Callable[[dict[str, Any], Tensors], None]


@dataclass
class Candidate:
    """An engine over a checkpoint.

    Args:
        folder: HF directory.
        make: Loads the engine from such a directory.

    Attributes:
        worst: Largest difference that was met, in parts of what is allowed.
    """

    folder: Path
    make: Make
    worst: float = 0.0
    _made: Callable[[], Any] | None = field(default=None, repr=False)

    @cached_property
    def engine(self) -> Engine:
        """The engine, loaded when it is first needed."""
        return self.make(self.folder)

    @property
    def able(self) -> AbleEngine:
        """The engine, for laws that need abilities of it."""
        return cast(AbleEngine, self.engine)

    @cached_property
    def subject(self) -> Subject:
        """The checkpoint with the reference over it."""
        return load_subject(self.folder)

    @cached_property
    def sizes(self) -> Sizes:
        """Sizes by the config."""
        raw = json.loads((self.folder / "config.json").read_text())
        from ..engines.hf_defaults import whole_config

        return Sizes(whole_config(raw))

    @cached_property
    def abilities(self) -> frozenset[str]:
        """What the engine says that it can besides computing logits."""
        return abilities(self.engine)

    def gives(self, kind: str) -> bool:
        """Whether the engine hands over taps of a kind."""
        return declared(self.engine.unavailable, f"layers.0.{kind}") is None

    # Running

    def logits(
        self,
        rows: Rows,
        *,
        chunks: Sequence[int] | None = None,
        padding: str | None = None,
        way: Way | None = None,
    ) -> Floats:
        """Logits [B, T, V] of rows of token ids.

        Args:
            rows: Token ids.
            chunks: Numbers of tokens of the forward passes over a cache; None for one pass
                without a cache.
            padding: Side on which shorter rows are filled up.
            way: What else is not as usual.
        """
        return self._run(rows, chunks, padding, way, None)[0]

    def taps(
        self,
        rows: Rows,
        *kinds: str,
        chunks: Sequence[int] | None = None,
        way: Way | None = None,
    ) -> dict[str, Array]:
        """Intermediates of the last forward pass, by the name of the tap, in the engine's dtype.

        Args:
            rows: Token ids.
            *kinds: Kinds of taps, for example ``attn.q``.
            chunks: As for :meth:`logits`.
            way: As for :meth:`logits`.
        """
        return self._run(rows, chunks, None, way, frozenset(kinds))[1]

    def _run(
        self,
        rows: Rows,
        chunks: Sequence[int] | None,
        padding: str | None,
        way: Way | None,
        kinds: frozenset[str] | None,
    ) -> tuple[Floats, dict[str, Array]]:
        padded = padding_of(rows, padding)
        table = pad_rows(rows, padded, 0)
        taken: dict[str, Array] = {}

        def emit(tap: str, array: Array) -> None:
            if kinds is not None and split(tap).kind in kinds:
                taken[tap] = array

        stops = np.cumsum(chunks) if chunks is not None else [table.shape[1]]
        parts, start = [], 0
        with begin_in(self.engine, way, cache=chunks is not None, padding=padded) as session:
            for stop in map(int, stops):
                fed = table[:, start:stop]
                parts.append(session.feed(fed, None if kinds is None else emit))
                start = stop
        return np.concatenate(parts, axis=1).astype(np.float64), taken

    def padded(self, rows: Rows, side: str) -> Padding | None:
        """Where rows have pads if they are filled up on a side."""
        return padding_of(rows, side)

    # Other checkpoints

    def altered(self, change: Change) -> "Candidate":
        """The engine over another checkpoint.

        Args:
            change: Changes the config and the tensors.
        """
        made = _in_folder_of_its_own(self.make)
        edit_checkpoint(self.folder, made.folder, change)
        return made

    def resaved(self) -> "Candidate":
        """The engine over what it writes of its model."""
        made = _in_folder_of_its_own(self.able.resaved)
        made.engine = self.able.resaved(made.folder)  # written now, for what reads the folder
        return made

    def in_dtype(self, dtype: str) -> "Candidate":
        """The engine over the same checkpoint in another dtype."""
        return Candidate(self.folder, lambda folder: self.able.in_dtype(dtype, folder))

    # Judging

    def same(
        self,
        what: str,
        expected: Array,
        found: Array,
        *,
        bound: Array | float | None = None,
        exact: bool = False,
        rows: Rows | None = None,
    ) -> None:
        """Require that two results agree.

        Args:
            what: What they are, in words.
            expected: One of them.
            found: The other, of the same shape.
            bound: How far they may lie apart, element by element or everywhere: by default
                :func:`tolerance`.
            exact: Whether not a bit may differ.
            rows: Token ids [B][T] of logits [B, N, V] of the last N positions. Where rounding alone
                moves them by more than :func:`tolerance`, that much is allowed; see
                :mod:`.conditioning`.

        Raises:
            LawBroken: They do not.
        """
        if expected.shape != found.shape:
            raise LawBroken(what, expected=str(expected.shape), found=str(found.shape))
        a, b = np.asarray(expected, np.float64), np.asarray(found, np.float64)
        if exact:
            allowed: Any = 0.0
        else:
            allowed = self.tolerance(a) if bound is None else bound
        off = np.abs(a - b)
        if rows is not None and not exact and (off > allowed).any():
            allowed = np.maximum(allowed, self._rounding(rows)[:, -a.shape[1] :, None])
        allowed = np.broadcast_to(np.asarray(allowed, np.float64), a.shape)
        equal = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(equal, 0.0, off / allowed)
        parts = np.where(np.isnan(parts), np.inf, parts)
        if not parts.size:
            raise LawBroken(what, expected="something to compare", found="nothing")
        at = np.unravel_index(int(parts.argmax()), parts.shape)
        worst = float(parts[at])
        self.worst = max(self.worst, worst)
        if worst > 1.0:
            raise LawBroken(
                f"{what} at [{', '.join(map(str, at))}]",
                expected=f"{a[at]:.9g} {_within(float(allowed[at]))}",
                found=f"{b[at]:.9g}, {off[at]:.3g} away",
                worst=worst,
            )

    def _rounding(self, rows: Rows) -> Floats:
        """How far rounding may move logits of rows [B, T]: zeros if our reference cannot say."""
        try:
            errors = rounding_of(self.subject, rows)
        except ParityError:
            return np.zeros((len(rows), len(rows[0])))
        scaled: Floats = DRAWS * errors * self.unit / _UNIT["float32"]
        return scaled

    @property
    def unit(self) -> float:
        """Unit roundoff of the engine's dtype."""
        return _UNIT[self.engine.dtype]

    def tolerance(self, expected: Floats) -> float:
        """How far two results of the engine may lie apart, normwise.

        The contract is about float32 and values of the size of 1. Rounding errors of a sum are
        proportional to the size of what is added (Higham 2002, Accuracy and Stability, section
        3.1), so that larger values may differ by more. Errors of layers are independent, so that
        they grow with the root of their number; a layer rounds some sixteen times on the way
        through. That is below the contract in float32, and says how much a narrower dtype may.
        """
        finite = np.abs(expected[np.isfinite(expected)])
        rounding: float = 16 * self.unit * self.sizes.layers**0.5
        return max(TOLERANCE, rounding) * max(1.0, float(finite.max(initial=0.0)))

    def close(self) -> None:
        """Let go of the engine and of folders that were made."""
        self.__dict__.pop("engine", None)
        if self._made is not None:
            self._made()


def _in_folder_of_its_own(make: Make) -> Candidate:
    """A candidate in a new folder, which goes when the candidate does."""
    made = Candidate(Path(tempfile.mkdtemp(prefix="parity-law-")), make)
    made._made = weakref.finalize(made, shutil.rmtree, made.folder, ignore_errors=True)
    return made


#: Unit roundoff of dtypes: half the distance from 1 to the next number.
_UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def _within(allowed: float) -> str:
    return f"within {allowed:.3g}" if allowed else "bit for bit"


def by_layer(mapping: Mapping[str, Array], kind: str) -> list[tuple[int, Array]]:
    """Taps of one kind by layer, in order."""
    found = [(split(tap), array) for tap, array in mapping.items()]
    return [(name.layer or 0, array) for name, array in found if name.kind == kind]
