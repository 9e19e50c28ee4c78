"""Mistakes in how RoPE's frequencies are scaled to longer sequences.

Source of the formulas: :mod:`references.rope`; each variant names what it does otherwise.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..references_seam import rope as rotary
from .fault import Fault, Instead, Site
from .fitted import differs, fitted_at, in_words
from .rope import ROTATED
from .rope_config import length_of, rope_at, ropes_of
from .rope_layout import frequencies_of

Array = NDArray[Any]


def _with(site: Site, rope: rotary.Rope, detail: str = "", length: int = 0) -> Iterator[Instead]:
    """The op with another rotation, if that is another."""
    rotation = rope.at(length or length_of(site))
    factor = site.constant("attention_factor")
    same = np.array_equal(rotation.frequencies, frequencies_of(site))
    if not same or rotation.attention_factor != (1.0 if factor is None else factor):
        yield site.instead(
            frequencies=rotation.frequencies,
            attention_factor=rotation.attention_factor,
            detail=detail,
        )


def _ignored(kind: str) -> Callable[[Site], Iterator[Instead]]:
    def variant(site: Site) -> Iterator[Instead]:
        rope = rope_at(site)
        if rope is not None and rope.kind == kind:
            yield from _with(site, replace(rope, kind="default"))

    return variant


def _scaled(site: Site, kind: str, **changes: Any) -> Iterator[Instead]:
    """The same scaling type with other parameters."""
    rope = rope_at(site)
    if rope is not None and rope.kind == kind:
        detail = ", ".join(f"{k} = {v}" for k, v in changes.items())
        yield from _with(site, replace(rope, scaling={**rope.scaling, **changes}), detail)


def _linear_inverse(site: Site) -> Iterator[Instead]:
    rope = rope_at(site)
    if rope is not None and rope.kind == "linear":
        factor = rope.scaling["factor"]
        yield from _scaled(site, "linear", factor=1 / factor)
        yield from _scaled(site, "linear", factor=factor**2)


def _linear_invented(site: Site) -> Iterator[Instead]:
    rope = rope_at(site)
    if rope is not None and rope.kind == "default":
        for factor in (2.0, 4.0, 8.0, 16.0, 32.0):
            yield site.instead(
                frequencies=frequencies_of(site) / factor, detail=f"factor {factor:g}"
            )


def _dynamic_fixed(site: Site) -> Iterator[Instead]:
    rope = rope_at(site)
    if rope is None or rope.kind != "dynamic":
        return
    factor, dim = rope.scaling["factor"], rope.dim
    static = rope.theta * factor ** (dim / (dim - 2))
    yield site.instead(
        frequencies=rotary.base_frequencies(static, dim),
        detail="the base is raised by the factor whatever the length",
    )
    yield from _with(
        site, rope, "the base of the first forward pass is kept", len(site.facts.tokens[0][0])
    )


def _llama3_constants(site: Site) -> Iterator[Instead]:
    for factor in (8.0, 32.0):
        yield from _scaled(
            site,
            "llama3",
            factor=factor,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
        )


def _llama3_no_passage(site: Site) -> Iterator[Instead]:
    rope = rope_at(site)
    if rope is None or rope.kind != "llama3":
        return
    base, scaling = rotary.base_frequencies(rope.theta, rope.dim), rope.scaling
    turns = scaling["original_max_position_embeddings"] * base / (2 * math.pi)
    for name in ("low_freq_factor", "high_freq_factor"):
        kept = turns >= scaling[name]
        yield site.instead(
            frequencies=np.where(kept, base, base / scaling["factor"]),
            detail=f"a hard switch at {name}",
        )


def _yarn_ramp(site: Site) -> Iterator[Instead]:
    rope = rope_at(site)
    if rope is None or rope.kind != "yarn":
        return
    base = rotary.base_frequencies(rope.theta, rope.dim)
    factor, scaled = rope.scaling["factor"], frequencies_of(site)
    yield site.instead(frequencies=base / factor, detail="all pairs are divided by the factor")
    kept = (scaled * factor / base - 1) / (factor - 1)  # share of the unscaled frequency
    yield site.instead(
        frequencies=base * (1 - kept) + base / factor * kept, detail="fast and slow are exchanged"
    )


def _yarn_trained(site: Site) -> Iterator[Instead]:
    rope = rope_at(site)
    if rope is not None:
        yield from _scaled(site, "yarn", original_max_position_embeddings=rope.max_positions)


def _yarn_truncate(site: Site) -> Iterator[Instead]:
    rope = rope_at(site)
    if rope is not None and rope.kind == "yarn":
        yield from _scaled(site, "yarn", truncate=not rope.scaling["truncate"])


def _yarn_betas(site: Site) -> Iterator[Instead]:
    yield from _scaled(site, "yarn", beta_fast=32.0, beta_slow=1.0)
    yield from _scaled(site, "yarn", beta_fast=1.0, beta_slow=32.0)


def _attention_factor(site: Site) -> Iterator[Instead]:
    factor = site.constant("attention_factor") or 1.0
    rope = rope_at(site)
    if factor != 1.0:
        yield site.instead(attention_factor=1.0, detail="not applied: 1")
        yield site.instead(attention_factor=factor**2, detail=f"applied twice: {factor**2:.6g}")
        yield site.instead(attention_factor=1 / factor, detail=f"inverted: {1 / factor:.6g}")
    if rope is not None and rope.kind == "yarn" and rope.scaling["factor"] > 1:
        usual = 0.1 * math.log(rope.scaling["factor"]) + 1.0
        if not math.isclose(usual, factor):
            yield site.instead(
                attention_factor=usual,
                detail=f"0.1 ln(factor) + 1 = {usual:.6g} in place of the config's {factor:.6g}",
            )
    one = fitted_at(site, "attention_factor")
    if one is not None and differs(one, factor):
        words = in_words(one.value, one.error)
        yield site.instead(attention_factor=one.value, detail=f"{words} for {factor:.6g}")


def _other_layers(site: Site) -> Iterator[Instead]:
    ropes = ropes_of(site)
    for kind, rope in ropes.items():
        if len(ropes) > 1:
            yield from _with(site, rope, f"the rotation of {kind} layers")
    if len(ropes) > 1:
        full, sliding = ropes["full_attention"], ropes["sliding_attention"]
        mixed = replace(full, theta=sliding.theta)
        yield from _with(site, mixed, "full layers' scaling with sliding layers' base")
        yield from _with(
            site,
            replace(sliding, kind=full.kind, scaling=full.scaling),
            "sliding layers are scaled as well",
        )


def _scaling_ignored(kind: str, *reports: str, common: int, symptom: str) -> Fault:
    return Fault(
        id=f"rope-{kind}-ignored",
        title=f"RoPE scaling of type {kind} is ignored",
        topic="rope.scaling",
        kinds=ROTATED,
        variant=_ignored(kind),
        symptom=symptom,
        advice=f"Read rope_type (older: type) {kind!r} from rope_parameters (older: rope_scaling) "
        "and scale the frequencies; refuse a type that is not implemented.",
        distinguish="Long positions.",
        reports=reports,
        common=common,
    )


FAULTS = (
    _scaling_ignored(
        "linear",
        "Blaizzy/mlx-vlm#1709",
        "sgl-project/sglang#21537",
        common=4,
        symptom="Fluent, yet another distribution, the more so the longer the prompt.",
    ),
    _scaling_ignored(
        "dynamic",
        "huggingface/transformers#25104",
        common=3,
        symptom="Right up to the trained length, worse beyond it.",
    ),
    _scaling_ignored(
        "llama3",
        "ggml-org/llama.cpp#8676",
        "lablup/mlxcel#1355",
        common=5,
        symptom="Right for some thousand tokens, garbage beyond.",
    ),
    _scaling_ignored(
        "yarn",
        "Open-Athena/MarinFold#184",
        common=4,
        symptom="Right for the trained length, worse beyond; logits are flatter at any length.",
    ),
    Fault(
        id="rope-linear-inverse",
        title="RoPE's linear factor is applied the wrong way round, or twice",
        topic="rope.scaling",
        kinds=ROTATED,
        variant=_linear_inverse,
        symptom="Worse with every token.",
        advice="Divide positions or frequencies by the factor, once.",
        distinguish="Long positions.",
        common=2,
    ),
    Fault(
        id="rope-linear-invented",
        title="RoPE's positions are divided by a factor that the config does not have",
        topic="rope.scaling",
        kinds=ROTATED,
        variant=_linear_invented,
        constant="position_factor",
        symptom="Fluent, worse with every token.",
        advice="Scale only the layers and models whose rope_type says so.",
        distinguish="Long positions.",
        common=2,
    ),
    Fault(
        id="rope-dynamic-fixed",
        title="RoPE's dynamic base is computed once and kept",
        topic="rope.scaling_length",
        kinds=ROTATED,
        variant=_dynamic_fixed,
        symptom="Wrong below the trained length, or from the point on where the sequence outgrows "
        "it; with a cache another model than without.",
        advice="Compute the base from the length of the sequence at every forward pass; keys that "
        "were rotated with an older base stay as they are.",
        distinguish="A prompt that crosses the trained length while it is decoded.",
        reports=("huggingface/transformers#25104", "ggml-org/llama.cpp#24875"),
        common=3,
    ),
    Fault(
        id="rope-llama3-constants",
        title="RoPE's llama3 scaling uses built-in factors",
        topic="rope.scaling",
        kinds=ROTATED,
        variant=_llama3_constants,
        symptom="Small differences that grow with the position.",
        advice="Take factor, low_freq_factor, high_freq_factor and "
        "original_max_position_embeddings from the config: Llama 3.1 has factor 8, 3.2 has 32.",
        distinguish="Long positions.",
        reports=("TransformerLensOrg/TransformerLens#910",),
        common=4,
    ),
    Fault(
        id="rope-llama3-passage",
        title="RoPE's llama3 scaling switches without the passage between long and short waves",
        topic="rope.scaling",
        kinds=ROTATED,
        variant=_llama3_no_passage,
        symptom="A few pairs of each head are wrong, more with every token.",
        advice="Between low_freq_factor and high_freq_factor turns, mix scaled and unscaled "
        "frequencies linearly.",
        distinguish="The pairs between the two factors; a head dimension with none hides it.",
        common=2,
    ),
    Fault(
        id="rope-yarn-ramp",
        title="RoPE's YaRN scaling treats fast and slow pairs wrongly",
        topic="rope.scaling",
        kinds=ROTATED,
        variant=_yarn_ramp,
        symptom="Worse with every token.",
        advice="Keep pairs that turn more than beta_fast times within the trained length, divide "
        "those that turn less than beta_slow times, pass linearly between.",
        distinguish="Single pairs.",
        common=2,
    ),
    Fault(
        id="rope-yarn-trained-length",
        title="RoPE's YaRN scaling takes max_position_embeddings for the trained length",
        topic="rope.scaling",
        kinds=ROTATED,
        variant=_yarn_trained,
        symptom="Logits that differ by some units between two releases of one library.",
        advice="Use original_max_position_embeddings of rope_parameters for the correction range.",
        distinguish="Pairs in the passage between fast and slow.",
        reports=("huggingface/transformers#36877", "huggingface/transformers#38224"),
        common=4,
    ),
    Fault(
        id="rope-yarn-truncate",
        title="RoPE's YaRN correction range is rounded to whole pairs against the config",
        topic="rope.scaling",
        kinds=ROTATED,
        variant=_yarn_truncate,
        symptom="High error of log probabilities against the trainer.",
        advice="Follow truncate: gpt-oss says false, the default is true.",
        distinguish="Pairs in the passage between fast and slow.",
        reports=("vllm-project/vllm#27722",),
        common=3,
    ),
    Fault(
        id="rope-yarn-betas",
        title="RoPE's YaRN scaling uses other betas than the config's",
        topic="rope.scaling",
        kinds=ROTATED,
        variant=_yarn_betas,
        symptom="A few pairs of each head are wrong, more with every token.",
        advice="Read beta_fast and beta_slow from the config; 32 and 1 are only defaults.",
        distinguish="Pairs in the passage between fast and slow.",
        common=2,
    ),
    Fault(
        id="rope-attention-factor",
        title="RoPE's attention factor is another one",
        topic="rope.attention_factor",
        kinds=ROTATED,
        variant=_attention_factor,
        constant="attention_factor",
        symptom="Attention is sharper or flatter at every length; position 0 differs too.",
        advice="Multiply cosines and sines by attention_factor; with mscale and mscale_all_dim it "
        "is the ratio of the two magnitudes, else 0.1 ln(factor) + 1.",
        distinguish="Position 0, where nothing else of RoPE shows.",
        reports=(
            "vllm-project/vllm#46280",
            "vllm-project/vllm#48621",
            "ggml-org/llama.cpp#17945",
            "kekzl/imp#880",
        ),
        common=4,
    ),
    Fault(
        id="rope-layer-types",
        title="RoPE of the other layer type is used",
        topic="rope.layer_types",
        kinds=ROTATED,
        variant=_other_layers,
        symptom="Fluent, yet another distribution from some hundred tokens on.",
        advice="Full layers rotate with rope_theta and its scaling, sliding layers with "
        "rope_local_base_freq unscaled: build one table for each layer type.",
        distinguish="A layer of the other type.",
        reports=("huggingface/candle#2917", "Blaizzy/mlx-vlm#1709"),
        common=4,
    ),
)
