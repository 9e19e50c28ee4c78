"""The result of a gate as JSON."""

from .result import FORMAT, VERSION, GateResult


def to_json(result: GateResult) -> bytes:
    """Encode a result; the inverse of :func:`from_json`."""
    import msgspec

    return msgspec.json.encode(result)


def from_json(data: bytes, *, where: str) -> GateResult:
    """Decode and validate a result.

    Raises:
        UsageError: Not the result of a gate, or of a version that this release does not read.
    """
    import msgspec

    from ..errors import UsageError

    advice = "write it again with `parity gate --json` or `parity upgrade --json`"
    try:
        head = msgspec.json.decode(data)
        found = (head.get("format"), head.get("version")) if isinstance(head, dict) else type(head)
        if found != (FORMAT, VERSION):
            expected = f"format {FORMAT} version {VERSION}"
            raise UsageError(where, expected=expected, found=str(found), advice=advice)
        return msgspec.json.decode(data, type=GateResult)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            where, expected="a valid result of a gate", found=str(error), advice=advice
        ) from None
