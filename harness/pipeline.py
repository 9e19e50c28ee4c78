"""The one pipeline: case, engines, comparison in lockstep, verdicts, result."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from .case import DEFAULT_ENGINES, Case, Prompt, resolve_model
from .checkpoint import decode, encode, token_texts
from .contract import TOLERANCE, UNIT_LIMIT
from .engines.protocol import Engine, TokenIds
from .engines.registry import make_engine, parse_name
from .environment import Stopwatch
from .errors import CheckpointError, UsageError
from .greedy import greedy, greedy_from_draft
from .logits import count_equal, pairwise
from .references_seam import step as seam
from .replay.lockstep import Candidate, Lockstep, Record
from .replay.precision import DTYPES
from .replay.source import EngineSource
from .result import Greedy, LogitsPair, PromptResult, RunResult, Verdict
from .subject import Subject, load_subject, refusals_as_errors
from .verdict import judge, worst

#: Called with a stage in words, how much of it is done and how much there is.
Progress = Callable[[str, int, int], None]

#: Name of the float64 reference among the engines of a table.
TRUTH = "float64"


def _silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def run_case(case: Case, *, progress: Progress | None = None, command: str = "") -> RunResult:
    """Load a case's model and engines and compare them on its prompts.

    Args:
        case: What to compare.
        progress: Told how far the run is.
        command: What the user typed, for the record.

    Raises:
        ParityError: Unusable input, an engine that cannot be loaded.
    """
    watch, show = Stopwatch(), progress or _silent
    names = [parse_name(text, dtype=case.dtype) for text in _engine_names(case)]
    show("load model", 0, 1 + len(names))
    subject = load_subject(resolve_model(case))
    prompts = [_tokens(subject, prompt) for prompt in case.prompts]
    engines: list[Engine] = []
    for done, name in enumerate(names, start=1):
        show(f"load {name.text}", done, 1 + len(names))
        engine = make_engine(
            name, path=subject.checkpoint.path, model=subject.model, threads=case.threads
        )
        engines.append(engine)
    show("load model", 1 + len(names), 1 + len(names))
    return compare(subject, engines, prompts, case, progress=show, watch=watch, command=command)


def compare(
    subject: Subject,
    engines: Sequence[Engine],
    prompts: Sequence[TokenIds],
    case: Case,
    *,
    progress: Progress = _silent,
    watch: Stopwatch | None = None,
    command: str = "",
) -> RunResult:
    """Compare loaded engines with the reference.

    Args:
        subject: The model.
        engines: Candidates; their names must differ.
        prompts: Token ids [B, T] of each prompt of the case, in order.
        case: Names of the prompts, number of greedy and of decoding steps, dtype.
        progress: Told how far the run is.
        watch: Started when the run began.
        command: What the user typed, for the record.
    """
    watch = watch or Stopwatch()
    results = [
        _compare_prompt(subject, engines, prompt, tokens, case, progress)
        for prompt, tokens in zip(case.prompts, prompts, strict=True)
    ]
    floor = _floor(engines, results)
    verdicts = tuple(
        judge(engine.name, results, dict(engine.unavailable), floor=floor) for engine in engines
    )
    verdict = worst(v.verdict for v in verdicts)
    return RunResult(
        case=case.name,
        verdict=verdict,
        summary=_summarise(verdict, [v.candidate for v in verdicts if v.verdict is verdict]),
        model=subject.info(),
        engines=tuple(engine.info() for engine in engines),
        candidates=verdicts,
        prompts=tuple(results),
        environment=watch.environment(
            threads=case.threads or _default_threads(), seed=case.seed, command=command
        ),
        tolerance=TOLERANCE,
        unit_limit=UNIT_LIMIT,
    )


def _engine_names(case: Case) -> tuple[str, ...]:
    """The case's engines; the default ones without the reference where that cannot compute."""
    if case.engines == DEFAULT_ENGINES and case.dtype != "float32":
        return tuple(name for name in DEFAULT_ENGINES if name != "reference")
    return case.engines


def _tokens(subject: Subject, prompt: Prompt) -> TokenIds:
    """Token ids [B, T] of a prompt."""
    rows = prompt.token_ids
    if rows is None:
        rows = (tuple(encode(subject.checkpoint, prompt.text or "")),)
    length = len(rows[0]) if prompt.length is None else prompt.length
    if len(rows[0]) < length or length == 0:
        raise UsageError(
            f"prompt {prompt.name!r}",
            expected=f"at least {max(length, 1)} tokens",
            found=str(len(rows[0])),
            advice="give a longer text, or a smaller length",
        )
    return np.array([row[:length] for row in rows], dtype=np.int64)


def _require_room(subject: Subject, name: str, tokens: TokenIds, case: Case) -> None:
    room = subject.model.config.max_positions
    needed = tokens.shape[1] + max(case.decode, case.greedy)
    if room is not None and needed > room:
        raise UsageError(
            f"prompt {name!r}",
            expected=f"at most {room} positions, the config's max_position_embeddings",
            found=f"{tokens.shape[1]} tokens and {needed - tokens.shape[1]} more to decode",
            advice="shorten the prompt with length, or lower decode and greedy",
        )


def _compare_prompt(
    subject: Subject,
    engines: Sequence[Engine],
    prompt: Prompt,
    tokens: TokenIds,
    case: Case,
    progress: Progress,
) -> PromptResult:
    with refusals_as_errors():
        subject.model.require_tokens(tokens)
    _require_room(subject, prompt.name, tokens, case)
    count = case.greedy if tokens.shape[0] == 1 else 0
    chosen: dict[str, TokenIds] = {}
    for done, engine in enumerate(engines):
        progress(f"{prompt.name}: greedy tokens", done, len(engines))
        chosen[engine.name] = greedy(engine, tokens, count)
    progress(f"{prompt.name}: greedy tokens", len(engines), len(engines))
    chunks = _chunks(engines[0], tokens, chosen, case.decode)
    record = _walk(
        subject, engines, chunks, case, lambda d, t: progress(f"{prompt.name}: replay", d, t)
    )
    if count:
        chosen = {TRUTH: _true_greedy(subject, tokens, chosen, case), **chosen}
    return PromptResult(
        name=prompt.name,
        text=prompt.text or _decode(subject, tokens[0]),
        token_ids=tuple(tuple(row) for row in tokens.tolist()),
        tokens=tuple(_texts(subject, row) for row in np.concatenate(chunks, axis=1)),
        chunks=tuple(chunk.shape[1] for chunk in chunks),
        comparisons=tuple(record.comparisons),
        pairs=tuple(record.pairs),
        logits=_logits_table(record, chosen),
        greedy=tuple(
            Greedy(name, tuple(ids[0].tolist()), _decode(subject, ids[0]))
            for name, ids in chosen.items()
            if count
        ),
    )


def _chunks(
    engine: Engine, tokens: TokenIds, chosen: dict[str, TokenIds], decode: int
) -> list[TokenIds]:
    """The forward passes to compare: the prompt, then one token at a time.

    All candidates are fed the same tokens, those that the first engine chose.
    """
    following = chosen[engine.name][:, :decode]
    if following.shape[1] < decode:
        following = greedy(engine, tokens, decode)
    return [tokens, *(following[:, i : i + 1] for i in range(decode))]


def _walk(
    subject: Subject,
    engines: Sequence[Engine],
    chunks: Sequence[TokenIds],
    case: Case,
    progress: Callable[[int, int], None],
) -> Record:
    """Walk through the reference with all engines in lockstep."""
    with ExitStack() as stack:
        candidates = [
            Candidate(
                engine.name,
                engine.dtype,
                stack.enter_context(EngineSource(engine, chunks)),
                dict(engine.unavailable),
                engine.parameters,
            )
            for engine in engines
        ]
        layers = subject.model.config.layers
        workers = min(1 + len(candidates), case.threads or os.cpu_count() or 1)
        # Lanes run side by side, so each multiplies on one thread: more would only spin.
        blas = ThreadpoolController().select(internal_api="openblas")
        stack.enter_context(blas.limit(limits=1))
        step = Lockstep(
            candidates,
            dtype=case.dtype,
            executor=stack.enter_context(ThreadPoolExecutor(workers)),
            on_layer=lambda chunk, layer: progress(chunk * layers + layer, len(chunks) * layers),
        )
        position = 0
        for index, tokens in enumerate(chunks):
            step.begin(index, start=position)
            if index == 0:
                _, cache = subject.model.prefill(step, tokens)
            else:
                subject.model.extend(step, tokens, cache, position=position)
            position += tokens.shape[1]
        progress(len(chunks) * layers, len(chunks) * layers)
    return step.record


def _true_greedy(
    subject: Subject, tokens: TokenIds, chosen: dict[str, TokenIds], case: Case
) -> NDArray[np.int64]:
    target = DTYPES[case.dtype]

    def lift(weight: seam.Weight) -> NDArray[np.float64]:
        return np.asarray(weight.array).astype(target, copy=False).astype(np.float64)

    draft = next(iter(chosen.values()))
    step = seam.Compute(lift, np.dtype(np.float64))
    return greedy_from_draft(subject.model, step, tokens, draft)


def _logits_table(record: Record, chosen: dict[str, TokenIds]) -> tuple[LogitsPair, ...]:
    """Every pair of engines on the prompt's logits, the float64 reference among them."""
    seen = record.logits[0]
    everyone = {TRUTH: seen.reference, **seen.candidates}
    table = []
    names = list(everyone)
    for index, a in enumerate(names):
        for b in names[index + 1 :]:
            pair = pairwise(a, everyone[a], b, everyone[b])
            if a in chosen and b in chosen and chosen[a].shape[1]:
                agree = count_equal(chosen[a][0], chosen[b][0])
                pair = replace(pair, greedy_agreement=agree)
            table.append(pair)
    return tuple(table)


def _floor(engines: Sequence[Engine], results: Sequence[PromptResult]) -> float | None:
    """How far float32 runs that are replayed and healthy are from float64, at the logits."""
    sizes = []
    for engine in engines:
        verdict = judge(engine.name, results, {})
        healthy = verdict.verdict in (Verdict.PASS, Verdict.ROUNDING)
        if engine.dtype == "float32" and healthy and verdict.replayed:
            sizes += [
                c.difference.max_abs
                for result in results
                for c in result.comparisons
                if c.candidate == engine.name and c.tap == "logits" and c.difference
            ]
    return max(sizes, default=None)


def _summarise(verdict: Verdict, names: Sequence[str]) -> str:
    who = ", ".join(names)
    return {
        Verdict.PASS: "All engines agree with the reference.",
        Verdict.ROUNDING: "All engines agree with the reference up to accumulated rounding.",
        Verdict.FAIL: f"{who} computes something else than the reference.",
        Verdict.NOT_FINITE: f"{who} computes NaN or infinity where the reference does not.",
        Verdict.NOT_COMPARABLE: f"{who} could not be compared with the reference.",
    }[verdict]


def _texts(subject: Subject, token_ids: NDArray[np.int64]) -> tuple[str, ...]:
    try:
        return tuple(token_texts(subject.checkpoint, token_ids.tolist()))
    except CheckpointError:  # no tokenizer: ids say it as well
        return tuple(map(str, token_ids.tolist()))


def _decode(subject: Subject, token_ids: NDArray[np.int64]) -> str:
    try:
        return decode(subject.checkpoint, token_ids.tolist())
    except CheckpointError:  # no tokenizer
        return ""


def _default_threads() -> int:
    from .engines.hf import default_threads

    return default_threads()
