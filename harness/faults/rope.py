"""Mistakes in rotary position embeddings.

Source of the formulas: :mod:`references.rope`; each variant names what it does otherwise.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import rope as rotary
from .fault import Fault, Instead, Site

Array = NDArray[Any]

_ROTATED = ("attn.q_rope", "attn.k_rope")

#: Bases that readers fall back to, and those of widely used models.
_THETAS = (1e4, 2.5e4, 5e4, 1e5, 1.3e5, 2e5, 2.5e5, 5e5, 1e6, 1.5e6, 2e6, 5e6, 8e6, 1e7)


def _angles(positions: Array, frequencies: Array) -> Array:
    """[B, 1, T, R/2] radians."""
    angles: Array = positions[:, None, :, None] * frequencies
    return angles


def rope_interleaved(
    x: Array, *, positions: Array, frequencies: Array, attention_factor: float = 1.0
) -> Array:
    """Rotate pairs of neighbours ``(2 i, 2 i + 1)``, the pairing of RoFormer, equation 34."""
    angles = _angles(positions, frequencies)
    cos, sin = np.cos(angles) * attention_factor, np.sin(angles) * attention_factor
    size = 2 * frequencies.shape[-1]
    even, odd = x[..., 0:size:2], x[..., 1:size:2]
    rotated = x.copy()
    rotated[..., 0:size:2] = even * cos - odd * sin
    rotated[..., 1:size:2] = odd * cos + even * sin
    return rotated


def rope_halves_to_neighbours(x: Array, **constants: Any) -> Array:
    """Halves are rotated, and the result is laid out as pairs of neighbours."""
    rotated = _halves(x, **constants)
    half = x.shape[-1] // 2
    mixed = np.empty_like(rotated)
    mixed[..., 0::2], mixed[..., 1::2] = rotated[..., :half], rotated[..., half:]
    return mixed


def _halves(
    x: Array, *, positions: Array, frequencies: Array, attention_factor: float = 1.0
) -> Array:
    angles = _angles(positions, frequencies)
    cos, sin = np.cos(angles) * attention_factor, np.sin(angles) * attention_factor
    half = frequencies.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def _pairing(site: Site) -> Iterator[Instead]:
    yield site.instead(op=rope_interleaved, detail="neighbours (2i, 2i+1) are paired, not halves")


def _theta_values(site: Site) -> list[float]:
    configured = _configured_theta(site)
    return [theta for theta in _THETAS if theta != configured]


def _configured_theta(site: Site) -> float | None:
    """Theta from the two fastest unscaled frequencies; None where scaling changes those."""
    frequencies = np.asarray(site.constant("frequencies"))
    if len(frequencies) < 2 or frequencies[0] != 1.0:
        return None
    return float((frequencies[0] / frequencies[1]) ** len(frequencies))


def _theta(site: Site) -> Iterator[Instead]:
    size = 2 * len(np.asarray(site.constant("frequencies")))
    for theta in _theta_values(site):
        yield site.instead(
            frequencies=rotary.base_frequencies(theta, size), detail=f"theta {theta:,.0f}"
        )


FAULTS = (
    Fault(
        id="rope-pairing",
        title="RoPE rotates pairs of neighbours where the weights are stored for halves",
        topic="rope.pairing",
        kinds=_ROTATED,
        variant=_pairing,
        symptom="Fluent for some tokens, then repetition; position 0 is right.",
        advice="Pair element i with i + D/2 (rotate_half, NEOX style), or permute the rows of "
        "q_proj and k_proj when the checkpoint is converted.",
        distinguish="Any prompt of two tokens or more.",
        reports=("huggingface/candle#3410", "ml-explore/mlx-examples#97"),
        common=5,
    ),
    Fault(
        id="rope-theta",
        title="RoPE is computed with another base",
        topic="rope.theta",
        kinds=_ROTATED,
        variant=_theta,
        constant="rope_theta",
        symptom="Good on short prompts, worse with every token.",
        advice="Read rope_theta from rope_parameters (transformers 5) and from the top level "
        "(transformers 4); never fall back to 10000 silently.",
        distinguish="Long positions.",
        reports=("vllm-project/vllm#42624", "deepspeedai/DeepSpeed#8345", "InternLM/lmdeploy#4304"),
        common=5,
    ),
)
