"""What transformers takes for config keys that a checkpoint does not name."""

from typing import Any


def default_config(model_type: str) -> dict[str, Any]:
    """The default config of a ``model_type``; empty for one that transformers does not know."""
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return {}
    defaults: dict[str, Any] = CONFIG_MAPPING[model_type]().to_dict()
    return defaults
