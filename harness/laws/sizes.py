"""Sizes of a model as its config gives them, under the field's letters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sizes:
    """What laws ask of a config.

    Attributes:
        config: The config, with the family's defaults for keys that are absent.
    """

    config: Mapping[str, Any]

    @property
    def family(self) -> str:
        """``model_type``."""
        return str(self.config["model_type"])

    @property
    def vocab(self) -> int:
        """V."""
        return int(self.config["vocab_size"])

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return int(self._either("num_hidden_layers", "n_layer"))

    @property
    def channels(self) -> int:
        """C."""
        return int(self._either("hidden_size", "n_embd"))

    @property
    def heads(self) -> int:
        """H."""
        return int(self._either("num_attention_heads", "n_head"))

    @property
    def kv_heads(self) -> int:
        """K."""
        return int(self.config.get("num_key_value_heads") or self.heads)

    @property
    def head_dim(self) -> int:
        """D."""
        return int(self.config.get("head_dim") or self.channels // self.heads)

    @property
    def rotates(self) -> bool:
        """Whether queries and keys are rotated; otherwise positions are learned."""
        return self.family != "gpt2"

    @property
    def experts(self) -> bool:
        """Whether tokens choose experts: a choice can turn on a rounding."""
        return bool(self.config.get("num_experts") or self.config.get("num_local_experts"))

    @property
    def longest(self) -> int:
        """Number of positions that the model was made for."""
        return int(self._either("max_position_embeddings", "n_positions"))

    def window(self, layer: int) -> int | None:
        """Size of the sliding window of a layer, None for full attention."""
        sliding = self.kind(layer) == "sliding_attention"
        return int(self.config["sliding_window"]) if sliding else None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer."""
        return tuple(self.window(layer) for layer in range(self.layers))

    def rope(self, layer: int) -> Mapping[str, Any]:
        """Rope parameters of a layer: ``rope_type``, ``rope_theta`` and what the type takes."""
        kind = self.kind(layer)
        given: Mapping[str, Any] = self.config.get("rope_parameters") or {}
        own = dict(given.get(kind, given))
        # Flat keys are what configs had before transformers 5, and no default has them.
        if kind == "sliding_attention" and kind in given:
            flat: Mapping[str, Any] = {"rope_theta": self.config.get("rope_local_base_freq")}
        else:
            names = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
            flat = {name: self.config.get(name) for name in names}
            flat = {**flat, **(self.config.get("rope_scaling") or {})}
        own |= {name: value for name, value in flat.items() if value is not None}
        return {"rope_type": own.get("type", "default"), **own}

    @property
    def ropes_apart(self) -> bool:
        """Whether each layer type has rope parameters of its own."""
        return "full_attention" in (self.config.get("rope_parameters") or {})

    @property
    def rope_types(self) -> frozenset[str]:
        """Types of scaling of all layers."""
        return frozenset(str(self.rope(layer)["rope_type"]) for layer in range(self.layers))

    @property
    def normalised(self) -> bool:
        """Whether queries and keys are normalised before they are rotated."""
        families = ("gemma3_text", "qwen3", "qwen3_moe")
        return self.family in families or bool(self.config.get("qk_layernorm"))

    @property
    def score_scale(self) -> float:
        """What the products of queries and keys are multiplied with."""
        if self.family == "granite":
            return float(self.config["attention_multiplier"])
        if self.family == "gemma3_text":
            return float(float(self.config["query_pre_attn_scalar"]) ** -0.5)
        return float(self.head_dim**-0.5)

    def kind(self, layer: int) -> str:
        """Layer type."""
        kinds: list[str] = self.config.get("layer_types") or []
        return kinds[layer] if kinds else "full_attention"

    def _either(self, *names: str) -> Any:
        return next(self.config[name] for name in names if name in self.config)
