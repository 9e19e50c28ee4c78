"""The harness's own replay as a law: every op over a cache, on its own inputs."""

from collections.abc import Iterable, Sequence

from ..case import Case, Prompt
from ..contract import UNIT_LIMIT
from ..engines.protocol import Engine
from ..prompts import tokens_of
from ..result import RunResult, Verdict
from ..taps import chunk_name, split
from .candidate import Candidate, Rows
from .law import LawBroken


def check_replay(candidate: Candidate, rows: Rows, chunks: Sequence[int]) -> None:
    """Every op of every pass replays."""
    result = replay(candidate, candidate.engine, rows, chunks)
    require_replayed(candidate, result)


def replay(candidate: Candidate, engine: Engine, rows: Rows, chunks: Sequence[int]) -> RunResult:
    """Compare an engine with the reference over the candidate's checkpoint, pass by pass.

    Args:
        candidate: Whose checkpoint it is.
        engine: What is compared.
        rows: Token ids; filled up on the left where they are of unequal length.
        chunks: Number of tokens of each pass.
    """
    from ..pipeline import compare

    padding = "left" if len({len(row) for row in rows}) > 1 else None
    prompt = Prompt(
        "tokens",
        token_ids=tuple(tuple(row) for row in rows),
        prefill=tuple(chunks),
        padding=padding,
    )
    case = Case(
        name="law",
        model=str(candidate.folder),
        prompts=(prompt,),
        engines=(engine.name,),
        dtype=engine.dtype,
        greedy=0,
        decode=0,
    )
    return compare(candidate.subject, [engine], [tokens_of(candidate.subject, prompt)], case)


def require_replayed(
    candidate: Candidate, result: RunResult, *, besides: Iterable[str] = ()
) -> None:
    """Require that all ops replay, but for some kinds of taps.

    Raises:
        LawBroken: One does not; it names the first.
    """
    verdict, left_out = result.candidates[0], frozenset(besides)
    prefill = result.prompts[0].prefill
    units = [
        (one.local.units, one)
        for one in result.prompts[0].comparisons
        if one.local is not None and split(one.tap).kind not in left_out
    ]
    if not units:
        raise LawBroken("ops that replay", expected="some", found="none")
    candidate.worst = max(candidate.worst, max(one for one, _ in units) / UNIT_LIMIT)
    failing = [(chunk, tap) for _, chunk, tap in verdict.failing if split(tap).kind not in left_out]
    if failing:
        chunk, tap = failing[0]
        error = next((one for one, at in units if (at.chunk, at.tap) == (chunk, tap)), float("inf"))
        first = verdict.first_divergence
        note = "" if first is None or first.tap != tap else f" {first.comparison.note}"
        raise LawBroken(
            f"{tap} in {chunk_name(chunk, prefill)}",
            expected="what the op makes of the engine's own inputs, within "
            f"{UNIT_LIMIT:g} rounding units",
            found=f"{error:.3g} units" + _named(result) + note,
            worst=error / UNIT_LIMIT,
        )
    if verdict.verdict not in (Verdict.PASS, Verdict.ROUNDING) and not left_out:
        raise LawBroken("the comparison", expected="pass or rounding", found=verdict.reason)


def _named(result: RunResult) -> str:
    causes = [cause.title for one in result.diagnoses for cause in one.causes[:1]]
    return f" ({'; '.join(causes)})" if causes else ""
