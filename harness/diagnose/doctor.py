"""Collects the ops of a run that do not replay and says why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..faults.fault import Catalogue, Facts
from ..replay.call import Made
from ..replay.lockstep import Replayed
from ..result import Cause, Diagnosis, Fit, TapStatus
from ..taps import split
from .fits import fit_constants
from .match import Match, Matcher
from .observe import observe

Array = NDArray[Any]

#: Ops of one candidate that are tried with the whole catalogue. Further ones are only tried with
#: what was found before.
_FULL_MATCHES = 8


#: Prompt, chunk and tap.
_Place = tuple[str, int, str]


@dataclass(slots=True)
class _Finding:
    """One mistake of one candidate, with all places where it shows, the first one first."""

    matches: list[Match]
    observations: tuple[str, ...]
    places: list[_Place]


class Doctor:
    """Says why the candidates of a run fail.

    Args:
        catalogue: The mistakes to try.
        facts: Config and parameters of the checkpoint.
        parameters: What each candidate shows of the parameters it holds.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        facts: Facts,
        parameters: Mapping[str, Mapping[str, Array]],
    ) -> None:
        self._catalogue = catalogue
        self._matcher = Matcher(facts, parameters)
        self._findings: dict[str, list[_Finding]] = {}
        self._tried: dict[str, int] = {}
        self._met: dict[_Place, int] = {}
        self._misshapen: set[tuple[str, str, int]] = set()
        self._prompt = ""

    def begin(self, prompt: str, chunks: Sequence[NDArray[np.int64]]) -> None:
        """Enter the next prompt: token ids [B, T] of each forward pass."""
        self._prompt = prompt
        facts = self._matcher.facts
        self._matcher.facts = Facts(facts.config, facts.parameters, tuple(chunks))

    def measure(self, made: Made, found: Array, bound: Array) -> tuple[Fit, ...]:
        """Fit the constants of one op; see :mod:`harness.diagnose.fits`."""
        return fit_constants(made, found, bound, self._matcher.facts)

    def look(self, failure: Replayed) -> None:
        """Look for the cause of one op that does not replay."""
        name = failure.comparison.candidate
        findings = self._findings.setdefault(name, [])
        place = (self._prompt, failure.comparison.chunk, failure.comparison.tap)
        if failure.comparison.status is TapStatus.MISSHAPEN:
            # Shapes are inherited: what comes after the first that is wrong says nothing more.
            first = (name, self._prompt, failure.comparison.chunk)
            if first in self._misshapen:
                return
            self._misshapen.add(first)
        self._met.setdefault(place, len(self._met))
        known = self._known(failure, findings)
        if known is not None:
            known.places.append(place)
            return
        if self._tried.get(name, 0) >= _FULL_MATCHES:
            unknown = next((f for f in findings if not f.matches), None)
            if unknown is not None:
                unknown.places.append(place)
                return
            matches: list[Match] = []
        else:
            self._tried[name] = self._tried.get(name, 0) + 1
            matches = self._matcher.match(failure, list(self._catalogue.faults.values()))
        seen = () if matches else observe(failure)
        observations = (*seen, *self._matcher.broken)
        findings.append(_Finding(matches, observations, [place]))

    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Why candidates fail, in data-flow order for each."""
        return tuple(
            _diagnosis(name, finding)
            for name, findings in self._findings.items()
            for finding in _merged(findings, self._met)
        )

    def _known(self, failure: Replayed, findings: list[_Finding]) -> _Finding | None:
        """The earlier finding that explains this op too."""
        for finding in findings:
            again = self._matcher.again(failure, finding.matches)
            if again:
                still = {match.fault.id for match in again}
                finding.matches = [m for m in finding.matches if m.fault.id in still]
                return finding
        return None


def _merged(findings: Sequence[_Finding], met: Mapping[_Place, int]) -> list[_Finding]:
    """Findings in the order in which they show, those that another implies joined to it."""
    kept = list(findings)
    for finding in [f for f in findings if f.matches]:
        implied = finding.matches[0].fault.implies
        for other in [f for f in kept if f is not finding and f.matches]:
            if other.matches[0].fault.id in implied and _layers(finding) & _layers(other):
                finding.places = sorted({*finding.places, *other.places}, key=met.__getitem__)
                kept.remove(other)
    return sorted(kept, key=lambda finding: met[finding.places[0]])


def _layers(finding: _Finding) -> set[tuple[str, int | None]]:
    return {(prompt, split(tap).layer) for prompt, _, tap in finding.places}


def _diagnosis(name: str, finding: _Finding) -> Diagnosis:
    prompt, chunk, tap = finding.places[0]
    return Diagnosis(
        candidate=name,
        prompt=prompt,
        chunk=chunk,
        tap=tap,
        places=tuple(finding.places),
        causes=tuple(map(_cause, finding.matches)),
        observations=finding.observations,
    )


def _cause(match: Match) -> Cause:
    fault = match.fault
    return Cause(
        fault=fault.id,
        title=fault.title,
        detail=match.detail,
        evidence=match.evidence,
        explained=match.score.explained,
        units=match.score.units,
        advice=fault.advice,
        distinguish=fault.distinguish,
        reports=fault.links,
    )
