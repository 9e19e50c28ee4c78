"""Parameters by name, as handles that a step lifts."""

from collections.abc import Mapping

from .step import Array, Weight


class Weights:
    """The parameters of one checkpoint.

    Args:
        arrays: Stored arrays by their name in the checkpoint.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> Weight:
        """The parameter of that name."""
        return Weight(name, self._arrays[name])

    def linear(self, prefix: str) -> tuple[Weight, Weight | None]:
        """Weight and, where the checkpoint has one, bias of a linear map."""
        bias = f"{prefix}.bias"
        return self[f"{prefix}.weight"], self[bias] if bias in self._arrays else None
