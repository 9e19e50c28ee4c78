"""What saying why costs, as ratios to a plain forward pass of the same run.

Run it with ``make bench``, or ``python benchmarks/diagnosis.py [--lengths 5 64] [--every]``. Faults
of every group are planted in SmolLM2, and each run is timed apart:

- look: everything that looks for the cause of ops that do not replay;
- fits: constants that are fitted at every op, in healthy runs as well.

Both are processor time, summed over the threads of the harness, and compared with the processor
time of a plain forward pass of eager attention on as many threads as torch takes.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

from harness import check
from harness.case_file import load_case
from harness.checkpoint import load_checkpoint
from harness.diagnose.doctor import Doctor
from harness.engines.hf import HFEngine
from harness.engines.plants.catalogue import plants
from harness.engines.plants.engine import Silent
from harness.engines.plants.plant import twin
from harness.faults.catalogue import catalogue
from harness.locate import locate

CASE = Path(__file__).parent.parent / "cases" / "smollm2.toml"
LAYER = 7

#: A model with a fault in it, for as long as it is entered.
Planted = Callable[[Any], AbstractContextManager[Any]]


@dataclass(slots=True)
class Spent:
    """Seconds in each part of a diagnosis, and how often it was asked."""

    look: float = 0.0
    fits: float = 0.0
    ops: int = 0


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lengths", type=int, nargs="*", default=[5, 64])
    options.add_argument("--every", action="store_true", help="every plant, not one of each group")
    given = options.parse_args()
    path = load_checkpoint(locate(load_case(CASE).model)).path
    model: Any = HFEngine.load(path).model
    table = Table(title="Diagnosis of SmolLM2 with one fault, over one plain forward pass")
    for n, heading in enumerate(("tokens", "fault", "named", "ops", "look", "fits")):
        table.add_column(heading, justify="left" if n in (1, 2) else "right")
    for length in given.lengths:
        tokens = np.arange(100, 100 + length)[None]
        plain = _forward(model, tokens)
        for fault, planted in [("none", nullcontext), *_chosen(model, every=given.every)]:
            with planted(twin(model)) as faulty, _timed() as spent:
                result = check(Silent(faulty, name="x"), checkpoint=path, token_ids=tokens.tolist())
            named = [d.causes[0].fault if d.causes else "unknown" for d in result.diagnoses]
            ratios = (f"{seconds / plain:.2f}" for seconds in (spent.look, spent.fits))
            table.add_row(str(length), fault, ", ".join(named[:2]), str(spent.ops), *ratios)
    Console().print(table)


def _chosen(model: Any, *, every: bool) -> Iterator[tuple[str, Planted]]:
    """Plants that fit the model: one of each group of faults, or all."""
    groups = {fault.id: fault.group for fault in catalogue().faults.values()}
    met: set[str] = set()
    for plant in plants():
        group = groups[plant.fault]
        left_out = plant.reason(model.config) or plant.equivalent(model.config, "float32")
        if left_out or plant.decodes or plant.padding or (group in met and not every):
            continue
        met.add(group)

        yield f"{plant.fault} ({plant.name})", partial(plant.planted, layer=LAYER)


def _forward(model: Any, tokens: Any) -> float:
    """Processor seconds of a plain forward pass, the best of some."""
    times = []
    with HFEngine(model).open(cache=False) as session:
        for _ in range(6):
            start = time.process_time()
            session.feed(tokens)
            times.append(time.process_time() - start)
    return min(times)


@contextmanager
def _timed() -> Iterator[Spent]:
    """Count what doctors spend."""
    spent, look, measure = Spent(), Doctor.look, Doctor.measure

    def timed_look(self: Doctor, *args: Any) -> Any:
        start = time.thread_time()
        look(self, *args)
        spent.look += time.thread_time() - start
        spent.ops += 1

    def timed_measure(self: Doctor, *args: Any) -> Any:
        start = time.thread_time()
        try:
            return measure(self, *args)
        finally:
            spent.fits += time.thread_time() - start

    with (
        patch.object(Doctor, "look", timed_look),
        patch.object(Doctor, "measure", timed_measure),
    ):
        yield spent


if __name__ == "__main__":
    main()
