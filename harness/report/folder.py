"""What a folder of results holds, one line of knowledge for each JSON file in it."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..gate.result import GateResult, GateVerdict
from ..result import RunResult, Verdict
from . import causes, documents, wording

#: A result is a few megabytes; what is much larger is none, and is not read.
LARGEST = 256 << 20

#: Verdicts of comparisons and of gates in the order in which they are listed. Two are of both: they
#: are equal, being texts.
WORST_FIRST: tuple[Verdict | GateVerdict, ...] = (
    Verdict.NOT_FINITE,
    Verdict.FAIL,
    GateVerdict.FAILING,
    GateVerdict.CHANGED,
    Verdict.NOT_COMPARABLE,
    Verdict.ROUNDING,
    GateVerdict.SAME,
    Verdict.PASS,
)


@dataclass(frozen=True, slots=True)
class Listed:
    """One result of a folder.

    Attributes:
        path: Its JSON file.
        page: The page beside it, None where there is none.
        divergence: The first divergence in a sentence, and its cause where one is known.
        units: Worst error of an op, in rounding units; None where nothing was replayed.
        at: Where that was, and whose.
    """

    path: Path
    page: Path | None
    case: str
    verdict: Verdict | GateVerdict
    summary: str
    model: str
    engines: tuple[str, ...]
    units: float | None
    at: str
    divergence: str
    started: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Unlisted:
    """A file that is no result, or none that this release reads, and why."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """The results of a folder, the worst first, and the files that are none."""

    listed: tuple[Listed, ...]
    unlisted: tuple[Unlisted, ...]


def read_folder(folder: Path) -> Found:
    """Read all results of a folder and of the folders in it, one after another.

    Args:
        folder: Where reports were written. Files and folders whose names begin with a dot are
            passed over.

    Raises:
        UsageError: There is no such folder, or no JSON file in it.
    """
    if not folder.is_dir():
        raise UsageError(
            str(folder),
            expected="a folder of results",
            found="a file" if folder.exists() else "nothing there",
            advice="name the folder that `parity run --report-dir` wrote to",
        )
    paths = sorted(
        path
        for pattern in ("*.json", "*/*.json")
        for path in folder.glob(pattern)
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not paths:
        raise UsageError(
            str(folder),
            expected="results (*.json) in this folder or the folders in it",
            found="none",
            advice="run `parity run CASE... --report-dir` with this folder first",
        )
    every = [_read(path) for path in paths]
    listed = [each for each in every if isinstance(each, Listed)]
    listed.sort(key=lambda each: (WORST_FIRST.index(each.verdict), str(each.path)))
    return Found(tuple(listed), tuple(each for each in every if isinstance(each, Unlisted)))


def _read(path: Path) -> Listed | Unlisted:
    try:
        if not path.is_file():
            return Unlisted(path, "not a file")
        if path.stat().st_size > LARGEST:
            return Unlisted(path, f"larger than {LARGEST >> 20} MiB: not read")
        result = documents.read(path.read_bytes(), where=str(path), prompts=False)
    except OSError as error:
        return Unlisted(path, (error.strerror or type(error).__name__).lower())
    except UsageError as error:
        return Unlisted(path, f"expected {error.expected}, found {error.found}: {error.advice}")
    page = path.with_suffix(".html")
    found = page if page.is_file() else None
    if isinstance(result, GateResult):
        return _listed_gate(result, path, found)
    return _listed(result, path, found)


def _listed_gate(result: GateResult, path: Path, page: Path | None) -> Listed:
    parted = result.divergence
    known = [causes.title(each) for each in result.diagnoses if each.causes]
    return Listed(
        path=path,
        page=page,
        case=f"{result.before.name} to {result.after.name}",
        verdict=result.verdict,
        summary=result.summary,
        model=result.model,
        engines=(result.before.name, result.after.name),
        units=None,
        at="" if parted is None else parted.change.tap,
        divergence=". ".join([result.summary.rstrip("."), *known]),
        started=result.started,
        exit_code=result.exit_code,
    )


def _listed(result: RunResult, path: Path, page: Path | None) -> Listed:
    replayed = [c for c in result.candidates if c.worst_units is not None]
    worst = max(replayed, key=lambda c: c.worst_units or 0.0, default=None)
    return Listed(
        path=path,
        page=page,
        case=result.case,
        verdict=result.verdict,
        summary=result.summary,
        model=result.model.origin,
        engines=tuple(engine.name for engine in result.engines),
        units=None if worst is None else worst.worst_units,
        at="" if worst is None else f"{worst.worst_tap} of {worst.candidate}",
        divergence=_divergence(result),
        started=result.environment.started,
        exit_code=result.exit_code,
    )


def _divergence(result: RunResult) -> str:
    first = result.first_divergence
    if first is None:
        return ""
    words = wording.divergence_sentence(first)
    for diagnosis in result.diagnoses:
        if diagnosis.candidate == first.candidate:
            return f"{words}. {causes.title(diagnosis)}"
    return words
