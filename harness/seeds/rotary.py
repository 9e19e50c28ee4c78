"""Facts about rotary position embeddings: two right implementations, and wrong ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..greedy import greedy
from ..references_seam import ops
from ..references_seam import rope as ropes
from .agreement import OTHER_KERNELS, OTHER_WEIGHTS
from .bench import GREEDY_TOKENS, PARAGRAPH_TOKENS, Array, Bench, TokenIds, apart
from .fact import Fact, around

Rotate = Callable[..., Array]

#: What a reader takes that looks for ``rope_theta`` where transformers 5 no longer writes it.
FALLBACK_THETA = 10000.0

OTHER_NUMBERS = "other random numbers"


def neighbours(x: Array, *, positions: Array, frequencies: Array) -> Array:
    """RoPE of the pairs ``(2 i, 2 i + 1)``, as the paper writes it.

    Source: Su et al. 2021, RoFormer, equation 34.

    Args:
        x: [B, H, T, D].
        positions: [B, T].
        frequencies: [D/2].
    """
    angles = (positions[:, None, :, None] * frequencies).astype(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    turned = np.empty_like(x)
    turned[..., ::2] = even * np.cos(angles) - odd * np.sin(angles)
    turned[..., 1::2] = odd * np.cos(angles) + even * np.sin(angles)
    return turned


def cosines(bench: Bench) -> float:
    """Cosines of the prompt's positions: NumPy's against the model's own table."""
    from ..engines.hf_probe import rotary_table

    frequencies = ropes.base_frequencies(bench.theta, 64).astype(np.float32)
    ours = np.cos(_positions()[0][:, None].astype(np.float32) * frequencies)
    theirs, _ = rotary_table(bench.eager.model, _positions())
    return apart(ours, theirs[0, :, :32])


def rotation(bench: Bench, rotate: Rotate = ops.rope, theta: float | None = None) -> float:
    """A random q: rotated by a function of ours, against transformers' rotation of it.

    Args:
        bench: Holds the model.
        rotate: From q, positions and frequencies to q rotated.
        theta: What the frequencies are made of; the config's if None.
    """
    from ..engines.hf_probe import rotate as theirs

    q, positions = bench.random_q, _positions()
    frequencies = ropes.base_frequencies(theta or bench.theta, 64)
    ours = rotate(q, positions=positions, frequencies=frequencies)
    return apart(ours, theirs(bench.eager.model, q, positions))


def interleaved(bench: Bench) -> float:
    """Pairs of neighbours rotated in place of pairs of halves."""
    return rotation(bench, neighbours)


def other_theta(bench: Bench) -> float:
    """Frequencies of the wrong theta."""
    return rotation(bench, theta=FALLBACK_THETA)


def other_theta_logits(bench: Bench) -> float:
    """The wrong theta in every layer: logits at the last position."""
    from ..engines.hf_probe import forward

    right = bench.logits
    with _fallback_theta(bench):
        return apart(right[0, -1], forward(bench.eager.model, bench.tokens)[0, -1])


def other_theta_greedy(bench: Bench) -> float:
    """The wrong theta in every layer: number of 20 greedy tokens that change."""
    right = bench.greedy
    with _fallback_theta(bench):
        wrong = greedy(bench.eager, bench.tokens, GREEDY_TOKENS)
    return float(np.count_nonzero(right != wrong))


def other_theta_argmax(bench: Bench) -> float:
    """The wrong theta in every layer: positions of the paragraph whose best token changes."""
    from ..engines.hf_probe import forward

    right = forward(bench.eager.model, bench.paragraph).argmax(axis=-1)
    with _fallback_theta(bench):
        wrong = forward(bench.eager.model, bench.paragraph).argmax(axis=-1)
    return float(np.count_nonzero(right != wrong))


def theta_of_a_flat_reader(bench: Bench) -> float:
    """Theta to a reader of ``rope_theta`` alone, of the config that transformers writes."""
    return float(_saved(bench).get("rope_theta", FALLBACK_THETA))


def theta_of_our_reader(bench: Bench) -> float:
    """Theta to the reference, of the same config."""
    from ..references_seam import model as models

    config: Any = models.Model(_saved(bench), {}, dict(bench.subject.checkpoint.config)).config
    return float(config.rope.theta)


def _saved(bench: Bench) -> dict[str, Any]:
    from ..engines.hf_probe import saved_config

    return saved_config(bench.subject.checkpoint.path)


def _positions() -> TokenIds:
    return np.arange(5)[None]


@contextmanager
def _fallback_theta(bench: Bench) -> Iterator[None]:
    from ..engines.hf_probe import frequencies_replaced

    frequencies = ropes.base_frequencies(FALLBACK_THETA, 64)
    with frequencies_replaced(bench.eager.model, frequencies):
        yield


FACTS = (
    # Cosines are at most 1, where a float32 step is 6e-8 to 1.2e-7: two roundings, of the frequency
    # and of the cosine, on each side, times positions up to 4. Zero is no fault.
    Fact(
        "cos table in float32, two implementations",
        "1.2e-7",
        cosines,
        high=1e-6,
        figure=1.2e-7,
        digits=2,
        reason=OTHER_KERNELS,
    ),
    # Values up to 4 or so, whose step is 4.8e-7 at most: a few steps.
    Fact(
        "RoPE half-split, two implementations, q of [1, 9, 5, 64]",
        "2.4e-7",
        rotation,
        high=2e-6,
        figure=2.4e-7,
        digits=2,
        reason=OTHER_NUMBERS,
    ),
    # Two unrelated rotations of normal numbers: of 2880 such numbers the largest is about 3.5, and
    # a difference of two is at most twice a pair's length.
    Fact(
        "RoPE interleaved instead of half-split",
        "6.36",
        interleaved,
        **around(6.36, 2),
        reason=OTHER_NUMBERS,
    ),
    # The frequencies differ by 0.08 at most (in pair 3 of 32), the angles at position 4 by a third
    # of a radian, which turns a pair of length 3 by about 1.
    Fact(
        "theta 10000 instead of 100000, one rotation",
        "0.74",
        other_theta,
        **around(0.74, 3),
        digits=2,
        reason=OTHER_NUMBERS,
    ),
    # How far a fault carries depends on the weights: a power of ten.
    Fact(
        "the same in every layer: logits, last position",
        "0.61",
        other_theta_logits,
        **around(0.61, 10),
        digits=2,
        reason=OTHER_WEIGHTS,
    ),
    # Which token changes first depends on how close the best two are: at least one must.
    Fact(
        "the same: greedy tokens that change, of 20",
        "2",
        other_theta_greedy,
        low=1,
        high=20,
        figure=2,
        digits=2,
        reason=OTHER_WEIGHTS,
    ),
    # A share of many positions is steadier: 16 % within a factor of 3.
    Fact(
        f"the same: positions whose best token changes, of {PARAGRAPH_TOKENS}",
        "40 (16 %)",
        other_theta_argmax,
        **around(40, 3),
        digits=2,
        reason="another paragraph, and " + OTHER_WEIGHTS,
    ),
    # Not a measurement but a consequence: the default of the reader, or the config's value.
    Fact(
        "theta of a re-saved config, to a reader of the flat key",
        "10000",
        theta_of_a_flat_reader,
        FALLBACK_THETA,
        FALLBACK_THETA,
        figure=FALLBACK_THETA,
    ),
    Fact(
        "theta of the same config, to the reference",
        "100000",
        theta_of_our_reader,
        100000.0,
        100000.0,
        figure=100000.0,
    ),
)
