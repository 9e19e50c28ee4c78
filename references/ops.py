"""The operations that decoder language models are made of, as textbook functions.

Written against the array API standard, so that the same source runs on NumPy and on torch. No op
knows of a tap, a model or a config. Shapes use one alphabet: B batch, T query positions, S key
positions, H heads, K kv heads, D head dim, C model dim, F MLP dim, E experts, V vocabulary.

Where the dtype is narrower than float32, norms, rotation, softmax and activations are computed in
float32 and rounded once, as the papers' authors do; a norm is rounded before its weight is applied.
Token ids, positions, frequencies and masks may be NumPy arrays, whatever the library of the rest.
"""

import math
from collections.abc import Callable

from array_api_compat import array_namespace, device

from .step import Array


def _wide(x: Array) -> Array:
    """``x``, in float32 if its dtype is narrower."""
    xp = array_namespace(x)
    return x if x.dtype in (xp.float32, xp.float64) else xp.astype(x, xp.float32)


def _like(y: Array, x: Array) -> Array:
    """``y`` in the dtype of ``x``."""
    return y if y.dtype == x.dtype else array_namespace(x).astype(y, x.dtype)


def _beside(values: Array, x: Array) -> Array:
    """``values`` in the library and on the device of ``x``."""
    return array_namespace(x).asarray(values, device=device(x))


def embedding(table: Array, token_ids: Array) -> Array:
    """Rows of the table: [V, C] and [B, T] integers to [B, T, C]."""
    xp = array_namespace(table)
    batch, length = token_ids.shape
    rows = xp.take(table, xp.reshape(_beside(token_ids, table), (-1,)), axis=0)
    return xp.reshape(rows, (batch, length, table.shape[1]))


def scaled_embedding(table: Array, token_ids: Array, scale: Array) -> Array:
    """Rows of the table times a constant: [V, C], [B, T] integers and a scalar to [B, T, C].

    Source: Vaswani et al. 2017, section 3.4. The constant is an input, not a keyword, because
    models store it in their own dtype: rounding it is not an error of this op.
    """
    return embedding(table, token_ids) * scale


def add(x: Array, y: Array) -> Array:
    """Elementwise sum, for the residual stream."""
    return x + y


def add_scaled(x: Array, y: Array, *, factor: float) -> Array:
    """``x + factor * y``, for residual streams whose additions are scaled.

    Source: Yang et al. 2022, Tensor Programs V, appendix B (multipliers of parameters).
    """
    return x + y * factor


def scale(x: Array, *, factor: float) -> Array:
    """``factor * x``, with a number of the config, which no dtype rounds."""
    return x * factor


def divide(x: Array, *, divisor: float) -> Array:
    """``x / divisor``, with a number of the config, which no dtype rounds."""
    return x / divisor


def multiply(x: Array, y: Array) -> Array:
    """Elementwise product, for gated MLPs."""
    return x * y


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """``x @ weight.T + bias``: [B, T, N] and [M, N] to [B, T, M]."""
    xp = array_namespace(x)
    y = xp.matmul(x, xp.matrix_transpose(weight))
    return y if bias is None else y + bias


def linear_heads(x: Array, weight: Array, bias: Array | None = None, *, heads: int) -> Array:
    """A linear map whose output is cut into heads: [B, T, C] to [B, H, T, D].

    Head ``h`` owns rows ``h * D`` to ``(h + 1) * D - 1`` of the weight
    (Vaswani et al. 2017, section 3.2.2).
    """
    xp = array_namespace(x)
    y = linear(x, weight, bias)
    batch, length, width = y.shape
    y = xp.reshape(y, (batch, length, heads, width // heads))
    return xp.permute_dims(y, (0, 2, 1, 3))


def linear_merged(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """A linear map of the concatenated heads: [B, H, T, D] to [B, T, C]."""
    return linear(_merged(x), weight, bias)


def _merged(x: Array) -> Array:
    """Heads side by side: [B, H, T, D] to [B, T, H * D]."""
    xp = array_namespace(x)
    batch, heads, length, dim = x.shape
    return xp.reshape(xp.permute_dims(x, (0, 2, 1, 3)), (batch, length, heads * dim))


def affine(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """``x @ weight + bias``: [B, T, N] and [N, M] to [B, T, M].

    The layout of GPT-2's checkpoints, whose weights are [in, out].
    """
    y = array_namespace(x).matmul(x, weight)
    return y if bias is None else y + bias


def affine_merged(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """:func:`affine` of the concatenated heads: [B, H, T, D] and [H * D, C] to [B, T, C]."""
    return affine(_merged(x), weight, bias)


def part_heads(x: Array, *, part: int, parts: int, heads: int) -> Array:
    """One of several equal parts of the channels, cut into heads: [B, T, P] to [B, H, T, D].

    Part ``p`` owns channels ``p * P / parts`` to ``(p + 1) * P / parts - 1``, and of those head
    ``h`` owns ``h * D`` to ``(h + 1) * D - 1``.
    """
    xp = array_namespace(x)
    batch, length, channels = x.shape
    width = channels // parts
    y = xp.reshape(x[..., part * width : (part + 1) * width], (batch, length, heads, -1))
    return xp.permute_dims(y, (0, 2, 1, 3))


def layer_norm(x: Array, weight: Array, bias: Array, *, eps: float) -> Array:
    """``weight * (x - mean) / sqrt(variance + eps) + bias`` over the last axis.

    Source: Ba et al. 2016, Layer Normalization, equation 4.

    Args:
        x: [..., N].
        weight: [N], or of further axes too: [H, 1, N] for a weight of each head.
        bias: As ``weight``.
        eps: Added to the variance.
    """
    xp = array_namespace(x)
    wide = _wide(x)
    centred = wide - xp.mean(wide, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    return _like(centred / xp.sqrt(variance + eps) * _wide(weight) + _wide(bias), x)


def rms_norm(x: Array, weight: Array, *, eps: float) -> Array:
    """``weight * x / sqrt(mean(x**2) + eps)`` over the last axis.

    Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, equation 4.
    """
    xp = array_namespace(x)
    wide = _wide(x)
    mean_square = xp.mean(wide * wide, axis=-1, keepdims=True)
    return _like(wide / xp.sqrt(mean_square + eps), x) * weight


def rms_norm_from_one(x: Array, weight: Array, *, eps: float) -> Array:
    """``(1 + weight) * x / sqrt(mean(x**2) + eps)``: the weight is stored as its distance from 1.

    Source: Gemma's checkpoints, whose weights of norms lie around 0. All of it is formed in
    float32 and rounded once.
    """
    xp = array_namespace(x)
    wide = _wide(x)
    mean_square = xp.mean(wide * wide, axis=-1, keepdims=True)
    return _like(wide / xp.sqrt(mean_square + eps) * (1 + _wide(weight)), x)


def rope(x: Array, *, positions: Array, frequencies: Array, attention_factor: float = 1.0) -> Array:
    """Rotate pairs ``(i, i + R/2)`` of each head by ``position * frequency[i]``.

    Of a head's D elements the first R are rotated, twice as many as there are frequencies; the
    others pass as they are.

    Source: Su et al. 2021, RoFormer, equation 34, with the pairing of the halves that Hugging Face
    checkpoints of Llama are stored for (GPT-NeoX's), not of neighbours; Black et al. 2022,
    GPT-NeoX-20B, section 2.1, for the rotation of a part.

    Args:
        x: [B, H, T, D].
        positions: [B, T] integers.
        frequencies: [R/2] float64, radians per position. The angles are formed in the dtype of
            ``x``, at least float32.
        attention_factor: Multiplies cosine and sine (YaRN, Peng et al. 2023, section 3.4).
    """
    xp = array_namespace(x)
    wide = _wide(x)
    times = xp.astype(_beside(positions, x), wide.dtype)[:, None, :, None]
    angles = times * xp.astype(_beside(frequencies, x), wide.dtype)  # [B, 1, T, R/2]
    cos, sin = xp.cos(angles) * attention_factor, xp.sin(angles) * attention_factor
    half = angles.shape[-1]
    first, second, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return _like(xp.concat([*rotated, rest], axis=-1), x)


def extend(past: Array | None, new: Array, *, keep: int | None = None) -> Array:
    """Append to a cache along the positions: [B, K, P, D] and [B, K, T, D] to [B, K, S, D].

    Args:
        past: What is cached, None at the start of a sequence.
        new: Keys or values of the new positions.
        keep: Keep only the last so many positions, None for all.
    """
    xp = array_namespace(new)
    joined = new if past is None else xp.concat([past, new], axis=2)
    return joined if keep is None else joined[:, :, -keep:, :]


def scores(q: Array, k: Array, *, scale: float) -> Array:
    """``scale * q @ k.T``, query head ``h`` reading kv head ``h // (H / K)``.

    Source: Ainslie et al. 2023, GQA, section 2.2: each kv head serves one group of H / K
    consecutive query heads.

    Args:
        q: [B, H, T, D].
        k: [B, K, S, D].
        scale: Usually ``D ** -0.5`` (Vaswani et al. 2017, equation 1).

    Returns:
        [B, H, T, S].
    """
    xp = array_namespace(q)
    batch, heads, length, dim = q.shape
    groups = k.shape[1]
    grouped = xp.reshape(q, (batch, groups, heads // groups, length, dim))
    products = xp.matmul(grouped, xp.matrix_transpose(k)[:, :, None])
    return xp.reshape(products, (batch, heads, length, k.shape[2])) * scale


def visible(
    *, queries: Array, keys: Array, window: int | None = None, real: Array | None = None
) -> Array:
    """Which keys each query may read: causal, and within the window where there is one.

    Args:
        queries: [B, T] positions.
        keys: [B, S] positions.
        window: A query at ``p`` reads keys ``p - window + 1`` to ``p``; None for all up to ``p``.
        real: [B, S], false where a key is padding, which nobody reads; None where none is. A query
            that would read no key, which only padding can be, reads all of them: what comes of it
            means nothing, but is a number.

    Returns:
        [B, T, S] booleans, true where the key is read.
    """
    distance = queries[:, :, None] - keys[:, None, :]  # [B, T, S]
    seen = distance >= 0
    if window is not None:
        seen = seen & (distance < window)
    if real is None:
        return seen
    seen = seen & real[:, None, :]
    return seen | ~array_namespace(seen).any(seen, axis=-1, keepdims=True)


def masked_softmax(scores: Array, visible: Array) -> Array:
    """Softmax over the visible keys: [B, H, T, S] and [B, T, S] to [B, H, T, S]."""
    xp = array_namespace(scores)
    wide = _wide(scores)
    lowest = xp.asarray(-math.inf, dtype=wide.dtype, device=device(wide))
    wide = xp.where(_beside(visible, scores)[:, None], wide, lowest)
    exponentials = xp.exp(wide - xp.max(wide, axis=-1, keepdims=True))
    return _like(exponentials / xp.sum(exponentials, axis=-1, keepdims=True), scores)


def masked_softmax_sink(scores: Array, visible: Array, sink: Array) -> Array:
    """As :func:`masked_softmax`, with one more score in the sum whose probability goes nowhere.

    Source: Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks, section 3.

    Args:
        scores: [B, H, T, S].
        visible: [B, T, S] booleans.
        sink: [H].
    """
    xp = array_namespace(scores)
    wide = _wide(scores)
    lowest = xp.asarray(-math.inf, dtype=wide.dtype, device=device(wide))
    wide = xp.where(_beside(visible, scores)[:, None], wide, lowest)
    last = _wide(sink)[None, :, None, None]
    top = xp.maximum(xp.max(wide, axis=-1, keepdims=True), last)
    exponentials = xp.exp(wide - top)
    total = xp.sum(exponentials, axis=-1, keepdims=True) + xp.exp(last - top)
    return _like(exponentials / total, scores)


def context(probs: Array, values: Array) -> Array:
    """``probs @ values``, grouped as in :func:`scores`: to [B, H, T, D]."""
    xp = array_namespace(probs)
    batch, heads, length, keys = probs.shape
    groups, dim = values.shape[1], values.shape[3]
    grouped = xp.reshape(probs, (batch, groups, heads // groups, length, keys))
    return xp.reshape(xp.matmul(grouped, values[:, :, None]), (batch, heads, length, dim))


def silu(x: Array) -> Array:
    """``x * sigmoid(x)`` (Hendrycks and Gimpel 2016; Elfwing et al. 2017).

    The logistic function is formed from ``exp(-abs(x))``, which cannot overflow.
    """
    return _like(_wide(x) * _wide_sigmoid(x), x)


def _wide_sigmoid(x: Array) -> Array:
    xp = array_namespace(x)
    wide = _wide(x)
    small = xp.exp(-xp.abs(wide))
    return xp.where(wide >= 0, 1 / (1 + small), small / (1 + small))


def _gelu_by_tanh(x: Array) -> Array:
    xp = array_namespace(x)
    wide = _wide(x)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return _like(0.5 * wide * (1 + xp.tanh(inner)), x)


def gelu_tanh(x: Array) -> Array:
    """``x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3)))``.

    Source: Hendrycks and Gimpel 2016, Gaussian Error Linear Units, section 2, the approximation by
    tanh.
    """
    return _gelu_by_tanh(x)


def gelu_new(x: Array) -> Array:
    """As :func:`gelu_tanh`: the name that GPT-2's configs have for it.

    It is an op of its own because engines write the formula out, and so round after each of its
    operations in the model's own dtype, where :func:`gelu_tanh` is one kernel.
    """
    return _gelu_by_tanh(x)


def softcap(x: Array, *, cap: float) -> Array:
    """``cap * tanh(x / cap)`` (Gemma Team 2024, Gemma 2, section 2, logit soft-capping)."""
    xp = array_namespace(x)
    return _like(cap * xp.tanh(_wide(x) / cap), x)


def top_experts(logits: Array, *, count: int) -> Array:
    """Which experts a token goes to: the ``count`` largest of [B, T, E], as booleans.

    Source: Shazeer et al. 2017, Outrageously Large Neural Networks, equation 5. Softmax keeps the
    order, so that the logits tell. Of equal ones the first are taken; any others are as good.
    """
    xp = array_namespace(logits)
    order = xp.argsort(-logits, axis=-1, stable=True)
    return xp.argsort(order, axis=-1, stable=True) < count


def expert_weights(logits: Array, chosen: Array, *, normalised: bool) -> Array:
    """Softmax over all experts, kept where one is chosen: [B, T, E] twice to [B, T, E].

    Source: Fedus et al. 2021, Switch Transformers, equation 1; Jiang et al. 2024, Mixtral of
    Experts, section 2.1, for weights that are divided by their sum.

    Args:
        logits: What the router gives.
        chosen: Booleans, see :func:`top_experts`.
        normalised: Whether the weights of a token are divided by their sum.
    """
    xp = array_namespace(logits)
    wide = _wide(logits)
    exponentials = xp.exp(wide - xp.max(wide, axis=-1, keepdims=True))
    probs = exponentials / xp.sum(exponentials, axis=-1, keepdims=True)
    kept = xp.where(_beside(chosen, logits), probs, xp.zeros_like(probs))
    return _like(kept / xp.sum(kept, axis=-1, keepdims=True) if normalised else kept, logits)


def experts(x: Array, weights: Array, *matrices: Array, activation: Callable[..., Array]) -> Array:
    """Weighted sum of what gated MLPs make of each token: [B, T, C] and [B, T, E] to [B, T, C].

    Source: Shazeer et al. 2017, equation 1, with experts as in Shazeer 2020, GLU Variants,
    equation 6. An expert of weight 0 is not computed.

    Args:
        x: Input of all experts.
        weights: Of each expert, see :func:`expert_weights`.
        *matrices: Gate [F, C], up [F, C] and down [C, F] of the first expert, of the second, ...
        activation: Applied to the gate.
    """
    xp = array_namespace(x)
    rows = xp.reshape(x, (-1, x.shape[-1]))
    shares = xp.reshape(weights, (rows.shape[0], -1))
    total = xp.zeros_like(rows)
    for expert in range(shares.shape[1]):
        gate, up, down = matrices[3 * expert : 3 * expert + 3]
        sent = shares[:, expert] != 0
        inner = rows[sent]  # [tokens of this expert, C]
        made = linear(activation(linear(inner, gate)) * linear(inner, up), down)
        total[sent] = total[sent] + made * shares[sent][:, expert, None]
    return xp.reshape(total, x.shape)


def clamped_experts(
    x: Array,
    weights: Array,
    gate_up: Array,
    gate_up_bias: Array,
    down: Array,
    down_bias: Array,
    *,
    alpha: float,
    limit: float,
) -> Array:
    """As :func:`experts`, with ``(up + 1) gate sigmoid(alpha gate)``, clamped, and biases.

    The gate is clamped from above, up from both sides. Source: OpenAI 2025, gpt-oss Model Card,
    section 2.

    Args:
        x: [B, T, C].
        weights: [B, T, E].
        gate_up: [E, C, 2 F], rows of gate and up in turn.
        gate_up_bias: [E, 2 F].
        down: [E, F, C].
        down_bias: [E, C].
        alpha: Multiplies the gate in the sigmoid.
        limit: Largest size of gate and up.
    """
    xp = array_namespace(x)
    rows = xp.reshape(x, (-1, x.shape[-1]))
    shares = xp.reshape(weights, (rows.shape[0], -1))
    total = xp.zeros_like(rows)
    for expert in range(shares.shape[1]):
        sent = shares[:, expert] != 0
        both = affine(rows[sent], gate_up[expert], gate_up_bias[expert])
        gate = xp.clip(both[:, 0::2], max=limit)
        up = xp.clip(both[:, 1::2], min=-limit, max=limit)
        inner = (up + 1) * gate * _like(_wide_sigmoid(gate * alpha), x)
        made = affine(inner, down[expert], down_bias[expert])
        total[sent] = total[sent] + made * shares[sent][:, expert, None]
    return xp.reshape(total, x.shape)
