"""Try one law on one example: what a failure prints, so that it can be run on its own."""

import pprint
import textwrap
from collections.abc import Mapping
from typing import Any

from .catalogue import law_named
from .law import Law, try_law
from .makers import make_of
from .models import Model, Shelf
from .search import Broken


def check_law(
    law: str,
    engine: str,
    *,
    family: str = "",
    config: Mapping[str, Any] | None = None,
    seed: int = 0,
    model: str = "",
    dtype: str = "float32",
    arguments: Mapping[str, Any],
) -> float:
    """Try a law on one example.

    Args:
        law: Id of the law.
        engine: Name of the engine; see :func:`harness.laws.makers.make_of`.
        family: ``model_type`` of a model of random weights.
        config: Arguments of its config.
        seed: Of its weights.
        model: HF directory in place of family, config and seed.
        dtype: Of the engine.
        arguments: Of the law.

    Returns:
        Largest difference, in parts of what is allowed.

    Raises:
        LawBroken: The engine does not obey it.
        UsageError: No such law or engine.
    """
    found, shelf = law_named(law), Shelf(make_of(engine, dtype=dtype))
    try:
        tried = Model(family=family, config=dict(config or {}), seed=seed, folder=model)
        candidate = shelf.candidate(tried)
        try_law(found, candidate, arguments)
        return candidate.worst
    finally:
        shelf.close()


def snippet(law: Law, engine: str, dtype: str, broken: Broken) -> str:
    """Python that tries the law on the example again."""
    model = broken.model
    given: dict[str, Any] = {"model": model.folder}
    if model.family:
        given = {"family": model.family, "config": dict(model.config), "seed": model.seed}
    if dtype != "float32":
        given["dtype"] = dtype
    given["arguments"] = broken.arguments
    lines = [f"    {key}={_literal(value)}," for key, value in given.items()]
    return "\n".join(
        [
            "from logits_parity import check_law",
            "",
            f"check_law(\n    {law.id!r},\n    {engine!r},",
            *lines,
            ")",
        ]
    )


def explain(law: Law, engine: str, dtype: str, broken: Broken) -> str:
    """Why a search failed: the law, the difference, the smallest example, how to run it."""
    model = broken.model
    what = f"a random {model.family}" if model.family else model.folder
    return "\n".join(
        [
            f"{engine} does not obey {law.id} with {what}",
            f"  {broken.error}",
            "",
            *textwrap.wrap(f"The law: {law.says}", 96),
            *textwrap.wrap(f"Source: {law.source}", 96),
            "",
            "The smallest example found, to be run on its own:",
            "",
            snippet(law, engine, dtype, broken),
        ]
    )


def _literal(value: Any) -> str:
    text = pprint.pformat(value, width=90, compact=True, sort_dicts=False)
    return textwrap.indent(text, "    ").strip()
