"""What the plugin says at the end of a session in which something was compared."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from .outcome import REPORT, SKIPPED, VERDICT


def summary_lines(reports: Iterable[Any]) -> list[str]:
    """Verdicts, counted, and what was skipped and why; empty where nothing was compared.

    Args:
        reports: Test reports of a session, those of other tests among them. Reports of workers
            have the same properties, so that it says the same under pytest-xdist.
    """
    calls = [r for r in reports if getattr(r, "when", None) == "call"]
    noted = [pair for report in calls for pair in report.user_properties]
    verdicts = Counter(str(value) for key, value in noted if key == VERDICT)
    written = [str(value) for key, value in noted if key == REPORT]
    skipped = [(r.nodeid, v) for r in calls for key, v in r.user_properties if key == SKIPPED]
    lines = []
    if verdicts:
        counted = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
        lines.append(f"{verdicts.total()} compared: {counted}")
    if written:
        more = "" if len(written) == 1 else f" and {len(written) - 1} more beside it"
        lines.append(f"HTML report: {written[0]}{more}")
    lines += [f"SKIPPED {nodeid}: {reason}" for nodeid, reason in skipped]
    return lines
