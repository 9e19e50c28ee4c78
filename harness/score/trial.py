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
        alike: Ids of faults that give the same numbers on any input.
        broken: Faults that could not be tried, with the reason: bugs of the catalogue.
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
    alike: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def placed(self) -> bool:
        """Whether the right tap was named."""
        return self.caught and self.found == self.expected

    @property
    def first(self) -> bool:
        """Whether the planted fault was named first, or beside one that is the same in numbers."""
        same = {self.fault, *self.alike}
        named = self.fault in self.named and self.named[0] in same
        return self.placed and named and not self.broken


def outcome(result: RunResult, name: str, *, alike: tuple[str, ...] = (), **planted: str) -> Trial:
    """What a run says of one candidate.

    Args:
        result: The run.
        name: The candidate.
        alike: See :class:`Trial`.
        **planted: Attributes of the trial that say what was planted.
    """
    verdict = next(c for c in result.candidates if c.candidate == name)
    found = "" if verdict.first_divergence is None else verdict.first_divergence.tap
    return Trial(
        caught=verdict.verdict not in _HEALTHY,
        found=found,
        named=_named(result, verdict),
        alike=alike,
        broken=tuple(
            observation
            for diagnosis in result.diagnoses
            for observation in diagnosis.observations
            if diagnosis.candidate == name and "could not be tried" in observation
        ),
        **planted,
    )


def _named(result: RunResult, verdict: CandidateVerdict) -> tuple[str, ...]:
    """Causes of the first diagnosis of a candidate."""
    own: list[Diagnosis] = [d for d in result.diagnoses if d.candidate == verdict.candidate]
    return tuple(cause.fault for cause in own[0].causes) if own else ()
