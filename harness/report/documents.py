"""Documents that views are made of: the result of a comparison, or of a gate."""

from ..gate.result import FORMAT as GATE_FORMAT
from ..gate.result import GateResult
from ..result import RunResult


def read(data: bytes, *, where: str, prompts: bool = True) -> RunResult | GateResult:
    """Decode a document of either kind, which its ``format`` says.

    Args:
        data: What was written.
        where: Name for messages, for example the file's.
        prompts: Whether to read those of a comparison; see :func:`harness.result.from_json`.

    Raises:
        UsageError: It is neither, or of a version that this release does not read.
    """
    from ..gate.document import from_json as gate_from_json
    from ..result import from_json

    if _format(data) == GATE_FORMAT:
        return gate_from_json(data, where=where)
    return from_json(data, where=where, prompts=prompts)


def to_json(result: RunResult | GateResult) -> bytes:
    """Encode a document of either kind."""
    from ..gate.document import to_json as gate_to_json
    from ..result import to_json as run_to_json

    return gate_to_json(result) if isinstance(result, GateResult) else run_to_json(result)


def _format(data: bytes) -> object:
    """What a document says that it is; None of what is no document, which reading will refuse."""
    import msgspec

    try:
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        return msgspec.json.decode(head["format"]) if "format" in head else None
    except (msgspec.DecodeError, RecursionError):
        return None
