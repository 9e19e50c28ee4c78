"""The commands ``parity report`` and ``parity index``: views of results that are saved."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import console, reported, show_paths, worst
from .errors import UsageError
from .report.views import SUFFIXES, Format, format_of

_Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def report(
    result_file: Annotated[Path, typer.Argument(metavar="RESULT.json", help="A saved result.")],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write the view; beside the result if absent, - for standard output.",
        ),
    ] = None,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Which view; by the suffix of -o, else html, if absent."),
    ] = None,
    debug: _Debug = False,
) -> None:
    """Render a saved result again: the verdict here, a view into a file, its path last.

    The views are a page (.html), terminal text (.txt), Markdown for a CI job's summary or a
    comment (.md), JUnit XML (.xml) and the result itself (.json), of a comparison as of a gate. The
    exit code is that of the saved verdict.
    """
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .report.documents import read
        from .report.files import write_whole
        from .report.views import render, screen_view

        target, chosen = _target(result_file, output, form)
        result = read(_read(result_file), where=str(result_file))
        view = render(result, chosen)
        screen = console(stderr=target is None)
        if target is None:
            sys.stdout.write(view.decode())
        else:
            write_whole(target, view)
            screen.print(screen_view(result))
            show_paths(screen, [target])
        codes.append(result.exit_code)
    raise typer.Exit(worst(codes))


def index(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Folder with results (*.json).")
    ] = Path("reports"),
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write the page; DIR/index.html if absent."),
    ] = None,
    debug: _Debug = False,
) -> None:
    """Write one page that lists all results of a folder and of the folders in it; its path last.

    Files that are no results are listed as such. The exit code is the worst of the results'.
    """
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .report.files import write_whole
        from .report.folder import read_folder
        from .report.index import exit_codes, listing, to_index

        found = read_folder(folder)
        target = output or folder / "index.html"
        write_whole(target, to_index(found, beside=target.parent, folder=folder).encode())
        screen = console()
        for line in listing(found):
            screen.print(line, markup=False, soft_wrap=True)
        show_paths(screen, [target])
        codes += exit_codes(found)
    raise typer.Exit(worst(codes))


def _target(
    result_file: Path, output: Path | None, form: Format | None
) -> tuple[Path | None, Format]:
    """Where a view goes, None for standard output, and which it is."""
    if output is not None and str(output) == "-":
        return None, form or Format.TEXT
    if output is not None:
        return output, form or format_of(output)
    chosen = form or Format.HTML
    if chosen is Format.JSON:
        raise UsageError(
            "--format json",
            expected="--output beside it",
            found="none",
            advice=f"name a file: -o FILE.json; {result_file} would take its own place",
        )
    return result_file.with_suffix(SUFFIXES[chosen]), chosen


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            str(path),
            expected="a readable result file",
            found=(error.strerror or type(error).__name__).lower(),
            advice="name a JSON file that `parity run`, `gate` or `upgrade` wrote",
        ) from None
