"""Why two sides differ: recorded runs are replayed on the reference, where a family has one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..checkpoint import Checkpoint
from ..errors import ParityError
from ..faults.fault import Facts, Fault
from ..result import RunResult
from ..subject import Subject
from .baseline import Baseline
from .earlier import Earlier, Watch, explain
from .records import Pass
from .replayed import RecordedRun, chunks_of, has_reference, replay
from .result import GateResult, TapState
from .side import RecordSide

Progress = Callable[[str, int, int], None]


def explain_result(
    result: GateResult,
    checkpoint: Checkpoint,
    sides: Mapping[str, RecordSide],
    passes: Sequence[Pass],
    *,
    baseline: Baseline | None = None,
    command: str,
    progress: Progress,
) -> tuple[GateResult, RunResult | None]:
    """Why sides differ: what of them the reference does not compute, where there is one.

    Args:
        result: What the comparison came to.
        checkpoint: The model.
        sides: Sides with every array, by name.
        passes: What was run.
        baseline: The side before where it is one.
        command: What the user typed.
        progress: Told how far it is.

    Returns:
        The result with the cause, or a note why there is none; and the result of the replay, whose
        page has every op, None where there is no reference.
    """
    from ..subject import load_subject

    if not all(has_reference(side.facts, checkpoint.config) for side in sides.values()):
        family = checkpoint.config.get("model_type")
        note = f"There is no reference of {family}: the cause was not looked for."
        return replace(result, notes=(*result.notes, note)), None
    try:
        subject = load_subject(checkpoint.path)
        parting = None if baseline is None else _parting(result, baseline, sides, subject)
        watch = Watch(parting)
        run = replay(
            subject,
            sides,
            passes,
            case=result.model,
            threads=1,
            command=command,
            progress=progress,
            watch_op=watch,
        )
    except ParityError as error:
        note = f"The cause was not looked for: {error}"
        return replace(result, notes=(*result.notes, note)), None
    found = run.diagnoses
    if not found and parting is not None and watch.made is not None:
        before = explain(parting, watch.made, _facts(subject, passes, parting), _faults())
        found = () if before is None else (before,)
    return replace(result, diagnoses=found, replayed=_replayed(run)), run


def _parting(
    result: GateResult, baseline: Baseline, sides: Mapping[str, RecordSide], subject: Subject
) -> Earlier | None:
    """The first op at which a baseline and a side part that the reference has a name for."""
    if result.divergence is None:
        return None
    first = result.divergence.change
    (name, side), *_ = sides.items()
    run = RecordedRun(side, name, subject)
    kept = {(tap.passed, tap.chunk, tap.name): tap.key for tap in baseline.taps}
    for change in result.taps:
        place = (change.passed, change.chunk, change.before or change.tap)
        same = place[:2] == (first.passed, first.chunk)
        named = run.canonical(change.tap) if same and change.state is TapState.CHANGED else None
        if named is not None and place in kept:
            digest = baseline.digest(kept[place])
            return Earlier(result.before.name, change, named[0], digest, named[1])
    return None


def _facts(subject: Subject, passes: Sequence[Pass], parting: Earlier) -> Facts:
    fed = next(each for each in passes if each.name == parting.change.passed)
    checkpoint = subject.checkpoint
    return Facts(checkpoint.config, checkpoint.tensors, tuple(chunks_of(fed)))


def _faults() -> Iterable[Fault]:
    from ..faults.catalogue import catalogue

    return catalogue().faults.values()


def _replayed(run: RunResult) -> str:
    return "; ".join(
        f"{each.candidate}: {each.verdict.value}, {each.reason}" for each in run.candidates
    )
