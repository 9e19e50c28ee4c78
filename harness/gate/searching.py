"""The release that changed a model: releases are run one after another, in halving steps."""

import hashlib
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..environment import Stopwatch
from ..errors import CannotInstall, NoSuchRelease
from .bisect_state import BisectState, load_state, save_state
from .bisecting import BisectResult, Judgement, Word, bisect
from .environments import environment
from .index import releases
from .judging import judge
from .plan import Plan
from .result import GateVerdict
from .running import Outcome, Progress, Recorder, compare_sides
from .side import RecordSide
from .target import Options, Target, find, make_plan
from .upgrading import Say, resaved
from .wanted import parse_wanted

#: What a gate's verdict against the good release says of a release.
_WORDS: dict[GateVerdict, Word] = {
    GateVerdict.SAME: "good",
    GateVerdict.ROUNDING: "good",
    GateVerdict.CHANGED: "bad",
    GateVerdict.FAILING: "bad",
    GateVerdict.NOT_COMPARABLE: "skip",
}


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What to search for.

    Attributes:
        model: The model.
        good: A release in which it is as it should be.
        bad: One in which it is not.
        package: Whose releases these are.
        options: How the model is run.
        resave: Whether all releases load what the good one saves of the model.
        offline: Whether only environments that are kept may be used.
        state: File that keeps what was judged.
    """

    model: str
    good: str
    bad: str
    package: str
    options: Options
    resave: bool
    offline: bool
    state: Path


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to.

    Attributes:
        result: Which release, or which ones may be it.
        outcome: The last release that is as it was against the first that is not.
    """

    result: BisectResult
    outcome: Outcome


def search(
    request: SearchRequest,
    *,
    say: Say,
    progress: Progress,
    command: str = "",
    on_judged: Callable[[str, Judgement], None] = lambda release, judgement: None,
) -> Found:
    """Find the release; what was judged before is read from the state file, and kept there.

    Args:
        request: What to search for.
        say: Takes a line for the user.
        progress: Told how far it is.
        command: What the user typed.
        on_judged: Told what each release comes to, also those of an earlier run.

    Raises:
        ParityError: Unusable input, a package index that does not answer, an end that is not what
            it was said to be, a state file of another search.
    """
    watch, target = Stopwatch(), find(request.model)
    plan = make_plan(target, request.options)
    with ExitStack() as stack:
        runner = _Runner(request, target, plan, stack, say, progress)
        state = _begin(request, target, plan, say)
        for release, judgement in state.judgements.items():
            on_judged(release, judgement)

        def keep(release: str, judgement: Judgement) -> None:
            nonlocal state
            state = state.with_judged(release, judgement)
            save_state(state, request.state)
            on_judged(release, judgement)

        result = bisect(
            state.releases,
            runner.judge,
            good=request.good,
            bad=request.bad,
            state=state.judgements,
            on_judged=keep,
        )
        ends = (result.before, result.after)
        if result.kind == "fixed":
            ends = (result.after, result.before)
        outcome = compare_sides(
            runner.target,
            plan,
            {f"{request.package} {release}": runner.side(release) for release in ends},
            watch=watch,
            command=command,
            progress=progress,
        )
        return Found(result, outcome)


def _begin(request: SearchRequest, target: Target, plan: Plan, say: Say) -> BisectState:
    """What was judged before, or a search that is new."""
    digest = hashlib.sha256(msgspec.json.encode(plan)).hexdigest()[:16]
    question = {
        "model": request.model,
        "fingerprint": target.checkpoint.fingerprint,
        "plan": digest,
        "resaved": str(request.resave),
    }
    new = BisectState(request.package, request.good, request.bad, question, releases=())
    kept = load_state(request.state, expected=new)
    if kept is not None:
        say(f"going on with {request.state}: {len(kept.judged)} releases are judged already")
        return kept
    between = (request.good, request.bad)
    listed = releases(request.package, between=between, say=say, offline=request.offline)
    return msgspec.structs.replace(new, releases=tuple(listed))


class _Runner:
    """Runs releases, each once, and holds them against the good one."""

    def __init__(
        self,
        request: SearchRequest,
        target: Target,
        plan: Plan,
        stack: ExitStack,
        say: Say,
        progress: Progress,
    ) -> None:
        self.target = target
        self._request, self._plan = request, plan
        self._say, self._progress = say, progress
        self._recorder = stack.enter_context(Recorder(progress))
        self._sides: dict[str, RecordSide] = {}
        if request.resave:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="parity-resaved-"))
            good = environment(
                parse_wanted(self._requirement(request.good)), say=say, offline=request.offline
            )
            self.target = resaved(target, good, Path(folder), request.options, progress)

    def _requirement(self, release: str) -> str:
        return f"{self._request.package}=={release}"

    def side(self, release: str) -> RecordSide:
        """What a release makes of the model.

        Raises:
            BuildError: It cannot be installed.
        """
        if release not in self._sides:
            request = self._request
            wanted = parse_wanted(self._requirement(release))
            made = environment(wanted, say=self._say, offline=request.offline)
            asked = self._plan.request(
                self.target.folder, trust_remote_code=request.options.trust_remote_code
            )
            name = f"{request.package} {release}"
            self._sides[release] = self._recorder.run(made.python, asked, name=name)
        return self._sides[release]

    def judge(self, release: str) -> Judgement:
        """Hold a release against the good one."""
        try:
            side = self.side(release)
        except (NoSuchRelease, CannotInstall) as error:
            return Judgement("skip", f"cannot be installed: {error.found}")
        if release == self._request.good:
            failed = side.facts.failed
            if failed is None:
                return Judgement("good", "what the others are held against")
            return Judgement("skip", f"{failed.type} in {failed.stage}: {failed.message}"[:300])
        found = judge(self.side(self._request.good), side, self._plan.passes)
        return Judgement(_WORDS[found.verdict], f"{found.verdict.value}: {found.reason}")
