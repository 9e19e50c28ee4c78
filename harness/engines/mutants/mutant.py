"""What a mutant is: a transformers engine with one mistake, in the model or at the seam."""

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..hf import HFEngine
from ..plants.catalogue import plants
from ..plants.plant import Plant, Planting
from ..protocol import Engine

#: Makes a mistake in a model.
Put = Callable[[Planting], None]

#: Makes a mistake around an engine.
Wrap = Callable[[HFEngine], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """An engine with a mistake.

    Attributes:
        name: Short name.
        says: What is done wrong, in a few words.
        put: Makes the mistake in a model; None for none.
        wrap: Makes it around the engine, at the seam; None for none.
        family: Family of the models in which it shows.
        attention: Attention implementation.
        everywhere: Whether it is put into every layer, not into the first alone.
    """

    name: str
    says: str
    put: Put | None = None
    wrap: Wrap | None = None
    family: str = "llama"
    attention: str = "eager"
    everywhere: bool = False

    def make(self, folder: Path) -> Engine:
        """Load the engine from an HF directory, with the mistake."""
        engine = HFEngine.load(folder, attention=self.attention)
        if self.put is not None:
            stack = ExitStack()
            config: Any = engine.model.config
            layers = int(config.num_hidden_layers) if self.everywhere else 1
            for layer in range(layers):
                self.put(Planting(engine.model, layer, stack))
            # What was registered globally goes when the engine does.
            weakref.finalize(engine, stack.close)
        return engine if self.wrap is None else self.wrap(engine)


def replace_methods(target: object, **methods: Callable[..., Any]) -> None:
    """Let other methods stand for those of one object; its class stays as it is."""
    for name, method in methods.items():
        if not hasattr(target, name):  # a mistake in what nobody calls would break nothing
            raise LookupError(f"{type(target).__name__} has no {name}")
        setattr(target, name, method)


def plant(fault: str, name: str) -> Plant:
    """A plant of the catalogue of faults.

    Raises:
        LookupError: There is none of that fault and name.
    """
    for found in plants():
        if (found.fault, found.name) == (fault, name):
            return found
    raise LookupError(f"no plant {name!r} of {fault}")
