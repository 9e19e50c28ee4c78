"""The verdict of a gate as a story: what changed, since where, why, and what to do about it."""

import re
import shlex

from ..gate.result import GateResult, GateVerdict, SideInfo
from . import causes
from . import gate_words as words

#: Kinds of facts that may make numbers differ, what is most likely first.
_SUSPECTS = ("config", "default", "attention", "model class", "modules", "versions", "machine")
_MOST = 3

#: Packages that numbers depend on, what is most likely to blame first.
_PACKAGES = ("transformers", "torch", "tokenizers", "safetensors", "numpy")

_NOTHING = {
    GateVerdict.SAME: "Nothing.",
    GateVerdict.ROUNDING: (
        "Nothing, unless something of yours relies on equal bits: stored outputs, caches, tests"
        " for equality."
    ),
}

_MENDED = (
    "{after} computes what the reference does, and {before} did not: the upgrade mends the model."
    " Upgrade, and write the baseline anew with that as the reason; what was made with {before}"
    " (stored outputs, thresholds, fine-tuned weights) was made with the mistake."
)

#: What a model's name has behind it where both sides load what one of them saved.
SAVED_BY = ", saved by "

_RELEASE = re.compile(r"\d+(?:\.\d+)+")

_OTHERWISE = (
    "Decide whether this is meant: read the release notes of what differs in version, and look at"
    " the first divergence."
)


def tell(result: GateResult) -> list[tuple[str, str]]:
    """Questions and answers, in reading order."""
    rows = [("What changed", result.summary)]
    if result.divergence is not None:
        change = result.divergence.change
        rows.append(("Since where", f"{change.tap}: {words.difference(change)}"))
    rows += [("Why", why) for why in _why(result)]
    return [*rows, ("What to do", _advice(result))]


def search(result: GateResult) -> str:
    """What stands before :func:`bisect_command`."""
    return f"To find the release that {'mended' if result.mends else 'changed'} it"


def bisect_command(result: GateResult) -> str:
    """What to type for the release that changed the model; empty where that is no question.

    It is one where the sides have two releases of transformers.
    """
    before, after = (
        each.versions.get("transformers", "") for each in (result.before, result.after)
    )
    other = result.verdict in (GateVerdict.CHANGED, GateVerdict.FAILING)
    if not other or before == after or not all(map(_RELEASE.fullmatch, (before, after))):
        return ""
    model, saved, _ = result.model.partition(SAVED_BY)
    good, bad = (after, before) if result.mends else (before, after)
    words = ["parity", "bisect", "--good", good, "--bad", bad, "--model", model]
    return shlex.join([*words, *(["--resave"] if saved else [])])


def _why(result: GateResult) -> list[str]:
    """What explains it: a fault of the catalogue, what decides, or else what is to be suspected."""
    if result.verdict is not GateVerdict.CHANGED:
        return []  # of what fails, the summary is the error
    known = [each for each in result.diagnoses if each.causes]
    found = [f"{causes.title(each)}{_detail(each.causes[0].detail)}" for each in known]
    found += [
        f"{words.kind_name(each.kind)}: {each.what}, {words.moved(each)}"
        for each in [fact for fact in result.facts if fact.decides][:_MOST]
    ]
    return list(dict.fromkeys(found)) or [_suspicion(result)]


def _detail(text: str) -> str:
    return f": {text}" if text else ""


def _suspicion(result: GateResult) -> str:
    """What differs besides numbers: not proven to be the cause."""
    found = {kind.title: kind.telling for kind in words.kinds(result)}
    for title in map(words.kind_name, _SUSPECTS):
        facts = found.get(title, ())
        if facts:
            shown = "; ".join(f"{each.what} {words.moved(each)}" for each in facts[:_MOST])
            more = len(facts) - _MOST
            rest = f" and {more} more" if more > 0 else ""
            return f"Not known. The first suspect, for it is not as before: {title}: {shown}{rest}."
    return "Not known: nothing but the numbers differs."


def _advice(result: GateResult) -> str:
    if result.verdict in _NOTHING:
        return _NOTHING[result.verdict]
    if result.verdict is GateVerdict.NOT_COMPARABLE:
        return (
            "Run both sides on the same model with the same dtype and number of threads, or write"
            " a baseline with the others to another file."
        )
    if result.mends:
        return _MENDED.format(before=result.before.name, after=result.after.name)
    causes_known = [each.causes[0].advice for each in result.diagnoses if each.causes]
    found = [
        f"{each[0].upper()}{each[1:].rstrip('.')}." for each in dict.fromkeys(causes_known) if each
    ]
    if not found:
        failing = result.verdict is GateVerdict.FAILING
        found = ["Read the error: it may name what the model lacks." if failing else _OTHERWISE]
    kept = _kept(result.before, result.after)
    return " ".join([*found, *([f"Until then stay with {kept}."] if kept else [])])


def _kept(before: SideInfo, after: SideInfo) -> str:
    """Releases before of what is another one after, what numbers depend on most first."""
    moved = [
        f"{name}=={before.versions[name]}"
        for name in _PACKAGES
        if name in before.versions and before.versions[name] != after.versions.get(name)
    ]
    return ", ".join(moved[:1] if moved and moved[0].startswith("transformers") else moved)
