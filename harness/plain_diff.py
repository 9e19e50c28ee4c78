"""The result of two sides that are held against each other alone, without replay."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .contract import TOLERANCE, UNIT_LIMIT
from .engines.protocol import TokenIds
from .participants import Participant
from .result import Environment, ModelInfo, PromptResult, RunResult, Verdict
from .subject import Subject
from .taps import flow_order
from .trace.plain import Measured, compare_taps, judge_taps
from .trace.read import Trace
from .unfinished import OnStop, Underway, tell

_PROMPT = "tokens"


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared.

    Attributes:
        first: Stands for the reference.
        other: The candidate.
        traces: Those of the two that are trace files.
        chunks: Token ids [B, T] of each forward pass.
        subject: The model, None where it is not at hand.
    """

    first: Participant
    other: Participant
    traces: Sequence[Trace]
    chunks: Sequence[TokenIds]
    subject: Subject | None


def diff_plain(
    sides: Sides,
    *,
    case: str,
    environment: Callable[[], Environment],
    on_stop: OnStop | None = None,
) -> RunResult:
    """Measure the candidate against the first side, tap by tap.

    Args:
        sides: What to compare.
        case: Name of the comparison.
        environment: Says what ran; called when the comparison is over.
        on_stop: Called with what is known by then where an exception ends the comparison; the
            exception goes on afterwards. Not called where nothing was compared.
    """
    measured = Measured()
    underway = Underway(
        [_PROMPT], stage=f"comparing prompt {_PROMPT}", known=lambda: _prompt(sides, measured)
    )
    try:
        compare_taps(sides.first, [sides.other], sides.chunks, _places(sides), into=measured)
        return _judged(sides, measured, case, environment())
    except (Exception, KeyboardInterrupt) as error:
        if on_stop is not None:
            tell(on_stop, error, underway, lambda: _judged(sides, measured, case, environment()))
        raise


def _judged(sides: Sides, measured: Measured, case: str, environment: Environment) -> RunResult:
    first, other = sides.first, sides.other
    verdict = judge_taps(other, measured.comparisons)
    return RunResult(
        case=case,
        verdict=verdict.verdict,
        summary=_summary(verdict.verdict, first.name, other.name),
        model=_claimed(sides.traces) if sides.subject is None else sides.subject.info(),
        engines=(first.info(), other.info()),
        candidates=(verdict,),
        prompts=(_prompt(sides, measured),),
        environment=environment,
        tolerance=TOLERANCE,
        unit_limit=UNIT_LIMIT,
        against=first.name,
    )


def _prompt(sides: Sides, measured: Measured) -> PromptResult:
    ids = np.concatenate(sides.chunks, axis=1)
    return PromptResult(
        name=_PROMPT,
        text="",
        token_ids=tuple(tuple(row) for row in sides.chunks[0].tolist()),
        tokens=tuple(tuple(map(str, row)) for row in ids.tolist()),
        chunks=tuple(chunk.shape[1] for chunk in sides.chunks),
        comparisons=tuple(measured.comparisons),
        pairs=(),
        logits=tuple(measured.logits[:1]),
        greedy=(),
    )


def _places(sides: Sides) -> list[tuple[int, str]]:
    """Chunk and name of every tap in data-flow order, as far as that is known."""
    if sides.subject is not None:
        from .engines.shapes import tap_shapes

        return list(tap_shapes(sides.subject.model, sides.chunks))
    held = dict.fromkeys(place for trace in sides.traces for place in trace.findings.taps)
    return sorted(held, key=lambda place: (place[0], flow_order(place[1])))


def _claimed(traces: Sequence[Trace]) -> ModelInfo:
    """What traces say of their model."""
    model = traces[0].head.model
    return ModelInfo(
        origin=model.origin or "not said",
        fingerprint=model.fingerprint or "not said",
        family=model.family or "not said",
        parameters=0,
        config={},
    )


def _summary(verdict: Verdict, first: str, other: str) -> str:
    return {
        Verdict.PASS: f"{other} agrees with {first}.",
        Verdict.NOT_FINITE: f"{first} or {other} holds NaN or infinity.",
    }.get(verdict, f"{other} differs from {first}; whether by rounding or a fault is not known.")
