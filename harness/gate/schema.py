"""The JSON schema of gates' results: ``python -m harness.gate.schema``.

docs/gate.schema.json is what this prints.
"""

import sys
from typing import Any

from ..result_schema import schema_of, written
from .result import FORMAT, VERSION, GateResult


def schema() -> dict[str, Any]:
    """The schema, of JSON Schema's draft 2020-12. Properties that it does not name are allowed."""
    return schema_of(GateResult, "GateResult", FORMAT, VERSION)


def text() -> str:
    """The schema as a file holds it."""
    return written(schema())


if __name__ == "__main__":
    sys.stdout.write(text())
