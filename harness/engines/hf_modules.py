"""Which module of a transformers model makes which tap.

One table a layout, found by ``model_type``; the next family is one more entry. Names of modules
are those that ``model.named_modules()`` shows; ``{n}`` is the index of a layer. What happens
inside attention is in :mod:`harness.engines.hf_attention`.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Hook:
    """One tap on the boundary of a module.

    Attributes:
        tap: Name of the tap, with ``{n}`` for the layer.
        module: Name of the module, with ``{n}`` for the layer.
        side: Whether the tap is what goes into the module or what comes out.
        layout: How the array lies there: ``BTC`` as it is, ``BT(HD)`` with heads still merged,
            ``BTHD`` with heads before they are moved ahead of the positions.
    """

    tap: str
    module: str
    side: Literal["in", "out"] = "out"
    layout: Literal["BTC", "BT(HD)", "BTHD"] = "BTC"


@dataclass(frozen=True, slots=True)
class ModuleMap:
    """The taps of one layout.

    Attributes:
        hooks: Those on module boundaries; those of one layer in the order in which they run.
        layer: Name of a layer's module.
        attention: Name of a layer's attention module.
    """

    hooks: tuple[Hook, ...]
    layer: str = "model.layers.{n}"
    attention: str = "model.layers.{n}.self_attn"


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

_QWEN3_HOOKS = (
    *_LLAMA_HOOKS,
    Hook("layers.{n}.attn.q_norm", "model.layers.{n}.self_attn.q_norm", layout="BTHD"),
    Hook("layers.{n}.attn.k_norm", "model.layers.{n}.self_attn.k_norm", layout="BTHD"),
)

MODULE_MAPS = {
    "llama": ModuleMap(_LLAMA_HOOKS),
    "qwen3": ModuleMap(_QWEN3_HOOKS),
}
