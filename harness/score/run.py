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
        tokens: Token ids [B, T] of the prompt.
        attention: Attention implementation of the twins.
        layer: Where faults of a layer are planted.
    """
    from ..engines.hf import HFEngine
    from ..engines.plants.engine import Silent
    from ..engines.plants.plant import twin

    waiting = iter(plants)
    while some := list(islice(waiting, _BESIDE)):
        with ExitStack() as stack:
            engines: list[HFEngine] = []
            for n, plant in enumerate(some):
                healthy = twin(model, attention=attention)
                faulty = stack.enter_context(plant.planted(healthy, layer))
                engines.append(Silent(faulty, name=f"{n} {plant.fault}"))
            result = check(engines, checkpoint=path, token_ids=tokens.tolist(), decode=DECODE)
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
