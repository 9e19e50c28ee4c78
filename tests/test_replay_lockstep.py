"""A recorded healthy run, altered in one place: replay fails exactly there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import HFEngine
from harness.contract import UNIT_LIMIT, WEAK_FLOOR_FACTOR
from harness.engines.reference import ReferenceEngine
from harness.replay.lockstep import Candidate, Lockstep, Record, Replayed
from harness.replay.source import RecordedSource
from harness.result import CandidateVerdict, Comparison, PromptResult, TapStatus, Verdict
from harness.subject import Subject, load_subject
from harness.taps import axes_of, split
from harness.verdict import judge
from references.step import Handle, Op, Weight

Taps = dict[str, Any]
CHUNKS = (np.array([[5, 17, 90, 3, 44, 61, 8]]), np.array([[33]]))
FUSED = dict.fromkeys(("attn.scores", "attn.probs", "attn.mask"), "never formed")


class Healthy:
    """A healthy run: the reference over a small model, with what an eager run of it hands over."""

    def __init__(self, path: Path, model: Any) -> None:
        self.subject: Subject = load_subject(path)
        self.chunks: list[Taps] = [{}, {}]
        engine = HFEngine(model)
        with engine.open(cache=True) as session:
            for tokens, taps in zip(CHUNKS, self.chunks, strict=True):
                session.feed(tokens, taps.__setitem__)

    def altered(self, taps: Mapping[str, Any], *, chunk: int = 0) -> list[Taps]:
        """The run with some taps of one chunk replaced; None removes one."""
        chunks = [dict(c) for c in self.chunks]
        for tap, array in taps.items():
            if array is None:
                del chunks[chunk][tap]
            else:
                chunks[chunk][tap] = array
        return chunks

    def walk(
        self,
        chunks: Sequence[Mapping[str, Any]],
        *,
        unavailable: Mapping[str, str] | None = None,
        on_failure: Callable[[Replayed], None] | None = None,
    ) -> Record:
        source = RecordedSource(chunks)
        side = Candidate("recorded", "float32", source, dict(unavailable or {}))
        return walk(self.subject, [side], on_failure=on_failure)


def walk(
    subject: Subject,
    sides: Sequence[Candidate],
    *,
    on_failure: Callable[[Replayed], None] | None = None,
) -> Record:
    step = Lockstep(sides, dtype="float32", on_failure=on_failure)
    step.begin(0, start=0)
    _, cache = subject.model.prefill(step, CHUNKS[0])
    step.begin(1, start=CHUNKS[0].shape[1])
    subject.model.extend(step, CHUNKS[1], cache, position=CHUNKS[0].shape[1])
    return step.record


def verdict_on(record: Record, *, floor: float | None = None) -> CandidateVerdict:
    prompt = PromptResult("p", "", (), (), (), tuple(record.comparisons), (), (), ())
    return judge("recorded", [prompt], {}, floor=floor)


def at(record: Record, tap: str, chunk: int = 0) -> Comparison:
    return next(c for c in record.comparisons if (c.tap, c.chunk) == (tap, chunk))


class DataFlow:
    """A step that computes nothing and notes which tap is made of which."""

    def __init__(self) -> None:
        self.consumers: dict[str, set[str]] = {}

    def __call__(self, tap: str | None, op: Op, *inputs: Handle, **constants: Any) -> Any:
        assert tap is not None
        for source in inputs:
            if isinstance(source, str):
                self.consumers.setdefault(source, set()).add(tap)
        return tap


@pytest.fixture(scope="module")
def healthy(tiny: Callable[..., Path], load_model: Callable[..., Any]) -> Healthy:
    path = tiny("qwen3")
    return Healthy(path, load_model(path))


@pytest.fixture(scope="module")
def consumers(healthy: Healthy) -> dict[str, set[str]]:
    flow = DataFlow()
    healthy.subject.model.prefill(flow, CHUNKS[0])
    return flow.consumers


def test_healthy_recording_replays(healthy: Healthy) -> None:
    record = healthy.walk(healthy.chunks)
    found = verdict_on(record)
    assert found.verdict is Verdict.PASS, found.reason
    assert found.failing == ()
    assert found.compared == found.replayed == len(healthy.chunks[0]) + len(healthy.chunks[1])
    assert {c.status for c in record.comparisons} == {TapStatus.COMPARED}
    assert found.worst_units is not None
    assert 0 < found.worst_units < UNIT_LIMIT


KINDS = [
    "embed",
    *(
        f"layers.1.{kind}"
        for kind in (
            *("attn_norm", "attn.q", "attn.k", "attn.v", "attn.q_norm", "attn.k_norm"),
            *("attn.q_rope", "attn.k_rope", "attn.keys", "attn.values", "attn.mask"),
            *("attn.scores", "attn.probs", "attn.context", "attn.out", "resid_mid"),
            *("mlp_norm", "mlp.gate", "mlp.up", "mlp.act", "mlp.prod", "mlp.out", "resid_post"),
        )
    ),
    "final_norm",
    "logits",
]


def test_kinds_are_all_that_a_run_has(healthy: Healthy) -> None:
    assert {split(tap).kind for tap in KINDS} == {split(tap).kind for tap in healthy.chunks[0]}


def alter(array: Any, index: tuple[int, ...]) -> Any:
    """The array with one element clearly wrong, by about one part in a thousand of the largest."""
    changed = array.copy()
    if changed.dtype == bool:
        changed[index] = ~changed[index]
    else:
        changed[index] += 2e-3 * np.abs(array).max()
    return changed


@pytest.mark.parametrize("tap", KINDS)
def test_one_altered_element_fails_at_its_tap_and_where_it_is_read(
    healthy: Healthy, consumers: dict[str, set[str]], tap: str
) -> None:
    array = healthy.chunks[0][tap]
    axes = axes_of(tap)
    index = tuple({"T": 5, "S": 3, "H": 4, "K": 1}.get(axis, 0) for axis in axes[:-1])
    index = (*index, 3 if axes[-1] == "S" else min(11, array.shape[-1] - 1))
    record = healthy.walk(healthy.altered({tap: alter(array, index)}))
    found = verdict_on(record)
    assert found.verdict is Verdict.FAIL
    # keys and values live on in the cache, so that the next chunk reads the altered ones
    later = {("p", 1, tap)} if split(tap).kind in ("attn.keys", "attn.values") else set()
    reads = {("p", 0, name) for name in consumers.get(tap, set())}
    assert ("p", 0, tap) in found.failing
    assert set(found.failing) <= {("p", 0, tap)} | reads | later

    first = found.first_divergence
    assert first is not None
    assert (first.tap, first.chunk, first.fresh) == (tap, 0, True)
    assert split(first.tap).layer == (1 if tap.startswith("layers") else None)
    local = first.comparison.local
    assert local is not None
    assert local.units > UNIT_LIMIT
    assert local.over == 1
    worst = local.worst
    assert worst.index == index
    assert worst.axes == axes
    assert worst.position == index[axes.index("T" if "T" in axes else "S")]
    assert worst.head == (index[1] if axes[1] in "HK" else None)
    assert worst.element == index[-1]
    assert worst.candidate == float(alter(array, index)[index])
    assert worst.reference == pytest.approx(float(array[index]), rel=1e-4, abs=1e-4)
    assert f"{tap} " in found.reason
    assert "first op that does not replay" in found.reason


def test_positions_count_from_the_start_of_the_sequence_in_decoding(healthy: Healthy) -> None:
    tap = "layers.2.attn.q_rope"
    array = healthy.chunks[1][tap]
    found = verdict_on(healthy.walk(healthy.altered({tap: alter(array, (0, 5, 0, 9))}, chunk=1)))
    first = found.first_divergence
    assert first is not None
    assert (first.tap, first.chunk) == (tap, 1)
    assert first.comparison.local is not None
    worst = first.comparison.local.worst
    assert (worst.index, worst.position, worst.head, worst.element) == ((0, 5, 0, 9), 7, 5, 9)
    assert "in decoding step 1" in found.reason


def test_two_altered_taps_fail_both_and_the_first_in_data_flow_order_is_named(
    healthy: Healthy,
) -> None:
    late, early = "layers.2.mlp.gate", "layers.0.attn.values"
    changes = {tap: alter(healthy.chunks[0][tap], (0, 1, 2, 3)[:n]) for tap, n in
               ((late, 3), (early, 4))}  # fmt: skip
    found = verdict_on(healthy.walk(healthy.altered(changes)))
    assert found.first_divergence is not None
    assert found.first_divergence.tap == early
    assert {("p", 0, late), ("p", 0, early)} <= set(found.failing)


def test_on_failure_is_told_the_op_with_the_candidates_inputs(healthy: Healthy) -> None:
    tap = "layers.1.mlp.act"
    told: list[Replayed] = []
    changed = alter(healthy.chunks[0][tap], (0, 2, 7))
    healthy.walk(healthy.altered({tap: changed}), on_failure=told.append)
    assert [t.comparison.tap for t in told] == [tap, "layers.1.mlp.prod"]
    assert told[0].made.op.__name__ == "silu"
    assert np.array_equal(told[0].found, changed)
    gate = healthy.chunks[0]["layers.1.mlp.gate"]
    assert np.array_equal(told[0].made.call.input(0).value, gate)
    assert told[0].made.call.output.value.dtype == np.float64


def test_mask_that_hides_every_key_of_a_query_fails_at_the_mask_and_after_it(
    healthy: Healthy,
) -> None:
    """Nothing is left to normalise: the replayed softmax has no value, which must not pass."""
    mask = healthy.chunks[0]["layers.1.attn.mask"].copy()
    mask[0, 4] = False
    record = healthy.walk(healthy.altered({"layers.1.attn.mask": mask}))
    found = verdict_on(record)
    assert found.verdict is Verdict.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.tap == "layers.1.attn.mask"
    probs = next(c for c in record.comparisons if c.tap == "layers.1.attn.probs")
    assert probs.status is TapStatus.NOT_FINITE


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tap", ["embed", "layers.1.attn.probs", "logits"])
def test_value_that_is_not_finite_is_its_own_verdict(
    healthy: Healthy, tap: str, bad: float
) -> None:
    array = healthy.chunks[0][tap].copy()
    array[(0, 1, 2, 0)[: array.ndim]] = bad
    found = verdict_on(healthy.walk(healthy.altered({tap: array})))
    assert found.verdict is Verdict.NOT_FINITE
    assert found.first_divergence is not None
    assert found.first_divergence.tap == tap
    assert f"1 of {array.size} values are not finite, first {bad} at [0, 1, 2" in found.reason


def test_infinities_of_both_signs_are_not_finite(healthy: Healthy) -> None:
    array = healthy.chunks[0]["layers.1.resid_mid"].copy()
    array[0, 2, 5], array[0, 3, 5] = np.inf, -np.inf
    found = verdict_on(healthy.walk(healthy.altered({"layers.1.resid_mid": array})))
    assert found.verdict is Verdict.NOT_FINITE
    assert f"2 of {array.size} values" in found.reason


def test_first_of_a_failure_and_a_value_that_is_not_finite_decides(healthy: Healthy) -> None:
    nan = healthy.chunks[0]["layers.1.mlp.up"].copy()
    nan[0, 0, 0] = np.nan
    early = alter(healthy.chunks[0]["layers.1.attn.q"], (0, 1, 2, 3))
    late = alter(healthy.chunks[0]["layers.2.attn.q"], (0, 1, 2, 3))
    for tap, array, expected in (
        ("layers.1.attn.q", early, Verdict.FAIL),
        ("layers.2.attn.q", late, Verdict.NOT_FINITE),
    ):
        record = healthy.walk(healthy.altered({"layers.1.mlp.up": nan, tap: array}))
        assert verdict_on(record).verdict is expected


def test_missing_tap_is_not_comparable_and_the_walk_goes_on(healthy: Healthy) -> None:
    tap = "layers.1.mlp.gate"
    record = healthy.walk(healthy.altered({tap: None}))
    found = verdict_on(record)
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert found.reason == f"{tap}: the engine did not hand it over and did not declare so"
    assert found.first_divergence is not None
    assert found.first_divergence.tap == tap
    assert not found.first_divergence.fresh
    assert at(record, tap).status is TapStatus.MISSING
    after = at(record, "layers.1.mlp.act").local
    assert after is not None
    assert after.inherited_bound
    assert after.units < UNIT_LIMIT


def test_missing_tap_does_not_hide_a_failure_elsewhere(healthy: Healthy) -> None:
    broken = alter(healthy.chunks[0]["layers.2.attn.v"], (0, 1, 2, 3))
    changes = {"layers.1.mlp.gate": None, "layers.2.attn.v": broken}
    found = verdict_on(healthy.walk(healthy.altered(changes)))
    assert found.verdict is Verdict.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.tap == "layers.2.attn.v"


@pytest.mark.parametrize("tap", ["layers.1.attn.keys", "logits"])
def test_misshapen_tap_is_not_comparable_and_both_shapes_are_named(
    healthy: Healthy, tap: str
) -> None:
    array = healthy.chunks[0][tap]
    repeated = np.repeat(array, 3, axis=1)
    record = healthy.walk(healthy.altered({tap: repeated}))
    found = verdict_on(record)
    assert found.verdict is Verdict.NOT_COMPARABLE
    expected = {
        "layers.1.attn.keys": "expected [B=1, K=2, S=7, D=16], found [B=1, K=6, S=7, D=16]",
        "logits": "expected [B=1, T=7, V=101], found [B=1, T=21, V=101]",
    }
    assert found.reason == f"{tap}: {expected[tap]}"
    assert at(record, tap).status is TapStatus.MISSHAPEN


def test_tap_that_the_reference_lacks_is_no_part_of_the_comparison(healthy: Healthy) -> None:
    chunks = healthy.altered({"layers.1.mlp.unheard_of": np.zeros(3)})
    assert verdict_on(healthy.walk(chunks)).verdict is Verdict.PASS


def without(chunks: Sequence[Taps], *kinds: str) -> list[Taps]:
    return [{k: v for k, v in taps.items() if split(k).kind not in kinds} for taps in chunks]


def test_bound_is_carried_through_untapped_ops(healthy: Healthy) -> None:
    record = healthy.walk(without(healthy.chunks, *FUSED), unavailable=FUSED)
    found = verdict_on(record)
    assert found.verdict is Verdict.PASS, found.reason
    for chunk in (0, 1):
        for kind in FUSED:
            seen = at(record, f"layers.1.{kind}", chunk)
            assert (seen.status, seen.note) == (TapStatus.UNAVAILABLE, "never formed")
            assert seen.local is None
        context = at(record, "layers.1.attn.context", chunk).local
        assert context is not None
        assert context.inherited_bound
        assert context.units < UNIT_LIMIT
        out = at(record, "layers.1.attn.out", chunk).local
        assert out is not None
        assert not out.inherited_bound  # the bound starts anew at the next tap
    tapped = at(healthy.walk(healthy.chunks), "layers.1.attn.context").local
    carried = at(record, "layers.1.attn.context").local
    assert tapped is not None
    assert carried is not None
    assert carried.bound > tapped.bound


def test_carried_bound_still_catches_a_scale_off_by_a_thousandth(healthy: Healthy) -> None:
    chunks = without(healthy.chunks, *FUSED)
    tap = "layers.1.attn.context"
    for name in (tap, "layers.1.attn.context"):
        chunks[0][name] = rescaled_context(healthy.chunks[0], factor=1.001)
    found = verdict_on(healthy.walk(chunks, unavailable=FUSED))
    assert found.verdict is Verdict.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.tap == tap
    healthy_context = rescaled_context(healthy.chunks[0], factor=1.0)
    assert np.allclose(healthy_context, healthy.chunks[0][tap], atol=1e-5)


def rescaled_context(taps: Taps, *, factor: float) -> Any:
    """Attention of layer 1 from its tapped queries, keys and values, with another scale."""
    q, k, v = (taps[f"layers.1.attn.{kind}"] for kind in ("q_rope", "keys", "values"))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1).astype(np.float64) for x in (k, v))
    scores = factor * q.astype(np.float64) @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    scores[:, :, ~taps["layers.1.attn.mask"][0]] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ v).astype(np.float32)


def logits_only(healthy: Healthy) -> tuple[list[Taps], dict[str, str]]:
    chunks = [{"logits": taps["logits"]} for taps in healthy.chunks]
    kinds = {split(tap).kind for tap in healthy.chunks[0]} - {"logits"}
    return chunks, dict.fromkeys(kinds, "this engine gives logits alone")


def test_logits_alone_are_weaker_evidence(healthy: Healthy) -> None:
    chunks, unavailable = logits_only(healthy)
    record = healthy.walk(chunks, unavailable=unavailable)
    found = verdict_on(record)
    assert found.verdict is Verdict.PASS
    assert found.replayed == 0
    assert found.compared == 2
    assert "no op could be replayed" in found.reason
    assert "weaker evidence" in found.reason
    local = at(record, "logits").local
    assert local is not None
    assert local.inherited_bound


@pytest.mark.parametrize(
    ("excess", "expected"),
    [(0.5, Verdict.ROUNDING), (0.99, Verdict.ROUNDING), (1.05, Verdict.FAIL)],
)
def test_logits_alone_are_judged_by_the_floor(
    healthy: Healthy, excess: float, expected: Verdict
) -> None:
    chunks, unavailable = logits_only(healthy)
    floor = 1e-3
    array = chunks[0]["logits"].copy()
    array[0, 4, 20] += excess * WEAK_FLOOR_FACTOR * floor
    chunks[0] = {"logits": array}
    record = healthy.walk(chunks, unavailable=unavailable)
    found = verdict_on(record, floor=floor)
    assert found.verdict is expected
    assert "weaker evidence" in found.reason
    assert "the float32 floor" in found.reason
    if expected is Verdict.FAIL:
        first = found.first_divergence
        assert first is not None
        assert (first.tap, first.fresh) == ("logits", False)
        assert first.comparison.difference is not None
        assert first.comparison.difference.worst.index == (0, 4, 20)
    # without a floor nothing excuses what exceeds the tolerance
    alone = verdict_on(record)
    assert alone.verdict is Verdict.FAIL
    assert "no float32 floor is known" in alone.reason


def test_logits_alone_undeclared_are_not_comparable(healthy: Healthy) -> None:
    chunks, _ = logits_only(healthy)
    found = verdict_on(healthy.walk(chunks))
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert found.reason.startswith("embed: the engine did not hand it over")


def test_nothing_at_all_is_not_comparable(healthy: Healthy) -> None:
    _, unavailable = logits_only(healthy)
    unavailable["logits"] = "nor these"
    found = verdict_on(healthy.walk([{}, {}], unavailable=unavailable))
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert found.reason == "no tap was compared"
    assert (found.compared, found.max_abs, found.worst_units) == (0, None, None)


def test_lanes_do_not_mix(healthy: Healthy) -> None:
    tap = "layers.1.mlp.up"
    broken = healthy.altered({tap: alter(healthy.chunks[0][tap], (0, 2, 7))})
    sides = [
        Candidate(name, "float32", RecordedSource(chunks), dict(unavailable))
        for name, chunks, unavailable in (
            ("good", healthy.chunks, {}),
            ("broken", broken, {}),
            ("fused", without(healthy.chunks, *FUSED), FUSED),
        )
    ]
    together = walk(healthy.subject, sides)
    for side in sides:
        alone = walk(healthy.subject, [side]).comparisons
        assert alone == [c for c in together.comparisons if c.candidate == side.name]
    pairs = {(p.a, p.b): p for p in together.pairs if p.tap == tap and p.chunk == 0}
    assert pairs["good", "fused"].max_abs == 0
    size = np.abs(broken[0][tap] - healthy.chunks[0][tap]).max()
    assert pairs["good", "broken"].max_abs == pairs["broken", "fused"].max_abs == size
    assert not [p for p in together.pairs if "fused" in (p.a, p.b) and p.tap.endswith("probs")]


def test_bounds_hold_for_the_reference_on_numpy_too(healthy: Healthy) -> None:
    chunks: list[Taps] = [{}, {}]
    with ReferenceEngine(healthy.subject.model).open(cache=True) as session:
        for tokens, taps in zip(CHUNKS, chunks, strict=True):
            session.feed(tokens, taps.__setitem__)
    found = verdict_on(healthy.walk(chunks))
    assert found.verdict is Verdict.PASS, found.reason


def test_step_refuses_an_op_that_leaves_float64() -> None:
    def narrowing(x: Any) -> Any:
        return x.astype(np.float32)

    step = Lockstep([], dtype="float32")
    with pytest.raises(TypeError, match="narrowing: replay computed float32, not float64"):
        step("embed", narrowing, Weight("w", np.ones((2, 3), dtype=np.float32)))


def test_truth_lane_is_float64_and_end_to_end(healthy: Healthy) -> None:
    """An altered candidate must not touch the reference that it is measured against."""
    exact: list[Taps] = [{}, {}]
    with ReferenceEngine(healthy.subject.model, dtype="float64").open(cache=True) as session:
        for tokens, taps in zip(CHUNKS, exact, strict=True):
            session.feed(tokens, taps.__setitem__)
    wild = [
        {tap: alter(x, tuple(n // 2 for n in x.shape)) for tap, x in taps.items()}
        for taps in healthy.chunks
    ]
    record = healthy.walk(wild)
    for seen, taps in zip(record.logits, exact, strict=True):
        assert seen.reference.dtype == np.float64
        assert np.allclose(seen.reference, taps["logits"], rtol=1e-12, atol=1e-12)
    worst = at(record, "layers.2.resid_post").difference
    assert worst is not None
    assert worst.worst.reference == pytest.approx(
        float(exact[0]["layers.2.resid_post"][worst.worst.index]), rel=1e-12
    )


def test_order_is_that_of_the_data_flow(healthy: Healthy, consumers: dict[str, set[str]]) -> None:
    record = healthy.walk(healthy.chunks)
    order = {c.tap: c.order for c in record.comparisons if c.chunk == 0}
    assert sorted(order.values()) == list(range(len(order)))
    for tap, reads in consumers.items():
        assert all(order[tap] < order[reader] for reader in reads)


def test_on_layer_is_told_each_layer_once_a_chunk(healthy: Healthy) -> None:
    entered: list[tuple[int, int]] = []
    step = Lockstep([], dtype="float32", on_layer=lambda *place: entered.append(place))
    step.begin(0, start=0)
    _, cache = healthy.subject.model.prefill(step, CHUNKS[0])
    step.begin(1, start=7)
    healthy.subject.model.extend(step, CHUNKS[1], cache, position=7)
    assert entered == [(chunk, layer) for chunk in (0, 1) for layer in (0, 1, 2)]


def test_other_weights_in_memory_fail_whatever_the_taps_say(healthy: Healthy) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    stored = healthy.subject.checkpoint.tensors[name]
    held = stored.copy()
    held[3, 5] += np.float32(1e-6)
    side = Candidate("recorded", "float32", RecordedSource(healthy.chunks), {}, {name: held})
    found = verdict_on(walk(healthy.subject, [side]))
    assert found.verdict is Verdict.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.tap == "layers.1.mlp.up"
    assert f"{name} differs in 1 of {stored.size} elements, most at [3, 5]" in found.reason
    same = replace(side, parameters={name: stored.copy()})
    assert verdict_on(walk(healthy.subject, [same])).verdict is Verdict.PASS
