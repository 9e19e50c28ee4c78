"""All plants, from one module for each group."""

from . import norm, norm_order, rope, rope_scaling
from .plant import Plant

#: Each has ``PLANTS``.
_MODULES = (norm, norm_order, rope, rope_scaling)


def plants() -> tuple[Plant, ...]:
    """Every way to make a mistake of the catalogue in a transformers model."""
    return tuple(plant for module in _MODULES for plant in module.PLANTS)
