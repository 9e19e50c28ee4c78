"""Laws of the rounding bounds: healthy evaluations stay within the limit, faulty ones do not."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.compare import local_error
from harness.contract import UNIT_LIMIT
from harness.errors import UsageError
from harness.replay.bounds import BOUNDS, Call, Operand, unit
from harness.replay.precision import precision
from harness.result import LocalError
from references import ops

Array = Any
Random = np.random.Generator

TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES = sorted(TORCH)


def test_bounds_cover_every_op_of_the_reference() -> None:
    public = {
        function
        for name, function in vars(ops).items()
        if inspect.isfunction(function)
        and function.__module__ == ops.__name__
        and not name.startswith("_")
    }
    assert len(public) > 10
    assert set(BOUNDS) == public


@dataclass(frozen=True)
class Example:
    """An op with float64 inputs that a dtype holds exactly."""

    op: Callable[..., Array]
    inputs: tuple[Array | None, ...]
    constants: dict[str, Any]

    def run(self, dtype: torch.dtype) -> Array:
        """The op as torch computes it in a dtype."""
        return lifted(self.op(*(narrowed(x, dtype) for x in self.inputs), **self.constants))

    def measure(self, found: Array, dtype: str) -> LocalError:
        """Local error of a result, as a replay finds it."""
        operands = tuple(None if x is None else Operand(x) for x in self.inputs)
        return measure(self.op, operands, self.constants, found, dtype)


def measure(
    op: Callable[..., Array],
    operands: tuple[Operand | None, ...],
    constants: dict[str, Any],
    found: Array,
    dtype: str,
) -> LocalError:
    call = evaluated(op, operands, constants, dtype)
    rounding = precision(dtype)
    size = unit(op, call).astype(np.float64) * rounding.unit_roundoff + rounding.underflow
    exact = call.output.value
    assert size.shape == exact.shape == found.shape
    assert (size > 0).all()
    return local_error(exact.astype(np.float64), found.astype(np.float64), size, "")


def evaluated(
    op: Callable[..., Array],
    operands: tuple[Operand | None, ...],
    constants: dict[str, Any],
    dtype: str,
) -> Call:
    exact = op(*(None if x is None else x.value for x in operands), **constants)
    return Call(Operand(exact), operands, constants, precision(dtype))


def narrowed(x: Array | None, dtype: torch.dtype) -> torch.Tensor | None:
    if x is None:
        return None
    tensor = torch.from_numpy(np.ascontiguousarray(x))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def lifted(x: Any) -> Array:
    if isinstance(x, np.ndarray):  # a mask is made of positions alone
        return x
    return x.double().numpy() if x.is_floating_point() else x.numpy()


def representable(x: Array, dtype: str) -> Array:
    return torch.from_numpy(x).to(TORCH[dtype]).double().numpy()


def values(rng: Random, shape: tuple[int, ...], kind: str, scale: float) -> Array:
    """Random values; on the last axis one may outweigh the rest, or all of them cancel in pairs."""
    x = scale * rng.standard_normal(shape)
    if kind == "dominant":
        x[..., rng.integers(shape[-1])] *= 300
    elif kind == "cancelling":
        half = shape[-1] // 2
        x[..., half : 2 * half] = -x[..., :half] * (1 + 1e-3 * rng.standard_normal(half))
        x = x[..., rng.permutation(shape[-1])]
    return x


def make_linear(rng: Random, n: int, kind: str, scale: float, *, op: Any = ops.linear) -> Example:
    # Equal columns in a "cancelling" weight would undo what the shuffle did: keep it plain.
    weight = rng.standard_normal((6, n)) / np.sqrt(n)
    if kind == "cancelling":
        weight[:] = weight[:, :1]
    bias = scale * rng.standard_normal(6) if rng.integers(2) else None
    if op in (ops.affine, ops.affine_merged):
        weight = weight.T
    if op in (ops.linear_merged, ops.affine_merged):
        heads = 4 if n % 4 == 0 else 1
        x = values(rng, (2, 3, n), kind, scale).reshape(2, 3, heads, -1).swapaxes(1, 2)
        return Example(op, (x, weight, bias), {})
    constants = {"heads": 2} if op is ops.linear_heads else {}
    return Example(op, (values(rng, (2, 3, n), kind, scale), weight, bias), constants)


def make_norm(rng: Random, n: int, kind: str, scale: float, *, op: Any = ops.rms_norm) -> Example:
    weight = rng.uniform(-1, 1, n) if op is ops.rms_norm_from_one else rng.uniform(0.5, 2, n)
    return Example(op, (values(rng, (2, 3, n), kind, scale), weight), {"eps": 1e-5})


def make_layer_norm(rng: Random, n: int, kind: str, scale: float) -> Example:
    x = values(rng, (2, 3, n), kind, scale) + float(rng.choice([0.0, 10 * scale]))
    weight, bias = rng.uniform(0.5, 2, n), rng.standard_normal(n)
    return Example(ops.layer_norm, (x, weight, bias), {"eps": 1e-5})


def make_part_heads(rng: Random, n: int, kind: str, scale: float) -> Example:
    constants = {"part": int(rng.integers(3)), "parts": 3, "heads": 2}
    return Example(ops.part_heads, (values(rng, (2, 3, 6 * n), kind, scale),), constants)


def make_rope(rng: Random, n: int, kind: str, scale: float) -> Example:
    pairs, rest = min(n, 64), int(rng.choice([0, 0, 3, 20]))
    theta = float(rng.choice([1e2, 1e4, 1e6]))
    constants = {
        "positions": rng.integers(0, 8193, (2, 5)),
        "frequencies": theta ** (-np.arange(pairs) / pairs),
        "attention_factor": float(rng.choice([1.0, 1.3])),
    }
    return Example(ops.rope, (values(rng, (2, 3, 5, 2 * pairs + rest), kind, scale),), constants)


def make_scores(rng: Random, n: int, kind: str, scale: float) -> Example:
    q, k = values(rng, (2, 6, 3, n), kind, scale), rng.standard_normal((2, 2, 4, n))
    return Example(ops.scores, (q, k), {"scale": n**-0.5})


def make_softmax(rng: Random, n: int, kind: str, scale: float) -> Example:
    scores = values(rng, (2, 3, 4, n), kind, 4 * scale)
    seen = rng.random((2, 4, n)) < 0.7
    seen[..., rng.integers(n)] = True
    return Example(ops.masked_softmax, (scores, seen), {})


def make_softmax_sink(rng: Random, n: int, kind: str, scale: float) -> Example:
    scores, seen = make_softmax(rng, n, kind, scale).inputs
    sink = values(rng, (3,), "plain", 4 * scale)
    return Example(ops.masked_softmax_sink, (scores, seen, sink), {})


def make_clamped_experts(rng: Random, n: int, kind: str, scale: float) -> Example:
    x, weights, *_ = make_experts(rng, n, kind, scale).inputs
    inner, count = min(n, 64), 4
    drawn = [
        rng.standard_normal((count, n, 2 * inner)) / np.sqrt(n),
        rng.standard_normal((count, 2 * inner)) * scale,
        rng.standard_normal((count, inner, n)) / np.sqrt(inner),
        rng.standard_normal((count, n)) * scale,
    ]
    constants = {"alpha": 1.702, "limit": float(rng.choice([0.5, 7.0]))}
    return Example(ops.clamped_experts, (x, weights, *drawn), constants)


def make_context(rng: Random, n: int, kind: str, scale: float) -> Example:
    weights = np.exp(6 * rng.standard_normal((2, 6, 3, n)))
    weights[rng.random(weights.shape) < 0.3] = 0
    weights[..., 0] += 1
    probs = weights / weights.sum(axis=-1, keepdims=True)
    return Example(ops.context, (probs, values(rng, (2, 2, n, 5), kind, scale)), {})


def make_pairwise(op: Any) -> Callable[..., Example]:
    def make(rng: Random, n: int, kind: str, scale: float) -> Example:
        x = values(rng, (2, 3, n), kind, scale)
        y = -x * (1 + 1e-2 * rng.standard_normal(n)) if kind == "cancelling" else values(
            rng, (2, 3, n), kind, scale
        )  # fmt: skip
        return Example(op, (x, y), {})

    return make


def make_scaled(op: Any, name: str) -> Callable[..., Example]:
    def make(rng: Random, n: int, kind: str, scale: float) -> Example:
        constants = {name: float(rng.choice([0.22, 1.7, 12.3]))}
        x = values(rng, (2, 3, n), kind, scale)
        if op is not ops.add_scaled:
            return Example(op, (x,), constants)
        near = -x / constants[name] * (1 + 0.5 * rng.standard_normal(n))
        y = near if kind == "cancelling" else values(rng, (2, 3, n), kind, scale)
        return Example(op, (x, y), constants)

    return make


def make_activation(op: Any) -> Callable[..., Example]:
    def make(rng: Random, n: int, kind: str, scale: float) -> Example:
        x = values(rng, (2, 3, n), kind, 8 * scale)
        return Example(op, (np.maximum(x, -80.0),), {})

    return make


def make_softcap(rng: Random, n: int, kind: str, scale: float) -> Example:
    cap = float(rng.choice([0.5, 30.0]))
    return Example(ops.softcap, (values(rng, (2, 3, n), kind, scale),), {"cap": cap})


def make_scaled_embedding(rng: Random, n: int, kind: str, scale: float) -> Example:
    table, ids = values(rng, (11, n), kind, scale), rng.integers(0, 11, (2, 3))
    return Example(ops.scaled_embedding, (table, ids, np.asarray(n**0.5)), {})


def make_embedding(rng: Random, n: int, kind: str, scale: float) -> Example:
    return Example(
        ops.embedding, (values(rng, (11, n), kind, scale), rng.integers(0, 11, (2, 3))), {}
    )


def make_extend(rng: Random, n: int, kind: str, scale: float) -> Example:
    past = values(rng, (2, 3, 4, n), kind, scale) if rng.integers(2) else None
    keep = int(rng.integers(1, 4)) if rng.integers(2) else None
    return Example(ops.extend, (past, values(rng, (2, 3, 2, n), kind, scale)), {"keep": keep})


def make_visible(rng: Random, n: int, kind: str, scale: float) -> Example:
    constants = {
        "queries": np.arange(n)[None],
        "keys": np.arange(n)[None],
        "window": int(rng.integers(1, 9)) if rng.integers(2) else None,
    }
    return Example(ops.visible, (), constants)


def make_top_experts(rng: Random, n: int, kind: str, scale: float) -> Example:
    logits = values(rng, (2, 3, n), kind, scale)
    return Example(ops.top_experts, (logits,), {"count": int(rng.integers(1, n + 1))})


def make_expert_weights(rng: Random, n: int, kind: str, scale: float) -> Example:
    logits = np.clip(values(rng, (2, 3, n), kind, scale), -80.0, 80.0)
    chosen = ops.top_experts(logits, count=int(rng.integers(1, n + 1)))
    return Example(ops.expert_weights, (logits, chosen), {"normalised": bool(rng.integers(2))})


def make_experts(rng: Random, n: int, kind: str, scale: float) -> Example:
    inner, count = min(n, 64), 4
    weights = rng.uniform(0.1, 1.0, (2, 3, count)) * ops.top_experts(
        rng.standard_normal((2, 3, count)), count=int(rng.integers(1, count + 1))
    )
    shapes = [(inner, n), (inner, n), (n, inner)] * count
    matrices = [rng.standard_normal(shape) / np.sqrt(shape[1]) for shape in shapes]
    x = values(rng, (2, 3, n), kind, scale)
    return Example(ops.experts, (x, weights, *matrices), {"activation": ops.silu})


MAKERS: dict[Callable[..., Array], Callable[..., Example]] = {
    ops.embedding: make_embedding,
    ops.extend: make_extend,
    ops.add: make_pairwise(ops.add),
    ops.add_scaled: make_scaled(ops.add_scaled, "factor"),
    ops.scale: make_scaled(ops.scale, "factor"),
    ops.divide: make_scaled(ops.divide, "divisor"),
    ops.multiply: make_pairwise(ops.multiply),
    ops.linear: make_linear,
    ops.linear_heads: lambda *args: make_linear(*args, op=ops.linear_heads),
    ops.linear_merged: lambda *args: make_linear(*args, op=ops.linear_merged),
    ops.affine: lambda *args: make_linear(*args, op=ops.affine),
    ops.affine_merged: lambda *args: make_linear(*args, op=ops.affine_merged),
    ops.part_heads: make_part_heads,
    ops.layer_norm: make_layer_norm,
    ops.rms_norm: make_norm,
    ops.rms_norm_from_one: lambda *args: make_norm(*args, op=ops.rms_norm_from_one),
    ops.rope: make_rope,
    ops.scores: make_scores,
    ops.visible: make_visible,
    ops.masked_softmax: make_softmax,
    ops.context: make_context,
    ops.silu: make_activation(ops.silu),
    ops.gelu_tanh: make_activation(ops.gelu_tanh),
    ops.gelu_new: make_activation(ops.gelu_new),
    ops.softcap: make_softcap,
    ops.scaled_embedding: make_scaled_embedding,
    ops.top_experts: make_top_experts,
    ops.expert_weights: make_expert_weights,
    ops.experts: make_experts,
    ops.clamped_experts: make_clamped_experts,
    ops.masked_softmax_sink: make_softmax_sink,
}


def test_every_op_has_examples() -> None:
    assert MAKERS.keys() == BOUNDS.keys()


@st.composite
def examples(draw: st.DrawFn, op: Callable[..., Array], dtype: str) -> Example:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.sampled_from([2, 3, 16, 64, 576, 1536, 2048]))
    kind = draw(st.sampled_from(["plain", "dominant", "cancelling"]))
    n = min(n, {ops.visible: 64, ops.experts: 576, ops.clamped_experts: 576}.get(op, n))
    # float16 holds 6e-8 to 65504: products of values that outweigh the rest must stay below
    scale = draw(st.sampled_from([0.01, 0.1, 0.25] if dtype == "float16" else [1e-4, 1.0, 30.0]))
    example = MAKERS[op](rng, n, kind, scale)
    inputs = tuple(
        representable(x, dtype) if x is not None and x.dtype == np.float64 else x
        for x in example.inputs
    )
    return Example(example.op, inputs, example.constants)


def named(op: Callable[..., Array]) -> str:
    return op.__name__


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", MAKERS, ids=named)
@given(data=st.data())
@settings(max_examples=12)
def test_law_rounding_of_a_healthy_op_stays_within_the_limit(
    op: Callable[..., Array], dtype: str, data: st.DataObject
) -> None:
    example = data.draw(examples(op, dtype))
    found = example.run(TORCH[dtype])
    local = example.measure(found, dtype)
    assert local.units <= UNIT_LIMIT, local
    assert local.over == 0


def torch_rope(x: torch.Tensor, constants: dict[str, Any]) -> torch.Tensor:
    """Rotation with cosine and sine rounded to the dtype first, as most models do it."""
    positions = torch.as_tensor(constants["positions"]).float()[:, None, :, None]
    angles = positions * torch.as_tensor(constants["frequencies"]).float()
    factor = constants["attention_factor"]
    cos, sin = ((f(angles) * factor).to(x.dtype) for f in (torch.cos, torch.sin))
    pairs = angles.shape[-1]
    first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def torch_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def torch_softmax(scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    masked = scores + torch.where(seen[:, None], 0.0, torch.finfo(scores.dtype).min)
    return torch.softmax(masked.to(scores.dtype), dim=-1, dtype=torch.float32).to(scores.dtype)


def torch_gelu_new(x: torch.Tensor) -> torch.Tensor:
    """The formula written out, as models do it: every operation rounds in the dtype."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def torch_norm_from_one(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (normed * (1.0 + weight.float())).to(x.dtype)


def torch_top_experts(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The largest probabilities, formed in float32."""
    probs = torch.softmax(logits, dim=-1, dtype=torch.float32)
    empty = torch.zeros(logits.shape, dtype=torch.bool)
    return empty.scatter(-1, probs.topk(count, dim=-1).indices, value=True)


def torch_expert_weights(
    logits: torch.Tensor, chosen: torch.Tensor, *, normalised: bool
) -> torch.Tensor:
    kept = torch.softmax(logits, dim=-1, dtype=torch.float32) * chosen
    return (kept / kept.sum(-1, keepdim=True) if normalised else kept).to(logits.dtype)


def torch_experts(x: torch.Tensor, weights: torch.Tensor, *matrices: torch.Tensor) -> torch.Tensor:
    """Every expert on every token, and a sum that rounds as it goes."""
    total = torch.zeros_like(x)
    for expert in reversed(range(weights.shape[-1])):
        gate, up, down = (m.T for m in matrices[3 * expert : 3 * expert + 3])
        made = (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down
        total += made * weights[..., expert, None]
    return total


def torch_softmax_sink(
    scores: torch.Tensor, seen: torch.Tensor, sink: torch.Tensor
) -> torch.Tensor:
    """As models do it: the sink is one more column, and the maximum goes before the softmax."""
    masked = scores + torch.where(seen[:, None], 0.0, torch.finfo(scores.dtype).min)
    column = sink[None, :, None, None].expand(*scores.shape[:3], 1)
    joined = torch.cat([masked.to(scores.dtype), column], dim=-1)
    joined = joined - joined.max(dim=-1, keepdim=True).values
    return torch.softmax(joined, dim=-1)[..., :-1]


def torch_clamped_experts(
    x: torch.Tensor, weights: torch.Tensor, *given: torch.Tensor, alpha: float, limit: float
) -> torch.Tensor:
    """Every expert on every token, each operation in the model's dtype."""
    gate_up, gate_up_bias, down, down_bias = given
    total = torch.zeros_like(x)
    for expert in reversed(range(weights.shape[-1])):
        both = x @ gate_up[expert] + gate_up_bias[expert]
        gate = both[..., 0::2].clamp(max=limit)
        up = both[..., 1::2].clamp(-limit, limit)
        inner = (up + 1) * (gate * torch.sigmoid(gate * alpha))
        total += (inner @ down[expert] + down_bias[expert]) * weights[..., expert, None]
    return total


OTHERS: dict[Callable[..., Array], Callable[[Example, list[Any]], torch.Tensor]] = {
    ops.linear: lambda e, x: torch.nn.functional.linear(*x),
    ops.top_experts: lambda e, x: torch_top_experts(x[0], e.constants["count"]),
    ops.expert_weights: lambda e, x: torch_expert_weights(*x, **e.constants),
    ops.experts: lambda e, x: torch_experts(*x),
    ops.clamped_experts: lambda e, x: torch_clamped_experts(*x, **e.constants),
    ops.masked_softmax_sink: lambda e, x: torch_softmax_sink(*x),
    ops.rms_norm: lambda e, x: torch_norm(x[0], x[1], e.constants["eps"]),
    ops.rope: lambda e, x: torch_rope(x[0], e.constants),
    ops.masked_softmax: lambda e, x: torch_softmax(*x),
    ops.context: lambda e, x: torch.matmul(x[0], x[1].repeat_interleave(3, dim=1)),
    ops.silu: lambda e, x: torch.nn.functional.silu(x[0]),
    ops.gelu_tanh: lambda e, x: torch.nn.functional.gelu(x[0], approximate="tanh"),
    ops.gelu_new: lambda e, x: torch_gelu_new(x[0]),
    ops.layer_norm: lambda e, x: torch.nn.functional.layer_norm(
        x[0], x[0].shape[-1:], x[1], x[2], e.constants["eps"]
    ),
    ops.rms_norm_from_one: lambda e, x: torch_norm_from_one(x[0], x[1], e.constants["eps"]),
    ops.softcap: lambda e, x: torch.tanh(x[0] / e.constants["cap"]) * e.constants["cap"],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OTHERS, ids=named)
@given(data=st.data())
@settings(max_examples=12)
def test_law_rounding_stays_within_the_limit_in_the_kernels_of_models(
    op: Callable[..., Array], dtype: str, data: st.DataObject
) -> None:
    example = data.draw(examples(op, dtype))
    found = lifted(OTHERS[op](example, [narrowed(x, TORCH[dtype]) for x in example.inputs]))
    local = example.measure(found, dtype)
    assert local.units <= UNIT_LIMIT, local


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_silu_that_flushes_to_zero_where_its_exponential_overflows_is_healthy(dtype: str) -> None:
    """Kernels divide x by 1 + exp(-x), which is infinite from -88.7 on; x is 90 tiny numbers."""
    example = Example(ops.silu, (representable(np.linspace(-110.0, -80.0, 4001), dtype),), {})
    x = narrowed(example.inputs[0], TORCH[dtype])
    assert x is not None
    found = lifted(torch.nn.functional.silu(x))
    assert (found == 0).any()
    assert example.measure(found, dtype).units <= UNIT_LIMIT


@pytest.mark.parametrize("shift", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("n", [8, 64, 576])
def test_layer_norm_of_elements_close_to_the_mean_is_healthy(n: int, shift: float) -> None:
    """What is left of them is small beside the rounding of the mean, which is a sum."""
    rng = np.random.default_rng(n)
    x = representable(rng.standard_normal((20, 200, n)) + shift, "float32")
    inputs = tuple(representable(rng.standard_normal(n), "float32") for _ in range(2))
    example = Example(ops.layer_norm, (x, *inputs), {"eps": 1e-5})
    tensors = [narrowed(value, torch.float32) for value in example.inputs]
    found = lifted(OTHERS[ops.layer_norm](example, tensors))
    assert 0.3 < example.measure(found, "float32").units < UNIT_LIMIT / 2


def test_a_soft_cap_whose_quotient_is_denormal_is_healthy() -> None:
    """Float16 holds 3e-5 / 30 to one part in sixteen."""
    example = Example(
        ops.softcap, (representable(np.geomspace(1e-6, 1e-2, 4001), "float16"),), {"cap": 30.0}
    )
    x = narrowed(example.inputs[0], torch.float16)
    found = lifted(OTHERS[ops.softcap](example, [x]))
    assert np.max(np.abs(found / example.inputs[0] - 1)) > 0.01
    assert 0.3 < example.measure(found, "float16").units < UNIT_LIMIT / 2


ROUNDING = [op for op in MAKERS if op not in (ops.visible, ops.top_experts)]


@pytest.mark.parametrize("op", ROUNDING, ids=named)
@given(data=st.data())
@settings(max_examples=12)
def test_law_an_op_of_narrower_dtype_exceeds_the_limit(
    op: Callable[..., Array], data: st.DataObject
) -> None:
    example = data.draw(examples(op, "float32"))
    found = example.run(torch.bfloat16)
    assume(not np.array_equal(found, example.run(torch.float32)))  # the same numbers: no fault
    assert example.measure(found, "float32").units > UNIT_LIMIT


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("op", ROUNDING, ids=named)
@given(data=st.data())
@settings(max_examples=12)
def test_law_one_wrong_element_of_a_narrow_op_exceeds_the_limit(
    op: Callable[..., Array], dtype: str, data: st.DataObject
) -> None:
    example = data.draw(examples(op, dtype))
    found = example.run(TORCH[dtype])
    rounding = precision(dtype)
    # Sums may cancel to the last bit, and what underflows is judged on an absolute scale.
    assume(np.abs(found).max() > rounding.underflow / rounding.unit_roundoff)
    index = np.unravel_index(np.argmax(np.abs(found)), found.shape)
    found[index] *= 1 + 64 * rounding.unit_roundoff
    local = example.measure(found, dtype)
    assert local.units > UNIT_LIMIT
    assert local.worst.index == tuple(index)
    assert local.over == 1


def test_mask_differs_in_one_key_exceeds_the_limit() -> None:
    example = make_visible(np.random.default_rng(1), 7, "plain", 1.0)
    found = example.run(torch.float32)
    assert example.measure(found, "float32").units == 0
    found[0, 5, 6] = ~found[0, 5, 6]
    for dtype in DTYPES:
        assert example.measure(found, dtype).units > UNIT_LIMIT


class Chain:
    """Ops one after another without a tap between them, each in its dtype and in float64."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.narrow: dict[int, torch.Tensor] = {}

    def given(self, x: Array) -> Operand:
        operand = Operand(representable(x, self.dtype) if x.dtype == np.float64 else x)
        tensor = narrowed(operand.value, TORCH[self.dtype])
        assert tensor is not None
        self.narrow[id(operand)] = tensor
        return operand

    def __call__(self, op: Callable[..., Array], *inputs: Operand, **constants: Any) -> Operand:
        call = evaluated(op, inputs, constants, self.dtype)
        operand = Operand(call.output.value, unit(op, call))
        self.narrow[id(operand)] = op(*(self.narrow[id(x)] for x in inputs), **constants)
        return operand

    def measure(self, op: Callable[..., Array], *inputs: Operand, **constants: Any) -> LocalError:
        found = lifted(op(*(self.narrow[id(x)] for x in inputs), **constants))
        return measure(op, inputs, constants, found, self.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 2**32 - 1), n=st.sampled_from([3, 40, 300]), spread=st.floats(0.1, 4))
@settings(max_examples=20)
def test_law_carried_bound_covers_attention_without_taps(
    dtype: str, seed: int, n: int, spread: float
) -> None:
    rng, chain = np.random.default_rng(seed), Chain(dtype)
    q = chain.given(spread * rng.standard_normal((1, 4, 3, 32)))
    k = chain.given(spread * rng.standard_normal((1, 2, n, 32)))
    v = chain.given(rng.standard_normal((1, 2, n, 8)))
    seen = chain.given(np.ones((1, 3, n), dtype=bool))
    scores = chain(ops.scores, q, k, scale=32**-0.5)
    local = chain.measure(ops.context, chain(ops.masked_softmax, scores, seen), v)
    assert local.units <= UNIT_LIMIT, local


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 2**32 - 1), n=st.sampled_from([8, 64, 576]))
@settings(max_examples=20)
def test_law_carried_bound_covers_a_block_without_taps(dtype: str, seed: int, n: int) -> None:
    rng, chain = np.random.default_rng(seed), Chain(dtype)

    def matrix(rows: int, columns: int) -> Operand:
        return chain.given(rng.standard_normal((rows, columns)) / np.sqrt(columns))

    x = chain.given(rng.standard_normal((1, 3, n)))
    normed = chain(ops.rms_norm, x, chain.given(rng.uniform(0.5, 2, n)), eps=1e-5)
    gate, up = (chain(ops.linear, normed, matrix(48, n)) for _ in range(2))
    product = chain(ops.multiply, chain(ops.silu, gate), up)
    out = chain(ops.linear, product, matrix(n, 48))
    assert chain.measure(ops.add, x, out).units <= UNIT_LIMIT

    heads = chain(ops.linear_heads, normed, matrix(16, n), heads=2)
    turns = {"positions": np.array([[3, 70, 900]]), "frequencies": np.array([1.0, 0.1, 0.01, 1e-3])}
    rotated = chain(ops.rope, heads, **turns)
    assert chain.measure(ops.rope, heads, **turns).units <= UNIT_LIMIT
    assert chain.measure(ops.extend, rotated, rotated).units <= UNIT_LIMIT
    merged = chain.measure(ops.linear_merged, rotated, matrix(5, 16))
    assert merged.units <= UNIT_LIMIT


@pytest.mark.parametrize("op", ROUNDING, ids=named)
@given(data=st.data())
@settings(max_examples=5)
def test_law_a_carried_bound_only_widens(op: Callable[..., Array], data: st.DataObject) -> None:
    example = data.draw(examples(op, "float32"))
    own = tuple(None if x is None else Operand(x) for x in example.inputs)
    widened = 1 if op is ops.extend else 0  # what was cached may have dropped out of the window
    wider = tuple(
        operand
        if operand is None or operand.value.dtype != np.float64 or index != widened
        else Operand(operand.value, operand.magnitude)
        for index, operand in enumerate(own)
    )
    bounds = [
        unit(op, evaluated(op, operands, example.constants, "float32")) for operands in (own, wider)
    ]
    assert (bounds[1] >= bounds[0] * (1 - 1e-5)).all()
    if op not in (ops.embedding, ops.scaled_embedding):  # they read a parameter
        assert (bounds[1] > bounds[0]).any()


def test_precision_is_that_of_the_dtype() -> None:
    for dtype, torch_dtype in TORCH.items():
        found, info = precision(dtype), torch.finfo(torch_dtype)
        assert found.unit_roundoff == info.eps / 2
        assert found.float32_ratio == torch.finfo(torch.float32).eps / info.eps
    assert precision("float32").underflow == torch.finfo(torch.float32).tiny
    assert precision("float16").underflow == torch.finfo(torch.float16).smallest_normal * 2.0**-10


def test_precision_refuses_a_dtype_that_replay_cannot_judge() -> None:
    with pytest.raises(UsageError, match="expected float32 or bfloat16 or float16, found float64"):
        precision("float64")
