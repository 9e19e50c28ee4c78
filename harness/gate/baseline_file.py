"""Files of baselines: read, and put in place whole."""

from pathlib import Path

from ..errors import UsageError
from ..report.files import write_whole
from .baseline import Baseline, from_json, to_json


def read_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        UsageError: It cannot be read, or is none.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            str(path),
            expected="a baseline that can be read",
            found=(error.strerror or type(error).__name__).lower(),
            advice="name a file that `parity baseline MODEL -o FILE` wrote",
        ) from None
    return from_json(data, where=str(path))


def write_baseline(baseline: Baseline, path: Path) -> int:
    """Write a baseline, and return its size in bytes; an earlier one stays until it is whole.

    Raises:
        UsageError: It cannot be written.
    """
    data = to_json(baseline)
    write_whole(path, data)
    return len(data)
