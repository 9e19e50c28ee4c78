"""Mistakes in parameters are named from the parameters that a candidate shows."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness import HFEngine, check
from harness.engines.plants.catalogue import plants
from harness.engines.plants.plant import twin
from harness.result import Evidence

TOKENS = [[5, 17, 90, 3, 44, 61, 8, 29, 73, 12, 1, 55]]

#: Fault and what is planted.
PLANTED = (
    ("weights-transposed", "the other layout"),
    ("weights-layer", "values of the layer before"),
    ("weights-layer", "a norm of the next layer"),
    ("weights-exchanged", "keys and values"),
    ("weights-rope-permuted", "queries from halves to neighbours"),
    ("weights-heads", "heads of queries in reverse"),
    ("weights-quantised", "Q8_0"),
    ("weights-quantised", "Q4_0"),
    ("weights-rounded", "bfloat16"),
    ("weights-scaled", "by 1.25"),
    ("weights-zeroed", "some outputs"),
    ("weights-other-values", "one element"),
    ("norm-weights-swapped", "norms of attention and MLP"),
    ("norm-weight-missing", "initial weight"),
    ("mlp-gate-up-exchanged", "each other's weights"),
    ("mlp-gate-up-interleaved", "cut by turns"),
    ("embed-pad-row", "the row of a token is 0"),
    ("embed-of-head", "the head's matrix"),
    ("head-tied", "the table of embeddings"),
)


def test_shown_parameters_name_the_mistake(
    tiny: Callable[..., Path], load_model: Callable[..., Any]
) -> None:
    path = tiny("llama")
    model = load_model(path)
    by_name = {(plant.fault, plant.name): plant for plant in plants()}
    missed = []
    with ExitStack() as stack:
        engines = [
            HFEngine(stack.enter_context(by_name[key].planted(twin(model), 1)), name=": ".join(key))
            for key in PLANTED
        ]
        result = check(engines, checkpoint=path, token_ids=TOKENS, decode=1)
    for engine in engines:
        own = [d for d in result.diagnoses if d.candidate == engine.name]
        causes = own[0].causes if own else ()
        fault = engine.name.split(": ")[0]
        named = [cause.fault for cause in causes]
        if named[:1] != [fault] or causes[0].evidence is not Evidence.PARAMETERS:
            missed.append((engine.name, named))
    assert missed == []


@pytest.mark.parametrize("name", ["weights-other-values"])
def test_other_values_are_counted_where_no_mistake_makes_them(
    tiny: Callable[..., Path], load_model: Callable[..., Any], name: str
) -> None:
    import torch

    path = tiny("llama")
    faulty = twin(load_model(path))
    module = faulty.model.layers[1].self_attn.o_proj
    moved = module.weight.detach() * (1 + 0.1 * torch.rand(module.weight.shape))
    module.weight = torch.nn.Parameter(moved, requires_grad=False)
    result = check([HFEngine(faulty, name="x")], checkpoint=path, token_ids=TOKENS)
    (cause,) = result.diagnoses[0].causes
    assert cause.fault == name
    assert "4608 of 4608" in cause.detail
