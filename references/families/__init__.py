"""One file a family, found by its name: the ``model_type`` of the config."""

import importlib
import pkgutil
from collections.abc import Collection, Mapping
from typing import Any, Protocol, cast

from ..blocks import Chunk
from ..errors import ConfigError
from ..step import Handle, Step
from ..weights import Weights

Shapes = dict[str, tuple[int, ...]]


class Config(Protocol):
    """What the harness needs to know of any family's config."""

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        ...

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Length that the model was made for, None if it takes any."""
        ...


class Family(Protocol):
    """What a module in this folder defines; ``C`` is its own config class."""

    #: Regular expressions of tensors that files may carry although the config implies them.
    DERIVED: tuple[str, ...]

    #: What names of parameters begin with that a file saved without the head leaves off.
    BASE: str

    def read_config(self, raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
        """Read config.json to the letter; see :class:`references.config.ConfigReader`."""
        ...

    def parameters(self, config: Any) -> Shapes:
        """Name and shape of every parameter that a checkpoint of this config must have."""
        ...

    def forward(
        self, step: Step, weights: Weights, config: Any, token_ids: Handle, chunk: Chunk
    ) -> Handle:
        """One forward pass: token ids [B, T] to logits [B, T, V]."""
        ...


def canonical_names(model_type: str, names: Collection[str]) -> dict[str, str]:
    """Name in a file to the name that the family gives the parameter.

    A file that was saved without the head leaves the base model's own name off the names of all
    parameters.

    Raises:
        ConfigError: There is no such family.
    """
    base = load(model_type).BASE
    bare = not any(name.startswith(base) for name in names)
    return {name: base + name if bare and name != "lm_head.weight" else name for name in names}


def names() -> list[str]:
    """Names of all families, sorted."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__))


def load(model_type: str) -> Family:
    """The family of a ``model_type``.

    Raises:
        ConfigError: There is none.
    """
    if model_type not in names():
        raise ConfigError(
            "config.json: model_type",
            expected="one of " + ", ".join(names()),
            found=repr(model_type),
            advice="the reference has no such family yet: add references/families/<model_type>.py",
        )
    return cast(Family, importlib.import_module(f"{__name__}.{model_type}"))
