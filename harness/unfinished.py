"""A run that does not come to its end: what is known of it by then, and what is said of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .errors import ParityError
from .result import CandidateVerdict, PromptResult, RunResult, TapStatus, Verdict
from .taps import chunk_name
from .verdict import worst

#: Called with what is known of a run that an exception ends, before the exception goes on.
OnStop = Callable[[RunResult], object]

_HEALTHY = (Verdict.PASS, Verdict.ROUNDING)


@dataclass(slots=True)
class Underway:
    """How far a run is.

    Attributes:
        names: All prompts.
        done: Results of those that are through.
        stage: What is being done, to stand behind "while".
        known: Makes the result of the prompt that is under way of what was compared of it so far;
            None where nothing can have been.
    """

    names: Sequence[str]
    done: list[PromptResult] = field(default_factory=list)
    stage: str = "preparing"
    known: Callable[[], PromptResult] | None = None

    def enter(self, stage: str) -> None:
        """Begin something."""
        self.stage = stage

    def end(self, result: PromptResult) -> None:
        """Leave a prompt."""
        self.done.append(result)
        self.known = None

    def results(self) -> list[PromptResult]:
        """All prompts of which something was compared."""
        partial = [] if self.known is None else [self.known()]
        return [result for result in [*self.done, *partial] if result.comparisons]

    def words(self, error: BaseException) -> str:
        """What ended the run, while what, after which tap, and what was not begun."""
        said = f"{describe(error)}; while {self.stage}"
        results = self.results()
        if results:
            last = results[-1].comparisons[-1]
            said += (
                f"; the last tap that was compared is {last.tap} of prompt {results[-1].name}"
                f" ({chunk_name(last.chunk, results[-1].prefill)})"
            )
        left = len(self.names) - len(self.done) - (self.known is not None)
        return said + (f"; prompts not compared: {left} of {len(self.names)}" if left else "")


def tell(
    on_stop: OnStop, error: BaseException, underway: Underway, conclude: Callable[[], RunResult]
) -> None:
    """Hand over what is known where something is.

    Args:
        on_stop: Gets it.
        error: What ends the run. Should all this fail as well, it says so and stays the error.
        underway: How far the run is.
        conclude: Makes a result of that.
    """
    try:
        if underway.results():
            on_stop(stopped(conclude(), underway.words(error)))
    except Exception as other:
        error.add_note(f"what was compared by then is lost: {type(other).__name__}: {other}")


def describe(error: BaseException) -> str:
    """An exception in words, with the engine in which it was raised where that is known."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    words = str(error) if isinstance(error, ParityError) else f"{type(error).__name__}: {error}"
    return ", ".join([words, *getattr(error, "__notes__", ())])


def stopped(result: RunResult, words: str) -> RunResult:
    """A result over part of what was asked for: no candidate of it passes.

    An op that fails by itself fails whatever would have followed, and so does a value that is not
    finite; every other verdict was given too early.

    Args:
        result: Of what was compared.
        words: What ended the run and where.
    """
    candidates = tuple(_early(candidate, result, words) for candidate in result.candidates)
    verdict = worst(candidate.verdict for candidate in candidates)
    failing = ", ".join(c.candidate for c in candidates if c.verdict is not Verdict.NOT_COMPARABLE)
    found = f" {failing} had failed by then." if failing else " Nothing had failed by then."
    return replace(
        result,
        verdict=verdict,
        candidates=candidates,
        summary=f"The run stopped before its end: {words}.{found}",
        stopped=words,
    )


def _early(candidate: CandidateVerdict, result: RunResult, words: str) -> CandidateVerdict:
    """What is left of a verdict where part of the comparison is lacking."""
    broken = any(
        c.candidate == candidate.candidate and c.status is TapStatus.NOT_FINITE
        for c in result.comparisons
    )
    if candidate.failing or broken:
        return candidate
    so_far = candidate.reason
    if candidate.verdict in _HEALTHY:
        so_far = f"of what was compared, {candidate.reason}"
    keep = candidate.verdict is Verdict.NOT_COMPARABLE
    return replace(
        candidate,
        verdict=Verdict.NOT_COMPARABLE,
        reason=f"the run stopped before its end ({words}); {so_far}",
        first_divergence=candidate.first_divergence if keep else None,
    )
