"""Every op of the reference against plain loops, on NumPy and on torch from the same source."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from references import ops

DRAW = np.random.default_rng(5)
B, H, K, T, S, D, C = 2, 6, 2, 4, 5, 8, 12


def draw(*shape: int) -> Any:
    return DRAW.normal(size=shape)


def loops(shape: tuple[int, ...], value: Callable[..., float]) -> Any:
    """An array from a formula for each element."""
    result = np.empty(shape)
    for index in np.ndindex(*shape):
        result[index] = value(*index)
    return result


X, W, BIAS = draw(B, T, C), draw(H * D, C), draw(H * D)
Q, KEYS, VALUES = draw(B, H, T, D), draw(B, K, S, D), draw(B, K, S, D)
SCORES = 3 * draw(B, H, T, S)
SEEN = np.tril(np.ones((B, T, S), dtype=bool), 1)
POSITIONS = np.array([[0, 1, 7, 300]] * B)
FREQUENCIES = 10000.0 ** (-np.arange(0, D, 2) / D)
TABLE, IDS = draw(20, C), np.array([[3, 0, 19, 3]] * B)
SCALE = D**-0.5


def rotated(b: int, h: int, t: int, d: int) -> float:
    pair = d % (D // 2)
    angle = POSITIONS[b, t] * FREQUENCIES[pair]
    x, y = Q[b, h, t, pair], Q[b, h, t, pair + D // 2]
    turned: complex = complex(x, y) * complex(math.cos(angle), math.sin(angle)) * 1.3
    return float(turned.real if d < D // 2 else turned.imag)


def prob(b: int, h: int, t: int, s: int) -> float:
    row = SCORES[b, h, t]
    total = sum(math.exp(row[i]) for i in range(S) if SEEN[b, t, i])
    return math.exp(row[s]) / total if SEEN[b, t, s] else 0.0


def projected(b: int, h: int, t: int, d: int) -> float:
    return float(sum(X[b, t, c] * W[h * D + d, c] for c in range(C)) + BIAS[h * D + d])


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = {
    "embedding": (
        ops.embedding,
        (TABLE, IDS),
        {},
        loops((B, T, C), lambda b, t, c: TABLE[IDS[b, t], c]),
    ),
    "add": (ops.add, (X, X[::-1]), {}, loops(X.shape, lambda *i: X[i] + X[::-1][i])),
    "multiply": (ops.multiply, (X, X[::-1]), {}, loops(X.shape, lambda *i: X[i] * X[::-1][i])),
    "linear": (
        ops.linear,
        (X, W),
        {},
        loops((B, T, H * D), lambda b, t, m: sum(X[b, t, c] * W[m, c] for c in range(C))),
    ),
    "linear_heads": (
        ops.linear_heads,
        (X, W, BIAS),
        {"heads": H},
        loops((B, H, T, D), projected),
    ),
    "linear_merged": (
        ops.linear_merged,
        (Q, W.T, BIAS[:C]),
        {},
        loops(
            (B, T, C),
            lambda b, t, c: (
                sum(Q[b, h, t, d] * W.T[c, h * D + d] for h in range(H) for d in range(D)) + BIAS[c]
            ),
        ),
    ),
    "rms_norm": (
        ops.rms_norm,
        (X, W[0]),
        {"eps": 0.1},
        loops(
            X.shape,
            lambda b, t, c: W[0, c] * X[b, t, c] / math.sqrt(sum(v * v for v in X[b, t]) / C + 0.1),
        ),
    ),
    "rope": (
        ops.rope,
        (Q,),
        {"positions": POSITIONS, "frequencies": FREQUENCIES, "attention_factor": 1.3},
        loops(Q.shape, rotated),
    ),
    "scores": (
        ops.scores,
        (Q, KEYS),
        {"scale": SCALE},
        loops(
            SCORES.shape,
            lambda b, h, t, s: (
                SCALE * sum(Q[b, h, t, d] * KEYS[b, h // (H // K), s, d] for d in range(D))
            ),
        ),
    ),
    "masked_softmax": (ops.masked_softmax, (SCORES, SEEN), {}, loops(SCORES.shape, prob)),
    "context": (
        ops.context,
        (SCORES, VALUES),
        {},
        loops(
            (B, H, T, D),
            lambda b, h, t, d: sum(
                SCORES[b, h, t, s] * VALUES[b, h // (H // K), s, d] for s in range(S)
            ),
        ),
    ),
    "silu": (
        ops.silu,
        (9 * X,),
        {},
        loops(X.shape, lambda *i: 9 * X[i] / (1 + math.exp(-9 * X[i]))),
    ),
    "extend": (
        ops.extend,
        (KEYS, VALUES),
        {"keep": 7},
        loops(
            (B, K, 7, D),
            lambda b, k, s, d: KEYS[b, k, s + 3, d] if s < 2 else VALUES[b, k, s - 2, d],
        ),
    ),
}


def on_numpy(array: Any, dtype: str) -> Any:
    return array.astype(dtype) if array.dtype.kind == "f" else array


def on_torch(array: Any, dtype: str) -> Any:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.to(getattr(torch, dtype)) if array.dtype.kind == "f" else tensor


TOLERANCES = {"float64": 1e-13, "float32": 4e-6, "bfloat16": 4e-2}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("library", "dtype"),
    [
        (on_numpy, "float64"),
        (on_numpy, "float32"),
        (on_torch, "float64"),
        (on_torch, "float32"),
        (on_torch, "bfloat16"),
    ],
)
def test_op_equals_its_formula(name: str, library: Callable[..., Any], dtype: str) -> None:
    op, inputs, constants, expected = CASES[name]
    result = op(*(library(x, dtype) for x in inputs), **constants)
    assert str(result.dtype).removeprefix("torch.") == dtype
    values = result.double().numpy() if library is on_torch else result
    assert values.shape == expected.shape
    scale = np.max(np.abs(expected))
    assert np.max(np.abs(values - expected)) <= TOLERANCES[dtype] * scale


def test_every_op_has_a_formula_here() -> None:
    public = {
        name
        for name, value in vars(ops).items()
        if callable(value) and getattr(value, "__module__", "") == ops.__name__ and name[0] != "_"
    }
    assert public == set(CASES) | {"visible"}


@pytest.mark.parametrize("window", [None, 1, 3])
def test_visible_is_causal_and_within_the_window(window: int | None) -> None:
    queries, keys = np.array([[4, 5]]), np.array([[2, 3, 4, 5]])
    seen = ops.visible(queries=queries, keys=keys, window=window)
    for t, s in np.ndindex(2, 4):
        distance = queries[0, t] - keys[0, s]
        assert seen[0, t, s] == (0 <= distance < (window or 100))


def test_law_query_heads_read_their_own_kv_head() -> None:
    """Head h reads kv head h // (H/K): marking kv head 1 changes heads 3, 4 and 5 alone."""
    marked = KEYS.copy()
    marked[:, 1] += 1
    moved = ops.scores(Q, marked, scale=1.0) - ops.scores(Q, KEYS, scale=1.0)
    assert np.all(moved[:, :3] == 0)
    assert np.all(np.abs(moved[:, 3:]) > 0)


def test_silu_does_not_overflow() -> None:
    with np.errstate(all="raise", under="ignore"):
        result = ops.silu(np.array([-1e4, 0.0, 1e4], dtype=np.float32))
    np.testing.assert_array_equal(result, np.array([0, 0, 1e4], dtype=np.float32))


def test_rope_forms_angles_in_float32_for_narrow_inputs() -> None:
    """In bfloat16 position 300 would be 300, but 301 would be 300 too."""
    x = torch.ones(1, 1, 1, 2, dtype=torch.bfloat16)
    turned = ops.rope(x, positions=np.array([[301]]), frequencies=np.array([1.0]))
    expected = math.cos(301) - math.sin(301)
    assert abs(float(turned[0, 0, 0, 0]) - expected) < 0.01
