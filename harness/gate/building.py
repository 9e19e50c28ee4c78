"""Making an environment in a folder: Python's venv, the shared folders, and pip or uv."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from ..errors import BuildError, CannotInstall
from .index import listed_releases
from .refusals import refusal
from .sharing import Package
from .tools import Ran, Say, Tool, choose_tool, pip_command, run_tool
from .wanted import Wanted, holding, unsatisfied

SHARED_FILE = "_logits_parity_shared.pth"
_TEMPORARY = ".tmp"
#: What is found by the environment's own Python: name, version, requirements and folder of each.
_LOOK = """
import json, sys
from importlib import metadata
print(json.dumps([[d.metadata["Name"], d.version, d.requires or [], str(d.locate_file(""))]
                  for d in metadata.distributions() if d.metadata["Name"]]))
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is made.

    Attributes:
        wanted: What was asked for.
        shared: Folders of packages behind the environment's own, in order.
        installed: What is in them.
    """

    wanted: Wanted
    shared: tuple[str, ...]
    installed: dict[str, Package]

    @property
    def torch(self) -> str | None:
        """Version of torch that is shared; None where there is none, or another is asked for."""
        torch = self.installed.get("torch")
        return None if torch is None or "torch" in self.wanted.releases else torch.version

    @property
    def requirements(self) -> tuple[str, ...]:
        """What is installed: what was asked for, and what was built for the torch it replaces."""
        torch = self.wanted.releases.get("torch")
        if torch is None:
            return self.wanted.requirements
        return (*self.wanted.requirements, *_bound_to_another(torch, self.installed))


def _bound_to_another(torch: str, installed: dict[str, Package]) -> list[str]:
    """Packages such as torchvision, which fit one torch alone: not the one that is asked for."""
    bound = []
    for name, package in sorted(installed.items()):
        for requirement in holding(package.requires):
            exact = any(specifier.operator == "==" for specifier in requirement.specifier)
            if canonicalize_name(requirement.name) == "torch" and exact:
                bound += [] if requirement.specifier.contains(torch) else [name]
    return bound


def build(plan: Plan, folder: Path, *, say: Say) -> tuple[Tool, dict[str, Package]]:
    """Make an environment in an empty folder.

    Args:
        plan: What to make.
        folder: Where; whoever calls removes it when this fails or is interrupted.
        say: Takes a line for the user.

    Returns:
        The tool that made it, and what its Python finds, by the name that the index uses.

    Raises:
        BuildError: It cannot be made; of the kinds in :mod:`harness.errors`.
    """
    tool = choose_tool()
    say(f"making an environment with {plan.wanted} ({tool}); {_about_torch(plan)}")
    temporary = folder / _TEMPORARY
    temporary.mkdir()
    python = _make_empty(plan, folder, say=say)
    install = _with_pip if tool == "pip" else _with_uv
    ran = install(plan, python, temporary, say=say)
    if ran.code != 0:
        known = listed_releases(next(iter(plan.wanted.releases))) if tool == "uv" else []
        raise refusal(tool, plan.wanted, ran.text, releases=known)
    found = look(python)
    _check(plan, folder, found, tool)
    shutil.rmtree(temporary, ignore_errors=True)
    for script in (folder / "bin").iterdir():
        if not script.name.startswith("python"):  # they name the folder that this one was made in
            script.unlink()
    return tool, found


def _about_torch(plan: Plan) -> str:
    if plan.torch is not None:
        return f"torch {plan.torch} is shared with this one"
    if "torch" in plan.wanted.releases:
        return (
            "torch is downloaded with all that it needs, gigabytes where the index offers builds"
            " for CUDA; the index that pip or uv is set to decides which"
        )
    return "no torch is installed here to share"


def _make_empty(plan: Plan, folder: Path, *, say: Say) -> Path:
    """An environment with nothing of its own; its Python."""
    command = [sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)]
    ran = run_tool(command, temporary=folder / _TEMPORARY, say=say)
    python = folder / "bin" / "python"
    if ran.code != 0 or not python.exists():
        raise BuildError(
            "environment",
            expected="a Python that can make environments (its module venv)",
            found=ran.text[-500:] or f"{sys.executable} -m venv made none",
            advice="install it (on Debian: python3-venv), or run parity in another Python",
        )
    places = list((folder / "lib").glob("python*/site-packages"))
    lines = "".join(f"{path}\n" for path in plan.shared)
    (places[0] / SHARED_FILE).write_text(lines, encoding="utf-8")
    return python


def _with_pip(plan: Plan, python: Path, temporary: Path, *, say: Say) -> Ran:
    """Pip sees the shared packages, and installs what does not fit or is not there."""
    limits = temporary / "constraints.txt"
    limits.write_text(f"torch=={plan.torch}\n" if plan.torch else "", encoding="utf-8")
    pip = pip_command(python)
    if pip is None:
        raise BuildError(
            "environment",
            expected="uv, pip or Python's module ensurepip, to install with",
            found="none of them",
            advice="install pip into this environment, or uv (on Debian: python3-pip)",
        )
    command = [*pip, "install", "--no-input", "--no-compile"]
    command += ["--no-warn-script-location", "--disable-pip-version-check", "-c", str(limits)]
    return run_tool([*command, *plan.requirements], temporary=temporary, say=say)


def _with_uv(plan: Plan, python: Path, temporary: Path, *, say: Say) -> Ran:
    """Uv does not see the shared packages: it solves with them preferred, and installs the others.

    A file that uv has written before is what it prefers, so it gets one that says what is shared.
    """
    uv = shutil.which("uv") or "uv"
    solved, drop = temporary / "solved.txt", temporary / "drop.txt"
    asked, chosen = temporary / "asked.txt", temporary / "chosen.txt"
    lines = (f"{name}=={package.version}\n" for name, package in sorted(plan.installed.items()))
    solved.write_text("".join(lines), encoding="utf-8")
    drop.write_text('torch; sys_platform == "none"\n' if plan.torch else "", encoding="utf-8")
    asked.write_text("".join(f"{line}\n" for line in plan.requirements), encoding="utf-8")
    solve = [uv, "pip", "compile", "--python", str(python), "--no-header", "--no-annotate"]
    solve += ["--override", str(drop), "-o", str(solved), str(asked)]
    ran = run_tool(solve, temporary=temporary, say=say)
    if ran.code != 0:
        return ran
    lines_solved = solved.read_text(encoding="utf-8").splitlines()
    chosen.write_text("".join(_not_shared(lines_solved, plan.installed)), encoding="utf-8")
    if not chosen.stat().st_size:
        return ran
    install = [uv, "pip", "install", "--python", str(python), "--no-deps", "-r", str(chosen)]
    return run_tool(install, temporary=temporary, say=say)


def _not_shared(lines: list[str], installed: dict[str, Package]) -> list[str]:
    """Lines of what was solved that name something else than what is shared."""
    chosen = []
    for line in lines:
        name, _, version = line.partition(";")[0].strip().partition("==")
        package = installed.get(canonicalize_name(name.partition("[")[0]))
        if version and (package is None or package.version != version):
            chosen.append(f"{line}\n")
    return chosen


def look(python: Path) -> dict[str, Package]:
    """What a Python finds installed, by the name that the index uses; the first found counts.

    Raises:
        BuildError: It does not run.
    """
    ran = run_tool([str(python), "-I", "-c", _LOOK], temporary=None, say=lambda line: None)
    try:
        listed = json.loads(ran.text.splitlines()[-1]) if ran.code == 0 else None
    except (ValueError, IndexError):
        listed = None
    if listed is None:
        raise BuildError(
            str(python),
            expected="a Python that says what is installed",
            found=ran.text[-500:] or f"exit status {ran.code}",
            advice="remove the environment with `parity environments --remove KEY`; run again",
        )
    found: dict[str, Package] = {}
    for name, version, requires, place in listed:
        found.setdefault(canonicalize_name(name), Package(version, tuple(requires), place))
    return found


def _check(plan: Plan, folder: Path, found: dict[str, Package], tool: Tool) -> None:
    """What was asked for is there, torch is the shared one, and all of its own goes together."""
    asked = plan.wanted.releases | ({"torch": plan.torch} if plan.torch else {})
    for name, version in asked.items():
        there = found.get(name)
        if there is None or there.version.partition("+")[0] != version.partition("+")[0]:
            raise CannotInstall(
                f"environment with {plan.wanted}",
                expected=f"{name} {version} in it when {tool} is done",
                found=f"version {there.version}" if there else f"no {name}",
                advice="look at the settings of pip or uv: one that installs elsewhere (target,"
                " prefix) or overrides versions keeps an environment from being made",
            )
    versions = {name: package.version for name, package in found.items()}
    own = [package for package in found.values() if package.folder.startswith(str(folder))]
    if wrong := [line for package in own for line in unsatisfied(package.requires, versions)]:
        raise CannotInstall(
            f"environment with {plan.wanted}",
            expected="releases that go together, with the torch that is shared",
            found=f"a requirement of {'; '.join(sorted(set(wrong)))}",
            advice="ask for a torch that goes with them as well (torch==X), or for other releases",
        )
