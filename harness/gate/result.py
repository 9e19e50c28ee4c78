"""What a gate came to: the one document that its views and exit codes are made of.

Plain frozen data, JSON by :mod:`msgspec`. *Before* is the side that was good: the baseline, or the
release to upgrade from. *After* is the other one.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from ..result import Diagnosis

FORMAT = "logits-parity/gate"
VERSION = 1

#: How many times its own rounding error a value may move and still be called rounding: the same
#: number as for single ops, see docs/gate.md for what healthy pairs show.
LIMIT = 8.0


class GateVerdict(StrEnum):
    """What a comparison of two sides came to.

    ``SAME``: every number has the same bits. ``ROUNDING``: some differ, none by more than
    rounding explains. ``CHANGED``: it is another model. ``FAILING``: it ran before and does not
    now. ``NOT_COMPARABLE``: another model, dtype or number of threads, or nothing to compare.
    """

    SAME = "same"
    ROUNDING = "rounding"
    CHANGED = "changed"
    FAILING = "failing"
    NOT_COMPARABLE = "not comparable"


class TapState(StrEnum):
    """What became of one intermediate."""

    SAME = "same"
    ROUNDING = "rounding"
    CHANGED = "changed"
    NOT_FINITE = "not finite"
    RESHAPED = "another shape"

    @property
    def differs(self) -> bool:
        """Whether it differs by more than rounding."""
        return self not in (TapState.SAME, TapState.ROUNDING)


@dataclass(frozen=True, slots=True)
class TapChange:
    """One intermediate on both sides.

    Attributes:
        passed: Name of the pass.
        chunk: 0 for the prompt, 1 and up for what follows with a cache.
        tap: Its name on the side after.
        before: Its name on the side before, where that is another one; else empty.
        module: Path of the module that makes it, after.
        role: ``out``, ``in``, ``query``, ``scores``, ``logits``, ...
        shape: Shape after.
        shape_before: Shape before.
        state: What became of it.
        distance: L2 norm of the difference, or its estimate; None where it has none.
        low: The norm is below this once in 10,000 times; equal to ``high`` if exact.
        high: And above this.
        norm: L2 norm of the values before.
        allowance: Up to this distance, the difference is rounding.
        largest_before: Largest absolute value before.
        largest: And after.
    """

    passed: str
    chunk: int
    tap: str
    before: str
    module: str
    role: str
    shape: tuple[int, ...]
    shape_before: tuple[int, ...]
    state: TapState
    distance: float | None
    low: float | None
    high: float | None
    norm: float
    allowance: float
    largest_before: float
    largest: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two sides part: the first intermediate that differs and whose difference is carried on.

    Attributes:
        change: The intermediate.
        carried_to: The layer's output, or the logits, to which it is carried.
        aside: Intermediates that differ before it and are not carried on: computed in another way
            with the same outcome.
    """

    change: TapChange
    carried_to: str
    aside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PositionChange:
    """Logits of one position on both sides.

    Attributes:
        position: In the whole sequence.
        row: Of the batch.
        token_id: The token there.
        distance: L2 norm of the difference, or its estimate.
        log_probability: Largest change of the log-probability of a token that was among the most
            likely on both sides; None where none was.
        top_before: The most likely next token before.
        top: And after.
    """

    position: int
    row: int
    token_id: int
    distance: float
    log_probability: float | None
    top_before: int
    top: int


@dataclass(frozen=True, slots=True)
class PassChange:
    """One pass on both sides.

    Attributes:
        name: Of the pass.
        token_ids: [B][T] that were fed.
        counts: Number of intermediates of each state.
        logits: Each position.
        only_before: Intermediates without a partner after.
        only_after: And the other way.
        generated_before: Greedy tokens before, [B][N]; None where none were asked for.
        generated: And after.
        failed_before: What went wrong, empty for nothing.
        failed: And after.
        divergence: Where the sides part, None if they do not.
    """

    name: str
    token_ids: tuple[tuple[int, ...], ...]
    counts: dict[str, int]
    logits: tuple[PositionChange, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    generated_before: tuple[tuple[int, ...], ...] | None
    generated: tuple[tuple[int, ...], ...] | None
    failed_before: str
    failed: str
    divergence: Divergence | None


@dataclass(frozen=True, slots=True)
class FactChange:
    """Something besides numbers that is not as before.

    Attributes:
        kind: ``config``, ``modules``, ``weights``, ``tokenizer``, ``warnings``, ...
        what: Which of them, for example a key.
        before: As text; empty where it was not there.
        after: And after.
        decides: Whether this alone makes it another model: other token ids, other weights.
    """

    kind: str
    what: str
    before: str
    after: str
    decides: bool = False


@dataclass(frozen=True, slots=True)
class SideInfo:
    """What ran on one side.

    Attributes:
        name: ``transformers 5.24.0``, or the name of the baseline file.
        versions: Of the packages that numbers may depend on.
        machine: Platform, processor, threads.
        failed: Why nothing ran, empty if something did.
    """

    name: str
    versions: dict[str, str]
    machine: dict[str, str]
    failed: str = ""


@dataclass(frozen=True, slots=True)
class GateResult:
    """The outcome of a gate.

    Attributes:
        verdict: What it came to.
        summary: The same in a sentence or two: what changed, from where, why.
        model: What was asked to run.
        before: The side that was good.
        after: The other one.
        passes: Every pass on both sides.
        taps: Intermediates that are not the same, in order, from where the sides part on first.
        facts: What else is not as before.
        diagnoses: Why, if the model has a reference and the catalogue knows.
        replayed: What replaying each op on the reference came to, of the side after; empty where
            there is no reference.
        notes: What limits the comparison.
        command: What to type to run it again.
        started: UTC, ISO 8601.
        seconds: How long it took.
    """

    verdict: GateVerdict
    summary: str
    model: str
    before: SideInfo
    after: SideInfo
    passes: tuple[PassChange, ...]
    taps: tuple[TapChange, ...]
    facts: tuple[FactChange, ...]
    diagnoses: tuple[Diagnosis, ...] = ()
    replayed: str = ""
    notes: tuple[str, ...] = ()
    command: str = ""
    started: str = ""
    seconds: float = 0.0
    format: str = field(default=FORMAT)
    version: int = field(default=VERSION)

    @property
    def divergence(self) -> Divergence | None:
        """Where the sides part first."""
        return next((each.divergence for each in self.passes if each.divergence), None)

    @property
    def mends(self) -> bool:
        """Whether a cause is known and all of it is on the side before: the side after is right."""
        return bool(self.diagnoses) and all(
            each.causes and each.candidate == self.before.name for each in self.diagnoses
        )

    @property
    def exit_code(self) -> int:
        """Exit code of the command line: 0 same or rounding, 1 changed or failing, 3 otherwise."""
        return EXIT_CODES[self.verdict]


EXIT_CODES = {
    GateVerdict.SAME: 0,
    GateVerdict.ROUNDING: 0,
    GateVerdict.CHANGED: 1,
    GateVerdict.FAILING: 1,
    GateVerdict.NOT_COMPARABLE: 3,
}
