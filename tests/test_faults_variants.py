"""Every mistake of the catalogue can be tried at every op, whatever a candidate has there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import check
from harness.diagnose.doctor import Doctor
from harness.diagnose.evaluate import Judge, evaluate
from harness.diagnose.match import Matcher
from harness.engines.hf import HFEngine
from harness.engines.plants.engine import Silent
from harness.engines.plants.plant import replace_forward, twin
from harness.faults.catalogue import catalogue
from harness.faults.fault import Site
from harness.replay.lockstep import Replayed

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "gemma3_text": {"final_logit_softcapping": 3.0},
    "gpt2": {},
    "granite": {},
    "qwen3_moe": {"num_hidden_layers": 2},
}

#: What a candidate may have in place of the right values.
FOUND: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "noise": lambda y: y,
    "zeros": np.zeros_like,
    "ones": np.ones_like,
    "first rows": lambda y: np.broadcast_to(y[:, :1], y.shape).copy(),
    "rounded": lambda y: y.astype(np.float16).astype(np.float64),
}


def noisy(model: Any) -> Any:
    """A twin in which every module that has no other in it is off by some percent."""
    import torch

    faulty, generator = twin(model), torch.Generator().manual_seed(5)

    def forward(inner: Any, *given: Any, **others: Any) -> Any:
        made = inner(*given, **others)
        if not isinstance(made, torch.Tensor):
            return made
        return made * (1 + 0.05 * torch.randn(made.shape, generator=generator)).to(made.dtype)

    for name, module in faulty.named_modules():
        if not list(module.children()) and "rotary" not in name and "drop" not in name:
            replace_forward(module, forward)
    return faulty


def failures(path: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Replayed]]:
    """Everything that does not replay, with the facts of its prompt."""
    seen: list[tuple[Any, Replayed]] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            Doctor, "look", lambda self, failure: seen.append((self._matcher.facts, failure))
        )
        engine: HFEngine = Silent(noisy(model), name="noisy")
        check([engine], checkpoint=path, token_ids=[[5, 17, 90, 5, 44, 61]], decode=1)
    return seen


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_mistake_can_be_tried_whatever_is_found(
    tiny: Callable[..., Path],
    load_model: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    dtype: str,
) -> None:
    path = tiny(family, **FAMILIES[family])
    kinds: set[str] = set()
    tried = 0
    for facts, failure in failures(path, load_model(path, dtype=dtype), monkeypatch):
        matcher = Matcher(facts, {})
        site: Site = matcher._site(failure.made, failure)
        if site.found is None or site.kind in kinds:
            continue
        kinds.add(site.kind)
        for change in FOUND.values():
            found = change(site.found)
            judge = Judge(failure.made, found)
            for fault in catalogue().at(site.kind):
                for instead in fault.variant(replace(site, found=found)):
                    value = evaluate(failure.made, {id(failure.made.call): instead})
                    assert value is None or judge.score(value) is None or value.value.ndim
                    tried += 1
    assert len(kinds) > 5
    assert tried > 200
