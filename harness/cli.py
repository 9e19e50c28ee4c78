"""The command line: ``parity run``; other commands in modules of their own.

Exit codes: 0 pass or rounding, 1 fail or not finite, 2 usage or unusable input (also a bug of
this tool), 3 not comparable, 130 interrupted. Of several cases the worst counts, in the order
0, 3, 1, 2: an unusable case is worst, for then nobody knows what it would have come to.
"""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_environments import environments
from .cli_faults import faults
from .cli_gate import baseline, bisect, gate, upgrade
from .cli_laws import laws
from .cli_report import index, report
from .cli_trace import diff, trace
from .console import progress, reported, worst
from .errors import UsageError
from .outputs import Outputs, parse_tokens
from .seeds.command import seeds

if TYPE_CHECKING:
    from .case import Case
    from .result import RunResult

app = typer.Typer(
    help="Do two implementations of the same language model agree, where do they first differ,"
    " and is it a fault or rounding?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


app.command()(trace)
app.command()(diff)
app.command()(seeds)
app.command()(baseline)
app.command()(gate)
app.command()(upgrade)
app.command()(bisect)
app.command()(environments)
app.add_typer(faults, name="faults")
app.add_typer(laws, name="laws")


def main() -> None:
    """Entry point of the ``parity`` command."""
    app()


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer hands a flag to its callback like this
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        typer.echo(f"parity {version('logits-parity')}")
    except PackageNotFoundError:
        typer.echo("parity, not installed: no version")
    raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Of the whole command; its help is the app's."""


@app.command()
def run(
    cases: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[CASE]...", help="Case files (TOML), or folders of them."),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Path, hub id or package:PKG/FILE; overrides a case's."),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", help="Text to run on; may be given again."),
    ] = None,
    tokens: Annotated[
        list[str] | None,
        typer.Option("--tokens", help='Token ids to run on: "1,2,3"; ";" starts another row.'),
    ] = None,
    padding: Annotated[
        str | None,
        typer.Option(help="left or right: where shorter rows of --tokens are filled up."),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", "-e", help="hf:eager, hf:sdpa, reference; may be given again."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16, of the candidates.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    greedy: Annotated[int | None, typer.Option(help="Tokens to choose greedily.")] = None,
    decode: Annotated[
        int | None, typer.Option(help="Decoding steps with a cache to compare.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Also write the result here; - for standard output."),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(help="Also write the results here as Markdown, for a CI job's summary."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Also write the results here as JUnit XML.")
    ] = None,
    report_dir: Annotated[Path, typer.Option(help="Folder for CASE.html and CASE.json.")] = Path(
        "reports"
    ),
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Also run inputs made for this checkpoint; tell what stays hidden."
        ),
    ] = False,
    probe_length: Annotated[
        int | None, typer.Option(help="Most tokens of such an input.", min=2)
    ] = None,
    debug: _Debug = False,
) -> None:
    """Run cases, show the verdicts, write a report of each; the report's path comes last.

    Options override what the case files say. Without a case file, --model and at least one
    --prompt or --tokens make a case; with --probe they need not be there.
    """
    overrides = {
        "model": model,
        "engines": tuple(engine or ()) or None,
        "dtype": dtype,
        "threads": threads,
        "greedy": greedy,
        "decode": decode,
        "probe": probe or None,
        "probe_length": probe_length,
    }
    given = {key: value for key, value in overrides.items() if value is not None}
    outputs = Outputs(json_file, None if no_report else report_dir, markdown=markdown, junit=junit)
    codes: list[int] = []
    try:
        with reported(codes, debug=debug):
            loaders = _loaders(cases or [], prompt or [], tokens or [], padding, given)
            _check_json(json_file, len(loaders))
            for number, (name, load) in enumerate(loaders, start=1):
                later = [other for other, _ in loaders[number:]]
                with (
                    reported(codes, debug=debug),
                    outputs.accounted(name, later=later, codes=codes, debug=debug),
                ):
                    _run_one(load(), outputs, codes, debug=debug)
    finally:
        outputs.finish()
    raise typer.Exit(worst(codes))


app.command()(report)
app.command()(index)


def _run_one(case: "Case", outputs: Outputs, codes: list[int], *, debug: bool) -> None:
    stem = outputs.claim(case.name)

    def compare(on_stop: Callable[["RunResult"], None]) -> "RunResult":
        with progress(case.name) as show:
            return _run_case(case, show, on_stop)

    outputs.put_run(compare, stem=stem, codes=codes, debug=debug)


def _run_case(
    case: "Case",
    progress: Callable[[str, int, int], None],
    on_stop: Callable[["RunResult"], None],
) -> "RunResult":
    """The one call of the pipeline."""
    from .pipeline import run_case

    command = shlex.join(["parity", *sys.argv[1:]])
    return run_case(case, progress=progress, command=command, on_stop=on_stop)


def _loaders(
    paths: list[Path],
    texts: list[str],
    tokens: list[str],
    padding: str | None,
    given: dict[str, Any],
) -> list[tuple[str, Callable[[], "Case"]]]:
    """A name and a function for each case, so that a case that cannot be loaded fails alone."""
    from .case import Case, Prompt

    prompts = [Prompt(f"prompt-{i}", text=text) for i, text in enumerate(texts, start=1)]
    prompts += [
        Prompt(f"tokens-{i}", token_ids=parse_tokens(text), padding=padding)
        for i, text in enumerate(tokens, start=1)
    ]
    if padding is not None and not tokens:
        raise UsageError(
            "--padding",
            expected="--tokens beside it",
            found="none",
            advice='write --tokens "1,2,3;4,5" --padding left; a case file has padding = "left"',
        )
    if prompts:
        given = {**given, "prompts": tuple(prompts)}
    if paths:
        return [(path.stem, _loader(path, given)) for path in _expand(paths)]
    for key, option in (("model", "--model"), ("prompts", "--prompt, --tokens or --probe")):
        if key not in given and not (key == "prompts" and "probe" in given):
            raise UsageError(
                "parity run",
                expected=f"a case file, or {option}",
                found="neither",
                advice='try: parity run --model MODEL --prompt "The capital of France is"',
            )
    name = _name_of(given["model"])
    return [(name, lambda: Case(name=name, **{"prompts": (), **given}))]


def _loader(path: Path, given: dict[str, Any]) -> Callable[[], "Case"]:
    def load() -> "Case":
        from dataclasses import replace

        from .case_file import load_case

        return replace(load_case(path), **given)

    return load


def _expand(paths: list[Path]) -> list[Path]:
    expanded: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not found:
            raise UsageError(
                str(path),
                expected="case files (*.toml) in this folder",
                found="none",
                advice="name a case file, or a folder that holds some",
            )
        expanded += found
    return expanded


def _name_of(model: str) -> str:
    last = model.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1]
    return last.removesuffix(".gguf").removesuffix(".safetensors").strip(".") or "model"


def _check_json(json_file: Path | None, cases: int) -> None:
    if json_file is not None and cases > 1:
        raise UsageError(
            "--json",
            expected="one case",
            found=str(cases),
            advice="leave it out: --report-dir gets a CASE.json of each",
        )
