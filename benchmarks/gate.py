"""What a baseline and a gate cost, as ratios to plain forward passes of the same run.

Run it with ``make bench``, or ``python benchmarks/gate.py [--lengths 23 256] [--repeats 2]
[--no-sizes]``. For each length of the prompt, on SmolLM2 in float32 on one thread:

- plain: one forward pass in a process that has everything loaded, and one in float64;
- start: a recorder that loads the model and runs nothing;
- record: the same with one pass, every intermediate kept, without the run in float64 and with it,
  both less the start;
- digest: hashes, summaries and sketches of all intermediates, and the file of a baseline;
- compare: two records, all elements; and a baseline with a record, digests.

Then the size of a baseline by the size of a model of random weights. The best of the repeats
counts.
"""

import argparse
import gzip
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from harness.case_file import load_case
from harness.gate.baseline import Baseline, Head, to_json
from harness.gate.judging import judge
from harness.gate.plan import Plan, passes_for
from harness.gate.recording import record
from harness.gate.records import Record
from harness.gate.running import make_baseline
from harness.gate.side import RecordSide
from harness.gate.target import Options, Target, find, make_plan

CASE = Path(__file__).parent.parent / "cases" / "smollm2.toml"

#: Layers and width of models whose baselines are weighed.
SIZES = ((2, 64), (8, 64), (32, 64), (32, 256))


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    Attributes:
        tokens: Length of the prompt.
        what: What was timed.
        seconds: The best of the repeats.
        ratio: Over the plain forward pass of this run.
    """

    tokens: int
    what: str
    seconds: float
    ratio: float


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lengths", type=int, nargs="*", default=[23, 256])
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--no-sizes", action="store_true", help="leave the sizes of files out")
    given = options.parse_args()
    torch.set_num_threads(1)
    target = find(load_case(CASE).model)
    console = Console(width=110)
    rows = [row for n in given.lengths for row in measure(target, n, repeats=given.repeats)]
    table = Table(title="SmolLM2-135M-Instruct, float32, one thread", title_justify="left")
    for heading in ("tokens", "what", "seconds", "over a plain forward"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row in rows:
        table.add_row(str(row.tokens), row.what, f"{row.seconds:.2f}", f"{row.ratio:.2f}")
    console.print(table)
    if not given.no_sizes:
        console.print(sizes(target))


def measure(target: Target, length: int, *, repeats: int) -> Iterator[Row]:
    """All rows of one length: one pass, without a cache or greedy tokens."""
    (run,) = passes_for({"p": range(100, 100 + length)}, decode=0, generate=0, pad=0)[:1]
    plan = Plan((replace(run, cache=False),))
    model: Any = AutoModelForCausalLM.from_pretrained(target.folder, dtype=torch.float32)
    tokens = torch.tensor(run.token_ids)

    def forward() -> None:
        with torch.no_grad():
            model(tokens, use_cache=False)

    plain = best(forward, repeats + 1)

    def row(what: str, seconds: float) -> Row:
        return Row(length, what, seconds, seconds / plain)

    yield row("plain forward", plain)
    model.to(torch.float64)
    yield row("plain forward in float64", best(forward, repeats))
    model = None  # its memory is wanted
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="parity-bench-")))
        made: list[Record] = []

        def run_recorder(plan: Plan, *, noise: bool) -> Callable[[], None]:
            def call() -> None:
                where = Path(tempfile.mkdtemp(dir=folder))
                request = plan.request(target.folder, noise=noise)
                made.append(record(Path(sys.executable), request, folder=where))

            return call

        start = best(run_recorder(replace(plan, passes=()), noise=False), repeats)
        yield row("start of a recorder", start)
        for noise, words in ((False, "without float64"), (True, "with float64")):
            seconds = best(run_recorder(plan, noise=noise), repeats)
            yield row(f"record, {words}, less the start", seconds - start)
        yield from _compared(row, target, plan, made[-2:], repeats)


def _compared(
    row: Callable[[str, float], Row],
    target: Target,
    plan: Plan,
    records: Sequence[Record],
    repeats: int,
) -> Iterator[Row]:
    before, after = records
    head = Head(target.name, target.checkpoint.fingerprint, plan, before.facts)
    kept = Baseline.of(RecordSide(before), head)
    # A side digests an array once, so that each call needs sides of its own.
    calls: dict[str, Callable[[], object]] = {
        "digest and write a baseline": lambda: to_json(Baseline.of(RecordSide(before), head)),
        "compare two records": lambda: judge(RecordSide(before), RecordSide(after), plan.passes),
        "compare a baseline with a record": lambda: judge(kept, RecordSide(after), plan.passes),
    }
    for what, call in calls.items():
        yield row(what, best(call, repeats))


def sizes(target: Target) -> Table:
    """Sizes of files of baselines."""
    table = Table(title="Size of a baseline, one text of 23 to 40 tokens", title_justify="left")
    for heading in ("model", "intermediates", "kB", "kB, gzip -9"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    with tempfile.TemporaryDirectory(prefix="parity-bench-") as folder:
        for layers, width in SIZES:
            name = f"Llama, {layers} layers, width {width}"
            path = Path(folder, f"{layers}-{width}")
            config = LlamaConfig(
                vocab_size=1000,
                hidden_size=width,
                intermediate_size=2 * width,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=2,
            )
            LlamaForCausalLM(config).save_pretrained(path)
            table.add_row(name, *_weight(find(str(path))))
        table.add_row("SmolLM2-135M, 30 layers, width 576", *_weight(target))
    return table


def _weight(target: Target) -> tuple[str, str, str]:
    made = make_baseline(target, make_plan(target, Options()), progress=lambda *_: None)
    data = to_json(made)
    packed = len(gzip.compress(data, 9))
    return str(len(made.taps)), f"{len(data) / 1e3:.0f}", f"{packed / 1e3:.0f}"


def best(call: Callable[[], object], repeats: int) -> float:
    """The shortest of several times."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    main()
