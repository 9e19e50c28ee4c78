"""Every fault of the catalogue, planted in a small transformers model, is caught, placed, named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.engines.plants.catalogue import plants
from harness.engines.plants.plant import Plant
from harness.score.run import try_plants

FAMILIES = ("llama", "qwen3", "gemma3_text", "gpt2")
TOKENS = np.array([[5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55, 23, 71, 38, 9, 66, 4, 82, 31]])


def cases() -> list[Any]:
    return [
        pytest.param(
            family, attention, plant, id=f"{family}-{attention}-{plant.fault}-{plant.name}"
        )
        for family in FAMILIES
        for attention in ("eager", "sdpa")
        for plant in plants()
    ]


@pytest.mark.parametrize(("family", "attention", "plant"), cases())
def test_planted_fault_is_caught_placed_and_named(
    tiny: Callable[..., Path],
    load_model: Callable[..., Any],
    family: str,
    attention: str,
    plant: Plant,
) -> None:
    path = tiny(family)
    model = load_model(path)
    why = plant.reason(model.config) or plant.equivalent(model.config, "float32")
    if why:
        pytest.skip(why)
    (trial,) = try_plants(path, model, [plant], TOKENS, attention=attention, layer=1)
    assert trial.caught, trial
    assert trial.placed, trial
    assert trial.first, trial
