"""The table of what was measured, as Markdown."""

from collections.abc import Mapping, Sequence

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
        " allows.",
        "",
    ]
    for case in cases:
        lines += _case(case, shown.get(case.name, ()))
    return "\n".join(lines).rstrip() + "\n"


def _case(case: History, shown: Sequence[Shown]) -> list[str]:
    live = " (live)" if case.live else ""
    reports = ", ".join(f"[{_short(each)}]({each})" for each in case.reports)
    lines = [f"## {case.arch}: {case.title}{live}", "", case.what, ""]
    lines += [f"- Cause: {case.cause}", f"- Compared: {_compared(case)}"]
    lines += [f"- Reports: {reports or 'none found'}", f"- Case: `cases/history/{case.name}.toml`"]
    lines += ["", "| Release | Expected | Found | Logits | First intermediate | Times |"]
    lines += ["|---|---|---|---|---|---|", *(_row(case, each) for each in shown), ""]
    return lines


def _compared(case: History) -> str:
    if case.way is Way.RELEASES:
        return f"{_WAYS[case.way]} (the first good one is {case.good[0]})"
    if case.way is Way.PASSES:
        return f"{_WAYS[case.way]}, *{case.left}* and *{case.right}*"
    return _WAYS[case.way]


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
