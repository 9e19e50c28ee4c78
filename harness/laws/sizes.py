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
        sliding = self._kind(layer) == "sliding_attention"
        return int(self.config["sliding_window"]) if sliding else None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer."""
        return tuple(self.window(layer) for layer in range(self.layers))

    def rope(self, layer: int) -> Mapping[str, Any]:
        """Rope parameters of a layer: ``rope_type``, ``rope_theta`` and what the type takes."""
        given: Mapping[str, Any] = self.config.get("rope_parameters") or {}
        own: Mapping[str, Any] = given.get(self._kind(layer), given)
        return own

    @property
    def rope_types(self) -> frozenset[str]:
        """Types of scaling of all layers."""
        return frozenset(
            str(self.rope(layer).get("rope_type", "default")) for layer in range(self.layers)
        )

    def _kind(self, layer: int) -> str:
        kinds: list[str] = self.config.get("layer_types") or []
        return kinds[layer] if kinds else "full_attention"

    def _either(self, *names: str) -> Any:
        return next(self.config[name] for name in names if name in self.config)
