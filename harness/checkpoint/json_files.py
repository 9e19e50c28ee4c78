"""JSON files of a checkpoint, read strictly: a key given twice is damage, not a choice."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ..errors import CheckpointError


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises:
        CheckpointError: If the file is absent, unreadable, not JSON, not an object, or gives the
            same key twice.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            str(path),
            expected="a readable file",
            found=error.strerror or str(error),
            advice="check that the checkpoint was copied or downloaded completely",
        ) from error
    return parse_json_object(raw, str(path))


def parse_json_object(raw: bytes, where: str) -> dict[str, Any]:
    """Parse bytes that hold one JSON object; `where` names their place in errors.

    Raises:
        CheckpointError: If they are not JSON, not an object, or give the same key twice.
    """
    try:
        value = json.loads(raw, object_pairs_hook=_refuse_repeated_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            where,
            expected="one JSON object",
            found=f"something else ({error})",
            advice="the file is damaged or incomplete; fetch it again",
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            where,
            expected="one JSON object",
            found=f"a JSON {type(value).__name__}",
            advice="the file is damaged or is another kind of file; fetch it again",
        )
    return value


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = sorted(key for key, count in counts.items() if count > 1)
        raise ValueError(f"given more than once: {', '.join(twice[:5])}")
    return result
