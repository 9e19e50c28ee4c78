"""What a trace file says of itself, and everything that is wrong with what it says.

Pure functions of plain data: the metadata text goes in, a :class:`TraceHead` and a list of
problems come out.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..replay.precision import DTYPES
from ..result import EngineInfo
from ..taps import AXES_OF_TAP
from .layout import STANDARD, Layout, read_layout
from .problems import Problem, Reader, nearest

FORMAT = "logits-parity/trace"
VERSION = 1

#: Key of the safetensors metadata that holds the head, as JSON text.
METADATA_KEY = "logits-parity"

_KEYS = (
    "format",
    "version",
    "engine",
    "model",
    "token_ids",
    "chunks",
    "unavailable",
    "layout",
)


@dataclass(frozen=True, slots=True)
class TracedModel:
    """The model that a trace is of; what the engine does not know is empty.

    Attributes:
        family: ``model_type`` of the config.
        fingerprint: :attr:`harness.checkpoint.Checkpoint.fingerprint` of the weights.
        origin: Where they were: a path, a hub id.
    """

    family: str = ""
    fingerprint: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class TraceHead:
    """The metadata of a trace.

    Attributes:
        engine: What ran; its dtype is the one that it computed in.
        model: What it ran on.
        token_ids: [B][N] of the whole sequence, the prompt and what was decoded after it.
        chunks: Number of new tokens of each forward pass; they add up to N.
        unavailable: Taps that the engine cannot give, each with the reason; see
            :func:`harness.taps.declared`.
        layout: How taps lie in the file where that is not as the table of taps has it, by kind.
    """

    engine: EngineInfo
    model: TracedModel
    token_ids: tuple[tuple[int, ...], ...]
    chunks: tuple[int, ...]
    unavailable: Mapping[str, str] = field(default_factory=dict)
    layout: Mapping[str, Layout] = field(default_factory=dict)

    def layout_of(self, kind: str) -> Layout:
        """The layout of a kind of tap."""
        return self.layout.get(kind, STANDARD)


def write_head(head: TraceHead) -> str:
    """The metadata text; the inverse of :func:`read_head`."""
    layout = {
        kind: {key: value for key, value in asdict(note).items() if value != getattr(STANDARD, key)}
        for kind, note in head.layout.items()
    }
    return json.dumps({"format": FORMAT, "version": VERSION, **asdict(head), "layout": layout})


def read_head(metadata: Mapping[str, Any]) -> tuple[TraceHead | None, list[Problem]]:
    """Read the metadata of a safetensors file.

    Returns:
        The head, None if a problem is such that nothing can be said of the tensors; and all
        problems.
    """
    text = metadata.get(METADATA_KEY)
    if not isinstance(text, str):
        found = "keys " + ", ".join(map(str, metadata)) if metadata else "no metadata"
        advice = f"write the trace's JSON head under {METADATA_KEY!r}; see docs/trace-format.md"
        return None, [Problem("metadata", f"the key {METADATA_KEY!r}", found, advice)]
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        advice = "write one JSON object"
        return None, [Problem("metadata", "JSON", f"a syntax error: {error}"[:200], advice)]
    if not isinstance(raw, dict):
        return None, [Problem("metadata", "a JSON object", _kind(raw), "write {...}")]
    if (raw.get("format"), raw.get("version")) != (FORMAT, VERSION):
        found = f"{raw.get('format')!r} version {raw.get('version')!r}"
        newer = raw.get("format") == FORMAT and isinstance(raw.get("version"), int)
        advice = (
            "upgrade: pip install -U logits-parity, or write version 1"
            if newer
            else f'write "format": "{FORMAT}", "version": {VERSION}'
        )
        return None, [Problem("metadata", f"{FORMAT!r} version {VERSION}", found[:120], advice)]
    return _read_object(Reader(raw, "metadata"))


def _read_object(read: Reader) -> tuple[TraceHead | None, list[Problem]]:
    read.only(_KEYS)
    engine = _read_engine(read.object("engine"))
    model = _read_model(read.object("model", required=False))
    token_ids = _read_tokens(read)
    chunks = _read_chunks(read, token_ids)
    unavailable = read.texts("unavailable")
    layout = _read_layouts(read)
    if not token_ids or not chunks:
        return None, read.problems
    return TraceHead(engine, model, token_ids, chunks, unavailable, layout), read.problems


def _read_engine(read: Reader) -> EngineInfo:
    read.only(("name", "kind", "dtype", "detail"))
    name, kind = read.text("name"), read.text("kind", required=False)
    dtype = read.text("dtype")
    if dtype and dtype not in DTYPES:
        read.add(
            "dtype",
            " or ".join(DTYPES),
            repr(dtype),
            "write the dtype that the engine computes in, not the one its weights are stored in",
        )
    return EngineInfo(name, kind or name, dtype, read.texts("detail"))


def _read_model(read: Reader) -> TracedModel:
    read.only(("family", "fingerprint", "origin"))
    keys = ("family", "fingerprint", "origin")
    return TracedModel(*(read.text(key, required=False) for key in keys))


def _read_tokens(read: Reader) -> tuple[tuple[int, ...], ...]:
    rows = read.value("token_ids")
    if isinstance(rows, list) and rows and not any(isinstance(row, list) for row in rows):
        rows = [rows]
    if (
        isinstance(rows, list)
        and all(isinstance(row, list) and row and _are_counts(row, 0) for row in rows)
        and len({len(row) for row in rows}) == 1
    ):
        return tuple(tuple(row) for row in rows)
    if rows is not None:
        advice = "write one row of ids a sequence: the prompt and the tokens fed after it"
        read.add("token_ids", "rows of ids of 0 and up, of one length", _kind(rows), advice)
    return ()


def _read_chunks(read: Reader, token_ids: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    chunks = read.value("chunks", required=False)
    length = len(token_ids[0]) if token_ids else 0
    if chunks is None:
        return (length,) if length else ()
    if not (isinstance(chunks, list) and chunks and _are_counts(chunks, 1)):
        advice = 'write "chunks": [5, 1, 1] for a prompt of 5 tokens and two decoding steps'
        read.add("chunks", "numbers of tokens, each 1 or more", _kind(chunks), advice)
        return ()
    if length and sum(chunks) != length:
        read.add(
            "chunks",
            f"a sum of {length}, the number of token_ids in a row",
            str(sum(chunks)),
            "token_ids must hold every token that was fed, chunks how many each pass was fed",
        )
        return ()
    return tuple(chunks)


def _read_layouts(read: Reader) -> dict[str, Layout]:
    layouts: dict[str, Layout] = {}
    notes = read.object("layout", required=False)
    for kind in notes.raw:
        if kind not in AXES_OF_TAP:
            notes.add(kind, "a kind of tap", repr(kind), nearest(kind, AXES_OF_TAP) or _SEE_TAPS)
            continue
        layouts[kind] = read_layout(notes.object(kind), AXES_OF_TAP[kind])
    return layouts


_SEE_TAPS = "docs/taps.md lists them"


def _are_counts(values: list[Any], least: int) -> bool:
    return all(type(n) is int and least <= n < 2**63 for n in values)


def _kind(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
