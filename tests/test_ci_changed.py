"""What of a change touches the libraries that numbers come from."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.ci_changed import PACKAGES, said_of

SCRIPT = Path(__file__).resolve().parent.parent / "harness" / "ci_changed.py"
UV = """
version = 1
[[package]]
name = "{name}"
version = "{version}"
dependencies = [{{ name = "torch" }}]
sdist = {{ url = "https://files/{name}.tar.gz", hash = "sha256:{version}" }}
[[package]]
name = "accelerate"
version = "{other}"
dependencies = [{{ name = "torch", marker = "{other}" }}, {{ name = "safetensors" }}]
[[package]]
name = "peft"
version = "1"
[package.dependencies]
transformers = ">={other}"
"""


def uv(version: str = "5.0.0", name: str = "transformers", other: str = "1") -> str:
    return UV.format(version=version, name=name, other=other)


TOUCHING = {
    "a pin": ("requirements.txt", "numpy\ntransformers==5.0.0\n", "numpy\ntransformers==5.1.0\n"),
    "an extra": ("requirements-dev.txt", "transformers[torch]>=5", "transformers[sklearn]>=5"),
    "removed": ("constraints.txt", "a\nTokenizers==0.22.1", "a"),
    "added": ("deep/requirements/base.txt", "a", "a\nsafetensors"),
    "new file": ("requirements.txt", None, "torch==2.6"),
    "deleted file": ("requirements.txt", "torch==2.6", None),
    "a hash": ("requirements.txt", "torch==2 \\\n  --hash=a", "torch==2 \\\n  --hash=b"),
    "a wheel": ("requirements.txt", "https://a.b/torch-2.6-cp311.whl", "https://a.b/torch-2.7.whl"),
    "a repository": (
        "requirements.txt",
        "git+https://a.b/c/transformers@v5",
        "git+https://a.b/c/transformers@main",
    ),
    "an index": (
        "requirements.txt",
        "--extra-index-url https://a/cpu\n",
        "--extra-index-url https://a/cu126\n",
    ),
    "pyproject": (
        "pyproject.toml",
        '[project]\ndependencies = ["torch>=2"]',
        '[project]\ndependencies = ["torch>=2.6"]',
    ),
    "an extra's list": (
        "pyproject.toml",
        "",
        '[project.optional-dependencies]\na = ["transformers"]',
    ),
    "a group": ("pyproject.toml", "", '[dependency-groups]\ndev = ["safetensors>=0.5"]'),
    "poetry's table": (
        "pyproject.toml",
        '[tool.poetry.dependencies]\ntorch = "^2.5"',
        '[tool.poetry.dependencies]\ntorch = "^2.6"',
    ),
    "a source": ("pyproject.toml", "", '[tool.uv.sources]\ntorch = { index = "cpu" }'),
    "uv.lock": ("uv.lock", uv("5.0.0"), uv("5.1.0")),
    "poetry.lock": ("poetry.lock", uv("0.22.1", "tokenizers"), uv("0.22.2", "tokenizers")),
    "a lock that is no TOML": (
        "uv.lock",
        "= =\nname = torch\nversion = 1",
        "= =\nname = torch\nversion = 2",
    ),
    "Pipfile.lock": (
        "Pipfile.lock",
        '{"default": {"torch": {"version": "==2.5"}}}',
        '{"default": {"torch": {"version": "==2.6"}}}',
    ),
    "conda": (
        "environment.yml",
        "dependencies:\n  - pytorch=2.5",
        "dependencies:\n  - pytorch=2.6",
    ),
    "pip within conda": (
        "environment.yaml",
        "  - pip:\n    - transformers==5.0",
        "  - pip:\n    - transformers==5.1",
    ),
    "setup.cfg": (
        "setup.cfg",
        "install_requires =\n  torch>=2\n",
        "install_requires =\n  torch>=2.6\n",
    ),
    "a name with an accent": ("requirements-é.txt", "torch==2", "torch==3"),
}
LEFT_ALONE = {
    "another package": (
        "requirements.txt",
        "transformers==5\nnumpy==1",
        "transformers==5\nnumpy==2",
    ),
    "one of a longer name": (
        "requirements.txt",
        "torchvision==1\nsentence-transformers==3\ntorch-geometric==1",
        "x",
    ),
    "a comment": (
        "requirements.txt",
        "torch==2 # old\n# transformers",
        "torch==2 # new\n# torch, too",
    ),
    "order and space": ("requirements.txt", "a\ntorch==2\nb", "b\n  torch==2  \na"),
    "pyproject elsewhere": (
        "pyproject.toml",
        '[project]\nversion = "1"\ndependencies = ["torch"]',
        '[project]\nversion = "2"\ndependencies = ["torch"]',
    ),
    "what others need": ("uv.lock", uv(other="1"), uv(other="2")),
}
OTHER_FILES = {
    "text": ("docs/notes.txt", "torch==2.5", "torch==2.6"),
    "code": ("src/model.py", "import torch", "import torch, transformers"),
}

Repository = Callable[[str, str | None, str | None], Path]


def git(folder: Path, *arguments: str) -> str:
    options = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *options, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, name: str, text: str | None) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "a change")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository with a commit before and one after."""

    def make(name: str, before: str | None, after: str | None) -> Path:
        git(tmp_path, "init", "-q", "-b", "main")
        commit(tmp_path, name, before)
        commit(tmp_path, name, after)
        return tmp_path

    return make


def ask(folder: Path, *arguments: str) -> tuple[str, str]:
    """What the script prints, and what it tells GitHub."""
    output = folder / ".git" / "output"
    output.write_text("")
    ran = subprocess.run(
        [sys.executable, "-I", SCRIPT, *arguments],
        cwd=folder,
        env={**os.environ, "GITHUB_OUTPUT": str(output)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    return ran.stdout, output.read_text()


def differs(case: tuple[str, str | None, str | None]) -> bool:
    name, before, after = case
    file = name.rsplit("/", 1)[-1]
    return any(said_of(p, file, before) != said_of(p, file, after) for p in PACKAGES)


@pytest.mark.parametrize("case", TOUCHING)
def test_a_change_of_a_package_is_seen(case: str) -> None:
    assert differs(TOUCHING[case])


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_a_change_of_something_else_is_not(case: str) -> None:
    assert not differs(LEFT_ALONE[case])


@pytest.mark.parametrize("case", ["a pin", "deleted file", "a name with an accent", "uv.lock"])
def test_a_touching_commit_is_told(repository: Repository, case: str) -> None:
    said, told = ask(repository(*TOUCHING[case]), "HEAD^")
    assert told == "touched=true\n"
    assert said.startswith("touched: t")
    assert said.isascii()


@pytest.mark.parametrize("case", [*OTHER_FILES, "what others need"])
def test_a_commit_that_touches_nothing_is_told(repository: Repository, case: str) -> None:
    folder = repository(*(OTHER_FILES | LEFT_ALONE)[case])
    assert ask(folder, "HEAD^") == ("nothing of it is touched\n", "touched=false\n")


def test_packages_and_files_can_be_named(repository: Repository) -> None:
    folder = repository("docker/pins", "torch==1", "torch==2")
    assert ask(folder, "HEAD^")[1] == "touched=false\n"
    assert ask(folder, "HEAD^", "--file", "docker/*")[1] == "touched=true\n"
    assert ask(folder, "--file=docker/*", "--package=numpy", "--", "HEAD^")[1] == "touched=false\n"


def test_the_base_counts_from_where_the_branches_part(repository: Repository) -> None:
    """What happened on the other branch meanwhile is not the change's doing."""
    folder = repository("requirements.txt", "torch==1", "torch==1\nnumpy")
    git(folder, "checkout", "-q", "-b", "theirs", "HEAD^")
    commit(folder, "requirements.txt", "torch==2")
    git(folder, "checkout", "-q", "main")
    assert ask(folder, "theirs")[1] == "touched=false\n"


@pytest.mark.parametrize("base", ["", "0" * 40, "1" * 40, "-h", "gone\n::error::x", "HEAD:a"])
def test_what_cannot_be_told_counts_as_touched(repository: Repository, base: str) -> None:
    said, told = ask(repository("a", "1", "2"), "--", base)
    assert told == "touched=true\n"
    assert said.startswith("cannot tell, so the gate runs: ")
    assert said.count("\n") == 1


def test_a_folder_without_git_counts_as_touched(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert ask(tmp_path, "HEAD")[1] == "touched=true\n"
