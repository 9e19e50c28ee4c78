"""The schema of gates' results is that of the dataclasses, and reading asks for the same."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.errors import UsageError
from harness.gate.document import from_json, to_json
from harness.gate.result import FORMAT, VERSION, GateResult
from harness.gate.schema import schema, text
from tests.gate_results import EXAMPLES, changed, hostile

WRITTEN = Path(__file__).parent.parent / "docs" / "gate.schema.json"


def faults(value: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema())
    return [error.json_path for error in validator.iter_errors(value)]


def test_gate_schema_in_docs_is_current() -> None:
    again = "run: python -m harness.gate.schema > docs/gate.schema.json"
    assert WRITTEN.read_text() == text(), again


def test_gate_schema_in_docs_follows_the_dataclasses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted field is missed."""

    @dataclass(frozen=True)
    class Planted(GateResult):
        planted: int = 0

    Planted.__name__ = Planted.__qualname__ = "GateResult"
    monkeypatch.setattr("harness.gate.schema.GateResult", Planted)
    assert WRITTEN.read_text() != text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_gate_results_fit_the_schema_and_are_read_as_written(name: str) -> None:
    result = EXAMPLES[name]()
    data = to_json(result)
    assert faults(json.loads(data)) == []
    assert from_json(data, where="x") == result


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"version": VERSION + 1}, "$.version"),
        ({"format": "other"}, "$.format"),
        ({"verdict": "fine"}, "$.verdict"),
        ({"passes": {}}, "$.passes"),
        ({"seconds": "long"}, "$.seconds"),
    ],
)
def test_the_gate_schema_refuses_what_reading_refuses(change: dict[str, Any], path: str) -> None:
    altered = json.loads(to_json(changed())) | change
    assert faults(altered) == [path]
    with pytest.raises(UsageError):
        from_json(json.dumps(altered).encode(), where="x")


@pytest.mark.parametrize("key", ["format", "version", "model", "before"])
def test_the_gate_schema_and_reading_ask_for_the_same_keys(key: str) -> None:
    altered = json.loads(to_json(changed()))
    del altered[key]
    assert faults(altered) == ["$"]
    with pytest.raises(UsageError):
        from_json(json.dumps(altered).encode(), where="x")


def test_hostile_gate_results_are_read_as_written() -> None:
    result = hostile("<b>\x00\u202e")
    assert from_json(to_json(result), where="x") == result


def test_another_document_is_refused_as_a_gates_result() -> None:
    with pytest.raises(UsageError, match=rf"x: expected format {FORMAT} version 1, found"):
        from_json(b'{"format": "logits-parity/result", "version": 1}', where="x")
