"""The table of what was measured, as Markdown."""

from collections.abc import Mapping, Sequence

from ..result import GateVerdict
from ..wanted import DEFAULT_PACKAGE, INSTALLED
from .case import History, Way
from .judging import Shown, surprise

_WAYS = {
    Way.RELEASES: "the same pass, on the first good release and on another one",
    Way.PASSES: "two passes of one model on one release",
    Way.SAVED: "a model as it was made, and saved and loaded",
}


def to_markdown(
    cases: Sequence[History], shown: Mapping[str, Sequence[Shown]], *, versions: Mapping[str, str]
) -> str:
    """All cases and what their releases came to.

    Args:
        cases: The cases.
        shown: What was seen of the releases of each, by the name of the case.
        versions: Of what was measured with.
    """
    here = versions.get(DEFAULT_PACKAGE, INSTALLED)
    measured = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        "# Real history, measured",
        "",
        "Written by `python -m harness.gate.history --markdown docs/history-table.md`; what a case"
        f" is: [history.md](history.md). Measured with {measured}, on the CPU in float32, one"
        " thread, random weights.",
        "",
        "*Logits* is the largest absolute difference of two logits, which are of size 5 to 10;"
        " *times* how far the first intermediate that differs is, in parts of what its rounding"
        " allows. *Agree* and *part* are releases of transformers.",
        "",
    ]
    lines += ["| Case | Model | What | Agree | Part | Logits |", "|---|---|---|---|---|---|"]
    lines += [_line(case, shown.get(case.name, ()), here) for case in cases]
    lines.append("")
    for case in cases:
        lines += _case(case, shown.get(case.name, ()), here)
    return "\n".join(lines).rstrip() + "\n"


def _line(case: History, shown: Sequence[Shown], here: str) -> str:
    """A case in a row of the overview."""
    agree = [each.version for each in shown if each.agrees]
    if case.way is Way.RELEASES:
        agree.insert(0, _named(case.good[0], here))
    agree += [f"{each.version} refuses" for each in shown if each.release in case.refused]
    part = [each.version for each in shown if each.verdict is GateVerdict.CHANGED]
    largest = max((each.logits or 0.0 for each in shown if not each.agrees), default=0.0)
    size = f"{largest:.2g}" if largest else "tokens alone"
    live = " (live)" if case.live else ""
    names = " | ".join(", ".join(each) or "none" for each in (agree, part))
    return f"| `{case.name}`{live} | {case.arch} | {case.title} | {names} | {size} |"


def _case(case: History, shown: Sequence[Shown], here: str) -> list[str]:
    live = " (live)" if case.live else ""
    reports = ", ".join(f"[{_short(each)}]({each})" for each in case.reports)
    lines = [f"## {case.arch}: {case.title}{live}", "", case.what, ""]
    lines += [f"- Cause: {case.cause}", f"- Compared: {_compared(case, here)}"]
    lines += [f"- Reports: {reports or 'none found'}", f"- Case: `cases/history/{case.name}.toml`"]
    lines += ["", "| Release | Expected | Found | Logits | First intermediate | Times |"]
    lines += ["|---|---|---|---|---|---|", *(_row(case, each) for each in shown), ""]
    return lines


def _compared(case: History, here: str) -> str:
    if case.way is Way.RELEASES:
        return f"{_WAYS[case.way]} (the first good one is {_named(case.good[0], here)})"
    if case.way is Way.PASSES:
        return f"{_WAYS[case.way]}, *{case.left}* and *{case.right}*"
    return _WAYS[case.way]


def _named(release: str, here: str) -> str:
    return here if release == INSTALLED else release


def _row(case: History, shown: Shown) -> str:
    expected = "good" if shown.release in case.good else "bad"
    if shown.release in case.refused:
        expected = "refuses"
    found = shown.verdict.value
    if surprise(case, shown):
        found += ", which is not expected"
    logits = "" if shown.logits is None else f"{shown.logits:.2g}"
    times = "" if shown.times is None else f"{shown.times:.2g}"
    tap = f"`{shown.tap}`" if shown.tap else ""
    return f"| {shown.version} | {expected} | {found} | {logits} | {tap} | {times} |"


def _short(address: str) -> str:
    """A thread as GitHub writes it."""
    parts = address.removeprefix("https://github.com/").split("/")
    return f"{parts[0]}/{parts[1]}#{parts[-1]}" if len(parts) == 4 else address
