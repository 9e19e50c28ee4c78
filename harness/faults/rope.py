"""Mistakes in how queries and keys are rotated: pairing, base, direction, positions, precision.

Source of the formulas: :mod:`references.rope` and :func:`references.ops.rope`; each variant names
what it does otherwise. Mistakes in the scaling of frequencies are in
:mod:`harness.faults.rope_scaling`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..references_seam import rope as rotary
from .fault import Fault, Instead, Site
from .fitted import differs, fitted_at, in_words
from .rope_config import length_of, rope_at
from .rope_layout import frequencies_of, rotate_halves, rotate_neighbours, rotate_tables, size_of

Array = NDArray[Any]

ROTATED = ("attn.q_rope", "attn.k_rope")

#: Bases that readers fall back to, and those of widely used models.
_THETAS = (1e4, 2.5e4, 5e4, 1e5, 1.3e5, 2e5, 2.5e5, 5e5, 1e6, 1.5e6, 2e6, 5e6, 8e6, 1e7)

#: Dtypes that tables of cosines and sines are rounded to.
_NARROW = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


def _pairing(site: Site) -> Iterator[Instead]:
    yield site.instead(op=rotate_neighbours, detail="neighbours (2i, 2i+1) are rotated, not halves")


def _layout(site: Site) -> Iterator[Instead]:
    def mixed(x: Array, **constants: Any) -> Array:
        rotated, size = rotate_halves(x, **constants), 2 * len(constants["frequencies"])
        laid = rotated.copy()
        laid[..., 0:size:2] = rotated[..., : size // 2]
        laid[..., 1:size:2] = rotated[..., size // 2 : size]
        return laid

    yield site.instead(op=mixed)


def _theta(site: Site) -> Iterator[Instead]:
    rope = rope_at(site)
    for theta in _THETAS:
        if rope is None:
            frequencies = rotary.base_frequencies(theta, size_of(site))
        else:
            frequencies = replace(rope, theta=theta).at(length_of(site)).frequencies
        if not np.array_equal(frequencies, frequencies_of(site)):
            yield site.instead(frequencies=frequencies, detail=f"theta {theta:,.0f}")
    one = fitted_at(site, "rope_theta")
    if one is None or rope is None or not one.value > 0:
        return
    if all(differs(one, theta) for theta in (*_THETAS, rope.theta)):
        frequencies = replace(rope, theta=one.value).at(length_of(site)).frequencies
        yield site.instead(
            frequencies=frequencies, detail=f"theta {in_words(one.value, one.error)}"
        )


def _exponent(site: Site) -> Iterator[Instead]:
    size, base = size_of(site), frequencies_of(site)
    if base[0] != 1.0 or len(base) < 2:
        return
    yield site.instead(frequencies=np.sqrt(base), detail="exponent i/D in place of 2i/D")
    theta = float(base[1] ** -(size / 2))
    steps = np.arange(len(base)) / max(1, len(base) - 1)
    yield site.instead(frequencies=theta**-steps, detail="exponents from 0 to 1, both included")
    yield site.instead(
        frequencies=theta ** (-(2 * np.arange(len(base)) + 2) / size), detail="pairs counted from 1"
    )


def _reversed(site: Site) -> Iterator[Instead]:
    yield site.instead(frequencies=frequencies_of(site)[::-1].copy())


def _missing(site: Site) -> Iterator[Instead]:
    yield site.instead(op=lambda x, **_: x.copy())


def _twice(site: Site) -> Iterator[Instead]:
    def twice(x: Array, **constants: Any) -> Array:
        return rotate_halves(rotate_halves(x, **constants), **constants)

    yield site.instead(op=twice)


def _direction(site: Site) -> Iterator[Instead]:
    yield site.instead(frequencies=-frequencies_of(site))


def _signs(site: Site) -> Iterator[Instead]:
    def no_minus(x: Array, **constants: Any) -> Array:
        return rotate_tables(x, sign=1.0, **constants)

    yield site.instead(op=no_minus, detail="the rotated half is added without its minus sign")


def _exchanged(site: Site) -> Iterator[Instead]:
    def swapped(x: Array, **constants: Any) -> Array:
        return rotate_tables(x, swap=True, **constants)

    yield site.instead(op=swapped)


def _partial(site: Site) -> Iterator[Instead]:
    frequencies, dim = frequencies_of(site), site.value(0).shape[-1]
    if 2 * len(frequencies) != dim:
        return
    for share in (0.25, 0.4, 0.5, 0.75):
        size = int(dim * share) // 2 * 2
        if not 0 < size < dim:
            continue
        own = _own_ladder(site, size)
        if own is not None:
            yield site.instead(
                op=rotate_halves, frequencies=own, detail=f"the first {size} of {dim} elements"
            )
        yield site.instead(
            op=rotate_halves,
            frequencies=frequencies[: size // 2],
            detail=f"the first {size} of {dim} elements, with the frequencies of the whole head",
        )


def _own_ladder(site: Site, size: int) -> Array | None:
    """Frequencies of as many elements with the same base; None where that is not known."""
    base = frequencies_of(site)
    if base[0] != 1.0 or len(base) < 2:
        return None
    return rotary.base_frequencies(float(base[1] ** -len(base)), size)


def _whole(site: Site) -> Iterator[Instead]:
    dim = site.value(0).shape[-1]
    if size_of(site) == dim:
        return
    own = _own_ladder(site, dim)
    if own is not None:
        yield site.instead(op=rotate_halves, frequencies=own, detail=f"all {dim} elements")


def _ladder(site: Site) -> Iterator[Instead]:
    dim, size = site.value(0).shape[-1], size_of(site)
    own = _own_ladder(site, dim)
    if size != dim and own is not None:
        yield site.instead(frequencies=own[: size // 2])


def positions_of(site: Site) -> Array:
    """[B, T] positions of the op."""
    return np.asarray(site.constant("positions"))


def positions_changed(site: Site, changed: Array, *, detail: str = "") -> Iterator[Instead]:
    """The rotation at other positions, where those are others."""
    if np.array_equal(changed, positions_of(site)):
        return
    yield site.instead(positions=changed, detail=detail)
    rope = rope_at(site)
    if rope is not None and rope.kind == "dynamic":  # its base follows the last position
        frequencies = rope.at(int(changed.max()) + 1).frequencies
        yield site.instead(positions=changed, frequencies=frequencies, detail=detail)


def _offset(site: Site) -> Iterator[Instead]:
    for shift in (1, -1, 2, -2, 3, -3, 4, -4, 8, -8):
        yield from positions_changed(
            site, positions_of(site) + shift, detail=f"positions {shift:+d}"
        )
    one = fitted_at(site, "position_offset")
    if one is not None and differs(one, 0.0):
        off = one.value if differs(one, round(one.value)) else float(round(one.value))
        yield from positions_changed(site, positions_of(site) + off, detail=f"positions {off:+.6g}")


def _always_zero(site: Site) -> Iterator[Instead]:
    yield from positions_changed(site, np.zeros_like(positions_of(site)))


def _restarted(site: Site) -> Iterator[Instead]:
    if site.chunk > 0:
        yield from positions_changed(
            site,
            positions_of(site) - positions_of(site).min(),
            detail="the first new token is at position 0 again",
        )


def _stuck(site: Site) -> Iterator[Instead]:
    positions = np.asarray(site.constant("positions"))
    prompt = site.facts.tokens[0].shape[1] if site.facts.tokens else 0
    if site.chunk > 1:
        yield from positions_changed(
            site, np.full_like(positions, prompt), detail=f"every new token is at {prompt}"
        )
    if site.chunk > 0 and prompt:
        yield from positions_changed(site, positions - 1, detail="the position of the token before")
    if site.chunk == 0 and positions.shape[1] > 1:
        last = positions.shape[1] - 1
        yield from positions_changed(
            site, np.full_like(positions, last), detail="every token is at the last position"
        )


def _clamped(site: Site) -> Iterator[Instead]:
    for last in _last_rows(site):
        yield from positions_changed(
            site, np.minimum(positions_of(site), last), detail=f"no position beyond {last}"
        )
        yield from positions_changed(
            site, positions_of(site) % (last + 1), detail=f"positions begin again behind {last}"
        )


def _last_rows(site: Site) -> list[int]:
    """Last rows of tables that may be too short: those behind which the numbers go wrong."""
    expected, positions = site.call.output.value, np.asarray(site.constant("positions"))
    if site.found is None or site.found.shape != expected.shape:
        return []
    rope = rope_at(site)
    if rope is not None and rope.kind == "dynamic":  # a shorter table changes every row
        return list(range(min(int(positions.max()), 64)))
    wrong = np.abs(site.found - expected).max(axis=(0, 1, 3))
    slack = max(1e-3, 8 * site.call.precision.unit_roundoff)
    bad = np.flatnonzero(wrong > slack * np.abs(expected).max())
    first = int(positions.min()) + int(bad[0]) if len(bad) else 0
    return [first - n for n in (1, 2, 3) if first >= n]


def _rounded_positions(site: Site) -> Iterator[Instead]:
    for name, dtype in _NARROW.items():
        yield from positions_changed(
            site,
            positions_of(site).astype(np.float32).astype(dtype).astype(np.float64),
            detail=f"positions in {name}: whole numbers beyond "
            f"{256 if name == 'bfloat16' else 2048} are rounded",
        )


def _rounded_frequencies(site: Site) -> Iterator[Instead]:
    for name, dtype in _NARROW.items():
        rounded = frequencies_of(site).astype(dtype).astype(np.float64)
        yield site.instead(frequencies=rounded, detail=f"frequencies in {name}")


def _rounded_angles(site: Site) -> Iterator[Instead]:
    for name, dtype in _NARROW.items():
        for frequencies, what in (
            (frequencies_of(site), "angles"),
            (frequencies_of(site).astype(dtype).astype(np.float64), "frequencies and angles"),
        ):
            op = _with_rounding(angles=dtype)
            yield site.instead(op=op, frequencies=frequencies, detail=f"{what} in {name}")
            both = _with_rounding(angles=dtype, tables=dtype)
            yield site.instead(
                op=both, frequencies=frequencies, detail=f"{what}, cosines and sines in {name}"
            )


def _rounded_tables(site: Site) -> Iterator[Instead]:
    for name, dtype in _NARROW.items():
        if name != site.dtype:
            op = _with_rounding(tables=dtype)
            yield site.instead(
                op=op, detail=f"cosines and sines in {name}", precision="" if name else name
            )


def _with_rounding(
    *, angles: np.dtype[Any] | None = None, tables: np.dtype[Any] | None = None
) -> Callable[..., Array]:
    def op(x: Array, **constants: Any) -> Array:
        return rotate_tables(x, angle_dtype=angles, table_dtype=tables, **constants)

    return op


_POSITION_ADVICE = (
    "Count positions from the start of the sequence, cache included: the first new token is at the "
    "number of tokens that the cache holds."
)
_PRECISION_ADVICE = (
    "Form positions, frequencies and angles in float32 whatever the model's dtype, and round only "
    "the rotated queries and keys."
)

FAULTS = (
    Fault(
        id="rope-pairing",
        title="RoPE rotates neighbours where the weights are stored for halves",
        topic="rope.pairing",
        kinds=ROTATED,
        variant=_pairing,
        symptom="Fluent for some tokens, then repetition; position 0 is right.",
        advice="Pair element i with i + R/2 of the R rotated elements (rotate_half, NEOX style), "
        "or permute the rows of q_proj and k_proj when the checkpoint is converted.",
        distinguish="Any prompt of two tokens or more.",
        reports=(
            "huggingface/candle#3410",
            "ml-explore/mlx-examples#97",
            "karpathy/llama2.c#286",
            "apple/coreai-models#66",
        ),
        common=5,
    ),
    Fault(
        id="rope-output-layout",
        title="RoPE's result is laid out as neighbours",
        topic="rope.pairing",
        kinds=ROTATED,
        variant=_layout,
        symptom="Queries and keys agree with each other, so that scores are right; a cache shared "
        "with another engine is not.",
        advice="Put the rotated halves back as halves; or leave them if nothing but this engine "
        "reads them, and name the layout in the trace.",
        distinguish="The scores: they are right if queries and keys are both laid out so.",
        reports=("AI-Hypercomputer/maxtext#581",),
        common=2,
    ),
    Fault(
        id="rope-theta",
        title="RoPE is computed with another base",
        topic="rope.theta",
        kinds=ROTATED,
        variant=_theta,
        constant="rope_theta",
        symptom="Good on short prompts, worse with every token.",
        advice="Read rope_theta from rope_parameters (written since transformers 5) and from the "
        "top level (before); never fall back to 10000 silently.",
        distinguish="Long positions.",
        reports=(
            "vllm-project/vllm#42624",
            "deepspeedai/DeepSpeed#8345",
            "InternLM/lmdeploy#4304",
            "ggml-org/llama.cpp#11008",
            "vllm-project/vllm#56066",
        ),
        common=5,
    ),
    Fault(
        id="rope-exponent",
        title="RoPE's frequencies fall with another exponent",
        topic="rope.frequencies",
        kinds=ROTATED,
        variant=_exponent,
        symptom="As another base: good on short prompts, worse with every token.",
        advice="Frequency i is theta ** (-2 i / R), i from 0 to R/2 - 1, R the rotated elements.",
        distinguish="The fitted frequencies of single pairs.",
        common=2,
    ),
    Fault(
        id="rope-frequencies-reversed",
        title="RoPE's frequencies are in reverse order",
        topic="rope.frequencies",
        kinds=ROTATED,
        variant=_reversed,
        symptom="Nonsense from the second token on.",
        advice="Let the first pair turn fastest: frequency 1 radian a position.",
        common=1,
    ),
    Fault(
        id="rope-missing",
        title="RoPE is not applied",
        topic="rope.missing",
        kinds=ROTATED,
        variant=_missing,
        symptom="A bag of words: the order of tokens hardly matters.",
        advice="Rotate queries and keys after their projection (and norm), in every layer that "
        "the config does not exempt.",
        distinguish="A rotation at position 0 gives the same: look at the positions passed.",
        common=3,
    ),
    Fault(
        id="rope-twice",
        title="RoPE is applied twice",
        topic="rope.missing",
        kinds=ROTATED,
        variant=_twice,
        symptom="Worse with every token.",
        advice="Rotate once: in the projection's fused kernel or beside the cache, not both.",
        distinguish="Doubled positions or frequencies give the same numbers.",
        common=2,
    ),
    Fault(
        id="rope-direction",
        title="RoPE turns the other way",
        topic="rope.sign",
        kinds=ROTATED,
        variant=_direction,
        symptom="If both queries and keys turn so, scores see the mirrored distance: the past as "
        "the future.",
        advice="The first half loses second * sin, the second half gains first * sin.",
        distinguish="Exchanged halves give the same scores, not the same queries.",
        common=3,
    ),
    Fault(
        id="rope-sign",
        title="RoPE adds the rotated half without its minus sign",
        topic="rope.sign",
        kinds=ROTATED,
        variant=_signs,
        symptom="Norms of queries and keys change with the position.",
        advice="rotate_half is (-second, first), not (second, first).",
        common=3,
    ),
    Fault(
        id="rope-sin-cos",
        title="RoPE exchanges cosine and sine",
        topic="rope.sign",
        kinds=ROTATED,
        variant=_exchanged,
        symptom="Wrong from position 0 on, where queries and keys should not change at all.",
        advice="Multiply by the cosine, add the rotated half times the sine; look at the order in "
        "which the two tables are returned.",
        common=2,
    ),
    Fault(
        id="rope-partial-applied",
        title="RoPE rotates only a part of each head",
        topic="rope.partial",
        kinds=ROTATED,
        variant=_partial,
        symptom="Fluent at first, worse with every token.",
        advice="Without partial_rotary_factor (rotary_pct, rotary_dim) the whole head is rotated.",
        distinguish="The last elements of each head: they are not rotated at all.",
        common=2,
    ),
    Fault(
        id="rope-partial-lost",
        title="RoPE rotates whole heads where a part should be",
        topic="rope.partial",
        kinds=ROTATED,
        variant=_whole,
        symptom="Mean KL of several nats, no warning.",
        advice="Rotate head_dim * partial_rotary_factor elements; older configs call it rotary_pct "
        "or rotary_dim, newer ones keep it in rope_parameters.",
        distinguish="The last elements of each head: they should not change.",
        reports=(
            "huggingface/transformers#48241",
            "huggingface/transformers#46912",
            "AI-Hypercomputer/maxtext#4616",
            "ggml-org/llama.cpp#12957",
        ),
        common=4,
    ),
    Fault(
        id="rope-partial-ladder",
        title="RoPE rotates the right part with the frequencies of the whole head",
        topic="rope.partial",
        kinds=ROTATED,
        variant=_ladder,
        symptom="Good on short prompts, worse with every token.",
        advice="Divide the exponent by the number of rotated elements, not by head_dim.",
        common=2,
    ),
    Fault(
        id="rope-offset",
        title="RoPE's positions are shifted",
        topic="rope.position",
        kinds=ROTATED,
        variant=_offset,
        constant="position_offset",
        symptom="Logits are right as long as all positions shift alike; wrong with a cache that "
        "another counter filled, and a neighbour of learned positions is always wrong.",
        advice="Count positions from 0; look for a BOS that is counted but not fed, or padding "
        "that is counted. A model with padding_idx may count from padding_idx + 1 on purpose.",
        distinguish="A prompt with a cache: only there do unequal shifts show.",
        reports=("huggingface/transformers#32554", "unslothai/unsloth#3699"),
        common=4,
    ),
    Fault(
        id="rope-position-zero",
        title="Every token is rotated at position 0",
        topic="rope.position",
        kinds=ROTATED,
        variant=_always_zero,
        symptom="A bag of words.",
        advice="Pass positions to the rotation; in decoding it is the length of the cache.",
        distinguish="A rotation that is left out gives the same numbers.",
        common=3,
    ),
    Fault(
        id="rope-position-restarted",
        title="Positions begin again at 0 with every forward pass on a cache",
        topic="rope.position_cache",
        kinds=ROTATED,
        variant=_restarted,
        symptom="The first token is right, the others are not; without a cache all is well.",
        advice=_POSITION_ADVICE,
        distinguish="A second chunk of several tokens.",
        reports=("ml-explore/mlx-lm#93", "huggingface/candle#1517"),
        common=5,
    ),
    Fault(
        id="rope-position-stuck",
        title="Positions do not advance as tokens are decoded",
        topic="rope.position_cache",
        kinds=ROTATED,
        variant=_stuck,
        symptom="Repetition after some tokens; without a cache all is well.",
        advice=_POSITION_ADVICE,
        distinguish="Two decoding steps or more.",
        common=3,
    ),
    Fault(
        id="rope-table-short",
        title="RoPE's table ends before the sequence does",
        topic="rope.position",
        kinds=ROTATED,
        variant=_clamped,
        symptom="Right up to some position, wrong from there on.",
        advice="Make the table as long as max_position_embeddings, or compute angles as needed.",
        distinguish="A longer prompt.",
        common=2,
    ),
    Fault(
        id="rope-positions-narrow",
        title="RoPE's positions are held in a narrow dtype",
        topic="rope.precision",
        kinds=ROTATED,
        variant=_rounded_positions,
        symptom="Right up to position 256 (bfloat16) or 2048 (float16), then neighbours share a "
        "position.",
        advice=_PRECISION_ADVICE,
        distinguish="Positions beyond 256.",
        reports=("NovaSky-AI/SkyRL#1725", "huggingface/candle#3005"),
        common=4,
    ),
    Fault(
        id="rope-frequencies-narrow",
        title="RoPE's frequencies are held in a narrow dtype",
        topic="rope.precision",
        kinds=ROTATED,
        variant=_rounded_frequencies,
        constant="rope_frequency",
        symptom="Worse with every token; model.half() or model.to(bfloat16) also casts buffers.",
        advice=_PRECISION_ADVICE + " Cast parameters, not the inv_freq buffer.",
        distinguish="Long positions.",
        reports=("huggingface/candle#3005", "EricLBuehler/mistral.rs#244"),
        common=4,
    ),
    Fault(
        id="rope-angles-narrow",
        title="RoPE's angles are formed in a narrow dtype",
        topic="rope.precision",
        kinds=ROTATED,
        variant=_rounded_angles,
        constant="rope_frequency",
        symptom="Good on short prompts; from some hundred tokens on angles are off by radians.",
        advice=_PRECISION_ADVICE,
        distinguish="Long positions.",
        reports=("huggingface/candle#3520", "NovaSky-AI/SkyRL#1725"),
        common=4,
    ),
    Fault(
        id="rope-tables-narrow",
        title="RoPE's cosines and sines are held in a narrow dtype",
        topic="rope.precision",
        kinds=ROTATED,
        variant=_rounded_tables,
        symptom="A relative error of 0.4 % (bfloat16) or 0.05 % (float16) at every length.",
        advice=_PRECISION_ADVICE,
        distinguish="A float32 run: a bfloat16 model holds its tables in bfloat16 by design.",
        reports=("TransformerLensOrg/TransformerLens#385",),
        common=3,
    ),
)
