"""Every op of the reference against loops over float64 scalars, on NumPy and on torch."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from references import ops
from references.step import Compute, Weight

Float64 = NDArray[np.float64]
B, T, S, H, K, D, C, V = 2, 3, 5, 6, 2, 8, 10, 7
HEADS = list(itertools.product(range(B), range(H), range(T)))


@dataclass(frozen=True, slots=True)
class Library:
    """One array library and dtype.

    Attributes:
        name: For the test's id.
        dtype: What every result must have.
        roundoff: Relative error of one rounding.
        make: From float64 to an array of the library.
    """

    name: str
    dtype: Any
    roundoff: float
    make: Callable[[Float64], Any]

    def draw(self, *shape: int, seed: int = 0, spread: float = 1.0) -> tuple[Any, Float64]:
        """A random array of the library, and what it holds in float64."""
        array = self.make(np.random.default_rng(seed).normal(0.0, spread, shape))
        return array, value(array)

    def require(self, found: Any, expected: Float64, *, rounds: float = 8.0) -> None:
        """Require dtype, shape and, up to that many roundings of the largest value, the values."""
        assert found.dtype == self.dtype
        assert tuple(found.shape) == expected.shape
        error = np.max(np.abs(value(found) - expected))
        assert error <= rounds * self.roundoff * np.max(np.abs(expected))


def value(array: Any) -> Float64:
    """What an array of any library holds, in float64."""
    if isinstance(array, torch.Tensor):
        held: Float64 = array.to(torch.float64).numpy()
        return held
    return np.asarray(array, dtype=np.float64)


def _numpy(dtype: Any) -> Library:
    name = f"numpy {np.dtype(dtype).name}"
    return Library(name, dtype, float(np.finfo(dtype).eps) / 2, lambda x: x.astype(dtype))


def _torch(dtype: torch.dtype) -> Library:
    return Library(
        str(dtype).replace(".", " "),
        dtype,
        torch.finfo(dtype).eps / 2,
        lambda x: torch.from_numpy(x).to(dtype),
    )


LIBRARIES = [
    _numpy(np.float32),
    _numpy(np.float64),
    _torch(torch.float32),
    _torch(torch.float64),
    _torch(torch.bfloat16),
]


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Library:
    found: Library = request.param
    return found


def dot(x: Iterable[float], y: Iterable[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def test_embedding_takes_the_row_of_each_token(library: Library) -> None:
    table, rows = library.draw(V, C)
    ids = np.array([[6, 0, 3], [3, 3, 1]])
    found = ops.embedding(table, ids)
    library.require(found, np.array([[rows[i] for i in row] for row in ids]), rounds=0)


@pytest.mark.parametrize(("op", "law"), [(ops.add, float.__add__), (ops.multiply, float.__mul__)])
def test_add_and_multiply_are_elementwise(
    library: Library, op: Callable[..., Any], law: Callable[[float, float], float]
) -> None:
    x, p = library.draw(B, T, C)
    y, q = library.draw(B, T, C, seed=1)
    expected = [law(float(a), float(b)) for a, b in zip(p.flat, q.flat, strict=True)]
    library.require(op(x, y), np.reshape(expected, (B, T, C)), rounds=1)


@pytest.mark.parametrize("biased", [False, True])
def test_linear_is_a_product_with_the_transposed_weight(library: Library, *, biased: bool) -> None:
    x, p = library.draw(B, T, C)
    weight, w = library.draw(V, C, seed=1)
    bias, b = library.draw(V, seed=2, spread=5.0)
    expected = np.zeros((B, T, V))
    for i, t, m in np.ndindex(B, T, V):
        expected[i, t, m] = dot(p[i, t], w[m]) + (b[m] if biased else 0.0)
    library.require(ops.linear(x, weight, bias if biased else None), expected)


@pytest.mark.parametrize("biased", [False, True])
def test_linear_heads_gives_each_head_consecutive_rows(library: Library, *, biased: bool) -> None:
    x, p = library.draw(B, T, C)
    weight, w = library.draw(H * D, C, seed=1)
    bias, b = library.draw(H * D, seed=2, spread=5.0)
    expected = np.zeros((B, H, T, D))
    for i, h, t, d in np.ndindex(B, H, T, D):
        row = h * D + d
        expected[i, h, t, d] = dot(p[i, t], w[row]) + (b[row] if biased else 0.0)
    found = ops.linear_heads(x, weight, bias if biased else None, heads=H)
    library.require(found, expected)


@pytest.mark.parametrize("biased", [False, True])
def test_linear_merged_reads_heads_side_by_side(library: Library, *, biased: bool) -> None:
    x, p = library.draw(B, H, T, D)
    weight, w = library.draw(C, H * D, seed=1)
    bias, b = library.draw(C, seed=2, spread=5.0)
    expected = np.zeros((B, T, C))
    for i, t, c in np.ndindex(B, T, C):
        merged = [float(p[i, h, t, d]) for h in range(H) for d in range(D)]
        expected[i, t, c] = dot(merged, w[c]) + (b[c] if biased else 0.0)
    library.require(ops.linear_merged(x, weight, bias if biased else None), expected)


# At 1e-3 the mean square is about 1e-6, so that epsilon is most of the sum.
@pytest.mark.parametrize("spread", [1.0, 1e-3, 300.0])
def test_rms_norm_divides_by_the_root_of_the_mean_square_and_epsilon(
    library: Library, spread: float
) -> None:
    x, p = library.draw(B, T, C, spread=spread)
    weight, w = library.draw(C, seed=1)
    eps = 1e-5
    expected = np.zeros((B, T, C))
    for i, t in np.ndindex(B, T):
        root = math.sqrt(dot(p[i, t], p[i, t]) / C + eps)
        expected[i, t] = [a / root * b for a, b in zip(p[i, t], w, strict=True)]
    library.require(ops.rms_norm(x, weight, eps=eps), expected)


def test_rms_norm_of_heads_is_over_each_head(library: Library) -> None:
    x, p = library.draw(B, H, T, D)
    weight, w = library.draw(D, seed=1)
    expected = np.zeros((B, H, T, D))
    for i, h, t in HEADS:
        expected[i, h, t] = p[i, h, t] * w / math.sqrt(dot(p[i, h, t], p[i, h, t]) / D + 1e-6)
    library.require(ops.rms_norm(x, weight, eps=1e-6), expected)


POSITIONS = np.array([[0, 7, 90], [4, 5, 6]])
FREQUENCIES = 10000.0 ** (-np.arange(0, D, 2) / D)


@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_rope_turns_each_half_pair_as_one_complex_number(library: Library, factor: float) -> None:
    x, p = library.draw(B, H, T, D)
    expected = np.zeros((B, H, T, D))
    for i, h, t in HEADS:
        for n in range(D // 2):
            angle = float(POSITIONS[i, t]) * float(FREQUENCIES[n])
            turned = complex(p[i, h, t, n], p[i, h, t, n + D // 2]) * factor
            turned *= complex(math.cos(angle), math.sin(angle))
            expected[i, h, t, n], expected[i, h, t, n + D // 2] = turned.real, turned.imag
    found = ops.rope(x, positions=POSITIONS, frequencies=FREQUENCIES, attention_factor=factor)
    # Angles up to 90 are formed in the dtype, at least float32, which may cost 90 roundings there.
    angles = 90 * min(1.0, float(np.finfo(np.float32).eps) / 2 / library.roundoff)
    library.require(found, expected, rounds=4 + angles)


def test_rope_leaves_position_zero_alone(library: Library) -> None:
    x, p = library.draw(B, H, T, D)
    found = ops.rope(x, positions=np.zeros((B, T), dtype=int), frequencies=FREQUENCIES)
    library.require(found, p, rounds=0)


def test_rope_keeps_products_of_queries_and_keys_when_both_move() -> None:
    draw = np.random.default_rng(3)
    q, k = draw.normal(size=(1, 1, 1, D)), draw.normal(size=(1, 1, 1, D))

    def product(a: int, b: int) -> float:
        turned = (
            ops.rope(x, positions=np.array([[at]]), frequencies=FREQUENCIES)
            for x, at in ((q, a), (k, b))
        )
        return dot(*(x.ravel() for x in turned))

    assert product(17, 4) == pytest.approx(product(113, 100), rel=1e-12)
    assert product(17, 4) != pytest.approx(product(17, 5), rel=1e-2)


def test_extend_appends_along_the_positions(library: Library) -> None:
    past, p = library.draw(B, K, 4, D)
    new, n = library.draw(B, K, 2, D, seed=1)
    joined = np.array([[[*p[b, k], *n[b, k]] for k in range(K)] for b in range(B)])
    library.require(ops.extend(past, new), joined, rounds=0)
    library.require(ops.extend(None, new), n, rounds=0)
    library.require(ops.extend(past, new, keep=3), joined[:, :, 3:], rounds=0)
    library.require(ops.extend(past, new, keep=9), joined, rounds=0)
    library.require(ops.extend(None, new, keep=1), n[:, :, 1:], rounds=0)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_scores_read_the_kv_head_of_the_group(library: Library, groups: int) -> None:
    q, p = library.draw(B, H, T, D)
    k, r = library.draw(B, groups, S, D, seed=1)
    expected = np.zeros((B, H, T, S))
    for i, h, t, s in np.ndindex(B, H, T, S):
        expected[i, h, t, s] = 0.37 * dot(p[i, h, t], r[i, h // (H // groups), s])
    library.require(ops.scores(q, k, scale=0.37), expected)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_context_reads_the_kv_head_of_the_group(library: Library, groups: int) -> None:
    probs, p = library.draw(B, H, T, S)
    values, r = library.draw(B, groups, S, D, seed=1)
    expected = np.zeros((B, H, T, D))
    for i, h, t, d in np.ndindex(B, H, T, D):
        expected[i, h, t, d] = dot(p[i, h, t], r[i, h // (H // groups), :, d])
    library.require(ops.context(probs, values), expected)


@pytest.mark.parametrize("special", range(K))
def test_one_kv_head_serves_consecutive_query_heads(library: Library, special: int) -> None:
    """Only one kv head holds anything: its query heads are a block, not every K-th."""
    only = np.zeros((B, K, S, D))
    only[:, special] = 1.0
    k, q = library.make(only), library.make(np.ones((B, H, T, D)))
    reading = [h for h in range(H) if h // (H // K) == special]
    scores = value(ops.scores(q, k, scale=1.0))
    context = value(ops.context(library.make(np.ones((B, H, T, S))), k))
    for found in (scores, context):
        assert [h for h in range(H) if np.all(found[:, h] != 0)] == reading
        assert [h for h in range(H) if np.any(found[:, h] != 0)] == reading


@pytest.mark.parametrize("window", [None, 1, 2, 4, 100])
def test_visible_keys_are_past_and_within_the_window(window: int | None) -> None:
    queries, keys = np.array([[3, 4, 5], [7, 8, 9]]), np.array([[1, 2, 3, 4, 5], [5, 6, 7, 8, 9]])
    found = ops.visible(queries=queries, keys=keys, window=window)
    assert found.dtype == bool
    for b, t, s in np.ndindex(2, 3, 5):
        p, key = int(queries[b, t]), int(keys[b, s])
        last = key <= p
        assert bool(found[b, t, s]) == (last and (window is None or key >= p - window + 1))


def test_masked_softmax_is_over_the_visible_keys(library: Library) -> None:
    scores, p = library.draw(B, H, T, S, spread=3.0)
    visible = np.random.default_rng(5).random((B, T, S)) < 0.6
    visible[:, :, 1] = True
    expected = np.zeros((B, H, T, S))
    for i, h, t in HEADS:
        seen = [s for s in range(S) if visible[i, t, s]]
        total = math.fsum(math.exp(p[i, h, t, s]) for s in seen)
        for s in seen:
            expected[i, h, t, s] = math.exp(p[i, h, t, s]) / total
    found = ops.masked_softmax(scores, visible)
    library.require(found, expected, rounds=16)
    assert np.all(value(found)[~np.broadcast_to(visible[:, None], expected.shape)] == 0.0)


def test_masked_softmax_survives_large_scores(library: Library) -> None:
    scores = library.make(np.array([[[[3e4, 3e4, -3e4, 9e9]]]]))
    found = ops.masked_softmax(scores, np.array([[[True, True, True, False]]]))
    library.require(found, np.array([[[[0.5, 0.5, 0.0, 0.0]]]]), rounds=0)


def test_silu_is_x_times_the_logistic_function(library: Library) -> None:
    x, p = library.draw(B, T, C, spread=4.0)
    expected = np.reshape([a / (1 + math.exp(-a)) for a in p.flat], p.shape)
    found = ops.silu(x)
    assert found.dtype == library.dtype
    assert np.max(np.abs(value(found) / expected - 1)) < 8 * library.roundoff


def test_silu_does_not_overflow(library: Library) -> None:
    found = ops.silu(library.make(np.array([-1000.0, 1000.0, 0.0])))
    assert value(found).tolist() == [0.0, value(library.make(np.array([1000.0])))[0], 0.0]


# Half precision: computed in float32, rounded once.


def _bfloat16(*shape: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 2, shape)).to(torch.bfloat16)


@pytest.mark.parametrize(
    "op",
    [
        ops.silu,
        lambda x: ops.masked_softmax(x, np.tri(T, S, dtype=bool)[None].repeat(B, 0)),
        lambda x: ops.rope(
            x[..., :4], positions=POSITIONS, frequencies=np.array([1.0, 0.1]), attention_factor=1.1
        ),
    ],
    ids=["silu", "masked_softmax", "rope"],
)
def test_narrow_dtypes_are_computed_in_float32_and_rounded_once(op: Callable[..., Any]) -> None:
    x = _bfloat16(B, H, T, S)
    found = op(x)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, op(x.to(torch.float32)).to(torch.bfloat16))


def test_rms_norm_in_half_precision_rounds_before_the_weight_and_after() -> None:
    x, weight = _bfloat16(B, T, 64), _bfloat16(64, seed=1)
    normalised = ops.rms_norm(x.to(torch.float32), torch.ones(64), eps=1e-5).to(torch.bfloat16)
    found = ops.rms_norm(x, weight, eps=1e-5)
    assert torch.equal(found, normalised * weight)
    once = ops.rms_norm(x.to(torch.float32), weight.to(torch.float32), eps=1e-5)
    assert not torch.equal(found, once.to(torch.bfloat16))  # so the order shows on this input


# The plain step.


def test_compute_refuses_an_op_that_is_promoted() -> None:
    step = Compute(lambda weight: weight.array, np.float32)
    x = np.ones((1, 1, 4), dtype=np.float32)
    with pytest.raises(TypeError, match=r"^layers\.1\.scaled: computed float64, not"):
        step("layers.1.scaled", lambda a: a * np.float64(2.0), x)
    with pytest.raises(TypeError, match=r"^linear: computed float64"):
        step(None, ops.linear, x, np.ones((2, 4)))


def test_compute_lifts_parameters_and_passes_other_inputs_on() -> None:
    step = Compute(lambda weight: weight.array.astype(np.float32), np.float32)
    weight = Weight("w", np.array([[1, 2]], dtype=np.float16))
    assert step("y", ops.linear, np.ones((1, 1, 2), dtype=np.float32), weight, None) == 3.0
    visible = step("mask", ops.visible, queries=np.array([[1]]), keys=np.array([[1, 2]]))
    assert visible.tolist() == [[[True, False]]]
