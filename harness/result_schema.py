"""The JSON schema of results, made of the dataclasses: ``python -m harness.result_schema``.

docs/result.schema.json is what this prints; docs/results.md says what the document holds and when
its version changes.
"""

import json
import sys
from typing import Any

from .result import FORMAT, VERSION, RunResult


def schema() -> dict[str, Any]:
    """The schema, of JSON Schema's draft 2020-12. Properties that it does not name are allowed."""
    import msgspec

    made = msgspec.json.schema(RunResult, schema_hook=_anything)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{FORMAT}, version {VERSION}",
    }
    whole = made["$defs"]["RunResult"]
    whole["properties"] |= {"format": {"const": FORMAT}, "version": {"const": VERSION}}
    # They have defaults in Python alone: a document that lacks them is refused.
    whole["required"] = [*whole["required"], "format", "version"]
    return head | made


def _anything(kind: type) -> dict[str, Any]:
    """What stands for ``object``: a value of a model's config."""
    if kind is not object:  # msgspec asks for this error of a hook that knows no schema
        raise NotImplementedError(f"no schema for {kind}")
    return {"description": "Any JSON value."}


def text() -> str:
    """The schema as a file holds it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
