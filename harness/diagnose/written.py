"""Where the config says what a constant is, in the spelling of this file."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

_DEFAULT = "default of the family, no key"

_EPS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")

_FACTORS = {
    "embedding_multiplier": ("embedding_multiplier",),
    "residual_multiplier": ("residual_multiplier",),
    "logits_scale": ("logits_scaling", "logit_scale"),
    "window": ("sliding_window", "attention_chunk_size"),
    "eps": _EPS,
}

#: Objects of a config that speak of the rotation.
_ROPE = ("rope_parameters", "rope_scaling")


def where_written(
    constant: str, configured: float, config: Mapping[str, Any], kind: str, layer: int | None
) -> str:
    """Which key of a config a constant comes from, or what it is made of.

    Args:
        constant: Its name in a :class:`harness.result.Fit`.
        configured: Its value, which several keys may have: the first that does is named.
        config: config.json as written.
        kind: Kind of the tap, for example ``attn.scores_capped``.
        layer: Index of the layer.
    """
    match constant:
        case "rope_theta":
            return _theta(configured, config, layer)
        case "factor" | "attention_factor":
            return _of_rope(constant, configured, config, layer)
        case "rope_frequency":
            return "radians per position of one pair, from theta and its scaling"
        case "position_offset":
            return "positions begin at 0, no key"
        case "scale":
            return _scale(configured, config, layer)
        case "softcap":
            own = "final_logit_softcapping" if kind == "logits" else "attn_logit_softcapping"
            return own if own in config else _DEFAULT
        case "embedding_multiplier" if constant not in config:
            return _root(config)
    return _named(_FACTORS.get(constant, (constant,)), configured, config)


def _named(keys: tuple[str, ...], value: float, config: Mapping[str, Any]) -> str:
    there = [key for key in keys if config.get(key) is not None]
    right = [key for key in there if _same(config[key], value)]
    return next(iter([*right, *there]), _DEFAULT)


def _root(config: Mapping[str, Any]) -> str:
    channels = config.get("hidden_size")
    return "hidden_size ** 0.5" + ("" if channels is None else f" = {channels} ** 0.5")


def _same(said: Any, value: float) -> bool:
    if isinstance(said, bool) or not isinstance(said, int | float):
        return False
    return math.isclose(said, value, rel_tol=1e-6)


def _objects(
    config: Mapping[str, Any], layer: int | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Objects that speak of the rotation, that of this layer's type first."""
    kinds = config.get("layer_types")
    own = kinds[layer] if isinstance(kinds, list) and layer is not None else None
    for key in _ROPE:
        said = config.get(key)
        if not isinstance(said, Mapping):
            continue
        nested = {k: v for k, v in said.items() if isinstance(v, Mapping)}
        for kind in sorted(nested, key=lambda k: k != own):
            yield f"{key}.{kind}", nested[kind]
        if not nested:
            yield key, said


def _theta(value: float, config: Mapping[str, Any], layer: int | None) -> str:
    for path, said in _objects(config, layer):
        if _same(said.get("rope_theta"), value):
            return f"{path}.rope_theta"
    for key in ("rope_theta", "rope_local_base_freq", "rotary_emb_base"):
        if _same(config.get(key), value):
            return f"{key} (top level)"
    return _DEFAULT


def _of_rope(name: str, value: float, config: Mapping[str, Any], layer: int | None) -> str:
    for path, said in _objects(config, layer):
        if _same(said.get(name), value):
            return f"{path}.{name}"
    for path, said in _objects(config, layer):
        if name == "attention_factor" and said.get("rope_type", said.get("type")) == "yarn":
            return f"made of {path}.factor, no key of its own"
    return "1 where nothing scales, no key" if value == 1 else _DEFAULT


def _scale(value: float, config: Mapping[str, Any], layer: int | None) -> str:
    multiplier = config.get("attention_multiplier")
    if multiplier is not None and _same(multiplier, value):
        return "attention_multiplier"
    for text, said in _scales(config, layer):
        if _same(said, value):
            return text
    return "made of sizes in the config"


def _scales(config: Mapping[str, Any], layer: int | None) -> Iterator[tuple[str, float]]:
    """What a family may make the scale of, in words and as a number."""
    scalar = config.get("query_pre_attn_scalar")
    if isinstance(scalar, int | float) and scalar > 0:
        yield f"query_pre_attn_scalar ** -0.5 = {scalar:g} ** -0.5", scalar**-0.5
    heads = config.get("num_attention_heads", config.get("n_head"))
    channels = config.get("hidden_size", config.get("n_embd"))
    own = config.get("head_dim")
    name, dim = "head_dim", own
    if own is None and heads and channels:
        name, dim = "(hidden_size / num_attention_heads)", channels // heads
        name = "(n_embd / n_head)" if "n_embd" in config else name
    if isinstance(dim, int) and dim > 0:
        text = f"{name} ** -0.5 = {dim} ** -0.5"
        yield text, dim**-0.5
        if layer is not None:
            yield f"{text} / (layer + 1)", dim**-0.5 / (layer + 1)
    yield "scale_attn_weights = false", 1.0
    if layer is not None:
        yield "scale_attn_by_inverse_layer_idx", 1.0 / (layer + 1)
