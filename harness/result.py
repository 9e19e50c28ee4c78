"""The result document: the one thing that reports, exit codes and assertions are made of.

Plain frozen data, JSON by :mod:`msgspec`. Nothing here computes; views render it, and a saved one
can be rendered again.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

FORMAT = "logits-parity/result"
VERSION = 1

#: What candidates are compared with, where a model is at hand.
REFERENCE = "the float64 reference"


class Verdict(StrEnum):
    """What a comparison came to; see :mod:`harness.verdict` for the rule."""

    PASS = "pass"
    ROUNDING = "rounding"
    FAIL = "fail"
    NOT_FINITE = "not finite"
    NOT_COMPARABLE = "not comparable"


class TapStatus(StrEnum):
    """What became of one tap of one candidate.

    ``UNAVAILABLE`` was declared by the engine (sdpa never forms scores); ``MISSING`` was not.
    """

    COMPARED = "compared"
    UNAVAILABLE = "unavailable"
    MISSING = "missing"
    MISSHAPEN = "misshapen"
    NOT_FINITE = "not finite"


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a tap, with the value on each side.

    Attributes:
        index: Index into the tap's array, one integer an axis.
        axes: Axis letters, one for each integer of ``index``.
        position: Position in the whole sequence, None for a tap without positions.
        head: Query or kv head, None for a tap without heads.
        element: Index on the last axis.
        reference: Float64 value: of the whole reference run for a difference, of the op on the
            candidate's own inputs for a local error.
        candidate: What the candidate has there.
    """

    index: tuple[int, ...]
    axes: str
    position: int | None
    head: int | None
    element: int | None
    reference: float
    candidate: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """How the errors of one tap are spread; numbers as signs, see :mod:`harness.spread`.

    Attributes:
        sizes: How many of a sample are of which size, one sign an octave.
        positions: Largest error at each query position, or of each stretch of positions; empty
            for a tap without, and where rows are padded.
        heads: Largest error of each query or kv head; empty likewise.
        worst: The worst element of each of the worst rows, the very worst first: its flat index
            into what was compared (the tap's shape, or its last positions), the value of the
            reference and that of the candidate.
    """

    sizes: str
    positions: str
    heads: str
    worst: tuple[tuple[int, float, float], ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Candidate minus float64 reference at one tap, end to end.

    Attributes:
        max_abs: Largest absolute difference.
        mean_abs: Mean absolute difference.
        magnitude: Largest absolute value of the reference.
        over: Number of values further than the tolerance from the reference.
        count: Number of values compared.
        worst: Where the largest difference is.
        spread: How differences are spread; None in results of earlier releases.
    """

    max_abs: float
    mean_abs: float
    magnitude: float
    over: int
    count: int
    worst: Element
    spread: Spread | None = None


@dataclass(frozen=True, slots=True)
class LocalError:
    """The error that this one op adds, by replay on the candidate's own inputs.

    Attributes:
        units: Largest error in rounding units.
        median: Median error in rounding units.
        error: Absolute error where ``units`` is taken.
        bound: Absolute size of one rounding unit there.
        over: Number of elements beyond the limit.
        inherited_bound: True where the bound came through ops that the candidate did not tap.
        worst: Where the largest error in units is.
        spread: How errors are spread, in units; None in results of earlier releases.
    """

    units: float
    median: float
    error: float
    bound: float
    over: int
    inherited_bound: bool
    worst: Element
    spread: Spread | None = None


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """A parameter that the candidate holds in memory otherwise than the checkpoint.

    Attributes:
        name: Name in the checkpoint.
        differing: Number of elements that differ.
        count: Number of elements.
        max_abs: Largest absolute difference; None for another shape or a NaN.
        index: Where that is.
        reference: The checkpoint's value there, rounded to the candidate's dtype.
        candidate: What the candidate has there; None where it has no such element or NaN.
    """

    name: str
    differing: int
    count: int
    max_abs: float | None
    index: tuple[int, ...]
    reference: float
    candidate: float | None


@dataclass(frozen=True, slots=True)
class Fit:
    """A constant of an op, fitted to what a candidate computed.

    Attributes:
        constant: Its name, as the config has it.
        configured: What the reference takes from the config.
        fitted: What the candidate's numbers say.
        error: Standard error of ``fitted``.
        tolerated: How far ``fitted`` may be from ``configured`` by rounding alone.
        excluded: True if the candidate computed with another value.
        written: Where the configured value is written, or what it is made of.
    """

    constant: str
    configured: float
    fitted: float
    error: float
    tolerated: float
    excluded: bool
    written: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tap of one candidate in one chunk of one prompt.

    Attributes:
        chunk: 0 for the prompt, 1 and up for the decoding steps that follow with a cache.
        tap: Its name; see :mod:`harness.taps`.
        op: Name of the reference op that makes it.
        order: Rank in data-flow order within the chunk.
        shape: Shape of the reference's array.
        note: Why it was not compared, empty otherwise.
        weights: Parameters of the op that the candidate holds otherwise than the checkpoint;
            empty also where the candidate does not show its parameters.
        fits: Constants of the op, fitted to what the candidate computed.
        prefill: Number of forward passes that the prompt was fed in; decoding steps follow.
    """

    candidate: str
    chunk: int
    tap: str
    op: str
    order: int
    axes: str
    shape: tuple[int, ...]
    status: TapStatus
    difference: Difference | None = None
    local: LocalError | None = None
    note: str = ""
    weights: tuple[WeightDifference, ...] = ()
    fits: tuple[Fit, ...] = ()
    prefill: int = 1


@dataclass(frozen=True, slots=True)
class PairDifference:
    """Two candidates at one tap: no reference takes part."""

    a: str
    b: str
    chunk: int
    tap: str
    max_abs: float
    mean_abs: float


@dataclass(frozen=True, slots=True)
class LogitsPair:
    """Two engines' logits over all positions of one prompt.

    Attributes:
        kl_mean: Mean over positions of KL(a || b) in nats.
        kl_max: Largest of them.
        top1_agreement: Fraction of positions at which both have the same largest logit.
        greedy_agreement: Number of leading greedy tokens that are equal, None where not run.
        positions: Largest absolute difference at each position of the rows, one behind the other,
            as signs (see :mod:`harness.spread`), or of each stretch of a long prompt; empty in
            results of earlier releases.
    """

    a: str
    b: str
    max_abs: float
    mean_abs: float
    kl_mean: float
    kl_max: float
    top1_agreement: float
    greedy_agreement: int | None = None
    positions: str = ""


@dataclass(frozen=True, slots=True)
class TopTokens:
    """What one engine holds for the most likely next tokens, behind the first row of a prompt.

    Attributes:
        engine: Its name.
        token_ids: The most likely first.
        texts: The same as text.
        logits: Their logits.
        probabilities: Their probabilities.
    """

    engine: str
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    logits: tuple[float, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Greedy:
    """Tokens that one engine chose greedily after a prompt."""

    engine: str
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first op at which a candidate fails, in data-flow order.

    Attributes:
        prompt: Name of the prompt.
        fresh: True where the op itself fails its replay; False where only the end-to-end
            difference shows it (the candidate gives too few taps to replay).
        comparison: The failing comparison, with values on each side.
    """

    candidate: str
    prompt: str
    chunk: int
    tap: str
    fresh: bool
    comparison: Comparison


class Evidence(StrEnum):
    """How a cause was found, from the strongest to the weakest.

    ``REPLAY``: the mistake, made on the candidate's own inputs, gives the candidate's output to
    rounding. ``PARAMETERS``: the candidate shows the parameter it holds. ``FIT``: a constant,
    fitted over all elements, excludes what the config says. ``SEGMENT``: as ``REPLAY``, over
    several ops that the candidate did not tap. ``SKETCH``: the mistake gives what a sketch keeps of
    the candidate's output. ``FORWARD``: a whole forward pass with the mistake explains most of the
    difference.
    """

    REPLAY = "replay"
    PARAMETERS = "parameters"
    FIT = "fit"
    SEGMENT = "segment"
    SKETCH = "sketch"
    FORWARD = "forward"


@dataclass(frozen=True, slots=True)
class Cause:
    """A mistake that explains what a candidate computed.

    Attributes:
        fault: Id in the catalogue; ``parity faults show ID`` says more.
        title: What is done wrong, in a few words.
        detail: What is special here, for example the fitted value.
        evidence: How it was found.
        explained: Share of the squared error that it explains, up to 1.
        units: Largest error that is left, in rounding units; None where it was not judged.
        advice: What to change.
        distinguish: What would tell it apart from the others that fit as well.
        reports: Public reports of the same mistake.
    """

    fault: str
    title: str
    detail: str
    evidence: Evidence
    explained: float
    units: float | None
    advice: str
    distinguish: str
    reports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with one candidate: one mistake, wherever it shows.

    Attributes:
        prompt: Name of the prompt on which it shows first.
        chunk: 0 for the prompt, 1 and up for decoding steps.
        tap: Where it shows first.
        places: All taps at which the same mistake explains the numbers, as (prompt, chunk, tap).
        causes: Mistakes that explain the numbers, the most plausible first; empty if none in the
            catalogue does.
        observations: What can be said of the difference without a name.
    """

    candidate: str
    prompt: str
    chunk: int
    tap: str
    places: tuple[tuple[str, int, str], ...]
    causes: tuple[Cause, ...]
    observations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CandidateVerdict:
    """What one candidate came to over all prompts.

    Attributes:
        reason: One sentence.
        failing: Taps that fail their own replay, as (prompt, chunk, tap), in order.
        worst_units: Largest local error of all ops, in rounding units; None without replay.
        worst_tap: Where that was.
        max_abs: Largest end-to-end difference at any tap.
        compared: Number of taps compared, over all prompts and chunks.
        replayed: Number of taps replayed.
        unavailable: Taps that the engine declares it cannot give, with the reason.
    """

    candidate: str
    verdict: Verdict
    reason: str
    first_divergence: Divergence | None
    failing: tuple[tuple[str, int, str], ...]
    worst_units: float | None
    worst_tap: str
    max_abs: float | None
    compared: int
    replayed: int
    unavailable: dict[str, str]


@dataclass(frozen=True, slots=True)
class PromptResult:
    """Everything that is known of one prompt.

    Attributes:
        token_ids: [B][T] of the prompt.
        tokens: The same as text, with the tokens of the decoding steps behind them.
        chunks: Number of new tokens of each forward pass: the prompt, then decoding steps.
        prefill: Number of these passes that the prompt was fed in.
        pairs: Candidates against each other, tap by tap.
        logits: Every pair of engines on the prompt's logits, the float64 reference among them.
        padding: Side on which rows are padded, empty where they are not.
        pads: Number of pads of each row; nothing is compared at them.
        top: The most likely next tokens of each engine; empty in results of earlier releases.
    """

    name: str
    text: str
    token_ids: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[str, ...], ...]
    chunks: tuple[int, ...]
    comparisons: tuple[Comparison, ...]
    pairs: tuple[PairDifference, ...]
    logits: tuple[LogitsPair, ...]
    greedy: tuple[Greedy, ...]
    padding: str = ""
    pads: tuple[int, ...] = ()
    prefill: int = 1
    top: tuple[TopTokens, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeInfo:
    """A prompt that was made for a checkpoint, to bring faults to light.

    Attributes:
        name: Of the prompt.
        why: What it brings to light.
        topics: Topics of the faults that it can show, for example ``norm.eps``.
        rows: What each row is, empty where that goes without saying.
        lengths: Number of tokens of each row.
        passes: Number of tokens of each forward pass before decoding.
        decode: Number of decoding steps.
        padding: Side on which rows are padded, empty where they are not.
    """

    name: str
    why: str
    topics: tuple[str, ...]
    rows: tuple[str, ...]
    lengths: tuple[int, ...]
    passes: tuple[int, ...]
    decode: int
    padding: str


@dataclass(frozen=True, slots=True)
class Sight:
    """What probes show of one kind of fault.

    Attributes:
        topic: For example ``norm.eps``.
        kind: Its group: rope, attention, mask, norm, mlp, embedding, head, weights, cache, input.
        shown: Whether a fault of this kind would show.
        probe: Name of the probe that shows it, empty for none.
        why: The reason, with its numbers.
    """

    topic: str
    kind: str
    shown: bool
    probe: str
    why: str


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The probes of a checkpoint, what they show, and what stays hidden.

    Attributes:
        limit: Most tokens of a row.
    """

    probes: tuple[ProbeInfo, ...]
    sights: tuple[Sight, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What ran."""

    name: str
    kind: str
    dtype: str
    detail: dict[str, str]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What it ran on."""

    origin: str
    fingerprint: str
    family: str
    parameters: int
    config: dict[str, object]


@dataclass(frozen=True, slots=True)
class Environment:
    """What could make a second run come out otherwise."""

    versions: dict[str, str]
    threads: int
    seed: int | None
    platform: str
    started: str
    seconds: float
    command: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of one case.

    Attributes:
        tolerance: The contract that ``pass`` was judged by.
        unit_limit: The limit in rounding units that replay was judged by.
        against: What candidates were compared with: the float64 reference, or the name of another
            engine where no model was at hand to replay on.
        probe: The probes that were run, None if none was asked for.
        diagnoses: Why candidates fail, in data-flow order.
        stopped: What ended the run before its end and where, in words; empty for a run that came
            to its end. What is there is what was known by then.
    """

    case: str
    verdict: Verdict
    summary: str
    model: ModelInfo
    engines: tuple[EngineInfo, ...]
    candidates: tuple[CandidateVerdict, ...]
    prompts: tuple[PromptResult, ...]
    environment: Environment
    tolerance: float
    unit_limit: float
    against: str = REFERENCE
    probe: ProbeReport | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    stopped: str = ""
    format: str = field(default=FORMAT)
    version: int = field(default=VERSION)

    @property
    def first_divergence(self) -> Divergence | None:
        """The first divergence of the first candidate that has one."""
        for candidate in self.candidates:
            if candidate.first_divergence is not None:
                return candidate.first_divergence
        return None

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """All comparisons of all prompts, in the order in which they were made."""
        return tuple(c for prompt in self.prompts for c in prompt.comparisons)

    @property
    def exit_code(self) -> int:
        """Exit code of the command line: 0 pass or rounding, 1 fail, 3 not comparable."""
        return EXIT_CODES[self.verdict]


EXIT_CODES = {
    Verdict.PASS: 0,
    Verdict.ROUNDING: 0,
    Verdict.FAIL: 1,
    Verdict.NOT_FINITE: 1,
    Verdict.NOT_COMPARABLE: 3,
}


def to_json(result: RunResult) -> bytes:
    """Encode a result as JSON; the inverse of :func:`from_json`.

    All floats of a result are finite: what is not is a status of its own.
    """
    import msgspec

    return msgspec.json.encode(result)


def from_json(data: bytes, *, where: str = "result", prompts: bool = True) -> RunResult:
    """Decode and validate a result document.

    Args:
        data: What :func:`to_json` wrote.
        where: Name for messages, for example the file's.
        prompts: Whether to read them. Without, ``prompts`` is empty and of nearly all of the
            document nothing but the syntax is looked at, which takes a tenth of the time.

    Raises:
        UsageError: Not a result document, or one of a version that this release does not read.
    """
    import msgspec

    from .errors import UsageError

    advice = "write it again with `parity run --json`"
    try:
        head, found = _head(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            where, expected="a JSON document", found=str(error), advice=advice
        ) from None
    if found != (FORMAT, VERSION):
        if isinstance(found, tuple) and _is_later(*found):
            advice = f"a later release wrote it: pip install -U logits-parity, or {advice}"
        raise UsageError(
            where, expected=f"format {FORMAT} version {VERSION}", found=str(found), advice=advice
        )
    if not prompts:
        data = msgspec.json.encode(head | {"prompts": msgspec.Raw(b"[]")})
    try:
        return msgspec.json.decode(data, type=RunResult)
    except (msgspec.DecodeError, RecursionError) as error:  # values are read only here
        valid = isinstance(error, msgspec.ValidationError)
        expected = "a valid result" if valid else "a JSON document"
        raise UsageError(where, expected=expected, found=str(error), advice=advice) from None


def _head(data: bytes) -> tuple[dict[str, Any], object]:
    """The keys of a document with values that are not read yet, and its format and version.

    Of what is no object, its type in place of these.
    """
    import msgspec

    try:
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return {}, type(msgspec.json.decode(data))
    return head, tuple(
        msgspec.json.decode(head[key]) if key in head else None for key in ("format", "version")
    )


def _is_later(form: object, version: object) -> bool:
    return form == FORMAT and isinstance(version, int) and version > VERSION
