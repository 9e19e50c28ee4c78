"""The one pipeline: case, engines, comparison in lockstep, verdicts, result."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .case import DEFAULT_ENGINES, Case, Prompt, resolve_model
from .diagnose.start import Diagnosing
from .engines.protocol import Engine, TokenIds, takes_padding
from .engines.registry import make_engine, parse_name
from .environment import Stopwatch
from .greedy import greedy, greedy_from_draft
from .outcome import TRUTH, conclude, prompt_result
from .padding import Padding, padding_of
from .participants import RunningEngine
from .probe.plan import make_plan
from .prompts import passes_of, require_room, tokens_of
from .references_seam import step as seam
from .replay.lockstep import Record
from .replay.precision import DTYPES
from .result import ProbeReport, PromptResult, RunResult
from .subject import Subject, load_subject, refusals_as_errors
from .unfinished import OnStop, Underway, tell
from .walk import walk

#: Called with a stage in words, how much of it is done and how much there is.
Progress = Callable[[str, int, int], None]


def _silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def run_case(
    case: Case,
    *,
    progress: Progress | None = None,
    command: str = "",
    on_stop: OnStop | None = None,
) -> RunResult:
    """Load a case's model and engines and compare them on its prompts.

    Args:
        case: What to compare.
        progress: Told how far the run is.
        command: What the user typed, for the record.
        on_stop: See :func:`compare`.

    Raises:
        ParityError: Unusable input, an engine that cannot be loaded.
    """
    watch, show = Stopwatch(), progress or _silent
    names = [parse_name(text, dtype=case.dtype) for text in _engine_names(case)]
    show("load model", 0, 1 + len(names))
    subject = load_subject(resolve_model(case))
    prompts = [tokens_of(subject, prompt) for prompt in case.prompts]
    engines: list[Engine] = []
    for done, name in enumerate(names, start=1):
        show(f"load {name.text}", done, 1 + len(names))
        engine = make_engine(
            name, path=subject.checkpoint.path, model=subject.model, threads=case.threads
        )
        engines.append(engine)
    show("load model", 1 + len(names), 1 + len(names))
    return compare(
        subject,
        engines,
        prompts,
        case,
        progress=show,
        watch=watch,
        command=command,
        on_stop=on_stop,
    )


def compare(
    subject: Subject,
    engines: Sequence[Engine],
    prompts: Sequence[TokenIds],
    case: Case,
    *,
    progress: Progress = _silent,
    watch: Stopwatch | None = None,
    command: str = "",
    on_stop: OnStop | None = None,
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
        on_stop: Called with what is known by then where an exception ends the run; the exception
            goes on afterwards. Not called where nothing was compared.
    """
    watch = watch or Stopwatch()
    case, prompts, probe = _with_probes(subject, engines, case, prompts, progress)
    sides = [RunningEngine(engine) for engine in engines]
    diagnosing = Diagnosing(subject, sides)
    underway = Underway([prompt.name for prompt in case.prompts])

    def concluded() -> RunResult:
        environment = watch.environment(
            threads=case.threads or _default_threads(), seed=case.seed, command=command
        )
        results = underway.done if underway.known is None else underway.results()
        whole = conclude(subject, sides, results, case=case.name, environment=environment)
        return replace(whole, probe=probe)

    try:
        for prompt, tokens in zip(case.prompts, prompts, strict=True):
            underway.end(
                _compare_prompt(
                    subject, engines, prompt, tokens, case, progress, diagnosing, underway
                )
            )
        underway.enter("looking for causes")
        return diagnosing.complete(concluded(), progress=progress)
    except (Exception, KeyboardInterrupt) as error:
        if on_stop is not None:
            tell(on_stop, error, underway, lambda: diagnosing.so_far(concluded()))
        raise


def _with_probes(
    subject: Subject,
    engines: Sequence[Engine],
    case: Case,
    prompts: Sequence[TokenIds],
    progress: Progress,
) -> tuple[Case, Sequence[TokenIds], ProbeReport | None]:
    """The case and its prompts with probes behind them, and what is said of these."""
    if not case.probe:
        return case, prompts, None
    progress("make probes", 0, 1)
    plan = make_plan(
        subject.model,
        subject.checkpoint.config,
        dtype=case.dtype,
        most=case.probe_length,
        unpadded=tuple(engine.name for engine in engines if not takes_padding(engine)),
    )
    progress("make probes", 1, 1)
    made = [tokens_of(subject, prompt) for prompt in plan.prompts]
    return replace(case, prompts=(*case.prompts, *plan.prompts)), [*prompts, *made], plan.report


def _engine_names(case: Case) -> tuple[str, ...]:
    """The case's engines; the default ones without the reference where that cannot compute."""
    if case.engines == DEFAULT_ENGINES and case.dtype != "float32":
        return tuple(name for name in DEFAULT_ENGINES if name != "reference")
    return case.engines


def _compare_prompt(
    subject: Subject,
    engines: Sequence[Engine],
    prompt: Prompt,
    tokens: TokenIds,
    case: Case,
    progress: Progress,
    diagnosing: Diagnosing,
    underway: Underway,
) -> PromptResult:
    underway.enter(f"preparing prompt {prompt.name}")
    with refusals_as_errors():
        subject.model.require_tokens(tokens)
    decode = case.decode if prompt.decode is None else prompt.decode
    greedy_tokens = case.greedy if prompt.greedy is None else prompt.greedy
    require_room(subject, prompt.name, tokens, more=max(decode, greedy_tokens))
    padding = padding_of(prompt.token_ids, prompt.padding, cut=prompt.length)
    count = greedy_tokens if tokens.shape[0] == 1 else 0
    chosen: dict[str, TokenIds] = {}
    for done, engine in enumerate(engines):
        progress(f"{prompt.name}: greedy tokens", done, len(engines))
        underway.enter(f"{engine.name} chose greedy tokens after prompt {prompt.name}")
        chosen[engine.name] = greedy(engine, tokens, count)
    progress(f"{prompt.name}: greedy tokens", len(engines), len(engines))
    passes = passes_of(prompt, tokens)
    chunks = [*passes, *_following(engines[0], tokens, chosen, decode, padding)]
    diagnosing.begin(prompt.name, chunks)
    record = Record([], [], [])

    def known() -> PromptResult:
        return prompt_result(
            subject,
            record,
            chunks,
            name=prompt.name,
            text=prompt.text or "",
            padding=padding,
            prefill=len(passes),
            chosen=chosen if count else None,
        )

    underway.known = known
    underway.enter(f"comparing prompt {prompt.name}")
    with refusals_as_errors():
        walk(
            subject,
            [RunningEngine(engine) for engine in engines],
            chunks,
            padding=padding,
            dtype=case.dtype,
            threads=case.threads,
            progress=lambda done, total: progress(f"{prompt.name}: replay", done, total),
            on_failure=diagnosing.look,
            measure=diagnosing.measure,
            record=record,
        )
    diagnosing.end(record)
    if count:
        underway.enter(f"the reference chose greedy tokens after prompt {prompt.name}")
        chosen = {TRUTH: _true_greedy(subject, tokens, chosen, case), **chosen}
    return known()


def _following(
    engine: Engine,
    tokens: TokenIds,
    chosen: dict[str, TokenIds],
    decode: int,
    padding: Padding | None,
) -> list[TokenIds]:
    """The decoding steps to compare, one token each.

    All candidates are fed the same tokens, those that the first engine chose.
    """
    following = chosen[engine.name][:, :decode]
    if following.shape[1] < decode:
        following = greedy(engine, tokens, decode, padding=padding)
    return [following[:, i : i + 1] for i in range(decode)]


def _true_greedy(
    subject: Subject, tokens: TokenIds, chosen: dict[str, TokenIds], case: Case
) -> NDArray[np.int64]:
    target = DTYPES[case.dtype]

    def lift(weight: seam.Weight) -> NDArray[np.float64]:
        return np.asarray(weight.array).astype(target, copy=False).astype(np.float64)

    draft = next(iter(chosen.values()))
    step = seam.Compute(lift, np.dtype(np.float64))
    return greedy_from_draft(subject.model, step, tokens, draft)


def _default_threads() -> int:
    from .engines.hf import default_threads

    return default_threads()
