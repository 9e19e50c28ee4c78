"""What the views say of a diagnosis, as pure functions of a result."""

from collections.abc import Sequence

from ..result import Cause, Diagnosis, Evidence
from ..taps import split
from . import wording

_EVIDENCE = {
    Evidence.REPLAY: "made on the candidate's own inputs, it gives the candidate's numbers",
    Evidence.PARAMETERS: "the candidate shows exactly the parameter that it makes",
    Evidence.FIT: "the constant, fitted over all elements, excludes the configured value",
    Evidence.SEGMENT: (
        "made on the candidate's own inputs and carried through ops that it does not tap, it gives"
        " the candidate's numbers"
    ),
    Evidence.SKETCH: "made on the same inputs, it gives the sketch that the baseline keeps, and",
    Evidence.FORWARD: (
        "weaker evidence: the candidate shows too little to replay; a whole forward pass with it"
    ),
}

#: Part of the observation on a fault whose variant failed.
NOT_TRIED = "could not be tried"

#: Reports that are shown where room is short; `parity faults show ID` has all.
_REPORTS = 3


def title(diagnosis: Diagnosis) -> str:
    """One line: the cause and its id, or that it is unknown."""
    if not diagnosis.causes:
        return "unknown: no fault of the catalogue gives these numbers"
    cause = diagnosis.causes[0]
    other = len(diagnosis.causes) - 1
    more = f"; {wording.count(other, 'other')} would give the same numbers" if other else ""
    return f"{cause.title} ({cause.fault}){more}"


def rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """A diagnosis as (label, value) rows, in the order in which a reader needs them."""
    found = [("candidate", diagnosis.candidate)]
    if diagnosis.causes:
        cause = diagnosis.causes[0]
        if cause.detail:
            found.append(("what", cause.detail))
        found += [
            ("where", where(diagnosis)),
            ("evidence", evidence(cause)),
            ("change", cause.advice),
        ]
        found += [("or", _alternative(other)) for other in diagnosis.causes[1:]]
        if len(diagnosis.causes) > 1 and cause.distinguish:
            found.append((f"{cause.fault} shows by", cause.distinguish))
        if cause.reports:
            found.append(("seen in", ", ".join(cause.reports[:_REPORTS])))
    else:
        found.append(("where", where(diagnosis)))
    if not diagnosis.causes or diagnosis.causes[0].evidence is Evidence.FORWARD:
        found += [("seen", sentence) for sentence in diagnosis.observations[:4]]
    broken = [said for said in diagnosis.observations if NOT_TRIED in said]
    return found + [("bug of parity", sentence) for sentence in broken]


def where(diagnosis: Diagnosis) -> str:
    """The first place, and how many more of what kind: ``layers.0.attn.q_rope and 59 more``."""
    first = diagnosis.tap if diagnosis.chunk == 0 else f"{diagnosis.tap}, pass {diagnosis.chunk}"
    taps = list(dict.fromkeys(tap for _, _, tap in diagnosis.places))
    if len(taps) <= 1:
        return first
    layers = sorted({layer for tap in taps if (layer := split(tap).layer) is not None})
    kinds = list(dict.fromkeys(split(tap).kind for tap in taps))
    inside = f" of layers {_ranges(layers)}" if layers else ""
    return f"{first} and {len(taps) - 1} more: {', '.join(kinds[:6])}{inside}"


def evidence(cause: Cause) -> str:
    """How the cause was found and how well it explains the numbers."""
    said = _EVIDENCE[cause.evidence]
    if cause.evidence in (Evidence.PARAMETERS, Evidence.FIT):
        return said
    share = wording.percent(max(0.0, cause.explained))
    if cause.evidence is Evidence.FORWARD or cause.units is None:
        return f"{said} explains {share} of the squared difference"
    return f"{said}: {wording.units(cause.units)} rounding units are left, {share} is explained"


def _alternative(cause: Cause) -> str:
    words = f"{cause.title} ({cause.fault})"
    if cause.detail:
        words += f": {cause.detail}"
    if cause.evidence is Evidence.FORWARD:
        words += f"; explains {wording.percent(max(0.0, cause.explained))}"
    if cause.distinguish:
        words += f". Told apart by: {cause.distinguish}"
    return words


def _ranges(numbers: Sequence[int]) -> str:
    """``0-29``, ``0-3, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
