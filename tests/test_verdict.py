"""The rule of verdicts, case by case."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.contract import TOLERANCE, UNIT_LIMIT, WEAK_FLOOR_FACTOR
from harness.result import (
    CandidateVerdict,
    Comparison,
    Difference,
    Element,
    LocalError,
    PromptResult,
    TapStatus,
    Verdict,
    WeightDifference,
)
from harness.verdict import describe_weight, judge, worst

ELEMENT = Element((0, 1, 2), "BTC", 1, None, 2, 1.0, 1.5)
MOVED = WeightDifference("w", 1, 12, 1e-4, (0, 3), 0.25, 0.2501)


def compared(
    tap: str, *, units: float = 1.0, max_abs: float = 0.0, inherited: bool = False, chunk: int = 0
) -> Comparison:
    over = int(max_abs > TOLERANCE)
    return Comparison(
        candidate="c",
        chunk=chunk,
        tap=tap,
        op="linear",
        order=0,
        axes="BTC",
        shape=(1, 2, 3),
        status=TapStatus.COMPARED,
        difference=Difference(max_abs, max_abs / 2, 10.0, over, 6, ELEMENT),
        local=LocalError(units, 0.5, units, 1.0, int(units > UNIT_LIMIT), inherited, ELEMENT),
    )


def uncompared(tap: str, status: TapStatus, note: str = "why") -> Comparison:
    return replace(compared(tap), difference=None, local=None, status=status, note=note)


def verdict(
    *comparisons: Comparison, floor: float | None = None, prompts: Sequence[str] = ("p",)
) -> CandidateVerdict:
    results = [PromptResult(n, "", (), (), (), comparisons, (), (), ()) for n in prompts]
    return judge("c", results, {"attn.scores": "fused"}, floor=floor)


def first_tap(found: CandidateVerdict) -> str | None:
    return None if found.first_divergence is None else found.first_divergence.tap


def test_pass_when_all_replays_and_every_value_is_within_the_tolerance() -> None:
    found = verdict(compared("a", units=UNIT_LIMIT, max_abs=TOLERANCE), compared("logits"))
    assert found.verdict is Verdict.PASS
    assert found.reason == (
        f"every op replays within {UNIT_LIMIT:g} rounding units (worst {UNIT_LIMIT:.1f} at a), "
        f"every value within {TOLERANCE:g}"
    )
    assert found.first_divergence is None
    assert (found.compared, found.replayed, found.failing) == (2, 2, ())
    assert (found.worst_units, found.worst_tap, found.max_abs) == (UNIT_LIMIT, "a", TOLERANCE)
    assert found.unavailable == {"attn.scores": "fused"}


def test_rounding_when_all_replays_and_some_value_exceeds_the_tolerance() -> None:
    found = verdict(compared("a", max_abs=1.1e-4), compared("b", max_abs=0.25), compared("logits"))
    assert found.verdict is Verdict.ROUNDING
    assert "2 of 3 taps exceed 0.0001 by accumulated rounding, most b by 0.25" in found.reason
    assert found.max_abs == 0.25
    assert found.first_divergence is None


def test_fail_when_an_op_does_not_replay_although_every_value_is_within_the_tolerance() -> None:
    found = verdict(compared("a"), compared("b", units=UNIT_LIMIT * 1.01), compared("logits"))
    assert found.verdict is Verdict.FAIL
    assert first_tap(found) == "b"
    assert found.failing == (("p", 0, "b"),)
    assert found.reason == "b (linear) is the first op that does not replay: " + (
        f"{UNIT_LIMIT * 1.01:.3g} rounding units, limit {UNIT_LIMIT:g}"
    )


def test_fail_names_the_first_op_in_order_and_lists_all() -> None:
    found = verdict(
        compared("a", units=20, chunk=1), compared("b", units=1e9, chunk=1), prompts=("p", "q")
    )
    assert first_tap(found) == "a"
    assert found.first_divergence is not None
    assert (found.first_divergence.prompt, found.first_divergence.chunk) == ("p", 1)
    assert "in decoding step 1" in found.reason
    assert found.failing == (("p", 1, "a"), ("p", 1, "b"), ("q", 1, "a"), ("q", 1, "b"))
    assert found.worst_tap == "b"


def test_fail_when_units_are_no_number() -> None:
    found = verdict(compared("a", units=float("nan")), compared("logits"))
    assert found.verdict is Verdict.FAIL


def test_fail_by_a_carried_bound_too() -> None:
    found = verdict(compared("a"), compared("context", units=99.0, inherited=True))
    assert found.verdict is Verdict.FAIL
    assert first_tap(found) == "context"


def test_fail_when_a_held_weight_differs_whatever_the_units() -> None:
    found = verdict(compared("a"), replace(compared("b"), weights=(MOVED,)), compared("logits"))
    assert found.verdict is Verdict.FAIL
    assert first_tap(found) == "b"
    assert found.reason == (
        "b (linear) computes with other weights: w differs in 1 of 12 elements, most at [0, 3]: "
        "0.25 in the checkpoint, 0.2501 in the candidate"
    )


def test_describe_weight_says_when_nothing_can_be_compared() -> None:
    assert describe_weight(replace(MOVED, candidate=None)) == "w has another shape or NaN"


def test_not_finite_is_its_own_verdict() -> None:
    found = verdict(compared("a"), uncompared("b", TapStatus.NOT_FINITE, "1 of 6"), compared("c"))
    assert found.verdict is Verdict.NOT_FINITE
    assert found.reason == "b: 1 of 6"
    assert found.first_divergence is not None
    assert not found.first_divergence.fresh


@pytest.mark.parametrize("status", [TapStatus.MISSING, TapStatus.MISSHAPEN])
@pytest.mark.parametrize("max_abs", [0.0, 1.0])
def test_not_comparable_when_a_tap_is_missing_or_misshapen(
    status: TapStatus, max_abs: float
) -> None:
    found = verdict(compared("a", max_abs=max_abs), uncompared("b", status), compared("logits"))
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert found.reason == "b: why"
    assert first_tap(found) == "b"


def test_not_comparable_when_nothing_was_compared() -> None:
    nothing = uncompared("a", TapStatus.UNAVAILABLE)
    for found in (verdict(nothing), verdict(), judge("c", [], {})):
        assert found.verdict is Verdict.NOT_COMPARABLE
        assert found.reason == "no tap was compared"
        assert (found.worst_units, found.max_abs) == (None, None)
        assert (found.compared, found.replayed) == (0, 0)


def test_comparisons_of_others_do_not_count() -> None:
    other = replace(compared("a", units=1e9), candidate="other")
    assert verdict(other).verdict is Verdict.NOT_COMPARABLE
    assert verdict(other, compared("a")).verdict is Verdict.PASS


def test_unavailable_taps_are_no_fault() -> None:
    found = verdict(compared("a"), uncompared("b", TapStatus.UNAVAILABLE), compared("logits"))
    assert found.verdict is Verdict.PASS
    assert found.compared == 2


FAILING = compared("fails", units=1e3)
NAN = uncompared("nan", TapStatus.NOT_FINITE)
MISSING = uncompared("missing", TapStatus.MISSING)
MISSHAPEN = uncompared("misshapen", TapStatus.MISSHAPEN)
FAR = compared("far", max_abs=1.0)
GOOD = compared("good")


@pytest.mark.parametrize(
    ("present", "expected", "tap"),
    [
        ((FAILING, NAN), Verdict.FAIL, "fails"),
        ((NAN, FAILING), Verdict.NOT_FINITE, "nan"),
        ((MISSING, FAILING), Verdict.FAIL, "fails"),
        ((FAILING, MISSHAPEN), Verdict.FAIL, "fails"),
        ((MISSHAPEN, FAILING), Verdict.FAIL, "misshapen"),
        ((MISSING, NAN), Verdict.NOT_FINITE, "nan"),
        ((MISSHAPEN, NAN), Verdict.NOT_FINITE, "misshapen"),
        ((FAR, MISSING), Verdict.NOT_COMPARABLE, "missing"),
        ((FAR, FAILING), Verdict.FAIL, "fails"),
        ((FAR, GOOD), Verdict.ROUNDING, None),
    ],
)
def test_precedence(present: tuple[Comparison, ...], expected: Verdict, tap: str | None) -> None:
    found = verdict(GOOD, *present, compared("logits"))
    assert found.verdict is expected
    assert first_tap(found) == tap


@pytest.mark.parametrize("bad", [FAILING, NAN, MISSING, MISSHAPEN])
def test_nothing_bad_passes_in_any_place(bad: Comparison) -> None:
    for order in itertools.permutations([GOOD, FAR, bad, compared("logits")]):
        assert verdict(*order).verdict not in (Verdict.PASS, Verdict.ROUNDING)


def logits(max_abs: float, *, units: float = 0.1, chunk: int = 0) -> Comparison:
    return compared("logits", units=units, max_abs=max_abs, inherited=True, chunk=chunk)


UNTAPPED = uncompared("a", TapStatus.UNAVAILABLE)


def test_logits_alone_pass_within_the_tolerance_as_weaker_evidence() -> None:
    found = verdict(UNTAPPED, logits(TOLERANCE), floor=1e-6)
    assert found.verdict is Verdict.PASS
    assert "no op could be replayed" in found.reason
    assert "weaker evidence" in found.reason
    assert found.replayed == 0


@pytest.mark.parametrize(
    ("max_abs", "floor", "expected"),
    [
        (WEAK_FLOOR_FACTOR * 1e-2, 1e-2, Verdict.ROUNDING),
        (WEAK_FLOOR_FACTOR * 1.01e-2, 1e-2, Verdict.FAIL),
        (1.1 * TOLERANCE, None, Verdict.FAIL),
        (0.9 * TOLERANCE, None, Verdict.PASS),
    ],
)
def test_logits_alone_are_judged_by_the_floor(
    max_abs: float, floor: float | None, expected: Verdict
) -> None:
    found = verdict(UNTAPPED, logits(0.0), logits(max_abs, chunk=1), floor=floor)
    assert found.verdict is expected
    assert "weaker evidence" in found.reason
    if expected is Verdict.FAIL:
        assert found.first_divergence is not None
        assert (found.first_divergence.chunk, found.first_divergence.fresh) == (1, False)


def test_logits_alone_are_not_judged_by_a_bound_carried_through_the_whole_model() -> None:
    alone = verdict(UNTAPPED, logits(0.0, units=1e6))
    assert alone.verdict is Verdict.PASS
    assert alone.failing == ()
    beside_others = verdict(compared("a"), logits(0.0, units=1e6))
    assert beside_others.verdict is Verdict.FAIL


def test_logits_alone_that_are_not_finite_never_pass() -> None:
    bad = replace(uncompared("logits", TapStatus.NOT_FINITE), chunk=1)
    for others in ((logits(0.0),), ()):
        found = verdict(UNTAPPED, *others, bad, floor=1.0)
        assert found.verdict is Verdict.NOT_FINITE
        assert first_tap(found) == "logits"


def test_logits_alone_fail_when_their_weight_differs() -> None:
    found = verdict(UNTAPPED, replace(logits(0.0), weights=(MOVED,)), floor=1.0)
    assert found.verdict is Verdict.FAIL
    assert "other weights" in found.reason


ORDER = [
    Verdict.PASS,
    Verdict.ROUNDING,
    Verdict.NOT_COMPARABLE,
    Verdict.FAIL,
    Verdict.NOT_FINITE,
]


def test_worst_follows_the_order_of_severity() -> None:
    assert set(ORDER) == set(Verdict)
    for better, worse in itertools.combinations(ORDER, 2):
        assert worst([better, worse]) is worst([worse, better]) is worse
    assert worst(iter([Verdict.PASS])) is Verdict.PASS


def test_worst_of_nothing_is_not_comparable() -> None:
    assert worst([]) is Verdict.NOT_COMPARABLE


def test_an_embedding_alone_is_no_evidence_for_the_logits() -> None:
    """Its op reads token ids: that it replays says nothing of the ops that nobody tapped."""
    logits = compared("logits", units=0.1, max_abs=5.0, inherited=True)
    found = verdict(compared("embed", units=0.0, max_abs=0.0), logits)
    assert found.verdict is Verdict.FAIL
    assert "no op could be replayed" in found.reason


def test_a_reason_counts_what_was_judged_with_a_carried_bound() -> None:
    fed, carried = compared("layers.0.attn.q"), compared("layers.0.attn.context", inherited=True)
    assert (
        "1 of them judged with a bound carried through untapped ops" in verdict(fed, carried).reason
    )
