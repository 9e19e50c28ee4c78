"""From a model and environments to a result: what the commands, pytest and tests call."""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ..environment import Stopwatch
from ..errors import ParityError
from ..result import RunResult
from .baseline import Baseline, Head, Refresh
from .explaining import explain_result
from .judging import Judged, describe, judge
from .plan import Plan
from .recording import record
from .records import Facts, Pass, Request
from .result import GateResult, GateVerdict, SideInfo
from .side import RecordSide, Side
from .target import Target

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a gate leaves.

    Attributes:
        result: The document.
        replayed: The result of the replay on the reference, whose page has every op; None where
            there is none.
    """

    result: GateResult
    replayed: RunResult | None = None


class Recorder:
    """Runs a plan in environments; what is recorded lives as long as this is open.

    Args:
        progress: Told how far it is.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stack = ExitStack()

    def __enter__(self) -> "Recorder":
        """Open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was recorded."""
        self._stack.close()

    def run(self, python: Path, request: Request, *, name: str) -> RecordSide:
        """Run a request with a Python.

        Args:
            python: Of the environment.
            request: What to run.
            name: For the progress.
        """
        self._progress(f"run {name}", 0, 1)
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="parity-gate-"))
        side = RecordSide(record(python, request, folder=Path(folder)))
        self._progress(f"run {name}", 1, 1)
        return side


def make_baseline(
    target: Target,
    plan: Plan,
    *,
    history: tuple[Refresh, ...] = (),
    trust_remote_code: bool = False,
    progress: Progress,
) -> Baseline:
    """Record what the installed libraries compute.

    Raises:
        ParityError: They cannot run the model.
    """
    with Recorder(progress) as recorder:
        request = plan.request(target.folder, trust_remote_code=trust_remote_code)
        side = recorder.run(Path(sys.executable), request, name="the installed versions")
        _require_run(target, side.facts)
        made = _kept(side, target, plan, history)
        _require_finite(made)
        return made


def refreshed(old: Baseline, fresh: Baseline, result: GateResult, reason: str) -> Baseline:
    """A new baseline that says why it took the place of an old one, and what that hides.

    Raises:
        ParityError: It would protect nothing.
    """
    _require_finite(fresh)
    entry = Refresh(
        reason=" ".join(reason.split()),
        verdict=result.verdict.value,
        summary=result.summary,
        before={name: old.facts.versions.get(name, "") for name in ("transformers", "torch")},
    )
    return fresh.under(replace(fresh.head, history=(*old.head.history, entry)))


def _kept(side: RecordSide, target: Target, plan: Plan, history: tuple[Refresh, ...]) -> Baseline:
    head = Head(target.name, target.checkpoint.fingerprint, plan, side.facts, history)
    return Baseline.of(side, head)


def _require_run(target: Target, facts: Facts) -> None:
    failed = facts.failed
    if failed is not None:
        raise ParityError(
            target.name,
            expected="a model that the installed versions run",
            found=describe(failed),
            advice="mend that first: a baseline of a model that does not run protects nothing",
        )


def _require_finite(made: Baseline) -> None:
    """Refuse NaN: after it everything is the same, whatever is computed.

    Passes with pads may have it: a release may fill rows that read nothing with it.
    """
    whole = {each.name for each in made.head.plan.passes if each.attention_mask is None}
    bad = [tap for tap in made.taps if tap.passed in whole and made.digest(tap.key).not_finite]
    if any(tap.role == "logits" for tap in bad):
        first = next(tap for tap in bad if tap.role in ("out", "logits"))
        raise ParityError(
            made.head.model,
            expected="logits that are finite",
            found=f"NaN or infinity, first in {first.name} of pass {first.passed}",
            advice="mend the weights, or take a wider dtype: a baseline of NaN protects nothing",
        )


def run_gate(
    baseline: Baseline,
    target: Target,
    *,
    name: str,
    threads: int | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    command: str = "",
    progress: Progress,
) -> tuple[Outcome, Baseline | None]:
    """Compare the installed versions with a baseline.

    Args:
        baseline: What was good.
        target: The model, now.
        name: The baseline's name, for the result.
        threads: Threads of torch, if not those of the baseline; then nothing is comparable.
        dtype: The same.
        trust_remote_code: Whether code in the model's folder may run.
        command: What the user typed.
        progress: Told how far it is.

    Returns:
        The outcome, and what a refreshed baseline would be; None where the model does not run.
    """
    watch, plan = Stopwatch(), baseline.head.plan
    found = target.checkpoint.fingerprint
    if found != baseline.head.fingerprint:
        judged = Judged(
            GateVerdict.NOT_COMPARABLE,
            f"The baseline is of weights and config {baseline.head.fingerprint[:16]}, and"
            f" {target.name} has {found[:16]}: another model is no matter of versions.",
        )
        return Outcome(_result(judged, target, baseline, None, name, "", watch, command)), None
    wanted = replace(plan, threads=threads or plan.threads, dtype=dtype or plan.dtype)
    with Recorder(progress) as recorder:
        request = wanted.request(target.folder, trust_remote_code=trust_remote_code)
        after = recorder.run(Path(sys.executable), request, name="the installed versions")
        judged = judge(baseline, after, plan.passes)
        label = _label(after.facts)
        result = _result(judged, target, baseline, after, name, label, watch, command)
        outcome = Outcome(result)
        if judged.verdict in (GateVerdict.CHANGED, GateVerdict.ROUNDING):
            outcome = _explained(
                outcome,
                target,
                {label: after},
                plan.passes,
                baseline=baseline,
                command=command,
                progress=progress,
            )
        fresh = None
        if after.facts.failed is None:
            fresh = _kept(after, target, plan, baseline.head.history)
        return outcome, fresh


def run_pair(
    target: Target,
    plan: Plan,
    pythons: Mapping[str, Path],
    *,
    trust_remote_code: bool = False,
    command: str = "",
    progress: Progress,
) -> Outcome:
    """Compare two environments on one model.

    Args:
        target: The model.
        plan: What to run.
        pythons: Name and Python of the side before, then of the side after.
        trust_remote_code: Whether code in the model's folder may run.
        command: What the user typed.
        progress: Told how far it is.
    """
    watch = Stopwatch()
    request = plan.request(target.folder, trust_remote_code=trust_remote_code)
    with Recorder(progress) as recorder:
        sides = {name: recorder.run(python, request, name=name) for name, python in pythons.items()}
        return compare_sides(target, plan, sides, watch=watch, command=command, progress=progress)


def compare_sides(
    target: Target,
    plan: Plan,
    sides: Mapping[str, RecordSide],
    *,
    watch: Stopwatch,
    command: str = "",
    progress: Progress,
) -> Outcome:
    """Compare two sides that were recorded, and look for the cause of what differs.

    Args:
        target: The model.
        plan: What was run.
        sides: The side before and the side after, by name.
        watch: Started when the run began.
        command: What the user typed.
        progress: Told how far it is.
    """
    (name, before), (other, after) = sides.items()
    judged = judge(before, after, plan.passes)
    outcome = Outcome(_result(judged, target, before, after, name, other, watch, command))
    if judged.verdict in (GateVerdict.CHANGED, GateVerdict.ROUNDING):
        return _explained(outcome, target, sides, plan.passes, command=command, progress=progress)
    return outcome


def _explained(
    outcome: Outcome,
    target: Target,
    sides: Mapping[str, RecordSide],
    passes: Sequence[Pass],
    *,
    baseline: Baseline | None = None,
    command: str,
    progress: Progress,
) -> Outcome:
    """Why sides differ."""
    return Outcome(
        *explain_result(
            outcome.result,
            target.checkpoint,
            sides,
            passes,
            baseline=baseline,
            command=command,
            progress=progress,
        )
    )


def _label(facts: Facts) -> str:
    return f"transformers {facts.versions.get('transformers', 'unknown')}"


def _result(
    judged: Judged,
    target: Target,
    before: Side,
    after: Side | None,
    name: str,
    other: str,
    watch: Stopwatch,
    command: str,
) -> GateResult:
    environment = watch.environment(threads=1, seed=None, command=command)
    return GateResult(
        verdict=judged.verdict,
        summary=judged.reason,
        model=target.name,
        before=_info(name, before.facts),
        after=_info(other, after.facts)
        if after
        else SideInfo("what is installed (not run)", {}, {}),
        passes=judged.passes,
        taps=judged.taps,
        facts=judged.facts,
        command=command,
        started=environment.started,
        seconds=environment.seconds,
    )


def _info(name: str, facts: Facts) -> SideInfo:
    machine = facts.machine
    shown = (
        {}
        if machine is None
        else {
            key: str(getattr(machine, key))
            for key in ("platform", "processor", "capability", "threads", "blas")
        }
    )
    shown |= {"attention": facts.attention or "", "dtype": facts.dtype or ""}
    failed = facts.failed
    words = f"{failed.type} in {failed.stage}: {failed.message}"[:600] if failed else ""
    return SideInfo(name, dict(facts.versions), shown, words)
