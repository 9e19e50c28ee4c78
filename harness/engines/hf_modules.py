"""Which module of a transformers model makes which tap.

One table a layout, found by ``model_type``; the next family is one more entry. Names of modules
are those that ``model.named_modules()`` shows; ``{n}`` is the index of a layer. What happens
inside attention is in :mod:`harness.engines.hf_attention`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from . import hf_experts


def _first(passed: Any) -> Any:
    """The tensor of what goes into a module or comes out of it."""
    return passed[0] if isinstance(passed, tuple) else passed


@dataclass(frozen=True, slots=True)
class Hook:
    """One tap on the boundary of a module.

    Attributes:
        tap: Name of the tap, with ``{n}`` for the layer.
        module: Name of the module, with ``{n}`` for the layer.
        side: Whether the tap is what goes into the module or what comes out.
        layout: How the array lies there: ``BTC`` as it is, ``BT(HD)`` with heads still merged,
            ``BTHD`` with heads before they are moved ahead of the positions, ``1TC`` with one row
            for all sequences of a batch, ``(BT)C`` with the tokens of a batch in one row.
        where: Key of the config that must be set for the tap to be there, neither null nor false;
            with ``!`` ahead, that must not be; empty for always.
        layer: Layer that the module lies in although the tap lies outside the layers.
        unless: Module that a layer without this tap has in its place; empty for none.
        take: From all that goes in, or all that comes out, to the tensor.
    """

    tap: str
    module: str
    side: Literal["in", "out"] = "out"
    layout: Literal["BTC", "BT(HD)", "BTHD", "1TC", "(BT)C"] = "BTC"
    where: str = ""
    layer: int | None = None
    unless: str = ""
    take: Callable[[Any], Any] = _first


#: Kinds of taps that the queries, keys and values are which the attention function is called with;
#: empty for one that a module makes already.
Inputs = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ModuleMap:
    """The taps of one layout.

    Attributes:
        hooks: Those on module boundaries; those of one layer in the order in which they run.
        layer: Name of a layer's module.
        attention: Name of a layer's attention module.
        inputs: What the attention function is called with.
        own_eager: Flag of the config to the method of the attention module that then runs, with
            eager attention, in place of the eager function.
        scores_cap: Key of the config that caps the scores where it is set; empty if none does.
        packed: End of the name of a parameter that holds those of all experts to the names of
            the linear maps in it; see :func:`harness.engines.hf_parameters.unpacked`.
        stacked: Names of parameters that differ in one number, ``*``, of which the reference makes
            one: [*, 1, ...] under that name.
    """

    hooks: tuple[Hook, ...]
    layer: str = "model.layers.{n}"
    attention: str = "model.layers.{n}.self_attn"
    inputs: Inputs = ("attn.q_rope", "attn.k_rope", "")
    own_eager: Mapping[str, str] = field(default_factory=dict)
    scores_cap: str = ""
    packed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()


_LLAMA_HOOKS = (
    Hook("embed", "model.embed_tokens"),
    Hook("layers.{n}.attn_norm", "model.layers.{n}.input_layernorm"),
    Hook("layers.{n}.attn.q", "model.layers.{n}.self_attn.q_proj", layout="BT(HD)"),
    Hook("layers.{n}.attn.k", "model.layers.{n}.self_attn.k_proj", layout="BT(HD)"),
    Hook("layers.{n}.attn.v", "model.layers.{n}.self_attn.v_proj", layout="BT(HD)"),
    Hook("layers.{n}.attn.out", "model.layers.{n}.self_attn.o_proj"),
    Hook("layers.{n}.resid_mid", "model.layers.{n}.post_attention_layernorm", side="in"),
    Hook("layers.{n}.mlp_norm", "model.layers.{n}.post_attention_layernorm"),
    Hook("layers.{n}.mlp.gate", "model.layers.{n}.mlp.gate_proj"),
    Hook("layers.{n}.mlp.up", "model.layers.{n}.mlp.up_proj"),
    Hook("layers.{n}.mlp.act", "model.layers.{n}.mlp.act_fn"),
    Hook("layers.{n}.mlp.prod", "model.layers.{n}.mlp.down_proj", side="in"),
    Hook("layers.{n}.mlp.out", "model.layers.{n}.mlp.down_proj"),
    Hook("layers.{n}.resid_post", "model.layers.{n}"),
    Hook("final_norm", "model.norm"),
)

_GRANITE_HOOKS = (
    *_LLAMA_HOOKS,
    Hook("embed_scaled", "model.layers.0.input_layernorm", side="in", layer=0),
    Hook("logits_unscaled", "lm_head"),
)

_QWEN3_HOOKS = (
    *_LLAMA_HOOKS,
    Hook("layers.{n}.attn.q_norm", "model.layers.{n}.self_attn.q_norm", layout="BTHD"),
    Hook("layers.{n}.attn.k_norm", "model.layers.{n}.self_attn.k_norm", layout="BTHD"),
)

_DENSE, _ROUTER = "model.layers.{n}.mlp.gate_proj", "model.layers.{n}.mlp.gate"
_INNER = tuple(f"layers.{{n}}.mlp.{kind}" for kind in ("gate", "up", "act", "prod"))


def _router_hooks(router: str, *, unless: str = "") -> tuple[Hook, ...]:
    """What a router hands over."""
    kinds = {
        "router": hf_experts.router_logits,
        "chosen": hf_experts.chosen,
        "router_weights": hf_experts.router_weights,
    }
    return tuple(
        Hook(f"layers.{{n}}.mlp.{kind}", router, layout="(BT)C", unless=unless, take=take)
        for kind, take in kinds.items()
    )


_QWEN3_MOE_HOOKS = (
    *(
        replace(hook, unless=_ROUTER) if hook.tap in _INNER else hook
        for hook in _QWEN3_HOOKS
        if hook.tap != "layers.{n}.mlp.out"
    ),
    *_router_hooks(_ROUTER, unless=_DENSE),
    Hook("layers.{n}.mlp.out", "model.layers.{n}.mlp"),
)

_GPT_OSS_HOOKS = (
    *(hook for hook in _LLAMA_HOOKS if not hook.tap.startswith("layers.{n}.mlp.")),
    *_router_hooks("model.layers.{n}.mlp.router"),
    Hook("layers.{n}.mlp.out", "model.layers.{n}.mlp"),
)

_GEMMA3_HOOKS = (
    *(
        hook
        for hook in _LLAMA_HOOKS
        if hook.tap not in ("layers.{n}.resid_mid", "layers.{n}.mlp_norm")
    ),
    Hook("layers.{n}.attn.q_norm", "model.layers.{n}.self_attn.q_norm"),
    Hook("layers.{n}.attn.k_norm", "model.layers.{n}.self_attn.k_norm"),
    Hook("layers.{n}.attn_post_norm", "model.layers.{n}.post_attention_layernorm"),
    Hook("layers.{n}.resid_mid", "model.layers.{n}.pre_feedforward_layernorm", side="in"),
    Hook("layers.{n}.mlp_norm", "model.layers.{n}.pre_feedforward_layernorm"),
    Hook("layers.{n}.mlp_post_norm", "model.layers.{n}.post_feedforward_layernorm"),
    Hook("logits_uncapped", "lm_head", where="final_logit_softcapping"),
)

_SEQUENTIAL = ("layers.{n}.resid_mid", "layers.{n}.mlp_norm")

_STABLELM_HOOKS = (
    *(
        replace(hook, where="!use_parallel_residual") if hook.tap in _SEQUENTIAL else hook
        for hook in _LLAMA_HOOKS
    ),
    *(
        Hook(
            f"layers.{{n}}.attn.{name}_norm",
            f"model.layers.{{n}}.self_attn.{name}_layernorm",
            where="qk_layernorm",
        )
        for name in "qk"
    ),
)

_GPT2_HOOKS = (
    Hook("embed", "transformer.wte"),
    Hook("pos_embed", "transformer.wpe", layout="1TC"),
    Hook("embed_sum", "transformer.drop", side="in"),
    Hook("layers.{n}.attn_norm", "transformer.h.{n}.ln_1"),
    Hook("layers.{n}.attn.qkv", "transformer.h.{n}.attn.c_attn"),
    Hook("layers.{n}.attn.out", "transformer.h.{n}.attn.c_proj"),
    Hook("layers.{n}.resid_mid", "transformer.h.{n}.ln_2", side="in"),
    Hook("layers.{n}.mlp_norm", "transformer.h.{n}.ln_2"),
    Hook("layers.{n}.mlp.fc", "transformer.h.{n}.mlp.c_fc"),
    Hook("layers.{n}.mlp.act", "transformer.h.{n}.mlp.act"),
    Hook("layers.{n}.mlp.out", "transformer.h.{n}.mlp.c_proj"),
    Hook("layers.{n}.resid_post", "transformer.h.{n}"),
    Hook("final_norm", "transformer.ln_f"),
)

MODULE_MAPS = {
    "gemma3_text": ModuleMap(_GEMMA3_HOOKS, scores_cap="attn_logit_softcapping"),
    "gpt2": ModuleMap(
        _GPT2_HOOKS,
        layer="transformer.h.{n}",
        attention="transformer.h.{n}.attn",
        inputs=("attn.q", "attn.k", "attn.v"),
        own_eager={"reorder_and_upcast_attn": "_upcast_and_reordered_attn"},
    ),
    "gpt_oss": ModuleMap(_GPT_OSS_HOOKS),
    "granite": ModuleMap(_GRANITE_HOOKS),
    "llama": ModuleMap(_LLAMA_HOOKS),
    "qwen3": ModuleMap(_QWEN3_HOOKS),
    "stablelm": ModuleMap(
        _STABLELM_HOOKS,
        stacked=tuple(f"self_attn.{name}_layernorm.norms.*.weight" for name in "qk"),
    ),
    "qwen3_moe": ModuleMap(
        _QWEN3_MOE_HOOKS,
        packed={
            "experts.gate_up_proj": ("gate_proj", "up_proj"),
            "experts.down_proj": ("down_proj",),
        },
    ),
}
