"""From comparisons to verdicts: pure functions.

The rule, in the order in which it is applied to one candidate:

- **fail**: some op does not replay within the limit in rounding units, or a constant fitted to its
  numbers excludes the configured one, or the candidate shows that it holds other parameters for it
  than the checkpoint, whatever the logits say. The first such op in data-flow order is the culprit.
- **not finite**: the same for a NaN or infinity where the reference is finite.
  A tap of another shape before that op is named instead, as the first place where the two part.
- **not comparable**: a tap is missing undeclared, has another shape, or nothing was compared.
- **rounding**: all ops replay, yet some value is further than the tolerance from the reference.
- **pass**: all ops replay and every value is within the tolerance.

A candidate that gives no tap with tapped inputs (logits alone, say) cannot be replayed. It is
judged by the tolerance and by a floor: what a float32 run of the reference itself is away from
float64. That is weaker evidence, and the reason says so.
"""

from collections.abc import Iterable, Sequence

from .contract import TOLERANCE, UNIT_LIMIT, WEAK_FLOOR_FACTOR
from .fitting.words import in_words
from .result import (
    CandidateVerdict,
    Comparison,
    Divergence,
    Fit,
    PromptResult,
    TapStatus,
    Verdict,
    WeightDifference,
)
from .taps import chunk_name, split

_NOT_COMPARABLE = (TapStatus.MISSING, TapStatus.MISSHAPEN)

#: Taps whose ops have token ids or positions for input, nothing that a candidate computed.
_READ_NO_TAP = ("embed", "attn.mask")

#: From best to worst; a run is as bad as its worst candidate.
_SEVERITY = (
    Verdict.PASS,
    Verdict.ROUNDING,
    Verdict.NOT_COMPARABLE,
    Verdict.FAIL,
    Verdict.NOT_FINITE,
)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of some verdicts; not comparable if there is none."""
    ranked = sorted(verdicts, key=_SEVERITY.index)
    return ranked[-1] if ranked else Verdict.NOT_COMPARABLE


def judge(
    candidate: str,
    prompts: Sequence[PromptResult],
    unavailable: dict[str, str],
    *,
    floor: float | None = None,
) -> CandidateVerdict:
    """Judge one candidate over all prompts.

    Args:
        candidate: The engine's name.
        prompts: Results that hold its comparisons.
        unavailable: Kinds of taps that the engine declares it cannot give, with the reason.
        floor: Largest difference of float32 reference logits from float64, for a candidate that
            cannot be replayed; None if not known.
    """
    own = [(p.name, c) for p in prompts for c in p.comparisons if c.candidate == candidate]
    compared = [c for _, c in own if c.difference is not None]
    replayed = [c for c in compared if c.local is not None and not c.local.inherited_bound]
    # An embedding or a mask reads nothing of the candidate's: alone it is no evidence of the rest.
    fed = [c for c in replayed if split(c.tap).kind not in _READ_NO_TAP]
    failing = tuple((n, c.chunk, c.tap) for n, c in own if _fails(c, replayed=bool(fed)))
    judged = max(
        (c for c in compared if c.local is not None),
        key=lambda c: c.local.units if c.local else 0.0,
        default=None,
    )
    largest = max((c.difference.max_abs for c in compared if c.difference), default=None)
    verdict, reason, at = _decide(own, compared, fed, judged, floor)
    return CandidateVerdict(
        candidate=candidate,
        verdict=verdict,
        reason=reason,
        first_divergence=None if at is None else _divergence(candidate, *at, replayed=bool(fed)),
        failing=failing,
        worst_units=judged.local.units if judged is not None and judged.local else None,
        worst_tap=judged.tap if judged is not None else "",
        max_abs=largest,
        compared=len(compared),
        replayed=len(replayed),
        unavailable=unavailable,
    )


def _fails(comparison: Comparison, *, replayed: bool) -> bool:
    """Whether an op fails by itself.

    Logits of a candidate of which no op is replayed do not: the bound that they carry through the
    whole model says too little.
    """
    if comparison.weights or excluded(comparison):
        return True
    if comparison.local is None or (comparison.tap == "logits" and not replayed):
        return False
    return not comparison.local.units <= UNIT_LIMIT  # so that NaN fails


def _divergence(
    candidate: str, prompt: str, comparison: Comparison, *, replayed: bool
) -> Divergence:
    return Divergence(
        candidate=candidate,
        prompt=prompt,
        chunk=comparison.chunk,
        tap=comparison.tap,
        fresh=_fails(comparison, replayed=replayed),
        comparison=comparison,
    )


def excluded(comparison: Comparison) -> list[Fit]:
    """Constants with which the candidate did not compute what the config says."""
    return [fit for fit in comparison.fits if fit.excluded]


_Decision = tuple[Verdict, str, tuple[str, Comparison] | None]


def _decide(
    own: Sequence[tuple[str, Comparison]],
    compared: Sequence[Comparison],
    replayed: Sequence[Comparison],
    judged: Comparison | None,
    floor: float | None,
) -> _Decision:
    broken = [
        c for _, c in own if c.status is TapStatus.NOT_FINITE or _fails(c, replayed=bool(replayed))
    ]
    if broken:
        # A wrong shape before the first op that fails is where the two part.
        name, c = next((n, c) for n, c in own if c is broken[0] or _is_misshapen(c))
        kind = broken[0].status
        verdict = Verdict.NOT_FINITE if kind is TapStatus.NOT_FINITE else Verdict.FAIL
        return verdict, _describe(c), (name, c)
    for name, c in own:
        if c.status in _NOT_COMPARABLE:
            return Verdict.NOT_COMPARABLE, f"{c.tap}: {c.note}", (name, c)
    if not compared:
        return Verdict.NOT_COMPARABLE, "no tap was compared", None
    if not replayed:
        return _decide_without_replay(own, floor)
    units = judged.local.units if judged is not None and judged.local else 0.0
    where = judged.tap if judged is not None else ""
    replays = (
        f"every op replays within {UNIT_LIMIT:g} rounding units (worst {units:.1f} at {where})"
    )
    carried = sum(1 for c in compared if c.local is not None and c.local.inherited_bound)
    if carried:
        replays += f", {carried} of them judged with a bound carried through untapped ops"
    over = [c for c in compared if c.difference and c.difference.over]
    if not over:
        return Verdict.PASS, f"{replays}, every value within {TOLERANCE:g}", None
    largest = max(over, key=lambda c: c.difference.max_abs if c.difference else 0.0)
    size = largest.difference.max_abs if largest.difference else 0.0
    return (
        Verdict.ROUNDING,
        f"{replays}; {len(over)} of {len(compared)} taps exceed {TOLERANCE:g} by accumulated "
        f"rounding, most {largest.tap} by {size:.2g}",
        None,
    )


def _is_misshapen(comparison: Comparison) -> bool:
    return comparison.status is TapStatus.MISSHAPEN


def _decide_without_replay(own: Sequence[tuple[str, Comparison]], floor: float | None) -> _Decision:
    """Judge a candidate whose ops have no tapped inputs."""
    weak = "no op could be replayed, as the candidate taps none of its inputs (weaker evidence)"
    name, c = max(
        ((n, c) for n, c in own if c.difference),
        key=lambda item: item[1].difference.max_abs if item[1].difference else 0.0,
    )
    size = c.difference.max_abs if c.difference else 0.0
    if size <= TOLERANCE:
        return Verdict.PASS, f"{weak}; every value within {TOLERANCE:g}", None
    if floor is not None and size <= WEAK_FLOOR_FACTOR * floor:
        text = f"{c.tap} differs by {size:.2g}, within {WEAK_FLOOR_FACTOR:g} times"
        return Verdict.ROUNDING, f"{weak}; {text} the float32 floor of {floor:.2g}", None
    known = "no float32 floor is known" if floor is None else f"the float32 floor is {floor:.2g}"
    return Verdict.FAIL, f"{weak}; {c.tap} differs by {size:.2g}, {known}", (name, c)


def _describe(comparison: Comparison) -> str:
    if comparison.status is not TapStatus.COMPARED and not comparison.weights:
        return f"{comparison.tap}: {comparison.note}"
    local = comparison.local
    units = local.units if local is not None else float("nan")
    where = chunk_name(comparison.chunk, comparison.prefill)
    chunk = "" if comparison.chunk == 0 else f" in {where}"
    if comparison.weights:
        held = describe_weight(comparison.weights[0])
        return f"{comparison.tap} ({comparison.op}) computes with other weights: {held}"
    trends = excluded(comparison)
    if trends and units <= UNIT_LIMIT:
        return (
            f"{comparison.tap} ({comparison.op}) replays within {units:.1f} rounding units{chunk}, "
            f"but its numbers follow another constant: {describe_fit(trends[0])}"
        )
    return (
        f"{comparison.tap} ({comparison.op}) is the first op that does not replay{chunk}: "
        f"{units:.3g} rounding units, limit {UNIT_LIMIT:g}"
    )


def describe_fit(fit: Fit) -> str:
    """One clause on a constant that differs from the config's."""
    return (
        f"{fit.constant} = {in_words(fit.fitted, fit.error)}, configured {fit.configured:,.10g} "
        f"({fit.written})"
    )


def describe_weight(weight: WeightDifference) -> str:
    """One clause on a parameter that differs from the checkpoint."""
    if weight.candidate is None:
        return f"{weight.name} has another shape or NaN"
    return (
        f"{weight.name} differs in {weight.differing} of {weight.count} elements, most at "
        f"{list(weight.index)}: {weight.reference:.9g} in the checkpoint, {weight.candidate:.9g} "
        "in the candidate"
    )
