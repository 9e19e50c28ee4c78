"""Tries the mistakes of the catalogue at one op that does not replay."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import UNIT_LIMIT
from ..faults.fault import Facts, Fault, Instead, Op, Site
from ..replay.call import Made
from ..replay.lockstep import Replayed
from ..result import Evidence, Fit, TapStatus
from ..verdict import describe_fit
from .evaluate import Judge, Score, evaluate, upstream
from .parameters import held_instead

Array = NDArray[Any]

#: A mistake that leaves more than so many times the least error is not among the causes.
_NEAR = 2.0

#: Share of the squared error that a mistake must take away. Its bound may be wider than that of the
#: op as it should be, so that one which changes nothing would do.
_TAKEN = 0.5


@dataclass(frozen=True, slots=True)
class Match:
    """A mistake that was tried at an op.

    Attributes:
        fault: The mistake.
        detail: What is special here.
        score: How well it explains what the candidate has.
        evidence: How it was found.
        precise: True if it needed no narrower dtype.
        way: Detail of the evaluation that was tried, to try the same at other ops.
        again: The evaluation itself, where it can be repeated as it is.
    """

    fault: Fault
    detail: str
    score: Score
    evidence: Evidence
    precise: bool = True
    way: str = ""
    again: "_Changed | None" = None


@dataclass(frozen=True, slots=True)
class _Changed:
    """Another op or other constants on the same inputs, to be tried at other ops of the kind."""

    op: Op
    constants: Mapping[str, Any]
    usual_op: Op
    usual: Mapping[str, Any]

    def at(self, made: Made) -> Instead | None:
        """The same change at another op; None if that is another op or has other constants."""
        call = made.call
        same = made.op is self.usual_op and call.constants.keys() == self.usual.keys()
        if not same or not all(
            np.array_equal(value, self.usual[key]) for key, value in call.constants.items()
        ):
            return None
        return Instead(self.op, call.inputs, self.constants)


def _changed(made: Made, instead: Instead) -> _Changed | None:
    """What is changed, if it is not the inputs."""
    inputs = made.call.inputs
    if len(inputs) != len(instead.inputs) or instead.precision:
        return None
    if any(old is not new for old, new in zip(inputs, instead.inputs, strict=True)):
        return None
    return _Changed(instead.op, instead.constants, made.op, made.call.constants)


class Matcher:
    """Finds the mistakes that explain what a candidate has at an op.

    Args:
        facts: Config and parameters of the checkpoint, and the tokens of the prompt.
        parameters: What each candidate shows of the parameters it holds.

    Attributes:
        facts: See above.
        broken: Faults that could not be tried, with the reason: a bug of ours, which must not
            cost the verdict.
    """

    def __init__(self, facts: Facts, parameters: Mapping[str, Mapping[str, Array]]) -> None:
        self.facts = facts
        self.broken: list[str] = []
        self._parameters = parameters

    def match(self, failure: Replayed, faults: Sequence[Fault]) -> list[Match]:
        """Mistakes that explain an op, the most plausible first."""
        if not faults:
            return []
        comparison = failure.comparison
        if comparison.weights:
            shown = self._parameters.get(comparison.candidate, {})
            site = self._site(failure.made, failure)
            return [
                Match(fault, detail, Score(1.0, 0.0, 0.0), Evidence.PARAMETERS)
                for fault, detail in held_instead(site, comparison.weights, shown, faults)
            ]
        trends = {fit.constant: fit for fit in comparison.fits if fit.excluded}
        if trends and comparison.local is not None and comparison.local.units <= UNIT_LIMIT:
            # Within the limit nearly every mistake "explains" the numbers: ask those of the trend.
            own = [fault for fault in faults if fault.constant in trends]
            matches = _best(self._replay(failure, own)) or _only(own, comparison.local.units)
            return [_with_trend(replace(m, evidence=Evidence.FIT), trends) for m in matches]
        matches = _best(self._replay(failure, faults))
        if not matches and trends:
            own = [fault for fault in faults if fault.constant in trends]
            matches = _only(own, UNIT_LIMIT)  # more is not left where a fit excludes a value
        return [_with_trend(m, trends) for m in matches]

    def again(self, failure: Replayed, matches: Sequence[Match]) -> list[Match]:
        """Which of some mistakes, found before, explain this op too, in the same way or another."""
        faults = [match.fault for match in matches]
        local = failure.comparison.local
        if not failure.comparison.weights and local is not None and local.units > UNIT_LIMIT:
            same = self._repeated(failure, matches)
            if same:
                return same
            ways = {match.fault.id: match.way for match in matches}
            again = _best(self._replay(failure, faults, ways=ways))
            if again:
                return again
        return self.match(failure, faults)

    def _repeated(self, failure: Replayed, matches: Sequence[Match]) -> list[Match]:
        """Those of some matches whose very evaluation explains this op too."""
        judge = _judge(failure)
        kept = []
        for match in matches:
            instead = None if match.again is None else match.again.at(failure.made)
            if instead is None:
                return []
            result = evaluate(failure.made, {id(failure.made.call): instead}, usual=judge.usual)
            score = None if result is None else judge.score(result)
            if score is not None and score.units <= UNIT_LIMIT:
                kept.append(match)
        return kept

    def _replay(
        self, failure: Replayed, faults: Sequence[Fault], *, ways: Mapping[str, str] | None = None
    ) -> list[Match]:
        """Every way in which a mistake gives the candidate's numbers to rounding.

        Args:
            failure: The op.
            faults: What to try.
            ways: The one way of each fault that is tried, by its detail; None for all.
        """
        matches: list[Match] = []
        judge = _judge(failure)
        nodes = [node for node in upstream(failure.made) if node.tap is not None]
        sites = {id(node.call): self._site(node, failure) for node in nodes}
        for fault in faults:
            own = {key: site for key, site in sites.items() if site.kind in fault.kinds}
            try:
                matches += self._tried(failure, judge, fault, own, ways)
            except Exception as error:
                why = f"{fault.id} could not be tried: {type(error).__name__}: {error}"
                if why not in self.broken:
                    self.broken.append(why)
        return matches

    def _tried(
        self,
        failure: Replayed,
        judge: Judge,
        fault: Fault,
        sites: Mapping[int, Site],
        ways: Mapping[str, str] | None,
    ) -> list[Match]:
        """Every way in which one mistake gives the candidate's numbers to rounding."""
        matches: list[Match] = []
        alone = len(upstream(failure.made)) == 1
        evidence = Evidence.REPLAY if alone else Evidence.SEGMENT
        for instead in _ways(fault, sites):
            way = next(iter(instead.values()))
            if ways is not None and way.detail != ways[fault.id]:
                continue
            value = evaluate(failure.made, instead, bounded=False)
            # Rounding in a narrower dtype is not evaluated: only its bound tells.
            if value is None or not (way.precision or judge.plausible(value.value)):
                continue
            result = evaluate(failure.made, instead, value=value.value, usual=judge.usual)
            score = None if result is None else judge.score(result)
            if score is not None and score.units <= UNIT_LIMIT:
                precise = not way.precision
                # A narrower dtype that is not evaluated, only allowed for, takes nothing away.
                allowed = not precise and score.explained == 0
                if score.explained < _TAKEN and not allowed:
                    continue
                matches.append(
                    Match(
                        fault,
                        way.detail,
                        score,
                        evidence,
                        precise,
                        way.detail,
                        _changed(failure.made, way) if alone else None,
                    )
                )
                if ways is not None:
                    break
        return matches

    def _site(self, node: Made, failure: Replayed) -> Site:
        comparison = failure.comparison
        own = node.call is failure.made.call
        return Site(
            tap=node.tap or "",
            op=node.op,
            call=node.call,
            found=failure.found if own else None,
            facts=self.facts,
            chunk=comparison.chunk,
            dtype=node.call.precision.name,
            nearby=failure.nearby,
        )


def _judge(failure: Replayed) -> Judge:
    local = failure.comparison.local
    return Judge(
        failure.made,
        failure.found,
        failure.counted,
        misshapen=failure.comparison.status is TapStatus.MISSHAPEN,
        usual=failure.bound,
        worst=local.worst.index[-1] if local is not None and local.worst.index else None,
    )


def _ways(fault: Fault, sites: Mapping[int, Site]) -> Iterator[dict[int, Instead]]:
    """A mistake made at each op of a segment alone, and at all of them alike."""
    if len(sites) == 1:  # made one by one: the first may do, and a fit behind it be saved
        for key, site in sites.items():
            yield from ({key: instead} for instead in fault.variant(site))
        return
    made = {key: list(fault.variant(site)) for key, site in sites.items()}
    for together in zip(*made.values(), strict=False):
        yield dict(zip(made, together, strict=True))
    for key, several in made.items():
        yield from ({key: instead} for instead in several)


def _only(faults: Sequence[Fault], units: float) -> list[Match]:
    """The one mistake that there is with a constant, where no variant of it makes the value."""
    if len(faults) != 1:
        return []
    return [Match(faults[0], "", Score(1.0, units, 0.0), Evidence.FIT)]


def _with_trend(match: Match, trends: Mapping[str, Fit]) -> Match:
    """A mistake in a constant with what the fit says of it."""
    fit = trends.get(match.fault.constant)
    if fit is None:
        return match
    said = describe_fit(fit)
    both = said if not match.detail or "+-" in match.detail else f"{match.detail}; {said}"
    return replace(match, detail=both)


def _best(matches: Sequence[Match]) -> list[Match]:
    """The best way of each fault, without those that leave clearly more than the best."""
    best: dict[str, Match] = {}
    for match in matches:
        held = best.get(match.fault.id)
        if held is None or _rank(match) < _rank(held):
            best[match.fault.id] = match
    named = [match for match in best.values() if not match.fault.fallback] or list(best.values())
    exact = [match for match in named if match.precise] or named
    least = min((match.score.spread for match in exact), default=0.0)
    near = [match for match in exact if match.score.spread <= _NEAR * max(least, 0.1)]
    return sorted(near, key=_rank)


def _rank(match: Match) -> tuple[bool, int, float]:
    return not match.precise, -match.fault.common, match.score.spread
