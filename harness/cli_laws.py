"""The command line: ``parity laws``, ``parity laws show``, ``run`` and ``table``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import console, progress, reported, worst
from .errors import UsageError

if TYPE_CHECKING:
    from .laws.law import Law

laws = typer.Typer(
    help="Laws that any engine must obey, whatever its numbers are.",
    invoke_without_command=True,
    no_args_is_help=False,
)

_Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
_Laws = Annotated[
    list[str] | None,
    typer.Option("--law", help="Only this law, or group of laws; may be given again."),
]


@laws.callback()
def _listed(context: typer.Context, *, debug: _Debug = False) -> None:
    """List the laws."""
    if context.invoked_subcommand is not None:
        return
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .laws.catalogue import laws as every
        from .report.laws import listing

        console().print(listing(every()))
        codes.append(0)
    raise typer.Exit(worst(codes))


@laws.command()
def show(
    law: Annotated[str, typer.Argument(metavar="ID", help="As `parity laws` lists it.")],
    *,
    debug: _Debug = False,
) -> None:
    """Explain one law: what it says, who says so, what is allowed, what breaks it."""
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .laws.catalogue import law_named
        from .report.laws import explanation

        console().print(explanation(law_named(law)))
        codes.append(0)
    raise typer.Exit(worst(codes))


@laws.command()
def run(
    *,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="hf:eager, hf:sdpa, reference, or package.module:function of your own that takes "
            "a model's folder and returns an engine; may be given again."
        ),
    ] = None,
    law: _Laws = None,
    family: Annotated[
        list[str] | None,
        typer.Option(help="Random models of this family alone; may be given again."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="In place of random models: a directory, a GGUF file, a hub id or"
            " package:PKG/FILE."
        ),
    ] = "",
    dtype: Annotated[str, typer.Option(help="Of engines that are ours.")] = "float32",
    nightly: Annotated[
        bool, typer.Option("--nightly", help="Search longer, with models of any config.")
    ] = False,
    debug: _Debug = False,
) -> None:
    """Try laws on engines. The exit code is 1 if a law is broken."""
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .engines.random_models import hushed
        from .laws.again import explain
        from .laws.catalogue import law_named
        from .laws.makers import DEFAULTS, make_of
        from .laws.measure import Tried, try_all
        from .laws.models import chosen_families, folder_of
        from .laws.search import PROFILES
        from .report.laws import tried_table

        engines, tried = engine or list(DEFAULTS), list[Tried]()
        with hushed(), progress("laws run") as note:
            for one in try_all(
                _chosen(law),
                engines,
                make=lambda name: make_of(name, dtype=dtype),
                families=chosen_families(family or ()),
                folder=folder_of(model),
                profile=PROFILES["nightly" if nightly else "ci"],
            ):
                tried.append(one)
                note(f"{one.law} {one.family} {one.engine}", len(tried), len(tried) + 1)
        console().print(tried_table(tried, engines))
        broken = [one for one in tried if one.outcome is not None and one.outcome.broken]
        for one in broken:
            if one.outcome is not None and one.outcome.broken is not None:
                text = explain(law_named(one.law), one.engine, dtype, one.outcome.broken)
                console().print(f"\n{text}", markup=False, highlight=False)
        codes.append(1 if broken else 0)
    raise typer.Exit(worst(codes))


@laws.command()
def table(
    *,
    markdown: Annotated[Path, typer.Option("--markdown", help="Document to write.")],
    debug: _Debug = False,
) -> None:
    """Measure how close engines come to breaking each law, and which laws catch each mutant."""
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .engines.random_models import hushed
        from .laws.document import write_document

        with hushed(), progress("laws table") as note:
            write_document(markdown, note)
        codes.append(0)
    raise typer.Exit(worst(codes))


def _chosen(names: list[str] | None) -> "list[Law]":
    from .laws.catalogue import laws as every
    from .laws.law import GROUPS

    some = [law for law in every() if not names or law.id in names or law.group in names]
    unknown = [n for n in names or () if n not in GROUPS and n not in {law.id for law in every()}]
    if unknown:
        raise UsageError(
            "--law",
            expected=f"the id of a law, or a group: {', '.join(GROUPS)}",
            found=repr(unknown[0]),
            advice="`parity laws` lists them",
        )
    return some
