"""The command line: ``parity environments``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import console, reported, worst
from .errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from .gate.kept import Made

_MIB = 1024 * 1024


def environments(
    *,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Remove this one, as listed; may be given again."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Remove every one.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """List the environments that were made to run other releases in, or remove some."""
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .gate.kept import environments_dir, kept_environments, remove_environment

        folder = environments_dir()
        kept = kept_environments(folder)
        if not remove and not all_:
            _show(folder, kept)
        else:
            for path in _named([path for path, _ in kept], remove or [], everything=all_):
                remove_environment(path, say=_say)
                _say(f"removed {path.name}")
        codes.append(0)
    raise typer.Exit(worst(codes))


def _say(line: str) -> None:
    console(stderr=True).print(line, markup=False, soft_wrap=True)


def _named(paths: list[Path], names: list[str], *, everything: bool) -> list[Path]:
    """Folders to remove."""
    known = {path.name: path for path in paths}
    for name in names:
        if name not in known:
            raise UsageError(
                f"environment {name}",
                expected="one that is kept",
                found=f"only {', '.join(known)}" if known else "none",
                advice="`parity environments` lists them",
            )
    return paths if everything else [known[name] for name in dict.fromkeys(names)]


def _show(folder: Path, kept: list[tuple[Path, "Made | None"]]) -> None:
    screen = console()
    if kept:
        screen.print(_table(kept))
    words = f"{len(kept)} in" if kept else "No environments in"
    screen.print(f"{words} {folder}", markup=False, soft_wrap=True)


def _table(kept: list[tuple[Path, "Made | None"]]) -> "Table":
    from rich.table import Table

    from .gate.kept import age_days, size_of

    table = Table(box=None, pad_edge=False)
    table.add_column("key", overflow="fold")
    table.add_column("made by")
    table.add_column("days old", justify="right")
    table.add_column("MiB", justify="right")
    for path, made in kept:
        size = f"{size_of(path) / _MIB:.0f}"
        if made is None:
            table.add_row(path.name, "unfinished", "", size)
        else:
            table.add_row(path.name, made.tool, f"{age_days(made)}", size)
    return table
