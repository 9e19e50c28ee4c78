"""Any two sides on the same tokens: engines that run, or runs that arrived as trace files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .case import Prompt
from .diagnose.start import Diagnosing
from .engines.protocol import TokenIds
from .engines.registry import EngineName, make_engine, parse_name
from .environment import Stopwatch
from .errors import NotComparableError, UsageError
from .greedy import greedy
from .locate import locate
from .outcome import conclude, prompt_result
from .participants import Participant, RunningEngine
from .plain_diff import Sides, diff_plain
from .prompts import require_room, tokens_of
from .replay.lockstep import Record
from .result import PromptResult, RunResult
from .subject import Subject, load_subject, refusals_as_errors
from .trace.read import Trace
from .unfinished import OnStop, Underway, tell
from .walk import walk

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class DiffRequest:
    """What to compare.

    Attributes:
        first: A trace file, or the name of an engine.
        other: The same; the candidate.
        model: The model that both claim to compute; that of a trace if empty, where it is there.
        prompt: Needed where both sides are engines.
        decode: Number of decoding steps, where both sides are engines.
        dtype: Dtype of engines.
        threads: CPU threads, None for what the library chooses.
        replay: False compares the two sides alone, tap by tap.
    """

    first: str
    other: str
    model: str = ""
    prompt: Prompt | None = None
    decode: int = 0
    dtype: str = "float32"
    threads: int | None = None
    replay: bool = True


def diff(
    request: DiffRequest,
    *,
    progress: Progress,
    command: str = "",
    on_stop: OnStop | None = None,
) -> RunResult:
    """Compare two sides.

    With the model, every op of both is replayed on the float64 reference; without it, one side is
    held against the other.

    Raises:
        UsageError: A side is no engine and no sound trace, or something needed was not given.
        NotComparableError: The sides are of other weights or other tokens.

    ``on_stop`` is called with what is known where an exception ends the comparison.
    """
    watch = Stopwatch()
    given = [_side(text, request.dtype) for text in (request.first, request.other)]
    traces = [side for side in given if isinstance(side, Trace)]
    _require_same_tokens(traces)
    subject = _subject(request, traces, progress)
    participants = _participants(given, subject, request)
    chunks = traces[0].chunks if traces else _fresh_chunks(participants[0], subject, request)
    case = f"{_stem(request.first)}-vs-{_stem(request.other)}"
    if subject is not None:
        with refusals_as_errors():
            for tokens in chunks:
                subject.model.require_tokens(tokens)
    if subject is None or not request.replay:
        sides = Sides(participants[0], participants[1], traces, chunks, subject)
        return diff_plain(
            sides,
            case=case,
            environment=lambda: watch.environment(threads=1, seed=None, command=command),
            on_stop=on_stop,
        )
    text = (request.prompt.text or "") if request.prompt and not traces else ""
    everybody = _with_floor(participants, subject)

    def judged(prompt: PromptResult) -> RunResult:
        environment = watch.environment(threads=_threads(request), seed=None, command=command)
        return conclude(subject, everybody, [prompt], case=case, environment=environment)

    return _with_model(
        request,
        subject,
        everybody,
        chunks,
        text=text,
        judged=judged,
        progress=progress,
        on_stop=on_stop,
    )


def _with_model(
    request: DiffRequest,
    subject: Subject,
    participants: Sequence[Participant],
    chunks: Sequence[TokenIds],
    *,
    text: str,
    judged: Callable[[PromptResult], RunResult],
    progress: Progress,
    on_stop: OnStop | None,
) -> RunResult:
    """Replay every op of both sides; where that stops, tell what is known by then."""
    name = request.prompt.name if request.prompt else "tokens"
    diagnosing = Diagnosing(subject, participants)
    diagnosing.begin(name, chunks)
    record = Record([], [], [])

    def known() -> PromptResult:
        return prompt_result(subject, record, chunks, name=name, text=text)

    underway = Underway([name], stage=f"comparing prompt {name}", known=known)

    try:
        walk(
            subject,
            participants,
            chunks,
            dtype=_narrowest(participants),
            threads=request.threads,
            progress=lambda done, total: progress("replay", done, total),
            on_failure=diagnosing.look,
            measure=diagnosing.measure,
            record=record,
        )
        diagnosing.end(record)
        underway.enter("looking for causes")
        return diagnosing.complete(judged(known()), progress=progress)
    except (Exception, KeyboardInterrupt) as error:
        if on_stop is not None:
            tell(on_stop, error, underway, lambda: diagnosing.so_far(judged(known())))
        raise


def _side(text: str, dtype: str) -> Trace | EngineName:
    """A trace where a file of that name is there or it is called like one, else an engine."""
    path = Path(text).expanduser()
    if path.is_file() or path.suffix == ".safetensors":
        return Trace(path)
    return parse_name(text, dtype=dtype)


def _require_same_tokens(traces: Sequence[Trace]) -> None:
    if len(traces) < 2:
        return
    with traces[1].source(traces[0].chunks):
        pass
    a, b = (trace.head.model.fingerprint for trace in traces)
    if a and b and a != b:
        raise NotComparableError(
            str(traces[1].path),
            expected=f"a trace of the weights {a[:16]}",
            found=f"{b[:16]}",
            advice="trace both engines on the same weights",
        )


def _subject(request: DiffRequest, traces: Sequence[Trace], progress: Progress) -> Subject | None:
    """The model, None where only traces are compared and none is at hand."""
    where = request.model
    if not where and len(traces) == 2 and not request.replay:
        return None
    if not where:
        origins = [t.head.model.origin for t in traces if t.head.model.origin]
        where = next((origin for origin in origins if Path(origin).exists()), "")
    if not where and len(traces) == 2:
        return None
    if not where:
        raise UsageError(
            "parity diff",
            expected="--model, as an engine has to run",
            found="none",
            advice="name a path, a hub id or package:PKG/FILE",
        )
    progress("load model", 0, 1)
    subject = load_subject(locate(where))
    for trace in traces:
        claimed = trace.head.model.fingerprint
        if claimed and claimed != subject.checkpoint.fingerprint:
            raise NotComparableError(
                str(trace.path),
                expected=f"a trace of {where}, fingerprint {subject.checkpoint.fingerprint[:16]}",
                found=f"one of {claimed[:16]} ({trace.head.model.origin or 'origin unknown'})",
                advice="name the model that was traced with --model, or trace again; a trace "
                "without a fingerprint is compared with any model",
            )
    return subject


def _participants(
    sides: Sequence[Trace | EngineName], subject: Subject | None, request: DiffRequest
) -> list[Participant]:
    """Both sides, under names that differ."""
    names = [side.name if isinstance(side, Trace) else side.text for side in sides]
    paths = [str(side.path) for side in sides if isinstance(side, Trace)]
    if (names[0] == names[1] and not paths) or (len(paths) == 2 and paths[0] == paths[1]):
        raise UsageError(
            "parity diff",
            expected="two sides",
            found=f"{request.first} twice",
            advice="name another engine or another trace",
        )
    made: list[Participant] = []
    for side, name in zip(sides, names, strict=True):
        if isinstance(side, Trace):
            side.name = name if names.count(name) == 1 else f"{name} ({side.path})"
            made.append(side)
        elif subject is not None:
            engine = make_engine(
                side, path=subject.checkpoint.path, model=subject.model, threads=request.threads
            )
            made.append(RunningEngine(engine))
    return made


def _fresh_chunks(
    first: Participant, subject: Subject | None, request: DiffRequest
) -> list[TokenIds]:
    """The prompt, and the tokens that the first engine chooses after it."""
    if request.prompt is None or subject is None or not isinstance(first, RunningEngine):
        raise UsageError(
            "parity diff",
            expected="--prompt or --tokens, as both sides are engines",
            found="neither",
            advice='try: --prompt "The capital of France is"',
        )
    tokens = tokens_of(subject, request.prompt)
    with refusals_as_errors():
        subject.model.require_tokens(tokens)
    require_room(subject, request.prompt.name, tokens, more=request.decode)
    chosen = greedy(first.engine, tokens, request.decode)
    return [tokens, *(chosen[:, i : i + 1] for i in range(request.decode))]


def _with_floor(participants: list[Participant], subject: Subject) -> list[Participant]:
    """A float32 reference beside a side of which no op can be replayed: it gives the floor."""
    bare = any(isinstance(side, Trace) and side.logits_only for side in participants)
    running = any(isinstance(s, RunningEngine) and s.dtype == "float32" for s in participants)
    if not bare or running:
        return participants
    engine = make_engine(
        parse_name("reference", dtype="float32"),
        path=subject.checkpoint.path,
        model=subject.model,
        threads=None,
    )
    return [*participants, RunningEngine(engine)]


def _narrowest(participants: Sequence[Participant]) -> str:
    """The dtype that the float64 lane's parameters are rounded to: float32 if any side has it."""
    dtypes = [side.dtype for side in participants]
    return "float32" if "float32" in dtypes else dtypes[0]


def _threads(request: DiffRequest) -> int:
    from .engines.hf import default_threads

    return request.threads or default_threads()


def _stem(side: str) -> str:
    return Path(side).stem if side.endswith(".safetensors") else side.replace(":", "-")
