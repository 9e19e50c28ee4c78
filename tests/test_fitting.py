"""Constants come out of rounded numbers, with honest errors; nothing is claimed without grounds."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.fitting.estimate import Estimate, Sample, estimate, grouped_error, students
from harness.fitting.seen import Seen, see, thin
from harness.fitting.table import FITTERS, fit_op, fitted
from harness.fitting.words import in_words
from harness.references_seam import ops, rope
from harness.replay.bounds import BOUNDS, unit
from harness.replay.call import Call, Made, Operand
from harness.replay.lane import rounded
from harness.replay.precision import precision

Array = NDArray[Any]
DTYPES = ("float32", "bfloat16", "float16")
T, D = 48, 32


def narrow(x: Array, dtype: str) -> Array:
    return rounded(np.asarray(x, dtype=np.float64), dtype).astype(np.float64)


def draw(*shape: int, dtype: str = "float32", spread: float = 1.0, seed: int = 0) -> Array:
    return narrow(np.random.default_rng(seed).normal(0, spread, shape), dtype)


def seen_of(
    op: Callable[..., Array],
    inputs: list[Array],
    right: Mapping[str, Any],
    wrong: Mapping[str, Any],
    dtype: str,
    *,
    kind: str = "",
    instead: Callable[..., Array] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Seen:
    """An op that a candidate computed with other constants, rounded once."""
    found = (instead or op)(*inputs, **{**right, **wrong})
    found = found if found.dtype == bool else narrow(found, dtype)
    operands = tuple(Operand(x) for x in inputs)
    call = Call(Operand(op(*inputs, **right)), operands, dict(right), precision(dtype))
    return see(op, call, found, kind=kind, config=config)


def theta_frequencies(theta: float) -> Array:
    return np.asarray(rope.base_frequencies(theta, D))


def rotation(theta: float, *, offset: float = 0.0, gain: float = 1.0, over: float = 1.0) -> Any:
    return {
        "positions": np.arange(T)[None] + offset,
        "frequencies": theta_frequencies(theta) / over,
        "attention_factor": gain,
    }


def rotated(dtype: str, wrong: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Seen:
    right = rotation(1e5) if config is None else rotation(1e5, over=4.0)
    return seen_of(ops.rope, [draw(1, 6, T, D, dtype=dtype)], right, wrong, dtype, config=config)


def scored(dtype: str, scale: float, configured: float = 0.125) -> Seen:
    q, k = draw(1, 6, T, 64, dtype=dtype), draw(1, 2, T, 64, dtype=dtype, seed=1)
    return seen_of(ops.scores, [q, k], {"scale": configured}, {"scale": scale}, dtype)


def normed(op: Callable[..., Array], dtype: str, eps: float, spread: float = 0.01) -> Seen:
    x, weight = draw(1, T, 64, dtype=dtype, spread=spread), 1 + draw(64, dtype=dtype, spread=0.1)
    inputs = [x, weight, weight] if op is ops.layer_norm else [x, weight]
    return seen_of(op, inputs, {"eps": 1e-5}, {"eps": eps}, dtype)


def inside(
    dtype: str,
    scale: float,
    cap: float | None = None,
    right_cap: float = 3.0,
    mask: Operand | None = None,
) -> Seen:
    """The context of a kernel that shows neither scores nor probabilities."""
    q, k = draw(1, 6, T, 64, dtype=dtype), draw(1, 2, T, 64, dtype=dtype, seed=1)
    v = draw(1, 2, T, 64, dtype=dtype, seed=2)
    mask = mask or Operand(np.tril(np.ones((1, T, T), dtype=bool)))
    rounding = precision(dtype)

    def run(op: Any, *inputs: Operand, **constants: Any) -> Operand:
        call = Call(
            Operand(op(*(x.value for x in inputs), **constants)), inputs, constants, rounding
        )
        return Operand(call.output.value, unit(op, call), made=Made("tap", op, call))

    scores = run(ops.scores, Operand(q), Operand(k), scale=0.125)
    if cap is not None:
        scores = run(ops.softcap, scores, cap=right_cap)
    probs = run(ops.masked_softmax, scores, mask)
    call = Call(Operand(ops.context(probs.value, v)), (probs, Operand(v)), {}, rounding)
    s = ops.scores(q, k, scale=scale)
    s = s if cap is None else ops.softcap(s, cap=cap)
    found = narrow(ops.context(ops.masked_softmax(s, mask.value), v), dtype)
    return see(ops.context, call, found, kind="attn.context")


def of(seen: Seen, name: str) -> Estimate:
    one = fitted(seen, name)
    assert one is not None
    return one


LINEAR: dict[str, Any] = {
    "rope_parameters": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0},
    "max_position_embeddings": 256,
}

#: Constant, its values, and what a candidate has that computes with one of them.
CASES: dict[str, tuple[str, tuple[float, ...], Callable[[str, float], Seen]]] = {
    "base": (
        "rope_theta",
        (99000.0, 500.0, 1e4, 12345.6, 5e5, 1e7),
        lambda dtype, x: rotated(dtype, rotation(x)),
    ),
    "base of scaled": (
        "rope_theta",
        (9e4, 2e4),
        lambda dtype, x: rotated(dtype, rotation(x, over=4.0), LINEAR),
    ),
    "factor": (
        "factor",
        (1.0, 3.9, 8.0, 16.0),
        lambda dtype, x: rotated(dtype, rotation(1e5, over=x), LINEAR),
    ),
    "offset": (
        "position_offset",
        (1.0, -1.0, 7.0, 0.5, 50.0),
        lambda dtype, x: rotated(dtype, rotation(1e5, offset=x)),
    ),
    "attention factor": (
        "attention_factor",
        (1.01, 0.5, 1.2),
        lambda dtype, x: rotated(dtype, rotation(1e5, gain=x)),
    ),
    "scale": ("scale", (0.126, 1.0, 0.01), scored),
    "scale inside": ("scale", (0.13, 0.25, 0.05), inside),
    "cap inside": ("softcap", (2.5, 4.0), lambda dtype, x: inside(dtype, 0.125, cap=x)),
    "eps": ("eps", (1.1e-5, 1e-6, 1e-3, 0.0), partial(normed, ops.rms_norm)),
    "eps of layer norm": ("eps", (1.1e-5, 1e-6, 1e-3), partial(normed, ops.layer_norm)),
    "eps from one": ("eps", (1.1e-5, 1e-3), partial(normed, ops.rms_norm_from_one)),
    "cap": (
        "softcap",
        (3.03, 5.0, 1.5),
        lambda dtype, x: seen_of(
            ops.softcap, [draw(1, T, 64, dtype=dtype, spread=3)], {"cap": 3.0}, {"cap": x}, dtype
        ),
    ),
    "embedding": (
        "embedding_multiplier",
        (12.4, 1.0),
        lambda dtype, x: seen_of(
            ops.scale, [draw(1, T, 64, dtype=dtype)], {"factor": 12.3}, {"factor": x}, dtype
        ),
    ),
    "residual": (
        "residual_multiplier",
        (0.23, 1.0),
        lambda dtype, x: seen_of(
            ops.add_scaled,
            [draw(1, T, 64, dtype=dtype), draw(1, T, 64, dtype=dtype, seed=1)],
            {"factor": 0.22},
            {"factor": x},
            dtype,
        ),
    ),
    "logits": (
        "logits_scale",
        (7.9, 1.0),
        lambda dtype, x: seen_of(
            ops.divide, [draw(1, T, 64, dtype=dtype)], {"divisor": 7.7}, {"divisor": x}, dtype
        ),
    ),
}
ALL = [(name, value) for name, (_, values, _) in CASES.items() for value in values]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "value"), ALL)
def test_another_constant_is_found_with_its_value(case: str, value: float, dtype: str) -> None:
    constant, _, make = CASES[case]
    one = of(make(dtype, value), constant)
    assert one.excludes, one
    assert abs(one.value - value) < one.systematic + 6 * one.doubt * one.error
    assert abs(one.value - value) < 0.05 * abs(one.configured) or one.configured == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_the_right_constant_is_not_excluded(case: str, dtype: str) -> None:
    constant, values, make = CASES[case]
    configured = of(make(dtype, values[0]), constant).configured
    for name, one in fit_op(make(dtype, configured)):
        assert not one.excludes, (name, one)
        assert abs(one.value - one.configured) < 0.6 * one.margin


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_constant_that_is_wrong_is_excluded(dtype: str) -> None:
    for wrong, constant in (
        (rotation(9e4, over=4.0), "rope_theta"),
        (rotation(1e5, over=4.2), "factor"),
        (rotation(1e5, over=4.0, offset=2), "position_offset"),
        (rotation(1e5, over=4.0, gain=1.1), "attention_factor"),
    ):
        found = fit_op(rotated(dtype, wrong, LINEAR))
        assert [name for name, one in found if one.excludes] == [constant]


def test_two_constants_of_a_rotation_are_told_apart() -> None:
    found = dict(fit_op(rotated("float32", rotation(5e5, gain=1.2))))
    assert found["rope_theta"].value == pytest.approx(5e5, rel=1e-5)
    assert found["attention_factor"].value == pytest.approx(1.2, rel=1e-5)
    assert all(one.excludes for one in found.values())


def neighbours(x: Array, *, positions: Array, frequencies: Array, attention_factor: float) -> Array:
    mixed = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
    return np.asarray(
        ops.rope(
            mixed, positions=positions, frequencies=frequencies, attention_factor=attention_factor
        )
    )


OTHER_FAULTS: dict[str, Callable[[str], Seen]] = {
    "pairing": lambda dtype: seen_of(
        ops.rope, [draw(1, 6, T, D, dtype=dtype)], rotation(1e5), {}, dtype, instead=neighbours
    ),
    "narrow frequencies": lambda dtype: rotated(
        dtype, {"frequencies": theta_frequencies(1e5) * (1 + draw(D // 2, spread=0.2))}
    ),
    "mean subtracted": lambda dtype: seen_of(
        ops.rms_norm,
        [1 + draw(1, T, 64, dtype=dtype), draw(64, dtype=dtype)],
        {"eps": 1e-5},
        {},
        dtype,
        instead=lambda x, w, eps: ops.layer_norm(x, w, 0 * w, eps=eps),
    ),
    "other keys": lambda dtype: seen_of(
        ops.scores,
        [draw(1, 6, T, 64, dtype=dtype), draw(1, 2, T, 64, dtype=dtype, seed=1)],
        {"scale": 0.125},
        {},
        dtype,
        instead=lambda q, k, scale: ops.scores(q, k[:, ::-1], scale=scale),
    ),
    "clipped": lambda dtype: seen_of(
        ops.softcap,
        [draw(1, T, 64, dtype=dtype, spread=3)],
        {"cap": 3.0},
        {},
        dtype,
        instead=lambda x, cap: np.clip(x, -cap, cap),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", OTHER_FAULTS)
def test_another_fault_is_no_value_of_a_constant(fault: str, dtype: str) -> None:
    found = fit_op(OTHER_FAULTS[fault](dtype))
    assert found
    assert not any(one.excludes for _, one in found)


def test_a_fit_that_leaves_much_explains_nothing() -> None:
    """The check before can fail: the same numbers, less what nothing explains, are claimed."""
    seen = OTHER_FAULTS["clipped"]("float32")
    one = of(seen, "softcap")
    assert abs(one.value - one.configured) > one.margin
    assert one.left > 1000


def test_a_few_outliers_do_not_move_the_value() -> None:
    seen = scored("bfloat16", 0.126)
    seen.found[0, 3, 20, 5] = 1e4
    one = of(seen, "scale")
    assert one.value == pytest.approx(0.126, rel=2e-4)
    assert one.excludes


def test_position_zero_says_nothing_of_a_base() -> None:
    right = rotation(1e5)
    first = {**right, "positions": np.zeros((1, 1))}
    seen = seen_of(ops.rope, [draw(1, 6, 1, D)], first, {}, "float32")
    assert fitted(seen, "rope_theta") is None


def test_large_rows_say_nothing_of_epsilon() -> None:
    one = of(normed(ops.rms_norm, "bfloat16", 1e-6, spread=300.0), "eps")
    assert not one.excludes
    assert one.error > 1000 * one.configured


def test_uniform_attention_says_nothing_of_the_scale() -> None:
    seen = inside("bfloat16", 0.125)
    made = seen.call.input(0).made
    assert made is not None
    values = seen.call.input(1).value
    values[...] = values[:, :, :1]  # one value for all keys
    same = ops.context(seen.call.input(0).value, values)
    call = Call(Operand(same), seen.call.inputs, {}, seen.call.precision)
    found = fit_op(see(ops.context, call, narrow(same, "bfloat16")))
    assert all(not one.excludes and one.error > 0.01 for _, one in found)


def test_few_positions_exclude_nothing() -> None:
    for length in (1, 2, 3):
        right = {**rotation(1e5), "positions": np.arange(length)[None]}
        seen = seen_of(ops.rope, [draw(1, 6, length, D, dtype="bfloat16")], right, {}, "bfloat16")
        assert not any(one.excludes for _, one in fit_op(seen))


def test_a_sum_of_float32_is_no_other_epsilon() -> None:
    """With mean squares of 8 to 16, epsilon is 10.49 units of float32, and 10 are added."""
    x, weight = 3.3 * draw(1, 400, 64), np.ones(64)
    square = np.mean(x * x, axis=-1, keepdims=True).astype(np.float32)
    x = x[:, (square[0, :, 0] > 8) & (square[0, :, 0] < 16), :]
    square = np.mean(x * x, axis=-1, keepdims=True).astype(np.float32)
    found = x / np.sqrt((square + np.float32(1e-5)).astype(np.float64))
    call = Call(
        Operand(ops.rms_norm(x, weight, eps=1e-5)),
        (Operand(x), Operand(weight)),
        {"eps": 1e-5},
        precision("float32"),
    )
    one = of(see(ops.rms_norm, call, narrow(found, "float32")), "eps")
    assert abs(one.value - 1e-5) > 8 * one.error  # noise alone would exclude it
    assert not one.excludes


def test_scores_rounded_before_they_are_scaled_are_no_other_scale() -> None:
    scale = 0.12625
    seen = scored("bfloat16", scale, configured=scale)
    twice = narrow(seen.call.output.value / scale, "bfloat16") * scale
    one = of(see(ops.scores, seen.call, narrow(twice, "bfloat16")), "scale")
    assert abs(one.value - scale) > 8 * one.error  # noise alone would exclude it
    assert not one.excludes


def test_the_window_is_counted() -> None:
    at = {"queries": np.arange(20)[None], "keys": np.arange(20)[None]}
    seen = seen_of(ops.visible, [], {**at, "window": 6}, {"window": 9}, "float32")
    one = of(seen, "window")
    assert (one.configured, one.value, one.excludes) == (6, 9, True)
    healthy = seen_of(ops.visible, [], {**at, "window": 6}, {}, "float32")
    assert not of(healthy, "window").excludes
    healthy.found[0, 12, 3] = True  # one key more, which no window makes
    assert not of(healthy, "window").excludes
    short = {k: v[:, :4] for k, v in at.items()}
    assert fitted(seen_of(ops.visible, [], {**short, "window": 6}, {}, "float32"), "window") is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [4, 7, 30, T])
def test_the_window_is_found_in_the_context(window: int, dtype: str) -> None:
    at = {"queries": np.arange(T)[None], "keys": np.arange(T)[None]}
    mask = ops.visible(**at, window=6)
    call = Call(Operand(mask), (), {**at, "window": 6}, precision(dtype))
    seen = inside(dtype, 0.125, mask=Operand(mask, made=Made("mask", ops.visible, call)))
    softmax, values = seen.call.input(0).made, seen.call.input(1).value
    assert softmax is not None
    other = ops.masked_softmax(softmax.call.input(0).value, ops.visible(**at, window=window))
    seen.found[...] = narrow(ops.context(other, values), dtype)
    one = of(seen, "window")
    assert (one.configured, one.value, one.excludes) == (6, window, True)
    seen.found[...] = narrow(seen.call.output.value, dtype)
    assert fitted(seen, "window") is None  # nothing is wrong


def test_errors_that_rows_share_are_counted_once() -> None:
    """With one error for each row, the plain standard error would be 5 times too small."""
    draw_ = np.random.default_rng(3)
    off, plain = [], []
    for _ in range(300):
        tangent = np.ones((40, 25))
        shared = draw_.normal(size=(40, 1)) + 0.1 * draw_.normal(size=(40, 25))
        sample = Sample(shared, np.ones((40, 25)), "float32")
        one = estimate(sample, lambda c: (c * np.ones((40, 25)), np.ones((40, 25))), 0.0)
        assert one is not None
        off.append(one.value / one.error)
        plain.append(one.value * np.sqrt(tangent.size))
    assert 0.8 < np.std(off) < 1.2
    assert np.std(plain) > 4


def test_columns_that_are_rounded_alike_are_counted_once() -> None:
    draw_ = np.random.default_rng(4)
    off = []
    for _ in range(300):
        shared = draw_.normal(size=(1, 40)) + 0.1 * draw_.normal(size=(30, 40))
        sample = Sample(shared, np.ones((30, 40)), "float32")
        one = estimate(sample, lambda c: (c * np.ones((30, 40)), np.ones((30, 40))), 0.0)
        assert one is not None
        off.append(one.value / one.error)
    assert 0.7 < np.std(off) < 1.2


def test_few_groups_raise_the_limit() -> None:
    assert students(1000) < 1.05
    assert students(1) > students(4) > students(20) > 1.05
    ones = np.ones(2)
    error, limit = grouped_error(ones, ones, 0.0, None)
    assert limit > 20 * error
    assert grouped_error(ones, ones, 0.0, np.zeros(2))[1] == np.inf


def straight(slope: Array, value: float) -> tuple[Array, Array]:
    return value * slope, slope


def test_derivatives_that_nearly_vanish_are_no_error() -> None:
    """Where attention is so sharp that softmax is all or nothing, squares of squares underflow."""
    for size in (1e-120, 1e-170, 0.0):
        tangent = np.full((6, 4), size)
        sample = Sample(draw(6, 4), np.ones((6, 4)), "float32")
        one = estimate(sample, partial(straight, tangent), 0.5)
        assert one is None or not one.excludes


def test_a_sample_keeps_the_last_position_and_whole_rows() -> None:
    shape = (1, 9, 512, 512)
    at = thin(shape, whole=True)
    kept = np.zeros(shape, dtype=bool)[at]
    assert kept.size <= 1 << 18
    assert kept.shape[-1] == 512
    assert np.arange(512)[at[2]][-1] == 511
    assert np.zeros(shape)[thin(shape)].size <= 1 << 17


def test_every_fitted_op_has_a_bound() -> None:
    assert set(FITTERS) <= set(BOUNDS)


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (99000.8, 4.6, "99,001 +- 5"),
        (0.126217, 2e-6, "0.126217 +- 2e-06"),
        (1.01002e-5, 2e-10, "1.01002e-05 +- 2e-10"),
        (6.0, 0.0, "6"),
        (0.12345678, float("inf"), "0.123457"),
    ],
)
def test_a_value_is_said_with_the_digits_that_its_error_leaves(
    value: float, error: float, words: str
) -> None:
    assert in_words(value, error) == words
