"""The law of relative positions: what a shift of all of them may change."""

import numpy as np

from ..engines.protocol import Array
from ..engines.ways import Way
from . import rope_examples
from .candidate import Candidate, Rows
from .law import Law
from .rope_formulas import SINGLE, rotated, turning
from .rotations import ROUNDINGS, Floats, pairs
from .sizes import Sizes


def check_relative(candidate: Candidate, rows: Rows, offset: int) -> None:
    """All positions shifted by the same number."""
    kinds = [
        kind for kind in ("attn.q_rope", "attn.k_rope", "attn.values") if candidate.gives(kind)
    ]
    seen = [kind for kind in ("attn.scores", "attn.context") if candidate.gives(kind)]
    near = candidate.taps(rows, "logits", *kinds, *seen)
    far = candidate.taps(rows, "logits", *seen, way=Way(first=offset))
    # In units of the size of what is rounded: 4 of some 16 roundings a layer are of angles.
    off = candidate.tolerance(near["logits"]) * (1 + (offset + len(rows[0])) / 4)
    if len(kinds) == 3:
        scores = _first_layer(candidate, near, far, offset)
        # Probabilities move by twice that of the scores, independently in each layer.
        largest = max(1.0, float(np.abs(near["logits"]).max()))
        moved = 2 * scores * candidate.sizes.layers**0.5 * largest
        off = min(off, candidate.tolerance(near["logits"]) + moved)
    if candidate.sizes.experts:
        return  # the choice of experts may turn on what is left of an angle
    what = f"logits with positions from {offset} on"
    candidate.same(what, near["logits"], far["logits"], bound=off)


def _first_layer(
    candidate: Candidate, near: dict[str, Array], far: dict[str, Array], offset: int
) -> float:
    """Scores and context of layer 0, whose inputs are the same bit for bit.

    Returns:
        How far scores may be off at most.
    """
    off = _scores_off(candidate, near["layers.0.attn.q_rope"], near["layers.0.attn.k_rope"], offset)
    what = f"of layer 0 with positions from {offset} on"
    if "layers.0.attn.scores" in near:
        scores = near["layers.0.attn.scores"], far["layers.0.attn.scores"]
        candidate.same(f"scores {what}", *scores, bound=off)
    if "layers.0.attn.context" in near:
        context = near["layers.0.attn.context"], far["layers.0.attn.context"]
        values = np.abs(np.asarray(near["layers.0.attn.values"], np.float64)).max(axis=(2, 3))
        values = np.repeat(values, off.shape[1] // values.shape[1], axis=1)[:, :, None]
        moved = np.expm1(2 * off.max(axis=-1)) + 2 * (off.shape[-1] + 8) * candidate.unit
        candidate.same(f"context {what}", *context, bound=(moved * values)[..., None])
    return float(off.max())


def _scores_off(candidate: Candidate, queries: Array, keys: Array, offset: int) -> Floats:
    """How far scores [B, H, T, S] of two runs may lie apart."""
    sizes, unit = candidate.sizes, candidate.unit
    size, length = rotated(sizes, 0), queries.shape[2]
    q, k = np.asarray(queries, np.float64), np.asarray(keys, np.float64)
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    speeds = turning(sizes, 0, offset + length).speeds
    # Both runs share the speeds, so that of the angles their own rounding alone is left.
    angles = SINGLE * (2 * np.arange(length) + offset)[:, None] * speeds
    q_pairs, k_pairs = np.abs(pairs(q[..., :size])), np.abs(pairs(k[..., :size]))
    products = np.einsum("bhtd,bhsd->bhts", np.abs(q), np.abs(k))
    turned = np.einsum("bhtp,bhsp->bhts", q_pairs, k_pairs)
    moved = np.einsum("bhtp,bhsp->bhts", q_pairs * angles, k_pairs)
    moved += np.einsum("bhtp,bhsp->bhts", q_pairs, k_pairs * angles)
    summed = 2 * (sizes.head_dim + 2) * unit * products
    made: Floats = sizes.score_scale * (moved + 4 * ROUNDINGS * unit * turned + summed)
    return made


def _applies(sizes: Sizes) -> str:
    if not sizes.rotates:
        return "its positions are learned"
    grows = sizes.rope_types & {"dynamic", "longrope"}
    return f"rope type {min(grows)} turns otherwise in longer sequences" if grows else ""


RELATIVE = Law(
    id="rope-relative",
    says="Scores depend on differences of positions alone, so that with all positions shifted by "
    "the same number scores, context and logits stay.",
    source="Su et al. 2021, RoFormer, section 3.2.1, equation 11",
    check=check_relative,
    arguments=rope_examples.shifts,
    applies=_applies,
    needs=("first",),
    mutants=("rope-table-9", "rope-positions-narrow"),
    bound="scores of layer 0: the products of lengths of pairs times the rounding of their two "
    "angles (a unit of float32 in parts of the angle, for the speeds are the same in both runs), "
    "8 units a rotation and one for each term of the sum; context: what that does to a softmax, "
    "times the largest value; logits of models without experts: 1e-4 of the largest, and twice "
    "what scores may be off, times the root of the number of layers",
)
