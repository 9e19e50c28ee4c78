"""The process: reads a request, does what it asks stage by stage, writes facts and arrays."""

import json
import os
import sys
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
    stages = Stages(output, _hidden(request))
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


def _hidden(request: dict[str, Any]) -> dict[str, str]:
    """Places that differ from one machine to the next, longest first, and what to call them."""
    found = {request["output"]: "<output>", str(Path(__file__).parent): "<recorder>"}
    if request["model"]:
        found[request["model"]] = "<model>"
    found |= {path: "<packages>" for path in sys.path if path.endswith("-packages")}
    found[os.path.dirname(os.__file__)] = "<python>"
    return {path: found[path] for path in sorted(found, key=len, reverse=True)}


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
