"""Runs a score and shows it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checking import check
from ..console import console, progress, show_paths
from ..faults.catalogue import catalogue
from ..result import Verdict
from .plan import Plan
from .run import DECODE, try_plants
from .table import HEADINGS, Equivalent, Healthy, Score, markdown, miss, rows
from .trial import Trial

#: Token ids whose rows of the embedding some plants change.
_TOUCHED = (17, 44, 61)

_HEALTHY = (Verdict.PASS, Verdict.ROUNDING)


def run_score(plan: Plan, *, json_file: Path | None, markdown_file: Path | None) -> int:
    """Run a score, show it, write what is asked for.

    Returns:
        1 if a fault was not caught or a healthy model raised an alarm, else 0.
    """
    from ..engines.random_models import families

    chosen = plan.chosen_families(families())
    with progress("faults score") as show, tempfile.TemporaryDirectory() as folder:
        trials, equivalents = [], []
        total = plan.models * len(chosen) + (1 if plan.real else 0)
        for done, path in enumerate(_models(plan, chosen, Path(folder))):
            show(f"plant in {path.name}", done, total)
            for dtype in plan.chosen_dtypes:
                made, same = _score_model(path, dtype, plan, plan.seed + done)
                trials += made
                equivalents += same
        healthy = _healthy(plan, chosen, Path(folder), show)
    score = Score(tuple(trials), tuple(equivalents), healthy)
    groups = {fault.id: fault.group for fault in catalogue().faults.values()}
    _show(score, groups)
    written = _write(score, groups, json_file, markdown_file)
    show_paths(console(), written)
    return 0 if score.passed else 1


def _models(plan: Plan, families: tuple[str, ...], folder: Path) -> Iterator[Path]:
    """Folders of the models that faults are planted into."""
    from ..engines.random_models import save_random

    for family in families:
        for n in range(plan.models):
            path = folder / f"{family}-{plan.seed + n}"
            save_random(path, family, plan.seed + n)
            yield path
    if plan.real is not None:
        from ..checkpoint import load_checkpoint
        from ..locate import locate

        yield load_checkpoint(locate(plan.real)).path


def _score_model(
    path: Path, dtype: str, plan: Plan, seed: int
) -> tuple[list[Trial], list[Equivalent]]:
    """Every plant of one model in one dtype, with each attention implementation."""
    from ..engines.hf import HFEngine
    from ..engines.plants.catalogue import plants
    from ..engines.random_models import attentions

    model: Any = HFEngine.load(path, dtype=dtype).model
    tokens = draw_tokens(int(model.config.vocab_size), Random(seed))
    layer = max(1, int(model.config.num_hidden_layers) // 2)
    family = str(model.config.model_type)
    able, equivalents = [], []
    topics = {fault.id: fault.topic for fault in catalogue().faults.values()}
    for plant in plants():
        if not plan.wants(topics[plant.fault]) or plant.reason(model.config):
            continue
        why = plant.equivalent(model.config, dtype)
        if why:
            equivalents.append(Equivalent(plant.fault, plant.name, family, dtype, why))
        else:
            able.append(plant)
    trials = [
        trial
        for attention in attentions(model.config)
        for trial in try_plants(path, model, able, tokens, attention=attention, layer=layer)
    ]
    return trials, equivalents


def draw_tokens(vocab: int, draw: Random, *, length: int | None = None) -> NDArray[np.int64]:
    """A prompt [1, T] of random ids, some of them twice; long ones with those that plants touch."""
    size = length or draw.randrange(20, 40)
    ids = [draw.randrange(vocab) for _ in range(size)]
    for _ in range(size // 6):
        ids[draw.randrange(size)] = ids[draw.randrange(size)]
    if size > 2 * len(_TOUCHED):
        for place, token in zip(
            draw.sample(range(1, size - 1), len(_TOUCHED)), _TOUCHED, strict=True
        ):
            ids[place] = token
    if ids[-1] == ids[0]:  # then a shift around the ends would be the first id twice
        ids[-1] = (ids[0] + 1) % vocab
    return np.array([ids])


def _healthy(plan: Plan, families: tuple[str, ...], folder: Path, show: Any) -> Healthy:
    """Healthy random models, each with every attention implementation."""
    from ..engines.hf import HFEngine
    from ..engines.random_models import VOCAB, attentions, save_random

    alarms, worst = [], 0.0
    for n in range(plan.healthy):
        family = families[n % len(families)]
        dtype = plan.chosen_dtypes[(n // len(families)) % len(plan.chosen_dtypes)]
        seed = 100_000 + plan.seed + n
        show("healthy models", n, plan.healthy)
        with tempfile.TemporaryDirectory(dir=folder) as made:
            path = Path(made)
            save_random(path, family, seed)
            draw = Random(seed)
            eager = HFEngine.load(path, dtype=dtype)
            others = [a for a in attentions(eager.model.config) if a != "eager"]
            engines = [eager, *(HFEngine.load(path, attention=a, dtype=dtype) for a in others)]
            tokens = draw_tokens(VOCAB, draw, length=draw.randrange(2, 48))
            result = check(engines, checkpoint=path, token_ids=tokens.tolist(), decode=DECODE)
        worst = max(worst, *(c.worst_units or 0.0 for c in result.candidates))
        if result.verdict not in _HEALTHY:
            reasons = "; ".join(c.reason for c in result.candidates if c.verdict not in _HEALTHY)
            alarms.append(f"{family} seed {seed} {dtype}, {tokens.size} tokens: {reasons}")
    return Healthy(plan.healthy, tuple(alarms), worst)


def _show(score: Score, groups: dict[str, str]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    screen = console()
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for n, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if n else "left")
    for row in rows(score.trials, groups):
        table.add_row(*row.cells)
    screen.print(table)
    for trial in score.trials:
        if not trial.first:
            screen.print(Text(f"miss: {miss(trial)}"))
    for alarm in score.healthy.alarms:
        screen.print(Text(f"false alarm: {alarm}", style="bold red"))
    screen.print(
        Text(
            f"{score.healthy.runs} healthy random runs, {len(score.healthy.alarms)} false alarms, "
            f"worst op {score.healthy.worst_units:.1f} rounding units; "
            f"{len(score.equivalents)} equivalent faults left out"
        )
    )


def _write(
    score: Score, groups: dict[str, str], json_file: Path | None, markdown_file: Path | None
) -> list[Path]:
    import msgspec

    from ..report.files import write_whole

    made = []
    if json_file is not None:
        write_whole(json_file, msgspec.json.format(msgspec.json.encode(score), indent=1))
        made.append(json_file)
    if markdown_file is not None:
        write_whole(markdown_file, markdown(score, groups).encode())
        made.append(markdown_file)
    return made
