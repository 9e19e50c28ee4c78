"""Environments with other releases: made once by ordinary tools, then kept, or found again."""

import datetime
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import BuildError, Offline
from .building import SHARED_FILE, Plan, build
from .kept import (
    MARKER,
    PART,
    Made,
    Own,
    alone,
    environments_dir,
    failing_clearly,
    kept_environments,
    read_made,
    remove_aside,
)
from .sharing import Package, packages_in, shared_folders
from .tools import Say, variables
from .wanted import Wanted, closure, readable, unsatisfied

#: What a record may depend on, whatever was asked for.
_ROOTS = (
    *("transformers", "torch", "tokenizers", "safetensors", "numpy", "huggingface-hub"),
    *("accelerate", "kernels", "flash-attn", "sentencepiece", "tiktoken", "protobuf"),
)


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python in which releases are found.

    Attributes:
        python: What to run; with ``-I`` and :func:`variables`, so that nothing comes before them.
        wanted: What was asked for.
        versions: Version of each package that was asked for or that a model may depend on, and of
            what these need, by the name that the index uses.
    """

    python: Path
    wanted: Wanted
    versions: dict[str, str]


def environment(
    wanted: Wanted, *, say: Say, folder: Path | None = None, offline: bool = False
) -> Environment:
    """An environment with what is wanted: as installed here, found again, or made now.

    It is this environment with other packages in front: its folders are shared, torch among them,
    and only what has to be another is installed, into a folder of its own.

    Args:
        wanted: What it must have.
        say: Takes a line for the user.
        folder: Where environments are kept, instead of :func:`environments_dir`.
        offline: Make none: only what is kept counts.

    Raises:
        NoSuchRelease: The index has no such release.
        CannotInstall: It does not go with this Python, or with what else is wanted.
        Offline: The index is needed and does not answer, or is not to be asked.
        BuildError: This machine cannot make one: no tool, no room, no right to write.
    """
    shared = shared_folders()
    installed = packages_in(shared)
    if wanted.installed:
        return Environment(Path(sys.executable), wanted, _versions(wanted, installed))
    folder = folder or environments_dir()
    plan = Plan(wanted, shared, installed)
    target = folder / _key(plan)
    found = _reuse(target, plan)
    if isinstance(found, Environment):
        return found
    if offline:
        raise _offline(wanted, folder, found)
    with failing_clearly(f"environment with {wanted}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target, say=say):
            found = _reuse(target, plan)  # another run may have made it meanwhile
            if isinstance(found, Environment):
                return found
            if target.exists():
                say(f"the environment with {wanted} is of no use any more ({found})")
            remove_aside(target)
            _make(plan, target, say=say)
    found = _reuse(target, plan)
    if isinstance(found, Environment):
        return found
    raise BuildError(
        str(target),
        expected="an environment that works, now that it is made",
        found=found,
        advice="make it again with LOGITS_PARITY_INSTALLER=pip, or ask for releases that fit",
    )


def _key(plan: Plan) -> str:
    """Name of the folder: readable, and with a hash of all that decides what is made in it."""
    torch = plan.installed.get("torch")
    parts = [
        plan.wanted.requirements,
        sys.version,
        sys.base_prefix,
        sys.prefix,
        plan.shared,
        (torch.version, torch.folder) if torch else None,
    ]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]
    major, minor, _ = platform.python_version_tuple()
    return f"{readable(plan.wanted)}-py{major}.{minor}-{digest}"


def _versions(wanted: Wanted, packages: dict[str, Package]) -> dict[str, str]:
    requires = {name: package.requires for name, package in packages.items()}
    names = closure((*wanted.releases, *_ROOTS), requires)
    return {name: packages[name].version for name in sorted(names)}


def _reuse(target: Path, plan: Plan) -> Environment | str:
    """The environment in a folder, if it works and still is what is wanted; else why not."""
    made = read_made(target)
    if made is None:
        return f"no {MARKER} of this version" if target.exists() else "not made"
    own = {n: Package(o.version, o.requires, str(target)) for n, o in made.own.items()}
    packages = plan.installed | own
    versions = {name: package.version for name, package in packages.items()}
    wrong = unsatisfied(plan.wanted.requirements, versions)
    for package in own.values():
        wrong += unsatisfied(package.requires, versions)
    if wrong:
        return f"what is shared has changed: {'; '.join(wrong)}"
    places = tuple(str(path) for path in (target / "lib").glob("python*/site-packages"))
    there = packages_in(places)
    if lost := sorted(n for n, o in own.items() if n not in there or there[n].version != o.version):
        return f"packages are missing: {', '.join(lost)}"
    if not any(Path(place, SHARED_FILE).is_file() for place in places):
        return "it shares nothing any more"
    python = target / "bin" / "python"
    if not _runs(python):
        return "its Python does not run"
    return Environment(python, plan.wanted, _versions(plan.wanted, packages))


def _runs(python: Path) -> bool:
    """Whether it is a Python in this folder: the one it was made from may be gone."""
    command = [str(python), "-I", "-S", "-c", "import sys; print(sys.prefix)"]
    try:
        ran = subprocess.run(
            command, env=variables(), check=False, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ran.returncode == 0


def _make(plan: Plan, target: Path, *, say: Say) -> None:
    """Make it beside its place, and rename it when it is whole."""
    temporary = Path(tempfile.mkdtemp(prefix=f"{target.name}{PART}", dir=target.parent))
    try:
        temporary.chmod(0o755)  # mkdtemp makes it private; a cache may be shared
        tool, found = build(plan, temporary, say=say)
        inside = str(temporary)
        own = {name: p for name, p in found.items() if p.folder.startswith(inside)}
        made = Made(
            requirements=plan.wanted.requirements,
            python=platform.python_version(),
            tool=tool,
            made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            shared=plan.shared,
            own={name: Own(p.version, p.requires) for name, p in sorted(own.items())},
            versions=_versions(plan.wanted, found),
        )
        text = msgspec.json.format(msgspec.json.encode(made))
        (temporary / MARKER).write_bytes(text)
        temporary.rename(target)
        own_words = ", ".join(f"{name} {p.version}" for name, p in sorted(own.items()))
        say(f"made {target.name}: {own_words or 'nothing that is not shared'}")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _offline(wanted: Wanted, folder: Path, found: str) -> Offline:
    kept = sorted({",".join(item.requirements) for _, item in kept_environments(folder) if item})
    return Offline(
        f"environment with {wanted}",
        expected="one that is made already, for the package index is not to be asked",
        found=f"{found}; made are {', '.join(kept) if kept else 'none'}",
        advice="run once without --offline, or ask for one that is made",
    )
