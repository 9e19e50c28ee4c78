"""Laws of numbers: how far an engine may be from what its dtype can give."""

import functools
from typing import Any

from hypothesis import strategies as st

from ..case import Case, Prompt
from ..contract import UNIT_LIMIT
from ..pipeline import compare
from ..prompts import tokens_of
from .candidate import Candidate, Rows
from .examples import batch
from .law import Law, LawBroken
from .sizes import Sizes

_BOUND = (
    f"each op alone, on the engine's own inputs, within {UNIT_LIMIT:.0f} rounding units of its "
    "dtype: docs/rounding.md"
)

_SOURCE = (
    "Higham 2002, Accuracy and Stability, section 3.1: an op's rounding error is bounded by its "
    "inputs and the dtype; derived from a float64 run of the op, not measured"
)


def check_replay(candidate: Candidate, rows: Rows, decode: int) -> None:
    """Every op is within rounding of float64."""
    subject, engine = candidate.subject, candidate.engine
    prompt = Prompt("tokens", token_ids=tuple(map(tuple, rows)))
    case = Case(
        name="law",
        model=str(candidate.folder),
        prompts=(prompt,),
        engines=(engine.name,),
        dtype=engine.dtype,
        decode=decode,
    )
    result = compare(subject, [engine], [tokens_of(subject, prompt)], case)
    verdict = result.candidates[0]
    units = verdict.worst_units
    parts = float("inf") if units is None else units / UNIT_LIMIT
    candidate.worst = max(candidate.worst, parts)
    if result.verdict not in ("pass", "rounding"):
        first = result.first_divergence
        at = "" if first is None else f" at {first.tap}"
        raise LawBroken(
            f"a run in {engine.dtype}, op by op against float64",
            expected="pass or rounding",
            found=f"{result.verdict}{at}: {verdict.reason}",
            worst=parts,
        )


def check_dtype(candidate: Candidate, rows: Rows, decode: int, *, dtype: str) -> None:
    """The same in another dtype."""
    narrow = candidate.in_dtype(dtype)
    try:
        check_replay(narrow, rows, decode)
    finally:
        candidate.worst = max(candidate.worst, narrow.worst)
        narrow.close()


def _decoded(sizes: Sizes) -> st.SearchStrategy[dict[str, Any]]:
    decode = st.integers(0, 2)
    longest = min(10, sizes.longest - 2)
    return st.fixed_dictionaries({"rows": batch(sizes, 2, longest), "decode": decode})


def _narrow(dtype: str) -> Law:
    return Law(
        id=f"output-{dtype}",
        says=f"In {dtype} every op is within rounding of float64, in one pass and in decoding "
        "steps.",
        source=_SOURCE,
        check=functools.partial(check_dtype, dtype=dtype),
        arguments=_decoded,
        needs=(f"dtype:{dtype}",),
        bound=_BOUND,
        mutants=("narrow-activation",),
    )


LAWS = (
    Law(
        id="output-replay",
        says="Every op of an engine is within rounding of float64, in one pass and in decoding "
        "steps.",
        source=_SOURCE,
        check=check_replay,
        arguments=_decoded,
        bound=_BOUND,
        mutants=("scale-other",),
    ),
    _narrow("bfloat16"),
    _narrow("float16"),
)
