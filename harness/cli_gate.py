"""``parity baseline``, ``gate``, ``upgrade``, ``bisect``: do other releases make another model?"""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import console, progress, reported, worst
from .errors import ParityError, UsageError

if TYPE_CHECKING:
    from .gate.baseline import Baseline
    from .gate.target import Options, Target

_Model = Annotated[str, typer.Argument(metavar="MODEL", help="Path, hub id or package:PKG/FILE.")]
_Prompts = Annotated[
    list[str] | None, typer.Option("--prompt", "-p", help="Text to run on; may be given again.")
]
_Tokens = Annotated[
    list[str] | None, typer.Option(help='Token ids to run on: "1,2,3"; may be given again.')
]
_Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
_Attention = Annotated[
    str | None, typer.Option(help="Attention implementation; what the library chooses if absent.")
]
_Threads = Annotated[int, typer.Option(help="CPU threads; the same on both sides.", min=1)]
_Decode = Annotated[
    int, typer.Option(help="Tokens at a prompt's end fed one by one, with a cache.", min=0)
]
_Generate = Annotated[int, typer.Option(help="Tokens to choose greedily.", min=0)]
_Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let code in the model's folder run.")
]
_Json = Annotated[
    Path | None, typer.Option("--json", help="Also write the result here; - for standard output.")
]
_Markdown = Annotated[
    Path | None,
    typer.Option(help="Also write the result here as Markdown, for a CI job's summary."),
]
_Junit = Annotated[Path | None, typer.Option(help="Also write the result here as JUnit XML.")]
_ReportDir = Annotated[Path, typer.Option(help="Folder for the page.")]
_NoReport = Annotated[bool, typer.Option("--no-report", help="Write no page.")]
_Offline = Annotated[
    bool, typer.Option("--offline", help="Make no environment: only those that are kept count.")
]
#: Parameters of ``parity baseline`` that decide what is run.
_WHAT_IS_RUN = ("prompt", "tokens", "dtype", "attention", "threads", "decode", "generate")

_Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def baseline(
    context: typer.Context,
    model: _Model,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The baseline, for git.")],
    prompt: _Prompts = None,
    tokens: _Tokens = None,
    dtype: _Dtype = "float32",
    attention: _Attention = None,
    threads: _Threads = 1,
    decode: _Decode = 1,
    generate: _Generate = 8,
    reason: Annotated[
        str | None,
        typer.Option(help="Why an earlier baseline is to be replaced; kept in the new one."),
    ] = None,
    trust_remote_code: _Trust = False,
    debug: _Debug = False,
) -> None:
    """Record what the installed libraries compute of a model, small enough for git.

    Where the file is there already, the installed libraries are compared with it first and what a
    new one would hide is shown; it is replaced only with --reason. What is run stays as it was.
    """
    codes: list[int] = []
    with reported(codes, debug=debug):
        options = _options(
            prompt,
            tokens,
            dtype,
            attention,
            threads,
            decode,
            generate,
            trust_remote_code=trust_remote_code,
        )
        if output.exists():
            # By name: typer has an enumeration of its own, or click's, by its release.
            sources = {name: context.get_parameter_source(name) for name in _WHAT_IS_RUN}
            given = [key for key, found in sources.items() if found and found.name == "COMMANDLINE"]
            _refresh(model, output, options, given, reason)
        else:
            _first(model, output, options)
        codes.append(0)
    raise typer.Exit(worst(codes))


def gate(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="The model, where it is not where it was."),
    ] = None,
    *,
    baseline_file: Annotated[
        Path, typer.Option("--baseline", "-b", help="A file that `parity baseline` wrote.")
    ],
    dtype: Annotated[
        str | None, typer.Option(help="Another dtype than the baseline's: not comparable.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Another number than the baseline's: not comparable.", min=1)
    ] = None,
    trust_remote_code: _Trust = False,
    json_file: _Json = None,
    markdown: _Markdown = None,
    junit: _Junit = None,
    report_dir: _ReportDir = Path("reports"),
    no_report: _NoReport = False,
    debug: _Debug = False,
) -> None:
    """Compare the installed libraries with a baseline: is it still the same model?

    Exit code 0: the same bits, or rounding. 1: another model, or one that fails now. 3: not
    comparable, as with other weights, another dtype or number of threads.
    """
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .gate.baseline_file import read_baseline
        from .gate.running import run_gate
        from .gate.target import find
        from .report.gate_outputs import GateOutputs

        outputs = GateOutputs(json_file, None if no_report else report_dir, markdown, junit)
        if dtype is not None:
            _require_dtype(dtype)
        kept = read_baseline(baseline_file)
        target = find(model) if model else _found_again(kept.head.model, baseline_file)
        with progress(f"gate {baseline_file.name}") as show:
            outcome, _ = run_gate(
                kept,
                target,
                name=f"baseline {baseline_file.name}",
                threads=threads,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                command=_command(),
                progress=show,
            )
        outputs.put(outcome, stem=f"gate-{baseline_file.stem}")
        codes.append(outcome.result.exit_code)
    raise typer.Exit(worst(codes))


def upgrade(
    *,
    before: Annotated[
        str,
        typer.Option(
            "--from", help='"5.0.0", "torch==2.12.0", several with commas, or "installed".'
        ),
    ] = "installed",
    after: Annotated[str, typer.Option("--to", help="The same.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Path, hub id or package:PKG/FILE.")],
    resave: Annotated[
        bool,
        typer.Option(
            "--resave", help="Both load what --from saves of the model, as after a fine-tuning."
        ),
    ] = False,
    prompt: _Prompts = None,
    tokens: _Tokens = None,
    dtype: _Dtype = "float32",
    attention: _Attention = None,
    threads: _Threads = 1,
    decode: _Decode = 1,
    generate: _Generate = 8,
    offline: _Offline = False,
    trust_remote_code: _Trust = False,
    json_file: _Json = None,
    markdown: _Markdown = None,
    junit: _Junit = None,
    report_dir: _ReportDir = Path("reports"),
    no_report: _NoReport = False,
    debug: _Debug = False,
) -> None:
    """Run a model with two sets of releases, each in an environment of its own, and compare.

    A release that cannot load the model is a result. Environments are made once and kept; see
    `parity environments`.
    """
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .gate.upgrading import compare_releases
        from .report.gate_outputs import GateOutputs

        outputs = GateOutputs(json_file, None if no_report else report_dir, markdown, junit)
        options = _options(
            prompt,
            tokens,
            dtype,
            attention,
            threads,
            decode,
            generate,
            trust_remote_code=trust_remote_code,
        )
        with progress("upgrade") as show:
            outcome = compare_releases(
                model,
                before,
                after,
                options,
                resave=resave,
                offline=offline,
                command=_command(),
                say=_say,
                progress=show,
            )
        outputs.put(outcome, stem=f"upgrade-{_stem(before)}-{_stem(after)}")
        codes.append(outcome.result.exit_code)
    raise typer.Exit(worst(codes))


def bisect(
    *,
    good: Annotated[str, typer.Option(help="A release in which the model is as it should be.")],
    bad: Annotated[str, typer.Option(help="One in which it is not; newer or older.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Path, hub id or package:PKG/FILE.")],
    package: Annotated[str, typer.Option(help="Whose releases these are.")] = "transformers",
    resave: Annotated[
        bool, typer.Option("--resave", help="All load what --good saves of the model.")
    ] = False,
    prompt: _Prompts = None,
    tokens: _Tokens = None,
    dtype: _Dtype = "float32",
    attention: _Attention = None,
    threads: _Threads = 1,
    decode: _Decode = 1,
    generate: _Generate = 8,
    offline: _Offline = False,
    trust_remote_code: _Trust = False,
    state: Annotated[
        Path | None,
        typer.Option(
            help="File that keeps what was judged, to go on from; in the report folder if absent."
        ),
    ] = None,
    json_file: _Json = None,
    markdown: _Markdown = None,
    junit: _Junit = None,
    report_dir: _ReportDir = Path("reports"),
    no_report: _NoReport = False,
    debug: _Debug = False,
) -> None:
    """Find the release that changed a model, in halving steps, or mended it if --good is newer.

    Releases that cannot be installed are skipped. An interrupted search goes on where it was. The
    report compares the last release that is as it was with the first that is not. Exit code 0: the
    release is found; 3: it is one of several, as those between could not be judged.
    """
    codes: list[int] = []
    with reported(codes, debug=debug):
        from .gate.searching import SearchRequest, search
        from .report.gate_bisect import judged_line, print_found
        from .report.gate_outputs import GateOutputs

        outputs = GateOutputs(json_file, None if no_report else report_dir, markdown, junit)
        options = _options(
            prompt,
            tokens,
            dtype,
            attention,
            threads,
            decode,
            generate,
            trust_remote_code=trust_remote_code,
        )
        stem = f"bisect-{package}-{good}-{bad}"
        request = SearchRequest(
            model=model,
            good=good,
            bad=bad,
            package=package,
            options=options,
            resave=resave,
            offline=offline,
            state=state or report_dir / f"{stem}.state.json",
        )
        with progress("bisect") as show:
            found = search(
                request,
                say=_say,
                progress=show,
                command=_command(),
                on_judged=lambda release, each: _say(judged_line(release, each)),
            )
        print_found(found.result, package)
        outputs.put(found.outcome, stem=stem)
        codes.append(0 if found.result.first else 3)
    raise typer.Exit(worst(codes))


def _found_again(model: str, baseline_file: Path) -> "Target":
    """The model of a baseline, where it was."""
    from .gate.target import find

    try:
        return find(model)
    except ParityError as error:
        advice = f"{error.advice}; one that has moved: parity gate MODEL --baseline {baseline_file}"
        where, expected, found = error.where, error.expected, error.found
        raise type(error)(where, expected=expected, found=found, advice=advice) from None


def _first(model: str, output: Path, options: "Options") -> None:
    from .gate.running import make_baseline
    from .gate.target import find, make_plan

    target = find(model)
    with progress("baseline") as show:
        made = make_baseline(
            target,
            make_plan(target, options),
            trust_remote_code=options.trust_remote_code,
            progress=show,
        )
    _write(made, output)


def _refresh(
    model: str, output: Path, options: "Options", given: list[str], reason: str | None
) -> None:
    """Show what a new baseline would hide; replace the old one if there is a reason."""
    from .gate.baseline_file import read_baseline
    from .gate.result import GateVerdict
    from .gate.running import refreshed, run_gate
    from .gate.target import find
    from .report.gate_text import GateView

    old = read_baseline(output)
    target: Target = find(model)
    _require_same_runs(output, old, target, options, given)
    with progress("baseline") as show:
        outcome, fresh = run_gate(
            old,
            target,
            name=f"baseline {output.name}",
            trust_remote_code=options.trust_remote_code,
            command=_command(),
            progress=show,
        )
    console().print(GateView(outcome.result))
    if fresh is None:
        raise ParityError(
            str(output),
            expected="a model that runs, and is the one that the baseline is of",
            found=outcome.result.summary,
            advice="mend that, or write a baseline to another file",
        )
    if not (reason or "").strip():
        same = outcome.result.verdict is GateVerdict.SAME
        hides = "--reason, for a new baseline hides what is shown above"
        raise UsageError(
            str(output),
            expected="--reason, for there is a baseline already" if same else hides,
            found="none",
            advice="leave it as it is: nothing has changed, and no new one is needed"
            if same
            else f'write --reason "..." if that is meant ({outcome.result.verdict.value})',
        )
    _write(refreshed(old, fresh, outcome.result, str(reason)), output)


def _require_same_runs(
    output: Path, old: "Baseline", target: "Target", options: "Options", given: list[str]
) -> None:
    """Refuse options that would have a baseline's successor be of other runs: nothing is compared.

    Args:
        output: Where the baseline is.
        old: What it is.
        target: The model.
        options: What would be run.
        given: Names of the options that the user gave.
    """
    from .gate.target import make_plan

    plan = old.head.plan
    if not given or make_plan(target, options) == plan:
        return
    kept = {"dtype": plan.dtype, "attention": plan.attention, "threads": plan.threads}
    other = [name for name in given if name not in kept or getattr(options, name) != kept[name]]
    if other:
        raise UsageError(
            str(output),
            expected="no option that changes what is run: a new baseline is of the same",
            found=", ".join(f"--{name}" for name in other),
            advice="leave it out; for other runs name another file, or delete this one first",
        )


def _write(made: "Baseline", output: Path) -> None:
    from .gate.baseline_file import write_baseline

    size = write_baseline(made, output)
    screen = console()
    versions = made.facts.versions
    screen.print(
        f"Baseline of {made.head.model}: {len(made.taps)} intermediates, {size / 1000:.0f} kB,"
        f" transformers {versions.get('transformers')}, torch {versions.get('torch')}",
        markup=False,
        soft_wrap=True,
    )
    screen.print(str(output), markup=False, soft_wrap=True)


def _options(
    prompt: list[str] | None,
    tokens: list[str] | None,
    dtype: str,
    attention: str | None,
    threads: int,
    decode: int,
    generate: int,
    *,
    trust_remote_code: bool,
) -> "Options":
    from .gate.target import Options
    from .outputs import parse_tokens

    _require_dtype(dtype)
    rows = [row for text in tokens or () for row in parse_tokens(text)]
    return Options(
        texts=tuple(prompt or ()),
        token_ids=tuple(rows),
        dtype=dtype,
        attention=attention,
        threads=threads,
        decode=decode,
        generate=generate,
        trust_remote_code=trust_remote_code,
    )


def _require_dtype(dtype: str) -> None:
    from .gate.plan import DTYPES

    if dtype not in DTYPES:
        raise UsageError(
            "--dtype",
            expected="float32, bfloat16 or float16",
            found=dtype,
            advice="choose one of them",
        )


def _say(line: str) -> None:
    """What happens while an environment is made, on standard error."""
    console(stderr=True).print(line, markup=False, soft_wrap=True, style="dim")


def _command() -> str:
    return shlex.join(["parity", *sys.argv[1:]])


def _stem(releases: str) -> str:
    return "-".join(part.split("==")[-1] for part in releases.split(","))
