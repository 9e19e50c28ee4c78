"""What comparing costs, as ratios to plain forward passes of the same run.

Run it with ``make bench``, or ``python benchmarks/cost.py [--lengths 5 64 512] [--repeats 2]
[--json FILE]``. For each length of the prompt it times, in turn:

- a plain forward pass of each engine, and of the reference in float64;
- capture: the same with every tap handed over and dropped;
- capture and compare: all engines side by side, every tap of each held against the first;
- replay: the float64 reference and one or all engines' recorded taps in lockstep.

The best of the repeats counts: what else the machine does only ever adds. Memory is the largest
anonymous memory (weights are mapped and not counted) beyond what was there before.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from harness import HFEngine, ReferenceEngine
from harness.case_file import load_case
from harness.checkpoint import encode
from harness.engines.protocol import Array, Engine, TokenIds
from harness.engines.shapes import tap_shapes
from harness.environment import Stopwatch
from harness.locate import locate
from harness.participants import Participant, RunningEngine
from harness.references_seam import step as seam
from harness.replay.source import RecordedSource, TapSource
from harness.result import EngineInfo
from harness.subject import Subject, load_subject
from harness.trace.plain import compare_taps
from harness.walk import walk

CASE = Path(__file__).parent.parent / "cases" / "smollm2.toml"
FORMAT, VERSION = "logits-parity/cost", 1

#: Prompts shorter than this are timed once more.
LONG = 256


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    Attributes:
        tokens: Length of the prompt.
        what: What was timed.
        seconds: The best time.
        spread: Largest time over the best one.
        ratio: To the plain forward passes that ``over`` names.
        over: Denominator, in words.
        megabytes: Peak of anonymous memory beyond what was there before.
    """

    tokens: int
    what: str
    seconds: float
    spread: float
    ratio: float | None = None
    over: str = ""
    megabytes: float = 0.0


class Recorded:
    """An engine's taps, kept in memory, so that replay alone can be timed."""

    parameters: Mapping[str, Array] = {}

    def __init__(self, engine: Engine, tokens: TokenIds) -> None:
        self._engine = engine
        self.name, self.dtype, self.unavailable = engine.name, engine.dtype, engine.unavailable
        self._taps: dict[str, Array] = {}
        with engine.open(cache=False) as session:
            session.feed(tokens, self._keep)

    def _keep(self, tap: str, array: Array) -> None:
        self._taps[tap] = array

    def info(self) -> EngineInfo:
        """What ran."""
        return self._engine.info()

    @contextmanager
    def source(self, chunks: Sequence[TokenIds], padding: object = None) -> Iterator[TapSource]:
        """The recorded taps."""
        yield RecordedSource([self._taps])


def main() -> None:
    """Measure, print, write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lengths", type=int, nargs="*", default=[5, 64, 512])
    options.add_argument("--repeats", type=int, default=2, help="one more for short prompts")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    subject = load_subject(locate(load_case(CASE).model))
    engines: list[Engine] = [
        HFEngine.load(subject.checkpoint.path, attention="eager"),
        HFEngine.load(subject.checkpoint.path, attention="sdpa"),
        ReferenceEngine(subject.model),
    ]
    text = max((p.text or "" for p in load_case(CASE).prompts), key=len)
    ids = encode(subject.checkpoint, text)
    rows: list[Row] = []
    for length in given.lengths:
        repeats = given.repeats + (length < LONG)
        tokens = np.array([(ids * (length // len(ids) + 1))[:length]], dtype=np.int64)
        rows += measure(subject, engines, tokens, repeats=repeats)
    show(rows)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(document(rows), indent=1) + "\n")
        Console().print(f"written to {given.json}")


def measure(
    subject: Subject, engines: Sequence[Engine], tokens: TokenIds, *, repeats: int
) -> Iterator[Row]:
    """All rows of one prompt [1, T]."""
    length = tokens.shape[1]
    timer = Timer(length, repeats)
    plain = [timer.row(f"forward {e.name}", lambda e=e: forward(e, tokens)) for e in engines]
    yield from plain
    yield (
        double := timer.row(
            "forward reference in float64",
            lambda: subject.model.prefill(float64_step(), tokens),
        )
    )
    for engine, row in zip(engines, plain, strict=True):
        yield timer.row(
            f"capture {engine.name}",
            lambda engine=engine: forward(engine, tokens, drop),
            over=[row],
            of="its forward",
        )
    places = list(tap_shapes(subject.model, [tokens]))
    running = [RunningEngine(engine) for engine in engines]
    for several in (running[:2], running):
        forwards = plain[: len(several)]
        yield timer.row(
            f"capture and compare {len(several)} engines",
            lambda several=several: compare_taps(several[0], several[1:], [tokens], places),
            over=forwards,
            of="their forwards",
        )
    recorded = [Recorded(engine, tokens) for engine in engines]
    for several in (recorded[:1], recorded):
        yield timer.row(
            f"replay {len(several)} engine{'s' if len(several) > 1 else ''}",
            lambda several=several: replay(subject, several, tokens),
            over=[double] * len(several),
            of="float64 forwards, one an engine",
        )
    yield timer.row(
        "run and replay 3 engines",
        lambda: replay(subject, running, tokens),
        over=[*plain, double],
        of="all forwards, float64 among them",
    )


def forward(engine: Engine, tokens: TokenIds, emit: Any = None) -> None:
    """One forward pass."""
    with engine.open(cache=False) as session:
        session.feed(tokens, emit)


def drop(tap: str, array: Array) -> None:
    """Take a tap and forget it."""


def float64_step() -> seam.Compute:
    """The plain step in float64."""
    return seam.Compute(
        lambda weight: np.asarray(weight.array, dtype=np.float64), np.dtype(np.float64)
    )


def replay(subject: Subject, sides: Sequence[Participant], tokens: TokenIds) -> None:
    """The whole walk, comparisons included."""
    walk(
        subject,
        sides,
        [tokens],
        dtype="float32",
        threads=None,
        progress=lambda done, total: None,
    )


class Timer:
    """Times calls on one prompt."""

    def __init__(self, tokens: int, repeats: int) -> None:
        self._tokens = tokens
        self._repeats = repeats

    def row(
        self, what: str, call: Callable[[], Any], *, over: Sequence[Row] = (), of: str = ""
    ) -> Row:
        """Time a call a few times; the first one warms up, and counts where it is the best."""
        times = []
        with peak_memory() as peak:
            for _ in range(self._repeats):
                begin = time.perf_counter()
                call()
                times.append(time.perf_counter() - begin)
        best = min(times)
        ratio = best / sum(row.seconds for row in over) if over else None
        return Row(self._tokens, what, best, max(times) / best, ratio, of, max(peak))


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Megabytes of anonymous memory beyond those at the start, sampled; 0 where unknown."""
    before, done = anonymous_megabytes(), threading.Event()
    seen = [0.0]

    def sample() -> None:
        while not done.wait(0.01):
            seen.append(anonymous_megabytes() - before)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def anonymous_megabytes() -> float:
    """RssAnon of Linux's /proc; 0 elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1e3
    return 0.0


def show(rows: Sequence[Row]) -> None:
    """Print one table a length."""
    console = Console(width=110)
    for length in dict.fromkeys(row.tokens for row in rows):
        table = Table(
            title=f"SmolLM2-135M-Instruct, float32, {length} tokens", title_justify="left"
        )
        table.add_column("what")
        for heading in ("seconds", "ratio"):
            table.add_column(heading, justify="right")
        table.add_column("over")
        table.add_column("MB", justify="right")
        table.add_column("max/best", justify="right")
        for row in rows:
            if row.tokens == length:
                ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
                cells = (f"{row.seconds:.3f}", ratio, row.over, f"{row.megabytes:.0f}")
                table.add_row(row.what, *cells, f"{row.spread:.2f}")
        console.print(table)
    spread = statistics.median(row.spread for row in rows)
    console.print(f"{machine()}; median spread of the repeats {spread:.2f}")


def machine() -> str:
    """What it ran on."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores"


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON document."""
    environment = Stopwatch().environment(threads=0, seed=None, command="make bench")
    return {
        "format": FORMAT,
        "version": VERSION,
        "machine": machine(),
        "platform": environment.platform,
        "versions": environment.versions,
        "started": environment.started,
        "rows": [asdict(row) for row in rows],
    }


if __name__ == "__main__":
    main()
