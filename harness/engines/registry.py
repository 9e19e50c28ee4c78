"""Engines by the names that case files and the command line use.

``hf:eager``, ``hf:sdpa``, any other attention implementation behind ``hf:``, and ``reference``;
``@float32``, ``@bfloat16`` or ``@float16`` behind the name sets a dtype other than the run's.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..references_seam import model as models
from .protocol import Engine

KINDS = ("hf", "reference")


@dataclass(frozen=True, slots=True)
class EngineName:
    """An engine's name taken apart.

    Attributes:
        text: As written.
        kind: ``hf`` or ``reference``.
        attention: Attention implementation, empty for the reference.
        dtype: Name of the dtype.
    """

    text: str
    kind: str
    attention: str
    dtype: str


def parse_name(text: str, *, dtype: str) -> EngineName:
    """Take an engine's name apart.

    Args:
        text: For example ``hf:sdpa@bfloat16``.
        dtype: Dtype of the run, for names that set none.

    Raises:
        UsageError: The kind is unknown, or the name has a part too many or too few.
    """
    body, at, own_dtype = text.partition("@")
    kind, colon, attention = body.partition(":")
    attended = bool(attention) if kind == "hf" else not colon
    if kind not in KINDS or not attended or (at and not own_dtype):
        near = difflib.get_close_matches(text, ["hf:eager", "hf:sdpa", "reference"], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(
            "engine",
            expected="hf:<attention implementation> or reference, with @<dtype> behind it or not",
            found=repr(text),
            advice=f"{hint}for example hf:eager, hf:sdpa or reference",
        )
    return EngineName(text, kind, attention, own_dtype or dtype)


def make_engine(
    name: EngineName, *, path: Path, model: models.Model, threads: int | None
) -> Engine:
    """Load an engine.

    Args:
        name: Which one.
        path: HF directory that transformers loads.
        model: The reference over the same parameters.
        threads: Threads for torch.
    """
    if name.kind == "reference":
        from .reference import ReferenceEngine

        return ReferenceEngine(model, dtype=name.dtype, name=name.text)
    from .hf import HFEngine

    return HFEngine.load(
        path, attention=name.attention, dtype=name.dtype, name=name.text, threads=threads
    )
