"""An engine that does not show its parameters."""

from ..hf import Array, HFEngine


class Silent(HFEngine):
    """A transformers model that hides the parameters it computes with, as most engines do."""

    @property
    def parameters(self) -> dict[str, Array]:
        """None."""
        return {}
