"""The schema of result documents is that of the dataclasses; old documents fit it and render."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.errors import UsageError
from harness.report.views import Format, render
from harness.result import FORMAT, VERSION, RunResult, Verdict, from_json, to_json
from harness.result_schema import schema, text

Sample = Callable[..., RunResult]
ROOT = Path(__file__).parent.parent
WRITTEN = ROOT / "docs" / "result.schema.json"

#: Written before spreads of errors, most likely tokens and ``stopped`` were part of results.
OLD = Path(__file__).parent / "data" / "result-version-1.json"


def faults(value: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema())
    return [error.json_path for error in validator.iter_errors(value)]


def test_schema_in_docs_is_current() -> None:
    again = "run: python -m harness.result_schema > docs/result.schema.json"
    assert WRITTEN.read_text() == text(), again


def test_schema_in_docs_follows_the_dataclasses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted field is missed."""

    @dataclass(frozen=True)
    class Planted(RunResult):
        planted: int = 0

    monkeypatch.setattr("harness.result_schema.RunResult", Planted)
    with pytest.raises(KeyError):  # it is known by its class's name
        schema()
    Planted.__name__ = Planted.__qualname__ = "RunResult"
    assert WRITTEN.read_text() != text()


def test_schema_is_one_and_is_versioned() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    whole = schema()["$defs"]["RunResult"]
    assert whole["properties"]["version"] == {"const": VERSION}
    assert whole["properties"]["format"] == {"const": FORMAT}
    assert {"format", "version", "case", "verdict"} <= set(whole["required"])


@pytest.mark.parametrize("verdict", list(Verdict))
def test_results_fit_the_schema(sample: Sample, verdict: Verdict) -> None:
    assert faults(json.loads(to_json(sample(verdict)))) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"version": VERSION + 1}, "$.version"),
        ({"format": "other"}, "$.format"),
        ({"verdict": "fine"}, "$.verdict"),
        ({"prompts": {}}, "$.prompts"),
        ({"tolerance": "small"}, "$.tolerance"),
    ],
)
def test_the_schema_refuses_what_reading_refuses(change: dict[str, Any], path: str) -> None:
    changed = json.loads(OLD.read_bytes()) | change
    assert faults(changed) == [path]
    with pytest.raises(UsageError):
        from_json(json.dumps(changed).encode())


@pytest.mark.parametrize("key", ["format", "version", "case", "environment"])
def test_the_schema_and_reading_ask_for_the_same_keys(key: str) -> None:
    changed = json.loads(OLD.read_bytes())
    del changed[key]
    assert faults(changed) == ["$"]
    with pytest.raises(UsageError):
        from_json(json.dumps(changed).encode())


def test_the_old_result_is_old() -> None:
    old = json.loads(OLD.read_bytes())
    for key in ("stopped", "spread", "top"):
        assert f'"{key}":' not in OLD.read_text()
    assert (old["format"], old["version"], old["verdict"]) == (FORMAT, 1, "fail")
    assert old["diagnoses"][0]["causes"][0]["fault"] == "scale-other"
    assert faults(old) == []


@pytest.mark.parametrize("form", list(Format))
def test_an_old_result_renders_in_every_view(form: Format) -> None:
    old = from_json(OLD.read_bytes())
    view = render(old, form).decode()
    for part in ("layers.0.attn.scores", "scale-other", "mine", "healthy"):
        assert part in view, part
    if form is Format.JSON:
        assert from_json(view.encode()) == old


def test_a_later_version_is_refused_saying_what_to_run() -> None:
    later = json.loads(OLD.read_bytes()) | {"version": VERSION + 1}
    with pytest.raises(UsageError) as caught:
        from_json(json.dumps(later).encode(), where="r.json")
    assert str(caught.value) == (
        f"r.json: expected format {FORMAT} version {VERSION}, found ('{FORMAT}', {VERSION + 1}):"
        " a later release wrote it: pip install -U logits-parity, or write it again with"
        " `parity run --json`"
    )
