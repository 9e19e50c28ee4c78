"""Two sets of releases on one model, each in an environment of its own."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from ..errors import ParityError, UsageError
from .environments import Environment, environment
from .records import Request
from .running import Outcome, Progress, Recorder, run_pair
from .target import Options, Target, find, make_plan
from .wanted import parse_wanted

Say = Callable[[str], None]


def compare_releases(
    model: str,
    before: str,
    after: str,
    options: Options,
    *,
    resave: bool = False,
    offline: bool = False,
    command: str = "",
    say: Say,
    progress: Progress,
) -> Outcome:
    """Compare what two sets of releases make of a model.

    Args:
        model: The model.
        before: Releases of the side that is good, as :func:`parse_wanted` reads them.
        after: Those of the other side.
        options: How the model is run.
        resave: Whether both sides load what the side before saves of the model.
        offline: Whether only environments that are kept may be used.
        command: What the user typed.
        say: Takes a line for the user.
        progress: Told how far it is.

    Raises:
        ParityError: Unusable input, or an environment that cannot be made.
    """
    wanted = [parse_wanted(before), parse_wanted(after)]
    if wanted[0] == wanted[1]:
        raise UsageError(
            "parity upgrade",
            expected="two different sets of releases",
            found=f"{before} twice",
            advice='name others, for example --from 5.0.0 --to 5.24.0; "installed" is what is here',
        )
    target = find(model)
    plan = make_plan(target, options)
    made = [environment(each, say=say, offline=offline) for each in wanted]
    with tempfile.TemporaryDirectory(prefix="parity-resaved-") as folder:
        if resave:
            target = resaved(target, made[0], Path(folder), options, progress)
        return run_pair(
            target,
            plan,
            {label(each): each.python for each in made},
            trust_remote_code=options.trust_remote_code,
            command=command,
            progress=progress,
        )


def label(made: Environment) -> str:
    """An environment's name in a result: what was asked for, in words."""
    releases = made.wanted.releases or {
        name: made.versions[name] for name in ("transformers", "torch") if name in made.versions
    }
    words = ", ".join(f"{name} {version}" for name, version in releases.items())
    return f"installed ({words})" if not made.wanted.releases else words


def resaved(
    target: Target, made: Environment, folder: Path, options: Options, progress: Progress
) -> Target:
    """The model as an environment saves it, in a folder that is there.

    Raises:
        ParityError: It cannot.
    """
    saved = folder / "saved"
    request = Request(
        model=target.folder,
        dtype=options.dtype,
        threads=options.threads,
        trust_remote_code=options.trust_remote_code,
        save_to=str(saved),
    )
    name = label(made)
    with Recorder(progress) as recorder:
        failed = recorder.run(made.python, request, name=f"{name}: save").facts.failed
    if failed is not None:
        raise ParityError(
            target.name,
            expected=f"a model that {name} can save",
            found=f"{failed.type} in {failed.stage}: {failed.message}"[:600],
            advice="leave --resave out",
        )
    found = find(str(saved))
    return Target(f"{target.name}, saved by {name}", found.checkpoint)
