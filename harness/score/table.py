"""The score as a table: pure functions of trials."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .trial import Trial


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A fault that changes no number of a model, with the argument why."""

    fault: str
    plant: str
    family: str
    dtype: str
    why: str


@dataclass(frozen=True, slots=True)
class Healthy:
    """Healthy random runs.

    Attributes:
        runs: How many.
        alarms: What was wrong with those that did not pass, a sentence each.
        worst_units: Largest local error of all in rounding units.
    """

    runs: int
    alarms: tuple[str, ...]
    worst_units: float


@dataclass(frozen=True, slots=True)
class Score:
    """Everything that a score came to."""

    trials: tuple[Trial, ...]
    equivalents: tuple[Equivalent, ...]
    healthy: Healthy

    @property
    def passed(self) -> bool:
        """Whether every fault was caught and no healthy model raised an alarm."""
        return all(trial.caught for trial in self.trials) and not self.healthy.alarms


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    planted: int
    caught: int
    placed: int
    named: int

    @property
    def cells(self) -> tuple[str, ...]:
        """Name, number planted, and the three shares."""
        return (
            self.name,
            str(self.planted),
            *(_share(n, self.planted) for n in (self.caught, self.placed, self.named)),
        )


HEADINGS = ("kind", "planted", "caught", "placed", "named first")


def rows(trials: Sequence[Trial], groups: Mapping[str, str]) -> list[Row]:
    """A row for each group of faults and dtype, and one for all.

    Args:
        trials: What was planted.
        groups: Fault id to its group.
    """
    keys = sorted({(groups[t.fault], t.dtype) for t in trials})
    made = [
        _row(
            f"{group}, {dtype}", (t for t in trials if (groups[t.fault], t.dtype) == (group, dtype))
        )
        for group, dtype in keys
    ]
    for dtype in sorted({t.dtype for t in trials}):
        made.append(_row(f"all, {dtype}", (t for t in trials if t.dtype == dtype)))
    return [*made, _row("all", trials)]


def _row(name: str, trials: Iterable[Trial]) -> Row:
    some = list(trials)
    return Row(
        name,
        len(some),
        sum(t.caught for t in some),
        sum(t.placed for t in some),
        sum(t.first for t in some),
    )


def _share(part: int, whole: int) -> str:
    if part == whole:
        return "100 %" if whole else "-"
    return f"{min(100 * part / whole, 99.9):.1f} %"


def miss(trial: Trial) -> str:
    """One line on a fault that was not caught, placed or named."""
    start = f"{trial.fault} ({trial.plant}) in {trial.family} {trial.dtype} {trial.attention}"
    if not trial.caught:
        return f"{start}: not caught"
    if not trial.placed:
        return f"{start}: expected at {trial.expected}, found at {trial.found or 'no tap'}"
    named = f"{start}: named {', '.join(trial.named) or 'unknown'}"
    return "; ".join((named, *trial.broken))


def markdown(score: Score, groups: Mapping[str, str]) -> str:
    """The score as a Markdown document."""
    lines = [
        "| " + " | ".join(HEADINGS) + " |",
        "|---" + "|---:" * (len(HEADINGS) - 1) + "|",
        *("| " + " | ".join(row.cells) + " |" for row in rows(score.trials, groups)),
        "",
        f"Healthy random runs: {score.healthy.runs}, false alarms: {len(score.healthy.alarms)}, "
        f"worst op {score.healthy.worst_units:.1f} rounding units.",
    ]
    missed = [miss(trial) for trial in score.trials if not trial.first]
    if missed:
        lines += ["", f"Misses ({len(missed)}):", "", *(f"- {line}" for line in missed)]
    if score.healthy.alarms:
        lines += ["", "False alarms:", "", *(f"- {line}" for line in score.healthy.alarms)]
    if score.equivalents:
        lines += [
            "",
            f"Equivalent faults, which change no number ({len(score.equivalents)}):",
            "",
            *dict.fromkeys(
                f"- {e.fault} ({e.plant}) in {e.family} {e.dtype}: {e.why}"
                for e in score.equivalents
            ),
        ]
    return "\n".join(lines) + "\n"
