"""Ops that Llama does not have, against loops over float64 scalars, on NumPy and on torch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from references import ops

B, T, H, D, C = 2, 3, 6, 8, 10
Float64 = NDArray[np.float64]

LIBRARIES = {
    "numpy float64": (np.float64, 2.0**-53),
    "numpy float32": (np.float32, 2.0**-24),
    "torch float32": (torch.float32, 2.0**-24),
    "torch bfloat16": (torch.bfloat16, 2.0**-8),
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(library: str, values: Any) -> Any:
    dtype: Any = LIBRARIES[library][0]
    values = np.asarray(values, dtype=np.float64)
    return torch.from_numpy(values).to(dtype) if "torch" in library else values.astype(dtype)


def draw(library: str, *shape: int, seed: int = 0, spread: float = 1.0) -> tuple[Any, Float64]:
    array = make(library, np.random.default_rng(seed).normal(0.0, spread, shape))
    return array, value(array)


def value(array: Any) -> Float64:
    if isinstance(array, torch.Tensor):
        held: Float64 = array.double().numpy()
        return held
    return np.asarray(array, dtype=np.float64)


def require(library: str, found: Any, expected: Float64, *, rounds: float = 8.0) -> None:
    dtype, roundoff = LIBRARIES[library]
    assert found.dtype == dtype
    assert tuple(found.shape) == expected.shape
    error = np.max(np.abs(value(found) - expected))
    assert error <= rounds * roundoff * np.max(np.abs(expected))


@pytest.mark.parametrize("biased", [False, True])
def test_affine_is_a_product_with_the_weight_as_it_is_stored(library: str, *, biased: bool) -> None:
    (x, p), (weight, w) = draw(library, B, T, C), draw(library, C, 4, seed=1)
    bias, b = draw(library, 4, seed=2)
    expected = np.zeros((B, T, 4))
    for i, t, m in np.ndindex(B, T, 4):
        expected[i, t, m] = sum(p[i, t, n] * w[n, m] for n in range(C)) + (b[m] if biased else 0)
    require(library, ops.affine(x, weight, bias if biased else None), expected)


def test_affine_merged_reads_heads_side_by_side(library: str) -> None:
    (x, p), (weight, w) = draw(library, B, H, T, D), draw(library, H * D, C, seed=1)
    bias, b = draw(library, C, seed=2)
    expected = np.zeros((B, T, C))
    for i, t, c in np.ndindex(B, T, C):
        terms = [p[i, h, t, d] * w[h * D + d, c] for h in range(H) for d in range(D)]
        expected[i, t, c] = sum(terms) + b[c]
    require(library, ops.affine_merged(x, weight, bias), expected)


@pytest.mark.parametrize("part", range(3))
def test_part_heads_takes_consecutive_channels_of_a_part_and_a_head(part: int) -> None:
    x = np.arange(B * T * 3 * H * D, dtype=np.float64).reshape(B, T, 3 * H * D)
    found = ops.part_heads(x, part=part, parts=3, heads=H)
    assert found.shape == (B, H, T, D)
    for i, h, t, d in np.ndindex(B, H, T, D):
        assert found[i, h, t, d] == x[i, t, part * H * D + h * D + d]


# At 1e-3 the variance is about 1e-6, so that epsilon is most of the sum.
@pytest.mark.parametrize(("spread", "shift"), [(1.0, 0.0), (1e-3, 0.0), (1.0, 3.0)])
def test_layer_norm_takes_the_mean_away_and_divides_by_the_deviation(
    library: str, spread: float, shift: float
) -> None:
    x = make(library, np.random.default_rng(0).normal(shift, spread, (B, T, C)))
    p = value(x)
    (weight, w), (bias, b) = draw(library, C, seed=1), draw(library, C, seed=2)
    expected = np.zeros((B, T, C))
    for i, t in np.ndindex(B, T):
        mean = sum(p[i, t]) / C
        variance = sum((a - mean) ** 2 for a in p[i, t]) / C
        expected[i, t] = (p[i, t] - mean) / math.sqrt(variance + 1e-5) * w + b
    require(library, ops.layer_norm(x, weight, bias, eps=1e-5), expected)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_rms_norm_from_one_adds_one_to_the_weight(library: str, spread: float) -> None:
    x, p = draw(library, B, T, C, spread=spread)
    weight, w = draw(library, C, seed=1)
    expected = np.zeros((B, T, C))
    for i, t in np.ndindex(B, T):
        root = math.sqrt(sum(a * a for a in p[i, t]) / C + 1e-5)
        expected[i, t] = p[i, t] / root * (1 + w)
    require(library, ops.rms_norm_from_one(x, weight, eps=1e-5), expected)


def test_rms_norm_from_one_in_half_precision_is_rounded_once() -> None:
    x, _ = draw("torch bfloat16", B, T, 64)
    weight, _ = draw("torch bfloat16", 64, seed=1)
    wide = ops.rms_norm_from_one(x.float(), weight.float(), eps=1e-5)
    assert torch.equal(ops.rms_norm_from_one(x, weight, eps=1e-5), wide.bfloat16())


def test_scaled_embedding_multiplies_rows_by_a_constant_of_its_dtype(library: str) -> None:
    table, p = draw(library, 7, C)
    scale = make(library, C**0.5)
    ids = np.array([[0, 6, 2], [3, 3, 1]])
    require(library, ops.scaled_embedding(table, ids, scale), p[ids] * value(scale), rounds=1.0)


@pytest.mark.parametrize("op", [ops.gelu_tanh, ops.gelu_new])
def test_gelu_is_the_approximation_by_tanh(library: str, op: Any) -> None:
    x, p = draw(library, B, T, C, spread=2.0)
    root = math.sqrt(2 / math.pi)
    formula = [a / 2 * (1 + math.tanh(root * (a + 0.044715 * a**3))) for a in p.flat]
    found = op(x)
    require(library, found, np.reshape(formula, p.shape))
    exact = np.reshape([a / 2 * (1 + math.erf(a / math.sqrt(2))) for a in p.flat], p.shape)
    assert 1e-5 < np.max(np.abs(np.reshape(formula, p.shape) - exact)) < 1e-3  # it is not exact


def test_gelu_does_not_overflow() -> None:
    found = ops.gelu_tanh(np.array([-1000.0, 1000.0, 0.0]))
    assert found.tolist() == [0.0, 1000.0, 0.0]


@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_softcap_bends_towards_the_cap(library: str, cap: float) -> None:
    x, p = draw(library, B, T, C, spread=20.0)
    found = ops.softcap(x, cap=cap)
    require(library, found, np.reshape([cap * math.tanh(a / cap) for a in p.flat], p.shape))
    assert np.max(np.abs(value(found))) <= cap


def test_a_factor_multiplies_and_a_divisor_divides(library: str) -> None:
    (x, p), (y, q) = draw(library, B, T, C), draw(library, B, T, C, seed=1)
    require(library, ops.scale(x, factor=0.22), p * 0.22, rounds=1.0)
    require(library, ops.divide(x, divisor=7.7), p / 7.7, rounds=2.0)
    require(library, ops.add_scaled(x, y, factor=0.22), p + 0.22 * q, rounds=2.0)


def test_a_factor_is_not_rounded_to_the_dtype() -> None:
    x, p = draw("torch bfloat16", B, T, 200)
    once = torch.from_numpy(p * 12.3).bfloat16()  # 12.3125 as bfloat16 has it
    assert torch.equal(ops.scale(x, factor=12.3), once)
    assert not torch.equal(x * torch.tensor(12.3, dtype=torch.bfloat16), once)


def test_top_experts_are_the_largest_and_of_equal_ones_the_first(library: str) -> None:
    logits = make(library, [[[0.5, 2.0, -1.0, 2.0], [1.0, 1.0, 1.0, 1.0], [-3.0, -2.0, -1.0, 0.0]]])
    found = np.asarray(ops.top_experts(logits, count=2))
    assert found.tolist() == [
        [[False, True, False, True], [True, True, False, False], [False, False, True, True]]
    ]
    assert np.asarray(ops.top_experts(logits, count=4)).all()


@pytest.mark.parametrize("normalised", [False, True])
def test_expert_weights_are_a_softmax_over_all_experts(library: str, *, normalised: bool) -> None:
    logits, p = draw(library, B, T, 5, spread=3.0)
    chosen = np.random.default_rng(1).random((B, T, 5)) < 0.5
    chosen[..., 2] = True
    expected = np.zeros((B, T, 5))
    for i, t in np.ndindex(B, T):
        probs = [math.exp(a) / sum(math.exp(b) for b in p[i, t]) for a in p[i, t]]
        kept = sum(probs[e] for e in range(5) if chosen[i, t, e]) if normalised else 1.0
        expected[i, t] = [probs[e] / kept if chosen[i, t, e] else 0.0 for e in range(5)]
    require(library, ops.expert_weights(logits, chosen, normalised=normalised), expected)
    found = value(ops.expert_weights(logits, chosen, normalised=normalised))
    assert (found[~chosen] == 0).all()


def test_experts_add_up_gated_mlps_by_weight(library: str) -> None:
    (x, p), (shares, s) = draw(library, B, T, C), draw(library, B, T, 3, seed=1)
    shares = shares * (shares > 0)
    s = s * (s > 0)
    shapes = [(4, C), (4, C), (C, 4)] * 3  # gate, up and down of each
    drawn = [draw(library, *shape, seed=n, spread=0.4) for n, shape in enumerate(shapes, 2)]
    matrices = [array for array, _ in drawn]
    expected = np.zeros((B, T, C))
    for e in range(3):
        gate, up, down = (m for _, m in drawn[3 * e : 3 * e + 3])
        for i, t in np.ndindex(B, T):
            g, u = gate @ p[i, t], up @ p[i, t]
            inner = [a / (1 + math.exp(-a)) * b for a, b in zip(g, u, strict=True)]
            expected[i, t] += s[i, t, e] * (down @ inner)
    require(library, ops.experts(x, shares, *matrices, activation=ops.silu), expected)


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_rope_of_a_part_turns_its_halves_and_passes_the_rest(library: str, pairs: int) -> None:
    """Pairs lie within the part: 0 and 2 of four, not 0 and D/2."""
    x, p = draw(library, B, H, T, D)
    positions = np.array([[0, 3, 7], [1, 2, 30]])
    frequencies = 100.0 ** -(np.arange(pairs) / pairs)
    expected = p.copy()
    for i, h, t, n in np.ndindex(B, H, T, pairs):
        angle = positions[i, t] * frequencies[n]
        first, second = p[i, h, t, n], p[i, h, t, n + pairs]
        expected[i, h, t, n] = first * math.cos(angle) - second * math.sin(angle)
        expected[i, h, t, n + pairs] = second * math.cos(angle) + first * math.sin(angle)
    given: dict[str, Any] = {"positions": positions, "frequencies": frequencies}
    found = ops.rope(x, **given)
    require(library, found, expected, rounds=30.0)
    assert np.array_equal(value(found)[..., 2 * pairs :], p[..., 2 * pairs :])
    scaled = value(ops.rope(x, **given, attention_factor=1.5))
    assert np.array_equal(scaled[..., 2 * pairs :], p[..., 2 * pairs :])  # cosine and sine alone


def test_masked_softmax_sink_has_one_more_term_in_its_sum(library: str) -> None:
    scores, p = draw(library, B, H, T, 5, spread=3.0)
    sink, s = draw(library, H, seed=1, spread=3.0)
    visible = np.random.default_rng(2).random((B, T, 5)) < 0.6
    visible[..., 1] = True
    expected = np.zeros((B, H, T, 5))
    for i, h, t in np.ndindex(B, H, T):
        seen = [key for key in range(5) if visible[i, t, key]]
        total = math.exp(s[h]) + sum(math.exp(p[i, h, t, key]) for key in seen)
        for key in seen:
            expected[i, h, t, key] = math.exp(p[i, h, t, key]) / total
    require(library, ops.masked_softmax_sink(scores, visible, sink), expected)


@pytest.mark.parametrize("sink", [-1000.0, 1000.0])
def test_masked_softmax_sink_does_not_overflow(sink: float) -> None:
    scores, visible = np.zeros((1, 1, 1, 2)), np.ones((1, 1, 2), dtype=bool)
    found = ops.masked_softmax_sink(scores, visible, np.array([sink]))
    assert found.tolist() == [[[[0.5, 0.5] if sink < 0 else [0.0, 0.0]]]]


def test_clamped_experts_take_gate_and_up_in_turn(library: str) -> None:
    (x, p), (shares, s) = draw(library, B, T, C), draw(library, B, T, 2, seed=1)
    shares, s = shares * (shares > 0), s * (s > 0)
    shapes = [(2, C, 8), (2, 8), (2, 4, C), (2, C)]
    drawn = [draw(library, *shape, seed=n, spread=0.5) for n, shape in enumerate(shapes, 2)]
    gate_up, gate_up_bias, down, down_bias = (array for _, array in drawn)
    expected, cut = np.zeros((B, T, C)), 0
    for e, i, t in np.ndindex(2, B, T):
        both = p[i, t] @ gate_up[e] + gate_up_bias[e]
        cut += int((np.abs(both) > 0.7).sum())
        gates = [min(a, 0.7) for a in both[0::2]]
        ups = [min(max(a, -0.7), 0.7) for a in both[1::2]]
        inner = [(u + 1) * g / (1 + math.exp(-1.3 * g)) for g, u in zip(gates, ups, strict=True)]
        expected[i, t] += s[i, t, e] * (inner @ down[e] + down_bias[e])
    assert cut > 10
    arrays = [array for array, _ in drawn]
    found = ops.clamped_experts(x, shares, *arrays, alpha=1.3, limit=0.7)
    require(library, found, expected, rounds=16.0)
