"""Plants faults in a transformers model and runs all faulty twins beside each other."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checking import check
from ..engines.protocol import TokenIds
from .trial import Trial, outcome

if TYPE_CHECKING:
    from ..engines.plants.plant import Plant

#: Faulty twins that walk beside each other.
_BESIDE = 8

#: Decoding steps behind the prompt, for what only shows with a cache.
DECODE = 2


def try_plants(
    path: Path,
    model: Any,
    plants: "Sequence[Plant]",
    tokens: TokenIds,
    *,
    attention: str,
    layer: int,
) -> Iterator[Trial]:
    """Plant each fault in a twin of the model and say what a run makes of it.

    The engines do not show the parameters that they compute with: the numbers must tell.

    Args:
        path: The checkpoint's folder.
        model: A healthy transformers model of it.
        plants: What to plant; those that cannot be planted, or change nothing, must be left out.
            Those that change a module which the model does not have are passed over.
        tokens: Token ids [B, T] of the prompt.
        attention: Attention implementation of the twins.
        layer: Where faults of a layer are planted.
    """
    from ..engines.hf import HFEngine
    from ..engines.plants.engine import Silent
    from ..engines.plants.plant import twin

    healthy = twin(model, attention=attention)
    for padding, decodes, some in _batches([p for p in plants if _fits(p, healthy, layer)]):
        with ExitStack() as stack:
            engines: list[HFEngine] = []
            for n, plant in enumerate(some):
                faulty = stack.enter_context(plant.planted(healthy, layer))
                engines.append(Silent(faulty, name=f"{n} {plant.fault}"))
            rows = _unequal(tokens) if padding else tokens.tolist()
            result = check(
                engines,
                checkpoint=path,
                token_ids=rows,
                padding=padding or None,
                decode=DECODE if decodes else 0,
            )
        for engine, plant in zip(engines, some, strict=True):
            yield outcome(
                result,
                engine.name,
                alike=plant.alike,
                fault=plant.fault,
                plant=plant.name,
                family=str(model.config.model_type),
                dtype=engine.dtype,
                attention=attention,
                expected=plant.tap(layer, fused=attention != "eager", config=model.config),
            )


def _fits(plant: "Plant", healthy: Any, layer: int) -> bool:
    """Whether the model has the module that a plant changes."""
    try:
        with plant.planted(healthy, layer):
            return True
    except LookupError:
        return False


def _batches(plants: "Sequence[Plant]") -> Iterator[tuple[str, bool, "list[Plant]"]]:
    """Plants that walk beside each other: those that take one padding, and decode or do not."""
    for kind in dict.fromkeys((plant.padding, plant.decodes) for plant in plants):
        waiting = (plant for plant in plants if (plant.padding, plant.decodes) == kind)
        while some := list(islice(waiting, _BESIDE)):
            yield *kind, some


def _unequal(tokens: TokenIds) -> list[list[int]]:
    """A batch of the prompt between two other rows, shorter by two and by five tokens."""
    row = tokens[0].tolist()
    return [row[::-1][2:], row, [*row[3:-3], *row[:1]]]
