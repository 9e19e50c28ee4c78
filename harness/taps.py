"""Names of the intermediates that engines hand over, and the axes of each.

One alphabet for axes: B batch, T query positions, S key positions, H heads, K kv heads, D head
dim, C model dim, F MLP dim, E experts, V vocabulary, P fused projection.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

#: What an axis letter means, for messages and reports.
AXES = {
    "B": "batch",
    "T": "position",
    "S": "key position",
    "H": "head",
    "K": "kv head",
    "D": "head element",
    "C": "channel",
    "F": "MLP channel",
    "E": "expert",
    "V": "vocabulary entry",
    "P": "channel of the fused projection",
}

#: Axes of each tap, by its name without the layer prefix.
AXES_OF_TAP = {
    "embed": "BTC",
    "pos_embed": "BTC",
    "embed_sum": "BTC",
    "embed_scaled": "BTC",
    "attn_norm": "BTC",
    "attn.qkv": "BTP",
    "attn.q": "BHTD",
    "attn.k": "BKTD",
    "attn.v": "BKTD",
    "attn.q_norm": "BHTD",
    "attn.k_norm": "BKTD",
    "attn.q_rope": "BHTD",
    "attn.k_rope": "BKTD",
    "attn.keys": "BKSD",
    "attn.values": "BKSD",
    "attn.scores": "BHTS",
    "attn.scores_capped": "BHTS",
    "attn.mask": "BTS",
    "attn.probs": "BHTS",
    "attn.context": "BHTD",
    "attn.out": "BTC",
    "attn_post_norm": "BTC",
    "resid_mid": "BTC",
    "mlp_norm": "BTC",
    "mlp.router": "BTE",
    "mlp.chosen": "BTE",
    "mlp.router_weights": "BTE",
    "mlp.gate": "BTF",
    "mlp.up": "BTF",
    "mlp.fc": "BTF",
    "mlp.act": "BTF",
    "mlp.prod": "BTF",
    "mlp.out": "BTC",
    "mlp_post_norm": "BTC",
    "resid_post": "BTC",
    "final_norm": "BTC",
    "logits_uncapped": "BTV",
    "logits_unscaled": "BTV",
    "logits": "BTV",
}

#: Kinds of taps that are booleans.
BOOLEAN = frozenset({"attn.mask", "mlp.chosen"})

_LAYERED = re.compile(r"layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class TapName:
    """A tap's name taken apart.

    Attributes:
        layer: Index of the decoder layer, None outside the layers.
        kind: The name without its layer prefix, for example ``attn.q_rope``.
    """

    layer: int | None
    kind: str


def split(tap: str) -> TapName:
    """Take a tap's name apart: ``layers.3.attn.q`` is layer 3, kind ``attn.q``."""
    match = _LAYERED.fullmatch(tap)
    if match is None:
        return TapName(None, tap)
    return TapName(int(match[1]), match[2])


def axes_of(tap: str) -> str:
    """Axis letters of a tap, for example ``BHTD``; empty for a tap that the table lacks."""
    return AXES_OF_TAP.get(split(tap).kind, "")


def declared(unavailable: Mapping[str, str], tap: str) -> str | None:
    """The reason why an engine cannot give a tap, None if it does not say that it cannot.

    Args:
        unavailable: Reasons by the kind of tap (``attn.scores``), by its whole name
            (``layers.3.attn.q``) or by a pattern of whole names (``layers.[4-9].*``, ``*``).
        tap: Name of the tap.
    """
    for key in (tap, split(tap).kind):
        if key in unavailable:
            return unavailable[key]
    return next((why for pattern, why in unavailable.items() if fnmatchcase(tap, pattern)), None)


def flow_order(tap: str) -> tuple[int, int]:
    """Sorts taps as data flows through a model: what is before the layers, the layers, the rest."""
    layer, kind = split(tap).layer, split(tap).kind
    kinds = list(AXES_OF_TAP)
    rank = kinds.index(kind) if kind in AXES_OF_TAP else len(kinds)
    if layer is not None:
        return layer, rank
    return (-1 if rank < kinds.index("attn_norm") else 1 << 30), rank


def chunk_name(chunk: int, prefill: int = 1) -> str:
    """A forward pass in words: the prompt, in one pass or in several, then decoding steps."""
    if chunk >= prefill:
        return f"decoding step {chunk - prefill + 1}"
    return "prefill" if prefill == 1 else f"pass {chunk + 1} of {prefill} of the prefill"


def format_shape(axes: str, shape: tuple[int, ...]) -> str:
    """A shape with its axis letters: ``[B=1, H=9, T=5, D=64]``."""
    if len(axes) != len(shape):
        return "[" + ", ".join(map(str, shape)) + "]"
    return "[" + ", ".join(f"{a}={n}" for a, n in zip(axes, shape, strict=True)) + "]"
