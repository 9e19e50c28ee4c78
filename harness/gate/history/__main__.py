"""Measures cases of history: ``python -m harness.gate.history --markdown docs/history-table.md``.

What was measured is kept in a file, so that single cases are measured again by their names.
"""

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ...errors import ParityError
from .case_file import load_histories
from .judging import Shown, surprise
from .running import Historian
from .table import to_markdown


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Cases; all of them if none.")] = None,
    folder: Annotated[Path, typer.Option(help="The cases.")] = Path("cases/history"),
    kept: Annotated[Path, typer.Option(help="What was measured.")] = Path("reports/history.json"),
    markdown: Annotated[Path | None, typer.Option(help="The table.")] = None,
    *,
    measure: Annotated[bool, typer.Option(help="Measure, or write the table alone.")] = True,
) -> None:
    """Measure cases of history, and write the table of them."""
    cases = load_histories(folder)
    known = _read(kept)
    chosen = [each for each in cases if measure and (not names or each.name in names)]
    items = [(case, release) for case in chosen for release in case.releases]
    with Historian(items, say=typer.echo) as historian:
        for case in chosen:
            known[case.name] = []
            for release in case.releases:
                try:
                    shown = historian.show(case, release)
                except ParityError as error:
                    typer.echo(f"{case.name}, {release}: {error}", err=True)
                    continue
                known[case.name].append(shown)
                words = surprise(case, shown) or f"as expected, {shown.verdict.value}"
                typer.echo(f"{case.name}, {release}: {words} {shown.tap} {shown.logits}")
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(msgspec.json.format(msgspec.json.encode(known)))
    if markdown is not None:
        versions = {"Python": platform.python_version()}
        versions |= {name: version(name) for name in ("transformers", "torch", "numpy")}
        markdown.write_text(to_markdown(cases, known, versions=versions))


def _read(kept: Path) -> dict[str, list[Shown]]:
    """What was measured before."""
    if not kept.is_file():
        return {}
    return msgspec.json.decode(kept.read_bytes(), type=dict[str, list[Shown]])


if __name__ == "__main__":
    typer.run(main)
