"""``parity trace`` and ``parity diff``: runs as files, and any two sides against each other."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import console, progress, reported, worst
from .errors import UsageError
from .outputs import Outputs, parse_tokens

if TYPE_CHECKING:
    from .case import Prompt
    from .result import RunResult
    from .trace.problems import Problem

_Model = Annotated[
    str | None, typer.Option("--model", "-m", help="Path, hub id or package:PKG/FILE.")
]
_Text = Annotated[str | None, typer.Option("--prompt", "-p", help="Text to run on.")]
_Tokens = Annotated[
    str | None, typer.Option(help='Token ids to run on: "1,2,3"; ";" starts another row.')
]
_Decode = Annotated[int, typer.Option(help="Decoding steps with a cache.", min=0)]
_Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16, of engines.")]
_Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1)]
_Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def trace(
    model: Annotated[
        str | None, typer.Argument(help="Path, hub id or package:PKG/FILE of the model.")
    ] = None,
    *,
    engine: Annotated[
        str, typer.Option("--engine", "-e", help="hf:eager, hf:sdpa or reference.")
    ] = "hf:eager",
    prompt: _Text = None,
    tokens: _Tokens = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Trace file to write (*.safetensors).")
    ] = None,
    decode: _Decode = 0,
    taps: Annotated[
        list[str] | None,
        typer.Option(help='Taps to keep, by name or kind: "attn.*"; may be given again.'),
    ] = None,
    dtype: _Dtype = "float32",
    threads: _Threads = None,
    check: Annotated[
        Path | None,
        typer.Option(help="Tell everything that is wrong with this trace, and run nothing."),
    ] = None,
    debug: _Debug = False,
) -> None:
    """Run one engine and write all that it computes into a trace file, or check such a file.

    With --check, MODEL is the model that the trace is of: shapes, missing taps and weights are
    then checked against it. Exit code 2 if something is wrong.
    """
    codes: list[int] = []
    with reported(codes, debug=debug):
        if check is not None:
            codes.append(_check(check, model))
        else:
            where, target = _require_target(model, output)
            _record(
                where,
                engine,
                _prompt("parity trace", prompt, tokens),
                target,
                decode,
                taps,
                dtype,
                threads,
            )
            codes.append(0)
    raise typer.Exit(worst(codes))


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A trace file, or an engine's name.")],
    other: Annotated[str, typer.Argument(metavar="B", help="The same; the candidate.")],
    *,
    model: _Model = None,
    prompt: _Text = None,
    tokens: _Tokens = None,
    decode: _Decode = 0,
    dtype: _Dtype = "float32",
    threads: _Threads = None,
    no_replay: Annotated[
        bool, typer.Option("--no-replay", help="Hold A against B alone, tap by tap.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Also write the result here; - for standard output."),
    ] = None,
    report_dir: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("reports"),
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    debug: _Debug = False,
) -> None:
    """Compare two runs: trace files, or engines (hf:eager, hf:sdpa, reference) that run now.

    With the model (--model, or the one that a trace names, if it is there) every op of both is
    replayed, so that a fault is told from rounding. Where a trace takes part its token ids are
    run; otherwise give --prompt or --tokens.
    """
    codes: list[int] = []
    outputs = Outputs(json_file, None if no_report else report_dir)
    try:
        with reported(codes, debug=debug):
            from .diffing import DiffRequest
            from .diffing import diff as run_diff

            given = None
            if prompt is not None or tokens is not None:
                given = _prompt("parity diff", prompt, tokens)
            request = DiffRequest(
                first=first,
                other=other,
                model=model or "",
                prompt=given,
                decode=decode,
                dtype=dtype,
                threads=threads,
                replay=not no_replay,
            )
            command = shlex.join(["parity", *sys.argv[1:]])

            def compare(on_stop: Callable[["RunResult"], None]) -> "RunResult":
                with progress(f"{first} vs {other}") as show:
                    return run_diff(request, progress=show, command=command, on_stop=on_stop)

            outputs.put_run(compare, codes=codes, debug=debug)
    finally:
        outputs.finish()
    raise typer.Exit(worst(codes))


def _prompt(command: str, text: str | None, tokens: str | None) -> "Prompt":
    from .case import Prompt

    if (text is None) == (tokens is None):
        raise UsageError(
            command,
            expected="one of --prompt and --tokens",
            found="neither" if text is None else "both",
            advice='try: --prompt "The capital of France is"',
        )
    if tokens is not None:
        return Prompt("tokens", token_ids=parse_tokens(tokens))
    return Prompt("prompt", text=text)


def _require_target(model: str | None, output: Path | None) -> tuple[str, Path]:
    if model is None or output is None:
        raise UsageError(
            "parity trace",
            expected="a model and --output, or --check",
            found="no model" if model is None else "no --output",
            advice="try: parity trace MODEL --engine hf:eager --prompt TEXT -o trace.safetensors",
        )
    return model, output


def _record(
    model: str,
    engine: str,
    prompt: "Prompt",
    output: Path,
    decode: int,
    taps: list[str] | None,
    dtype: str,
    threads: int | None,
) -> None:
    from .engines.registry import make_engine, parse_name
    from .locate import locate
    from .prompts import require_room, tokens_of
    from .subject import load_subject, refusals_as_errors
    from .trace.record import record_trace

    name = parse_name(engine, dtype=dtype)
    with progress(f"{engine} on {model}") as show:
        show("load model", 0, 2)
        subject = load_subject(locate(model))
        ids = tokens_of(subject, prompt)
        with refusals_as_errors():
            subject.model.require_tokens(ids)
        require_room(subject, prompt.name, ids, more=decode)
        made = make_engine(name, path=subject.checkpoint.path, model=subject.model, threads=threads)
        show("run", 1, 2)
        head = record_trace(subject, made, ids, output, decode=decode, taps=taps or ("*",))
    size = output.stat().st_size / 1e6
    passes = f"{len(head.chunks)} forward passes" if decode else "one forward pass"
    screen = console()
    screen.print(
        f"{head.engine.name}, {passes} of {', '.join(map(str, head.chunks))} tokens, {size:.1f} MB",
        markup=False,
    )
    screen.print(str(output), markup=False, soft_wrap=True)


def _check(path: Path, model: str | None) -> int:
    """Print every problem; 2 if one of them makes the trace unusable."""
    from .trace.check import inspect, judge_against_model, judge_values
    from .trace.container import scan

    container = scan(path)
    findings = inspect(container)
    problems = list(findings.problems)
    if model is not None and findings.head is not None:
        from .engines.shapes import tap_shapes
        from .locate import locate
        from .subject import load_subject
        from .trace.check import chunks_of, judge_fingerprint

        subject = load_subject(locate(model))
        shapes = tap_shapes(subject.model, chunks_of(findings.head))
        problems += judge_fingerprint(findings.head, subject.checkpoint.fingerprint, model)
        vocab = subject.model.config.vocab
        problems += judge_against_model(findings, shapes, vocab=vocab)
    problems += judge_values(container)
    _show_problems(path, problems, len(findings.taps))
    return 2 if any(not p.warning for p in problems) else 0


def _show_problems(path: Path, problems: list["Problem"], taps: int) -> None:
    from rich.text import Text

    from .report.wording import visible

    screen = console()
    for problem in problems:
        style = "yellow" if problem.warning else "bold red"
        label = "Warning" if problem.warning else "Error"
        screen.print(Text(f"{label}: {visible(problem.where)}", style=style), soft_wrap=True)
        for key in ("expected", "found", "advice"):
            line = f"  {key + ':':10}{visible(getattr(problem, key))}"
            screen.print(Text(line), soft_wrap=True)
    errors = sum(not p.warning for p in problems)
    counts = f"{taps} taps, {errors} errors, {len(problems) - errors} warnings"
    screen.print(Text(f"{path}: {counts}"), soft_wrap=True)
