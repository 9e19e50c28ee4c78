"""One planted fault, and what a run made of it."""

from dataclasses import dataclass

from ..result import CandidateVerdict, Diagnosis, RunResult, Verdict

_HEALTHY = (Verdict.PASS, Verdict.ROUNDING)


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one planted fault.

    Attributes:
        fault: Id of what was planted.
        plant: What exactly was done.
        family: Of the model.
        dtype: Of the candidate.
        attention: Attention implementation.
        expected: Tap that must fail first.
        caught: Whether the run did not pass.
        found: Tap that failed first, empty if none.
        named: Ids of the causes that were given for it, the first one first.
    """

    fault: str
    plant: str
    family: str
    dtype: str
    attention: str
    expected: str
    caught: bool
    found: str
    named: tuple[str, ...]

    @property
    def placed(self) -> bool:
        """Whether the right tap was named."""
        return self.caught and self.found == self.expected

    @property
    def first(self) -> bool:
        """Whether the planted fault was named first."""
        return self.placed and self.named[:1] == (self.fault,)


def outcome(result: RunResult, name: str, **planted: str) -> Trial:
    """What a run says of one candidate.

    Args:
        result: The run.
        name: The candidate.
        **planted: Attributes of the trial that say what was planted.
    """
    verdict = next(c for c in result.candidates if c.candidate == name)
    found = "" if verdict.first_divergence is None else verdict.first_divergence.tap
    return Trial(
        caught=verdict.verdict not in _HEALTHY,
        found=found,
        named=_named(result, verdict),
        **planted,
    )


def _named(result: RunResult, verdict: CandidateVerdict) -> tuple[str, ...]:
    """Causes of the first diagnosis of a candidate."""
    own: list[Diagnosis] = [d for d in result.diagnoses if d.candidate == verdict.candidate]
    return tuple(cause.fault for cause in own[0].causes) if own else ()
