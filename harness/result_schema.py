"""The JSON schema of results, made of the dataclasses: ``python -m harness.result_schema``.

docs/result.schema.json is what this prints; docs/results.md says what the document holds and when
its version changes.
"""

import json
import sys
from typing import Any

from .result import FORMAT, VERSION, RunResult


def schema() -> dict[str, Any]:
    """The schema of results, of JSON Schema's draft 2020-12."""
    return schema_of(RunResult, "RunResult", FORMAT, VERSION)


def schema_of(kind: type, name: str, form: str, version: int) -> dict[str, Any]:
    """The schema of a dataclass's documents. Properties that it does not name are allowed.

    Args:
        kind: The dataclass.
        name: What it is called.
        form: What its documents say under ``format``.
        version: And under ``version``.
    """
    import msgspec

    made = msgspec.json.schema(kind, schema_hook=_anything)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{form}, version {version}",
    }
    whole = made["$defs"][name]
    whole["properties"] |= {"format": {"const": form}, "version": {"const": version}}
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
    return written(schema())


def written(made: dict[str, Any]) -> str:
    """A schema as a file holds it."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
