"""What commands share: consoles, progress bars, and exceptions as messages and exit codes."""

import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .errors import ParityError

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> "Console":
    """A console on standard output or error; NO_COLOR and the width are rich's business."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def show_paths(screen: "Console", paths: list[Path]) -> None:
    """A path a line, unwrapped, so that the last line can be clicked or cut out."""
    if not paths:
        return
    screen.print()
    screen.print("Report:" if len(paths) == 1 else "Reports:")
    for path in paths:
        screen.print(str(path), markup=False, soft_wrap=True)


@contextmanager
def progress(name: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error, which vanishes at the end; nothing where that is no terminal."""
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    screen = console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    with bars:
        task = bars.add_task(escape(name), total=None)

        def show(stage: str, done: int, total: int) -> None:
            bars.update(
                task, description=escape(f"{name}: {stage}"), completed=done, total=total or None
            )

        yield show


@contextmanager
def reported(codes: list[int], *, debug: bool) -> Iterator[None]:
    """Turn an exception into a message on standard error and an exit code in ``codes``."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None  # harness.start says so, wherever it comes
    except ParityError as error:
        _show_error(error)
        if debug:
            console(stderr=True).print(traceback.format_exc(), markup=False)
        codes.append(error.exit_code)
    except BrokenPipeError:
        raise  # whoever reads has left; typer ends quietly
    except OSError as error:
        _show_error(_environment_error(error))
        if debug:
            console(stderr=True).print(traceback.format_exc(), markup=False)
        codes.append(2)
    except Exception as error:
        _show_bug(error, debug=debug)
        codes.append(2)


def _environment_error(error: OSError) -> ParityError:
    """What the system refused: a full disk, a file that cannot be read. It is no bug of ours."""
    return ParityError(
        str(error.filename or "input or output"),
        expected="a file or stream that can be read and written",
        found=(error.strerror or str(error) or type(error).__name__).lower(),
        advice="make room, or mend its permissions; --debug shows where it happened",
    )


def _show_error(error: ParityError) -> None:
    from rich.text import Text

    from .report.wording import visible

    screen = console(stderr=True)
    screen.print(Text(f"Error: {visible(error.where)}", style="bold red"), soft_wrap=True)
    for label, value in (
        ("expected", error.expected),
        ("found", error.found),
        ("advice", error.advice),
    ):
        # A list that spans lines stays a list; every other control character is spelt out.
        lines = [visible(line) for line in value.rstrip("\n").split("\n")]
        words = ("\n" + " " * 10).join(lines)
        screen.print(Text(f"  {label + ':':10}{words}", style="red"), soft_wrap=True)


def _show_bug(error: Exception, *, debug: bool) -> None:
    """An exception that nobody meant: the traceback goes to a file, or on screen with --debug."""
    from rich.text import Text

    from .report.wording import visible

    screen = console(stderr=True)
    words = f"{type(error).__name__}: {visible(str(error))}"
    screen.print(Text(f"This is a bug in parity. {words}", style="bold red"), soft_wrap=True)
    if debug:
        screen.print(traceback.format_exc(), markup=False, soft_wrap=True)
        return
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="parity-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(f"{shlex.join(['parity', *sys.argv[1:]])}\n\n{traceback.format_exc()}")
    except OSError:  # no room for it: here is better than nowhere
        screen.print(traceback.format_exc(), markup=False, soft_wrap=True)
        return
    screen.print(f"  The traceback is in {file.name}", markup=False, soft_wrap=True)
    screen.print("  Please report it with that file; --debug shows it here.", soft_wrap=True)


#: Exit codes from the best to the worst.
SEVERITY = (0, 3, 1, 2)


def worst(codes: list[int]) -> int:
    """The worst exit code, in the order 0, 3, 1, 2; any other is worse still; 2 for none."""
    return max(codes, key=_severity, default=2)


def _severity(code: int) -> int:
    return SEVERITY.index(code) if code in SEVERITY else len(SEVERITY)
