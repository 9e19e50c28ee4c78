"""What is known not to hold, and why: laws that released engines break, and what engines lack.

Every entry is strict: it carries an example that must still break the law, so that a release that
mends it is noticed, and whatever breaks without an entry fails.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..taps import declared
from .candidate import Candidate
from .law import Law
from .models import Model, sizes_of


def _whatever(model: Model, arguments: Mapping[str, Any]) -> bool:
    """Any arguments."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A law that a released engine breaks.

    Attributes:
        name: Short name, in the names of tests.
        law: Id of the law.
        engines: Names of engines that break it.
        when: Whether a model is one of those with which it is broken, by family and config.
        given: Whether it is broken with such a model and these arguments; with all if not said.
        model: The smallest one.
        arguments: Of the check that breaks on it.
        says: What goes wrong, and why.
        releases: Releases that were tried and have it, for example ``transformers 5.24.0``.
        until: Release of transformers with which the entry is to be looked at again in any case.
        link: Public report, empty if there is none that we know.
    """

    name: str
    law: str
    engines: tuple[str, ...]
    when: Callable[[Model], bool]
    given: Callable[[Model, Mapping[str, Any]], bool] = _whatever
    model: Model
    arguments: Mapping[str, Any] = field(default_factory=dict)
    says: str
    releases: str
    until: str
    link: str = ""


#: Abilities that our own engines lack, with the reason.
LACKS = {
    ("reference", "beams"): "it has no search of its own; greedy tokens come from the harness",
    ("reference", "blank"): "it has no columns without a token",
    ("reference", "hidden_states"): "it has taps in their place",
    ("reference", "packed"): "it runs one sequence a row",
    ("reference", "resave"): "it writes no checkpoints",
    ("reference", "rope:longrope"): "it refuses configs of that type",
    ("reference", "mask:additive"): "it makes its own masks",
    ("reference", "mask:additive-inf"): "it makes its own masks",
    ("reference", "mask:boolean"): "it makes its own masks",
    ("reference", "mask:columns"): "it makes its own masks",
    ("reference", "dtype:bfloat16"): "NumPy computes in float32 and float64",
    ("reference", "dtype:float16"): "NumPy computes in float32 and float64",
    ("reference", "cache:static"): "it has one kind of cache",
    ("reference", "cache:quantised"): "it has one kind of cache",
    ("reference", "cache:unwindowed"): "it has one kind of cache",
    ("reference", "cache:recorded"): "it has one kind of cache",
    ("reference", "cache:float8"): "it has one kind of cache",
}


#: Sizes that the models of the ledger share.
_SIZES = {
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}

_ALL = "transformers 5.0.0 to 5.24.0 (5.0.0, 5.4.0, 5.9.0, 5.14.1, 5.19.0 and 5.24.0 tried)"

#: All known breaks.
BREAKS: tuple[Break, ...] = (
    Break(
        name="yarn-truncate-by-layer-type",
        law="rope-frequencies",
        engines=("hf:eager", "hf:sdpa"),
        when=lambda model: sizes_of(model).ropes_apart,
        given=lambda model, arguments: any(
            rope["rope_type"] == "yarn" and not rope.get("truncate", True)
            for rope in arguments["ropes"].values()
        ),
        model=Model(
            family="gemma3_text",
            config={
                **_SIZES,
                "num_hidden_layers": 2,
                "sliding_window": 4,
                "layer_types": ["full_attention", "sliding_attention"],
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
            },
        ),
        arguments={
            "rows": [[3, 4]],
            "ropes": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 8.0,
                    "original_max_position_embeddings": 512,
                    "truncate": False,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "longest": 4096,
        },
        says="with rope parameters for each layer type, YaRN's passage begins and ends at whole "
        "pairs although `truncate` is false; with one set for all layers the key is followed",
        releases="transformers 5.9.0 to 5.24.0 (5.9.0, 5.14.1, 5.19.0 and 5.24.0 tried; 5.4.0 "
        "cannot load such a config)",
        until="6",
    ),
    Break(
        name="eager-boolean-mask",
        law="mask-form-boolean",
        engines=("hf:eager",),
        when=lambda model: True,
        model=Model(family="llama", config={**_SIZES, **_ROPE}),
        arguments={"rows": [[3, 4]], "chunks": None},
        says="eager attention adds a mask of booleans to the scores as 0 and 1, so that nothing is "
        "hidden and what should be hidden is only a little less likely; sdpa takes the same mask "
        "for what it is, and there is no warning",
        releases=_ALL,
        until="6",
        link="https://github.com/huggingface/transformers/pull/41443",
    ),
    Break(
        name="gpt-oss-packed",
        law="mask-packed",
        engines=("hf:eager",),
        when=lambda model: sizes_of(model).family == "gpt_oss",
        model=Model(
            family="gpt_oss",
            config={
                **_SIZES,
                **_ROPE,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "sliding_window": 4,
                "layer_types": ["full_attention"],
                "tie_word_embeddings": False,
            },
        ),
        arguments={"rows": [[[3, 4], [5]]]},
        says="positions that begin anew separate sequences in other families; gpt_oss makes its "
        "masks without looking at positions, so that a sequence sees those before it in its row",
        releases=_ALL,
        until="6",
        link="https://github.com/huggingface/transformers/pull/39997",
    ),
    Break(
        name="window-of-one",
        law="cache-chunks",
        engines=("hf:eager", "hf:sdpa"),
        when=lambda model: 1 in sizes_of(model).windows,
        given=lambda model, arguments: len(arguments["chunks"]) > 1,
        model=Model(
            family="qwen3",
            config={
                **_SIZES,
                **_ROPE,
                "use_sliding_window": True,
                "sliding_window": 1,
                "max_window_layers": 0,
                "layer_types": ["sliding_attention"],
            },
        ),
        arguments={"rows": [[3, 4]], "chunks": [1, 1]},
        says="a layer of the dynamic cache keeps the columns from -window + 1 on, which for a "
        "window of one is all of them; the mask of a single new token hides none, and that of "
        "several is too narrow, which is an error",
        releases=_ALL,
        until="6",
    ),
    Break(
        name="window-of-one-cached",
        law="mask-window-edge",
        engines=("hf:eager", "hf:sdpa"),
        when=lambda model: True,
        given=lambda model, arguments: (
            arguments.get("window") == 1 and len(arguments.get("chunks") or ()) > 1
        ),
        model=Model(
            family="qwen3",
            config={
                **_SIZES,
                **_ROPE,
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["sliding_attention"],
            },
        ),
        arguments={"rows": [[3, 4]], "at": 0, "shift": 1, "window": 1, "chunks": [1, 1]},
        says="a cache of a layer whose window is 1 keeps all columns in place of none, for what "
        "it keeps is the slice from -W + 1 on, and -0 is the first column: a decoding step reads "
        "the whole past, without a word; a step of several tokens ends in an error about shapes",
        releases=_ALL,
        until="6",
    ),
    Break(
        name="dynamic-rope-batch",
        law="mask-left-padding",
        engines=("hf:eager", "hf:sdpa", "reference"),
        when=lambda model: "dynamic" in sizes_of(model).rope_types,
        given=lambda model, arguments: max(map(len, arguments["rows"])) > sizes_of(model).longest,
        model=Model(
            family="llama",
            config={
                **_SIZES,
                "max_position_embeddings": 4,
                "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
            },
        ),
        arguments={"rows": [[3, 4, 5, 6, 7, 8, 9, 3], [5, 6, 7]], "chunks": None},
        says="with dynamic rope scaling one frequency table is made for a whole batch, from its "
        "longest row, so that a sequence within the trained length has other logits beside one "
        "that is beyond it than alone; our reference does the same, to be comparable",
        releases=_ALL,
        until="6",
        link="https://github.com/QwenLM/Qwen/issues/401",
    ),
)


def lacking(law: Law, engine: str, candidate: Candidate) -> str:
    """Why a law is not tried with an engine: what it lacks, with the reason; empty if nothing."""
    lacks = [
        f"lacks {need}: {LACKS.get((engine, need), 'it does not say that it can')}"
        for need in law.needs
        if need not in candidate.abilities
    ]
    for kind in law.taps:
        reason = declared(candidate.engine.unavailable, f"layers.0.{kind}")
        if reason is not None:
            lacks.append(f"lacks tap {kind}: {reason}")
    return "; ".join(lacks)


def broken_throughout(law: str, engine: str, models: Sequence[Model]) -> Break | None:
    """What is known, if an engine breaks a law with each of some models, whatever the arguments."""
    for entry in BREAKS:
        mine = entry.law == law and engine in entry.engines and entry.given is _whatever
        if mine and models and all(entry.when(model) for model in models):
            return entry
    return None


def breaks_known(law: str, engine: str, model: Model, arguments: Mapping[str, Any]) -> bool:
    """Whether it is known that an engine breaks a law on an example."""
    return any(
        entry.law == law
        and engine in entry.engines
        and entry.when(model)
        and entry.given(model, arguments)
        for entry in BREAKS
    )
