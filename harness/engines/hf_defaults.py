"""What transformers takes for config keys that a checkpoint does not name."""

from collections.abc import Mapping
from typing import Any


def default_config(model_type: str) -> dict[str, Any]:
    """The default config of a ``model_type``; empty for one that transformers does not know."""
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return {}
    defaults: dict[str, Any] = CONFIG_MAPPING[model_type]().to_dict()
    return defaults


def whole_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with all keys: those that follow from others too, as the size of a head does."""
    from transformers import CONFIG_MAPPING

    model_type = str(config.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        return dict(config)
    given = {key: value for key, value in config.items() if key != "model_type"}
    return {**CONFIG_MAPPING[model_type](**given).to_dict(), **config}
