"""Mutants that break laws of outputs."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from ...padding import Padding
from ..hf import HFEngine
from ..plants.plant import Planting, Tensor
from ..protocol import Emit, Engine
from ..ways import Way
from .mutant import Mutant, Wrap, plant, replace_methods

Array = NDArray[Any]


def _keep_shifted(at: Planting) -> None:
    def arguments(kwargs: dict[str, Any], cache: Any) -> None:
        keep = kwargs.get("logits_to_keep")
        if keep is not None:
            length = kwargs["input_ids"].shape[1]
            kept = torch.arange(length - keep - 1, length - 1)
            kwargs["logits_to_keep"] = kept.clamp(min=0)

    at.arguments(arguments)


def _keep_uncapped(at: Planting) -> None:
    cap = at.config.final_logit_softcapping

    def arguments(kwargs: dict[str, Any], cache: Any) -> None:
        at.config.final_logit_softcapping = None if "logits_to_keep" in kwargs else cap

    at.arguments(arguments)


def _dropout(at: Planting) -> None:
    def forward(inner: Any, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(inner(x), 0.1, training=True)

    at.forward("attn.out", forward)


def _run_kept(at: Planting) -> None:
    """The greatest value that was ever met scales all that follow, as a calibration would."""
    met = torch.zeros(())

    def forward(inner: Any, x: Tensor) -> Tensor:
        nonlocal met
        y: Tensor = inner(x)
        scaled = torch.round(y * 127 / met) * met / 127 if met > 0 else y
        met = torch.maximum(met, y.abs().max())
        return scaled

    at.forward("attn_norm", forward)


def _tail_lost(engine: HFEngine) -> Engine:
    """With several threads, the last entry of the vocabulary is left as it was."""
    begin = engine.open

    @contextmanager
    def opened(
        *, cache: bool, padding: Padding | None = None, way: Way | None = None
    ) -> Iterator[Any]:
        with begin(cache=cache, padding=padding, way=way) as session:
            feed = session.feed

            def fed(ids: Array, emit: Emit | None = None, *, keep: int | None = None) -> Array:
                logits = feed(ids, emit, keep=keep)
                if way is not None and (way.threads or 1) > 1:
                    logits[..., -1] = 0
                return logits

            replace_methods(session, feed=fed)
            yield session

    replace_methods(engine, open=opened)
    return engine


def _states(change: Callable[[HFEngine, Array, list[Array]], list[Array]]) -> Wrap:
    """A mistake in hidden states: ``change(engine, token_ids, states)``."""

    def wrap(engine: HFEngine) -> Engine:
        right = engine.hidden_states

        def hidden_states(token_ids: Array) -> list[Array]:
            return change(engine, token_ids, right(token_ids))

        replace_methods(engine, hidden_states=hidden_states)
        return engine

    return wrap


def _raw(engine: HFEngine, ids: Array, states: list[Array]) -> list[Array]:
    last = f"layers.{len(states) - 2}.resid_post"
    taken: dict[str, Array] = {}
    with engine.open(cache=False) as session:
        session.feed(ids, taken.__setitem__)
    return [*states[:-1], taken[last]]


def _late(engine: HFEngine, ids: Array, states: list[Array]) -> list[Array]:
    return [*states[1:], states[-1]]


def _narrow_activation(engine: HFEngine) -> Engine:
    """In another dtype, the first layer's activation is another."""
    load = engine.in_dtype

    def narrow(dtype: str, folder: Path) -> HFEngine:
        other = load(dtype, folder)
        plant("mlp-gelu-tanh", "by tanh").put(Planting(other.model, 0, ExitStack()))
        return other

    replace_methods(engine, in_dtype=narrow)
    return engine


def _saved(change: Callable[[dict[str, Any]], None]) -> Wrap:
    """A mistake in the config that is saved."""

    def wrap(engine: HFEngine) -> Engine:
        save = engine.resaved

        def resaved(folder: Path) -> HFEngine:
            save(folder)
            path = folder / "config.json"
            config = json.loads(path.read_text())
            change(config)
            path.write_text(json.dumps(config))
            return HFEngine.load(folder, attention=str(engine.info().detail["attention"]))

        replace_methods(engine, resaved=resaved)
        return engine

    return wrap


def _rope_lost(config: dict[str, Any]) -> None:
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}


def _longest_lost(config: dict[str, Any]) -> None:
    del config["max_position_embeddings"]


MUTANTS = (
    Mutant(
        name="keep-shifted",
        says="the last n positions are those before the last",
        put=_keep_shifted,
    ),
    Mutant(
        name="keep-uncapped",
        says="logits of the last positions alone are not capped",
        put=_keep_uncapped,
        family="gemma3_text",
    ),
    Mutant(name="dropout-on", says="dropout is left on", put=_dropout),
    Mutant(name="run-kept", says="what a run has met changes the next", put=_run_kept),
    Mutant(
        name="threads-tail-lost",
        says="with several threads the last part is not computed",
        wrap=_tail_lost,
    ),
    Mutant(
        name="hidden-states-raw",
        says="the last hidden state is before the final norm",
        wrap=_states(_raw),
    ),
    Mutant(
        name="hidden-states-late",
        says="hidden states begin behind layer 0",
        wrap=_states(_late),
    ),
    Mutant(
        name="narrow-activation",
        says="in half precision a layer's activation is another",
        wrap=_narrow_activation,
    ),
    Mutant(
        name="scale-other",
        says="scores are 0.999 times what they should be",
        put=plant("scale-other", "0.999 times").put,
    ),
    Mutant(
        name="saved-rope-lost",
        says="the rope parameters are not saved",
        wrap=_saved(_rope_lost),
    ),
    Mutant(
        name="saved-longest-lost",
        says="the number of positions is not saved",
        wrap=_saved(_longest_lost),
    ),
)
