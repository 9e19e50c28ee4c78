"""Laws of rotary position embedding."""

from typing import Any

import numpy as np

from . import rope_examples
from .candidate import Candidate, Rows
from .law import Law, LawBroken
from .rope_examples import Ropes
from .rope_relative import RELATIVE
from .rotations import ROUNDINGS, TAPS, Floats, Rotation, parts, rotations
from .sizes import Sizes

#: A pair has turned if its complex number has changed by this part of its length.
_TURNED = 1e-2


def check_pairing(candidate: Candidate, rows: Rows) -> None:
    """Each pair of each head is multiplied by one complex number, the same for all heads."""
    found = rotations(candidate, rows)
    for queries, keys in zip(found[0::2], found[1::2], strict=True):
        before = np.concatenate([queries.pairs_before, keys.pairs_before], axis=1)
        after = np.concatenate([queries.pairs_after, keys.pairs_after], axis=1)
        lengths = np.sum(np.abs(before) ** 2, axis=(0, 1))
        turns = np.sum(np.conj(before) * after, axis=(0, 1)) / np.where(lengths, lengths, 1.0)
        turned = np.abs(turns[:, 0] - np.abs(turns[:, 0])).max()
        if turned < _TURNED:
            raise LawBroken(
                f"{queries.name}: the fastest pair",
                expected="one that has turned at some position",
                found=f"the largest change of its direction to be {turned:.3g}",
            )
        candidate.same(
            f"{queries.name} and k_rope, neighbouring pairs as complex numbers",
            parts(turns * before),
            parts(after),
            bound=ROUNDINGS * candidate.unit * np.abs(turns * before),
        )


def check_norm(candidate: Candidate, rows: Rows) -> None:
    """The length of each pair, times the attention factor, stays."""
    for found in rotations(candidate, rows):
        expected = found.turning.factor * np.abs(found.pairs_before)
        candidate.same(
            f"{found.name}: lengths of pairs",
            expected,
            np.abs(found.pairs_after),
            bound=ROUNDINGS * candidate.unit * expected,
        )


def check_zero(candidate: Candidate, rows: Rows) -> None:
    """At position 0 nothing turns, and elsewhere something does."""
    for found in rotations(candidate, rows):
        factor, before = found.turning.factor, np.asarray(found.before, np.float64)
        size, after = found.size, np.asarray(found.after, np.float64)
        start, turned = before[:, :, 0, :size], after[:, :, 0, :size]
        what = f"{found.name} at position 0"
        if factor == 1.0:
            candidate.same(what, start, turned, exact=True)
        else:
            bound = 2 * candidate.unit * np.abs(factor * start)
            candidate.same(what, factor * start, turned, bound=bound)
        if np.array_equal(factor * before[:, :, 1:, :size], after[:, :, 1:, :size]):
            raise LawBroken(
                f"{found.name} behind position 0",
                expected="another vector than before the rotation",
                found="the same at all positions",
            )


def check_partial(candidate: Candidate, rows: Rows) -> None:
    """What lies behind the rotated part of a head stays as it is."""
    for found in rotations(candidate, rows):
        rest = found.before[..., found.size :], found.after[..., found.size :]
        candidate.same(f"{found.name} behind element {found.size}", *rest, exact=True)
        turned = (found.pairs_before != found.pairs_after).any(axis=(0, 1, 2))
        # A slow pair of a few tokens turns by less than a narrow dtype can show.
        shows = found.turning.angles(found.positions)[-1] > ROUNDINGS * candidate.unit
        if not turned[shows].all():
            raise LawBroken(
                f"{found.name} up to element {found.size}",
                expected="all pairs of the rotated part to turn",
                found=f"pair {int(np.argmin(turned | ~shows))} as before",
            )


def check_frequencies(candidate: Candidate, rows: Rows, ropes: Ropes, longest: int = 0) -> None:
    """Each pair turns as fast as the formula of the paper says."""
    engine = candidate
    if ropes:
        engine = candidate.altered(lambda config, _: _given(config, ropes, longest))
    for found in rotations(engine, rows):
        _as_formula(candidate, found)


def check_long(candidate: Candidate, rows: Rows, first: int) -> None:
    """The same at far positions."""
    for found in rotations(candidate, rows, first=first):
        _as_formula(candidate, found)


def _given(config: dict[str, Any], ropes: Ropes, longest: int) -> None:
    """Let a config have other rope parameters, by layer type or, under "", for all."""
    for flat in ("rope_theta", "rope_scaling", "rope_local_base_freq", "partial_rotary_factor"):
        config.pop(flat, None)
    config["rope_parameters"] = dict(ropes.get("", ropes))
    config["max_position_embeddings"] = longest


def _as_formula(candidate: Candidate, found: Rotation) -> None:
    turns = found.turning
    expected = found.pairs_before * turns.factor * np.exp(1j * turns.angles(found.positions))
    lengths: Floats = np.abs(expected)
    off = turns.off(found.positions) + ROUNDINGS * candidate.unit
    candidate.same(
        f"{found.name}, neighbouring pairs as complex numbers, from position "
        f"{int(found.positions[0])} on",
        parts(expected),
        parts(found.pairs_after),
        bound=lengths * np.minimum(off, 2.0),
    )


def _learned(sizes: Sizes) -> str:
    return "" if sizes.rotates else "its positions are learned"


def _whole(sizes: Sizes) -> str:
    return _learned(sizes) or ("" if rope_examples.partial(sizes) else "whole heads are rotated")


_ROFORMER = "Su et al. 2021, RoFormer"
_ROUNDED = (
    "8 units of the engine's dtype, in parts of the length of the pair: cosine and sine off by one "
    "in the last place, rounded with the factor, two products and a sum"
)
_ANGLES = (
    _ROUNDED + "; and what float32 makes of the angle, which is the position times the error of "
    "the speed (its exponent, power, reciprocal and scaling rounded) and one rounding of the "
    "product: it grows with the position"
)

LAWS = (
    Law(
        id="rope-pairing",
        says="Half-split and neighbouring pairs are one permutation apart: with the two halves of "
        "a head permuted into neighbours, the rotation is the multiplication of (x[2i] + i "
        "x[2i+1]) by one complex number at each position, the same for all heads of queries and "
        "of keys.",
        source=f"{_ROFORMER}, section 3.2.2, equations 13, 15 and 34",
        check=check_pairing,
        arguments=rope_examples.prompts,
        applies=_learned,
        taps=TAPS,
        mutants=("rope-neighbours", "rope-laid-out-otherwise", "rope-reflected"),
        bound=_ROUNDED,
    ),
    Law(
        id="rope-norm",
        says="A rotation keeps the length of every pair; YaRN and LongRoPE multiply it by their "
        "attention factor, the same for all pairs and positions.",
        source=f"{_ROFORMER}, section 3.2.2: the matrix is orthogonal; Peng et al. 2023, YaRN, "
        "section 3.4",
        check=check_norm,
        arguments=rope_examples.prompts,
        applies=_learned,
        taps=TAPS,
        mutants=("rope-tables-narrow", "rope-factor-twice"),
        bound=_ROUNDED,
    ),
    RELATIVE,
    Law(
        id="rope-zero",
        says="At position 0 queries and keys stay as they are, bit for bit where there is no "
        "attention factor; behind it they do not.",
        source=f"{_ROFORMER}, section 3.2.2: the angle is 0 there, and cos 0 = 1 and sin 0 = 0 "
        "are exact",
        check=check_zero,
        arguments=rope_examples.prompts,
        applies=_learned,
        taps=TAPS,
        mutants=("rope-one-later", "rope-sine-first"),
        bound="bit for bit; with an attention factor 2 units, as it and the product are rounded",
    ),
    Law(
        id="rope-frequencies",
        says="Pair i turns by its position times theta ** (-2i/R), scaled as the config says: "
        "linear, dynamic, llama3 or yarn, with every parameter of theirs, in each layer by its "
        "layer type.",
        source=f"{_ROFORMER}, section 3.2.2; Chen et al. 2023, Position Interpolation, equation "
        "4; Peng et al. 2023, YaRN, sections 3.2 to 3.4; Grattafiori et al. 2024, The Llama 3 Herd "
        "of Models, section 3.4.2",
        check=check_frequencies,
        arguments=rope_examples.scalings,
        applies=_learned,
        taps=TAPS,
        mutants=(
            *("rope-theta-other", "rope-linear-squared", "rope-dynamic-always"),
            *("rope-llama3-ignored", "rope-yarn-ignored", "rope-yarn-truncated-otherwise"),
            *("rope-factor-missing", "rope-layer-types-alike"),
        ),
        bound=_ANGLES,
    ),
    Law(
        id="rope-longrope",
        says="LongRoPE divides each pair's speed by a factor of its own, from the long list in a "
        "sequence beyond the trained length and from the short one otherwise.",
        source="Ding et al. 2024, LongRoPE, section 3; Abdin et al. 2024, Phi-3 Technical Report, "
        "with the keys of its model cards",
        check=check_frequencies,
        arguments=rope_examples.longropes,
        applies=_learned,
        needs=("rope:longrope",),
        taps=TAPS,
        mutants=("rope-long-factors-always",),
        bound=_ANGLES,
    ),
    Law(
        id="rope-partial",
        says="Where a part of each head is rotated, the rest of it stays as it is, bit for bit.",
        source="Black et al. 2022, GPT-NeoX-20B, section 2.1",
        check=check_partial,
        arguments=rope_examples.prompts,
        applies=_whole,
        taps=TAPS,
        mutants=("rope-whole-head",),
        bound="bit for bit",
    ),
    Law(
        id="rope-long",
        says="Pairs turn as the formula says up to position 100,000, however long the table.",
        source=f"{_ROFORMER}, section 3.2.2; a position below 2 ** 24 is exact in float32",
        check=check_long,
        arguments=rope_examples.far,
        applies=_learned,
        needs=("first",),
        taps=TAPS,
        mutants=("rope-table-4096", "rope-positions-narrow", "rope-angles-narrow"),
        bound=_ANGLES,
    ),
)
