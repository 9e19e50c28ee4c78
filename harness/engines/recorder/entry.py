"""The process: reads a request, does what it asks stage by stage, writes facts and arrays."""

import json
import os
from pathlib import Path
from typing import Any

from .heard import heard
from .plain import plain
from .stages import Stages

REQUEST = ("logits-parity/record-request", 1)
FORMAT = {"format": "logits-parity/record", "version": 1}


def main(path: str) -> None:
    """Do what the request in a file asks for.

    Args:
        path: The request; its ``output`` is a folder that exists and is empty.
    """
    request = json.loads(Path(path).read_text())
    output = Path(request["output"])
    hidden = {request["model"] or "\0": "<model>", str(output): "<output>"}
    stages = Stages(output, hidden)
    facts: dict[str, Any] = dict(FORMAT)
    with heard(lambda: stages.now, stages.cleaned) as warnings:
        with stages.stage("request"):
            _check(request)
        if not stages.failures:
            _record(request, stages, facts, output, warnings)
    facts["failed"] = stages.gravest()
    facts["failures"] = stages.failures
    facts["warnings"] = warnings
    _write(output / "facts.json", facts)


def _check(request: dict[str, Any]) -> None:
    found = (request.get("format"), request.get("version"))
    if found != REQUEST:
        raise ValueError(f"expected a request of {REQUEST}, found {found}")


def _record(
    request: dict[str, Any],
    stages: Stages,
    facts: dict[str, Any],
    output: Path,
    warnings: list[dict[str, str]],
) -> None:
    with stages.stage("import"):
        from . import session

        session.begin(request, facts)
    if not stages.failures:
        session.record(request, stages, facts, output, warnings)


def _write(path: Path, facts: dict[str, Any]) -> None:
    """Write a document in one step: whoever sees the file sees all of it."""
    text = json.dumps(plain(facts), sort_keys=True, allow_nan=False, ensure_ascii=True)
    half = path.with_suffix(".half")
    half.write_text(text + "\n")
    os.replace(half, path)
