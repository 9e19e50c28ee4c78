"""The terminal view of a search for the release that changed a model."""

from collections.abc import Iterator

from rich.text import Text

from ..console import console
from ..gate.bisecting import BisectResult, Judgement
from .wording import visible

_STYLES = {"good": "green", "bad": "red", "skip": "yellow"}


def judged_line(release: str, judgement: Judgement) -> str:
    """What one release came to, in one line."""
    return visible(f"{release}: {judgement.verdict}; {judgement.detail}")


def print_found(result: BisectResult, package: str) -> None:
    """The answer, and below it every release that was judged, in that order."""
    screen = console()
    for line in lines(result, package):
        screen.print(line, soft_wrap=True)
    screen.print()


def lines(result: BisectResult, package: str) -> Iterator[Text]:
    """The same, line by line."""
    yield Text(answer(result, package), style="bold")
    for release, judgement in result.judged:
        line = Text(f"  {visible(release):12}")
        line.append(f"{judgement.verdict:6}", style=_STYLES[judgement.verdict])
        line.append(visible(judgement.detail))
        yield line


def answer(result: BisectResult, package: str) -> str:
    """Which release it was, in a sentence."""
    verb = "changed" if result.kind == "broke" else "mended"
    if result.first is not None:
        return f"{package} {result.first} {verb} the model; {result.before} is as it was."
    suspects = ", ".join(result.suspects)
    return (
        f"One of {package} {suspects} {verb} the model: those between {result.before} and"
        f" {result.after} could not be judged."
    )
