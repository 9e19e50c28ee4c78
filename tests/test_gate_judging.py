"""The verdict of two sides, with sides that are made up of a few arrays."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.gate.baseline import Baseline, Head, from_json, to_json
from harness.gate.judging import judge
from harness.gate.plan import Plan
from harness.gate.records import (
    Facts,
    Failure,
    Loading,
    Machine,
    Module,
    Parameter,
    Pass,
    Record,
    RecordedPass,
    RecordedTap,
    Tokenizer,
    Warned,
)
from harness.gate.result import GateVerdict, TapState
from harness.gate.side import RecordSide

Arrays = dict[str, NDArray[Any]]

PASSES = (Pass("text", ((1, 2, 3),), cache=True, chunks=(3,)),)
LAYER = (
    "norm",
    "attn.q_proj",
    "attn:query",
    "attn:key",
    "attn:scores",
    "attn:probs",
    "attn:value",
    "attn:context",
    "attn",
    "mlp",
    "",
)
NOISE = 1e-6


def names(layers: int = 2) -> list[str]:
    """Intermediates of a model of so many layers, in order."""
    found = ["embed"]
    for n in range(layers):
        found += [f"model.layers.{n}" + (f".{part}" if part else "") for part in LAYER]
    return [*found, "final_norm", "logits"]


def values(seed: int = 0) -> Arrays:
    """An array for each name."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((1, 3, 8)).astype(np.float32) for name in names()}


def role_of(name: str) -> str:
    if name == "logits":
        return "logits"
    return name.partition(":")[2] or "out"


def side(
    arrays: Arrays,
    *,
    noise: float | None = NOISE,
    scale: float | None = None,
    generated: tuple[tuple[int, ...], ...] = ((5, 6),),
    **facts: Any,
) -> RecordSide:
    """A side with these arrays."""
    taps = tuple(
        RecordedTap(
            tap=name,
            chunk=0,
            key=f"text/0/{name}",
            module="" if name == "logits" else name.partition(":")[0],
            class_name="Module",
            role=role_of(name),
            shape=array.shape,
            dtype=array.dtype.name,
            noise=noise,
            scale=scale if role_of(name) == "query" else None,
        )
        for name, array in arrays.items()
    )
    given: dict[str, Any] = {
        "versions": {"transformers": "5.0.0"},
        "machine": Machine("Linux", "cpu", "AVX2", 1, "mkl"),
        "dtype": "float32",
        "passes": (RecordedPass("text", "sdpa", taps, generated=generated),),
        **facts,
    }
    held = {f"text/0/{name}": array for name, array in arrays.items()}
    return RecordSide(Record(Facts(**given), lambda: held))


def moved(arrays: Arrays, since: str, by: float) -> Arrays:
    """The same arrays, those from one name on moved."""
    rng = np.random.default_rng(7)
    order = list(arrays)
    later = order[order.index(since) :]
    return {
        name: (array + by * rng.standard_normal(array.shape)).astype(array.dtype)
        if name in later
        else array
        for name, array in arrays.items()
    }


def test_the_same_bits_are_the_same() -> None:
    found = judge(side(values()), side(values()), PASSES)
    assert found.verdict is GateVerdict.SAME
    assert found.taps == ()
    assert found.passes[0].counts == {"same": len(names())}
    assert [each.token_id for each in found.passes[0].logits] == [1, 2, 3]


def test_less_than_the_rounding_of_the_sides_is_rounding() -> None:
    after = moved(values(), "model.layers.1.mlp", NOISE / np.sqrt(24))
    found = judge(side(values()), side(after), PASSES)
    assert found.verdict is GateVerdict.ROUNDING
    assert found.divergence is None
    assert {each.state for each in found.taps} == {TapState.ROUNDING}


@pytest.mark.parametrize("since", ["embed", "model.layers.0.attn:query", "model.layers.1.mlp"])
def test_more_than_rounding_is_placed_where_it_begins(since: str) -> None:
    found = judge(side(values()), side(moved(values(), since, 1e-3)), PASSES)
    assert found.verdict is GateVerdict.CHANGED
    assert found.divergence is not None
    assert found.divergence.change.tap == since
    assert since in found.reason


def test_without_a_float64_run_one_rounding_of_the_values_is_allowed_for() -> None:
    near = moved(values(), "model.layers.0.mlp", 2.0**-24)
    far = moved(values(), "model.layers.0.mlp", 2.0**-18)
    quiet = side(values(), noise=None)
    assert judge(quiet, side(near, noise=None), PASSES).verdict is GateVerdict.ROUNDING
    assert judge(quiet, side(far, noise=None), PASSES).verdict is GateVerdict.CHANGED


def test_what_its_reader_does_not_show_is_computed_in_another_way() -> None:
    """Queries that are scaled elsewhere, with the same scores, are no change of the model."""
    after = values()
    after["model.layers.0.attn:query"] = after["model.layers.0.attn:query"] * 2
    found = judge(side(values()), side(after), PASSES)
    assert found.verdict is GateVerdict.SAME
    assert [each.tap for each in found.taps] == ["model.layers.0.attn:query"]
    later = moved(after, "model.layers.0.attn:context", 1e-3)
    found = judge(side(values()), side(later), PASSES)
    assert found.divergence is not None
    assert found.divergence.change.tap == "model.layers.0.attn:context"
    assert found.divergence.aside == ("model.layers.0.attn:query",)


def test_queries_are_compared_with_their_scale() -> None:
    after = values()
    after["model.layers.0.attn:query"] = after["model.layers.0.attn:query"] * 4
    after["model.layers.1.attn:query"] = after["model.layers.1.attn:query"] * 4
    a, b = side(values(), scale=0.5), side(after, scale=0.125)
    assert judge(a, b, PASSES).taps == ()
    assert judge(a, side(after, scale=0.25), PASSES).taps != ()


def test_masks_do_not_round() -> None:
    before: Arrays = values() | {"model.layers.0.attn:mask": np.ones((1, 3, 3), bool)}
    after = before | {"model.layers.0.attn:mask": np.tri(3, dtype=bool)[None]}
    after = {name: after[name] for name in before}
    found = judge(side(before), side(after), PASSES)
    states = {each.tap: each.state for each in found.taps}
    assert states == {"model.layers.0.attn:mask": TapState.CHANGED}


def test_modules_under_other_names_are_paired_in_order() -> None:
    renamed = {
        name.replace("model.layers", "decoder.blocks").replace("attn", "self_attention"): array
        for name, array in values().items()
    }
    found = judge(side(values()), side(renamed), PASSES)
    assert found.verdict is GateVerdict.SAME
    assert found.passes[0].only_before == found.passes[0].only_after == ()
    broken = moved(renamed, "decoder.blocks.1.mlp", 1e-3)
    found = judge(side(values()), side(broken), PASSES)
    assert found.divergence is not None
    assert found.divergence.change.tap == "decoder.blocks.1.mlp"
    assert found.divergence.change.before == "model.layers.1.mlp"


def test_what_is_on_one_side_alone_is_listed() -> None:
    more = {"model.rotary": np.zeros((1, 3, 4), np.float32), **values()}
    found = judge(side(values()), side(more), PASSES)
    assert found.verdict is GateVerdict.SAME
    assert found.passes[0].only_after == ("model.rotary",)


def test_infinities_are_more_than_rounding() -> None:
    after = values()
    after["model.layers.1"] = np.where(after["model.layers.1"] > 1, np.inf, after["model.layers.1"])
    found = judge(side(values()), side(after), PASSES)
    assert found.verdict is GateVerdict.CHANGED
    assert found.divergence is not None
    assert found.divergence.change.state is TapState.NOT_FINITE


def test_as_many_infinities_elsewhere_are_more_than_rounding() -> None:
    before, after = values(), values()
    for arrays, at in ((before, 0), (after, 1)):
        arrays["model.layers.1"] = arrays["model.layers.1"].copy()
        arrays["model.layers.1"][0, 0, at] = np.nan
    found = judge(side(before), side(after), PASSES)
    assert found.divergence is not None
    assert found.divergence.change.state is TapState.NOT_FINITE


def test_another_shape_is_more_than_rounding() -> None:
    after = values()
    after["logits"] = after["logits"][..., :4]
    found = judge(side(values()), side(after), PASSES)
    assert found.divergence is not None
    assert found.divergence.change.state is TapState.RESHAPED


def test_a_model_that_fails_now_is_failing() -> None:
    failed = Failure("load", "ValueError", "no such class")
    broken = side({}, failed=failed, passes=())
    found = judge(side(values()), broken, PASSES)
    assert found.verdict is GateVerdict.FAILING
    assert "no such class" in found.reason
    assert judge(broken, side(values()), PASSES).verdict is GateVerdict.CHANGED
    assert judge(broken, broken, PASSES).verdict is GateVerdict.NOT_COMPARABLE


def test_a_pass_that_fails_now_is_failing() -> None:
    ran = RecordedPass("other", "sdpa")
    failed = replace(ran, failed=Failure("pass:other", "IndexError", "row 9"))
    text = side(values()).facts.passes
    found = judge(
        side(values(), passes=(*text, ran)), side(values(), passes=(*text, failed)), PASSES
    )
    assert found.verdict is GateVerdict.FAILING
    assert "row 9" in found.reason


@pytest.mark.parametrize(
    "other",
    [{"dtype": "bfloat16"}, {"machine": Machine("Linux", "cpu", "AVX2", 2, "mkl")}],
    ids=["dtype", "threads"],
)
def test_another_dtype_or_number_of_threads_is_not_comparable(other: dict[str, Any]) -> None:
    found = judge(side(values()), side(values(), **other), PASSES)
    assert found.verdict is GateVerdict.NOT_COMPARABLE


def test_other_token_ids_make_it_another_model_with_the_same_logits() -> None:
    a = side(values(), tokenizer=Tokenizer("T", {"text": (1, 2, 3)}, {}))
    b = side(values(), tokenizer=Tokenizer("T", {"text": (1, 9)}, {}))
    found = judge(a, b, PASSES)
    assert found.verdict is GateVerdict.CHANGED
    assert "token ids" in found.reason


def test_other_greedy_tokens_make_it_another_model_with_the_same_logits() -> None:
    found = judge(side(values()), side(values(), generated=((5, 7),)), PASSES)
    assert found.verdict is GateVerdict.CHANGED
    assert "greedy" in found.reason


def test_nothing_that_is_carried_on_is_not_comparable() -> None:
    inner = {"model.layers.0.mlp": values()["model.layers.0.mlp"]}
    assert judge(side(inner), side(inner), PASSES).verdict is GateVerdict.NOT_COMPARABLE


# What else is not as before


def kinds(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Kind, what, before and after of each change."""
    found = judge(side(values(), **before), side(values(), **after), PASSES)
    return [(each.kind, each.what, each.before, each.after) for each in found.facts]


def test_a_key_that_moved_with_its_value_says_where_to() -> None:
    before = {"config": {"rope_theta": 5e5}, "config_as_saved": {"rope_theta": 5e5}}
    after = {"config": {"rope_parameters": {"rope_theta": 500000, "kind": None}}}
    assert kinds(before, after | {"config_as_saved": {"rope_theta": 5e5}}) == [
        ("config", "rope_theta", "500000", "moved to rope_parameters.rope_theta"),
        ("default", "rope_parameters.rope_theta", "was rope_theta", "500000"),
    ]


def test_a_default_that_one_side_alone_has_is_told_unless_every_model_has_it() -> None:
    usual = {"config_defaults": {"do_sample": False}}
    before = {"config": {"window": 4, "do_sample": False}, **usual}
    assert kinds(before, {"config": {"window": 4}}) == []
    assert kinds(before, {"config": {"window": 8}}) == [("default", "window", "4", "8")]
    assert kinds(before, {"config": {}}) == [("default", "window", "4", "")]


def test_weights_of_other_values_decide_and_layers_are_told_together() -> None:
    def weights(digest: str) -> tuple[Parameter, ...]:
        return tuple(Parameter(f"layers.{n}.w", (2,), "float32", digest) for n in range(3))

    before, after = weights("aa"), weights("bb")
    found = judge(side(values(), parameters=before), side(values(), parameters=after), PASSES)
    assert found.verdict is GateVerdict.CHANGED
    assert [each.what for each in found.facts] == ["layers.*.w (3) other values"]


def test_weights_under_other_names_do_not_decide() -> None:
    before = (Parameter("a.w", (2,), "float32", "aa"),)
    after = (Parameter("b.w", (2,), "float32", "aa"),)
    found = judge(side(values(), parameters=before), side(values(), parameters=after), PASSES)
    assert found.verdict is GateVerdict.SAME
    assert {each.before or each.after for each in found.facts} == {"same values under other names"}


def test_ties_and_missing_weights_decide() -> None:
    assert (
        judge(side(values(), tied=(("embed", "head"),)), side(values()), PASSES).verdict
        is GateVerdict.CHANGED
    )
    missing = side(values(), loading=Loading(missing=("head",)))
    assert judge(side(values(), loading=Loading()), missing, PASSES).verdict is GateVerdict.CHANGED


def test_modules_and_classes_are_told_by_pattern() -> None:
    before = tuple(Module(f"layers.{n}.rotary", "Rotary") for n in range(4))
    assert kinds({"modules": (*before, Module("a", "X"))}, {"modules": (Module("a", "Y"),)}) == [
        ("modules", "layers.*.rotary (4)", "Rotary", ""),
        ("modules", "a", "X", "Y"),
    ]


def test_warnings_are_the_same_from_another_line_of_a_file() -> None:
    a, b = "/x/site-packages/t/a.py:12: old", "/y/t/a.py:99: old"
    assert kinds({"warnings": (Warned("load", a),)}, {"warnings": (Warned("load", b),)}) == []
    found = kinds({}, {"warnings": (Warned("load", "other"),)})
    assert found == [("warnings", "other", "", "shown")]


def test_generation_defaults_that_are_left_open_are_no_change() -> None:
    before = {"generation_config": {"top_k": 50}, "generation_defaults": {"top_k": 50, "t": 1.0}}
    open_ = {"generation_config": {"top_k": None}, "generation_defaults": {"top_k": None, "t": 0.9}}
    assert kinds(before, open_) == [("generation", "default of t", "1", "0.9")]


# Baselines


def kept(given: RecordSide) -> Baseline:
    """A side as a baseline that was written and read again."""
    head = Head("m", "f" * 64, Plan(PASSES), Facts())
    return from_json(to_json(Baseline.of(given, head)), where="b.json")


def test_a_baseline_judges_as_the_record_it_is_of() -> None:
    before = side(values(), modules=tuple(Module(f"model.layers.{n}", "L") for n in range(2)))
    after = moved(values(), "model.layers.1.attn:context", 1e-2)
    exact, sketched = judge(before, side(after), PASSES), judge(kept(before), side(after), PASSES)
    assert exact.verdict is sketched.verdict is GateVerdict.CHANGED
    assert exact.divergence is not None
    assert sketched.divergence is not None
    assert exact.divergence.change.tap == sketched.divergence.change.tap
    for a, b in zip(exact.taps, sketched.taps, strict=True):
        assert a.distance is not None
        assert b.low is not None
        assert b.high is not None
        assert b.low <= a.distance <= b.high
    same = judge(kept(before), before, PASSES)
    assert same.verdict is GateVerdict.SAME
    assert {(each.distance, each.log_probability) for each in same.passes[0].logits} == {(0, 0)}


def test_a_baseline_is_the_same_text_when_written_again() -> None:
    first = to_json(kept(side(values())))
    assert to_json(from_json(first, where="b.json")) == first
    lines = first.decode().splitlines()
    assert sum("model.layers.0.mlp" in line for line in lines) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"version": 1', b'"version": 9'),
        lambda data: b"[]",
        lambda data: re.sub(rb'"[\w+/]{64}"', b'"!"', data, count=1),
        lambda data: data.replace(b'"taps"', b'"tabs"'),
        lambda data: data.replace(b'"dtype":"float32"', b'"dtype":[32]'),
        lambda data: data.replace(b'"dtype":"float32"', b'"dtype":"float99"', 1),
        lambda data: re.sub(rb'"logits": \[\n.*?\n\]', b'"logits": [\n]', data, flags=re.S),
        lambda data: re.sub(rb'"taps": \[\n.*?\n\]', b'"taps": [\n]', data, flags=re.S),
    ],
    ids=[
        *("cut off", "version", "no object", "sketch", "no taps", "facts"),
        *("dtype of the plan", "no rows of logits", "no rows of taps"),
    ],
)
def test_a_damaged_baseline_is_refused(damage: Callable[[bytes], bytes]) -> None:
    data = to_json(Baseline.of(side(values()), Head("m", "f", Plan(PASSES), Facts())))
    broken = damage(data)
    assert broken != data
    with pytest.raises(UsageError, match=r"b\.json"):
        from_json(broken, where="b.json")
