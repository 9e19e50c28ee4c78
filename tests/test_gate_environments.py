"""Environments: made, shared, found again, mended, never half-made, from a folder of packages."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import pytest

from harness.errors import BuildError, CannotInstall, NoSuchRelease, Offline, UsageError
from harness.gate import environments as module
from harness.gate.environments import Environment, environment
from harness.gate.index import releases
from harness.gate.kept import MARKER, kept_environments, read_made, remove_environment
from harness.gate.sharing import Package, packages_in, shared_folders
from harness.gate.tools import choose_tool, variables, variables_of_uv_for_pip
from harness.gate.wanted import parse_wanted

ROOT = Path(__file__).resolve().parent.parent
Kept = tuple[Path, Environment, list[str]]
NOWHERE = "http://127.0.0.1:9/simple"

#: A build backend that says that it began, and takes a while.
BACKEND = """
import base64, os, pathlib, time
WHEEL = {wheel!r}
def build_wheel(directory, config_settings=None, metadata_directory=None):
    with open(os.environ["BACKEND_LOG"], "a") as log:
        log.write(f"{{os.getpid()}}\\n")
    time.sleep(float(os.environ["BACKEND_SECONDS"]))
    path = pathlib.Path(directory, {name!r})
    path.write_bytes(base64.b64decode(WHEEL))
    return path.name
"""


def wheel(name: str, version: str, *requires: str, python: str = "") -> tuple[str, bytes]:
    """Name and bytes of a package that knows its version."""
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    lines += [f"Requires-Python: {python}"] if python else []
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": "\n".join(lines) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-tool = {name}:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    data = BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return f"{name}-{version}-py3-none-any.whl", data.getvalue()


def slow_source(folder: Path) -> None:
    """A package that has to be built, by the backend above."""
    name, data = wheel("slowlib", "1.0")
    encoded = base64.b64encode(data).decode()
    project = '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["."]\n'
    files = {
        "pyproject.toml": project,
        "slow.py": BACKEND.format(wheel=encoded, name=name),
        "PKG-INFO": "Metadata-Version: 2.1\nName: slowlib\nVersion: 1.0\n",
    }
    with tarfile.open(folder / "slowlib-1.0.tar.gz", "w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"slowlib-1.0/{file}")
            entry.size = len(text.encode())
            archive.addfile(entry, BytesIO(text.encode()))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    made = [wheel("tinylib", version) for version in ("1.0", "2.0", "3.0", "3.1rc1")]
    made += [
        wheel("tinylib", "4.0", "absentlib>=1"),
        wheel("tinylib", "5.0", python=">=3.99"),
        wheel("otherlib", "1.0", "tinylib<2", "packaging>=20"),
        wheel("oldlib", "1.0", "torch<1"),
        wheel("torch", "0.9"),
        wheel("torch", "99.0"),
    ]
    for name, data in made:
        (folder / name).write_bytes(data)
    slow_source(folder)
    return folder


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to which settings lead, where a module lies that is not what is wanted."""
    folder = tmp_path_factory.mktemp("trap")
    (folder / "tinylib.py").write_text("__version__ = 'trap'\n")
    return folder


@pytest.fixture(autouse=True)
def _settings(index: Path, trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip takes packages from the folder alone; variables try to lead it elsewhere."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "LOGITS_"))]:
        monkeypatch.delenv(name)
    for name, value in settings(index, trap).items():
        monkeypatch.setenv(name, value)


def settings(index: Path, trap: Path) -> dict[str, str]:
    return {
        "LOGITS_PARITY_INSTALLER": "pip",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_TARGET": str(trap),
        "PIP_USER": "1",
        "PYTHONPATH": str(trap),
    }


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, index: Path, trap: Path) -> Kept:
    """A folder with one environment, which tests may not change; it; and what was said."""
    folder, said = tmp_path_factory.mktemp("kept"), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings(index, trap).items():
            patch.setenv(name, value)
        made = environment(
            parse_wanted("tinylib==1.0,otherlib==1.0"), say=said.append, folder=folder
        )
    return folder, made, said


WANTED = parse_wanted("tinylib==1.0,otherlib==1.0")


def run(python: Path, code: str) -> str:
    ran = subprocess.run(
        [str(python), "-I", "-c", code], check=True, capture_output=True, text=True, env=variables()
    )
    return ran.stdout.strip()


def none_said(line: str) -> None:
    raise AssertionError(f"said: {line}")


def test_it_has_what_is_wanted_and_shares_the_rest(
    kept: Kept,
) -> None:
    _, made, said = kept
    where = "print(tinylib.__version__, find_spec('torch').origin)"
    code = f"import tinylib\nfrom importlib.util import find_spec\n{where}"
    torch = find_spec("torch")
    assert torch is not None
    assert run(made.python, code).split() == ["1.0", torch.origin]
    assert made.versions["tinylib"] == "1.0"
    assert made.versions["torch"] == metadata.version("torch")
    assert made.versions["transformers"] == metadata.version("transformers")
    assert [line.partition(" with ")[2] or line.split(": ")[1] for line in said] == [
        f"{WANTED} (pip); torch {metadata.version('torch')} is shared with this one",
        "otherlib 1.0, tinylib 1.0",
    ]


def test_nothing_outside_it_is_touched(kept: Kept, trap: Path) -> None:
    folder, made, _ = kept
    assert [path.name for path in trap.iterdir()] == ["tinylib.py"]
    assert {"tinylib", "otherlib"}.isdisjoint(packages_in(shared_folders()))
    target = made.python.parent.parent
    assert {path.name for path in folder.iterdir()} == {".locks", target.name}
    assert target.name.startswith("otherlib-1.0-tinylib-1.0-py3.")
    assert all(path.name.startswith("python") for path in made.python.parent.iterdir())
    assert not (target / ".tmp").exists()


def test_what_is_installed_for_editing_is_not_seen_from_it(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made, _ = kept
    seen = run(made.python, "import sys; print(*sys.path, sep='\\n')").splitlines()
    assert str(ROOT) not in seen
    assert all(folder in seen for folder in shared_folders())
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path, "/absent/site-packages"])
    assert str(ROOT) not in shared_folders()
    assert "/absent/site-packages" not in shared_folders()


def test_it_says_of_itself_what_it_is(kept: Kept) -> None:
    _, made, _ = kept
    target = made.python.parent.parent
    found = read_made(target)
    assert found is not None
    assert found.requirements == WANTED.requirements
    assert found.versions == made.versions
    assert {name: own.version for name, own in found.own.items()} == {
        "otherlib": "1.0",
        "tinylib": "1.0",
    }
    assert json.loads((target / MARKER).read_text())["format"] == "logits-parity/environment"


def test_it_is_found_again_without_an_index(kept: Kept) -> None:
    folder, made, _ = kept
    assert environment(WANTED, say=none_said, folder=folder, offline=True) == made


def test_the_installed_environment_is_this_one(tmp_path: Path) -> None:
    found = environment(parse_wanted("installed"), say=none_said, folder=tmp_path, offline=True)
    assert found.python == Path(sys.executable)
    assert found.versions["torch"] == metadata.version("torch")
    assert list(tmp_path.iterdir()) == []


def test_offline_says_what_is_made_and_what_is_not(
    kept: Kept,
) -> None:
    folder, _, _ = kept
    with pytest.raises(Offline, match=r"found not made; made are otherlib==1.0,tinylib==1.0: run"):
        environment(parse_wanted("tinylib==2.0"), say=none_said, folder=folder, offline=True)


def _lose_marker(target: Path) -> None:
    (target / MARKER).unlink()


def _cut_marker(target: Path) -> None:
    (target / MARKER).write_bytes((target / MARKER).read_bytes()[:-9])


def _age_marker(target: Path) -> None:
    text = (target / MARKER).read_text()
    (target / MARKER).write_text(text.replace('"version": 1\n}', '"version": 0\n}'))


def _lose_python(target: Path) -> None:
    (target / "bin" / "python").unlink()
    (target / "bin" / "python").symlink_to("/absent/python3")


def _lose_package(target: Path) -> None:
    next(target.glob("lib/*/site-packages/tinylib-*")).rename(target / "lost")


def _lose_shared(target: Path) -> None:
    next(target.glob("lib/*/site-packages/*.pth")).unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_lose_marker, "found no environment.json of this version"),
        (_cut_marker, "found no environment.json of this version"),
        (_age_marker, "found no environment.json of this version"),
        (_lose_python, "found its Python does not run"),
        (_lose_package, "found packages are missing: tinylib"),
        (_lose_shared, "found it shares nothing any more"),
    ],
)
def test_damage_is_noticed(
    kept: Kept,
    tmp_path: Path,
    damage: Callable[[Path], None],
    words: str,
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(kept[0], folder, symlinks=True)
    target = folder / kept[1].python.parent.parent.name
    assert environment(WANTED, say=none_said, folder=folder, offline=True)
    damage(target)
    with pytest.raises(Offline, match=words):
        environment(WANTED, say=none_said, folder=folder, offline=True)


def test_another_version_of_what_is_shared_is_noticed(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made, _ = kept
    there = packages_in(shared_folders())
    newer = there | {"numpy": Package("99.0", (), "/x")}
    monkeypatch.setattr(module, "packages_in", _instead_of_shared(newer))
    found = environment(WANTED, say=none_said, folder=folder, offline=True)
    assert found.versions == made.versions | {"numpy": "99.0"}  # it fits, and is told
    older = there | {"packaging": Package("19.0", (), "/x")}
    monkeypatch.setattr(module, "packages_in", _instead_of_shared(older))
    with pytest.raises(Offline, match=r"what is shared has changed: packaging>=20, not 19\.0"):
        environment(WANTED, say=none_said, folder=folder, offline=True)


def _instead_of_shared(packages: dict[str, Package]) -> object:
    def found(folders: tuple[str, ...]) -> dict[str, Package]:
        return packages if folders == shared_folders() else packages_in(folders)

    return found


def test_another_torch_is_another_environment(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = packages_in(shared_folders()) | {"torch": Package("2.99", (), "/elsewhere")}
    monkeypatch.setattr(module, "packages_in", _instead_of_shared(moved))
    with pytest.raises(Offline, match="found not made"):
        environment(WANTED, say=none_said, folder=kept[0], offline=True)


def test_a_damaged_one_is_made_again_and_what_died_is_removed(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = tmp_path / "copy", list[str]()
    told = "[install]\nuser = true\n[global]\nrequire-virtualenv = true\n"
    (tmp_path / "pip.conf").write_text(told)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    shutil.copytree(kept[0], folder, symlinks=True)
    target = folder / kept[1].python.parent.parent.name
    dead = folder / f"{target.name}.part-dead"
    dead.mkdir()
    _lose_package(target)
    found = environment(WANTED, say=said.append, folder=folder)
    assert run(found.python, "import tinylib; print(tinylib.__version__)") == "1.0"
    assert "is of no use any more (packages are missing: tinylib)" in said[0]
    assert {path.name for path in folder.iterdir()} == {".locks", target.name}


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("tinylib==9.0", NoSuchRelease, "found none of version 9.0; near it are 4.0, 5.0"),
        ("tinylib==5.0", CannotInstall, "3.99"),
        ("tinylib==3.0,otherlib==1.0", CannotInstall, "otherlib 1.0 depends on tinylib<2"),
        ("oldlib==1.0", CannotInstall, "torch<1"),  # never another torch unasked
    ],
)
def test_what_cannot_be_made_leaves_nothing(
    tmp_path: Path, text: str, kind: type[BuildError], words: str
) -> None:
    with pytest.raises(BuildError) as told:
        environment(parse_wanted(text), say=lambda line: None, folder=tmp_path)
    assert type(told.value) is kind
    assert words in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == [".locks"]


def test_an_index_that_does_not_answer_is_no_absent_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(Offline, match=r"no answer for /simple/tinylib/: .*refused"):
        environment(parse_wanted("tinylib==9.0"), say=lambda line: None, folder=tmp_path)


def test_another_torch_is_installed_when_it_is_asked_for(tmp_path: Path) -> None:
    said: list[str] = []
    found = environment(parse_wanted("torch==99.0"), say=said.append, folder=tmp_path)
    assert found.versions["torch"] == "99.0"
    assert run(found.python, "import torch; print(torch.__version__)") == "99.0"
    assert "gigabytes where the index offers builds for CUDA" in said[0]


@pytest.fixture
def _uv(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of pip, the uv that tests install, with a cache of its own."""
    import uv

    words = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(index), "UV_CACHE_DIR": str(tmp_path / "uv")}
    words |= {"LOGITS_PARITY_INSTALLER": "uv", "UV_NO_CONFIG": "1"}
    words |= {"PATH": f"{Path(uv.find_uv_bin()).parent}{os.pathsep}{os.environ['PATH']}"}
    for name, value in words.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_uv")
def test_uv_makes_the_same_as_pip(kept: Kept, tmp_path: Path) -> None:
    said: list[str] = []
    found = environment(WANTED, say=said.append, folder=tmp_path / "kept")
    assert found.versions == kept[1].versions
    theirs, ours = (read_made(e.python.parent.parent) for e in (kept[1], found))
    assert theirs is not None
    assert ours is not None
    assert (theirs.own, theirs.tool, ours.tool) == (ours.own, "pip", "uv")
    assert "(uv)" in said[0]
    torch = environment(parse_wanted("torch==99.0"), say=said.append, folder=tmp_path / "kept")
    assert torch.versions["torch"] == "99.0"


@pytest.mark.usefixtures("_uv")
@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("tinylib==9.0", NoSuchRelease, "found none of version 9.0; near it are 4.0, 5.0"),
        ("tinylib==5.0", CannotInstall, "3.99"),
        ("tinylib==3.0,otherlib==1.0", CannotInstall, "uv says\n"),
        ("oldlib==1.0", CannotInstall, "found a requirement of torch<1, not 2"),
    ],
)
def test_what_uv_refuses_is_told_as_of_pip(
    tmp_path: Path, text: str, kind: type[BuildError], words: str
) -> None:
    with pytest.raises(BuildError) as told:
        environment(parse_wanted(text), say=lambda line: None, folder=tmp_path / "kept")
    assert type(told.value) is kind
    assert words in str(told.value)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [".locks"]


def test_without_pip_the_one_of_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.gate.tools._pip_is_here", lambda: False)
    found = environment(parse_wanted("tinylib==1.0"), say=lambda line: None, folder=tmp_path)
    made = read_made(found.python.parent.parent)
    assert made is not None
    assert list(made.own) == ["tinylib"]  # neither pip nor setuptools in front of what is shared
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError, match="expected uv, pip or Python's module ensurepip"):
        environment(parse_wanted("tinylib==2.0"), say=lambda line: None, folder=tmp_path)


def test_looking_for_pip_leaves_distutils_alone() -> None:
    """A package may have imported it: a finder of setuptools warns then, or fails."""
    code = (
        "import warnings; warnings.simplefilter('error'); import setuptools, sys, types\n"
        "sys.modules['distutils'] = types.ModuleType('distutils')\n"
        "from harness.gate.tools import pip_command; assert pip_command()[-1] == 'pip'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match="expected a cache folder that can be written"):
        environment(WANTED, say=none_said, folder=tmp_path / "file" / "environments")


def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "build", full)
    with pytest.raises(BuildError, match="expected room on the disk, found none left"):
        environment(WANTED, say=none_said, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".locks"]


def start(folder: Path, log: Path, seconds: float) -> subprocess.Popen[str]:
    """Another process that makes an environment whose package takes a while."""
    code = (
        "import sys; from pathlib import Path\n"
        "from harness.gate.environments import environment\n"
        "from harness.gate.wanted import parse_wanted\n"
        "say = lambda line: print(line, flush=True)\n"
        f"environment(parse_wanted('slowlib==1.0'), say=say, folder=Path({str(folder)!r}))\n"
    )
    words = {"BACKEND_LOG": str(log), "BACKEND_SECONDS": str(seconds), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(log: Path) -> int:
    """Process id of the backend, once it has begun."""
    for _ in range(600):
        if log.exists() and log.read_text().endswith("\n"):
            return int(log.read_text().split()[0])
        time.sleep(0.05)
    raise AssertionError("the build did not begin")


def gone(process: int) -> bool:
    for _ in range(100):
        with suppress(ProcessLookupError):
            os.kill(process, 0)
            time.sleep(0.05)
            continue
        return True
    return False


def test_an_interrupt_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    folder, log = tmp_path / "environments", tmp_path / "log"
    process = start(folder, log, 60)
    backend = wait_for(log)
    assert [path.name for path in folder.glob("*.part-*")] != []
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert gone(backend)
    assert [path.name for path in folder.iterdir()] == [".locks"]


def test_two_runs_at_once_make_one(tmp_path: Path) -> None:
    folder, log = tmp_path / "environments", tmp_path / "log"
    first = start(folder, log, 1)
    wait_for(log)
    second = start(folder, log, 1)
    said = [process.communicate(timeout=60) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], said
    assert said[0][0].startswith("making an environment with slowlib==1.0")
    assert said[1][0].startswith("waiting for another run that makes slowlib-1.0-py3")
    assert "making" not in said[1][0]
    assert len(log.read_text().split()) == 1
    assert [made is not None for _, made in kept_environments(folder)] == [True]


def test_releases_are_those_of_the_index_in_order(tmp_path: Path) -> None:
    listed = releases("tinylib", say=none_said, cache_dir=tmp_path)
    assert [version for version in listed if version < "5"] == ["1.0", "2.0", "3.0", "4.0"]
    found = releases("tinylib", between=("3.0", "1.5"), say=none_said, cache_dir=tmp_path)
    assert found == ["1.5", "2.0", "3.0"]  # an end counts though the index hides it


def test_releases_are_those_listed_last_when_the_index_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, said = releases("tinylib", say=none_said, cache_dir=tmp_path), list[str]()
    assert releases("tinylib", say=said.append, cache_dir=tmp_path, offline=True) == before
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_RETRIES", "0")
    assert releases("tinylib", say=said.append, cache_dir=tmp_path) == before
    assert [line.partition("; ")[2][:32] for line in said] == [
        "releases of tinylib as listed on"
    ] * 2


def test_releases_that_were_never_listed_are_told(tmp_path: Path) -> None:
    with pytest.raises(Offline, match="found nothing from before"):
        releases("tinylib", say=none_said, cache_dir=tmp_path, offline=True)
    with pytest.raises(NoSuchRelease, match="found none of this name"):
        releases("absentlib", say=none_said, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("there", "words", "tool"),
    [
        (False, {}, "pip"),
        (True, {}, "uv"),
        (True, {"PIP_INDEX_URL": "https://x"}, "pip"),  # which uv does not read
        (True, {"PIP_INDEX_URL": "https://x", "UV_INDEX_URL": "https://x"}, "uv"),
        (True, {"LOGITS_PARITY_INSTALLER": "pip"}, "pip"),
        (True, {"PIP_NO_INDEX": "1", "LOGITS_PARITY_INSTALLER": "uv"}, "uv"),
    ],
)
def test_the_tool_is_uv_where_it_is_and_was_told_what_pip_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    there: bool,
    words: dict[str, str],
    tool: str,
) -> None:
    for name in ("LOGITS_PARITY_INSTALLER", "PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    if there:
        (tmp_path / "uv").write_text("#!/bin/sh\n")
        (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose_tool() == tool


def test_a_tool_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, words in (("uv", "found no such command"), ("conda", "expected pip or uv")):
        monkeypatch.setenv("LOGITS_PARITY_INSTALLER", name)
        with pytest.raises(UsageError, match=words):
            choose_tool()


def test_pip_lists_releases_where_uv_was_told_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX_URL", "https://x/simple")
    monkeypatch.setenv("UV_FIND_LINKS", "/links")  # but pip has its own
    assert variables_of_uv_for_pip() == {"PIP_INDEX_URL": "https://x/simple"}


def parity(*words: str, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from logits_parity import main; main()", "environments", *words],
        env=os.environ
        | {"LOGITS_PARITY_CACHE": str(cache), "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_command_lists_and_removes(kept: Kept, tmp_path: Path) -> None:
    folder = tmp_path / "environments"
    shutil.copytree(kept[0], folder, symlinks=True)
    name = kept[1].python.parent.parent.name
    (folder / "tinylib-9.0-py3.11-abc.part-x").mkdir()
    listed = parity(cache=tmp_path).stdout.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [
        [name, "pip", "0"],
        ["tinylib-9.0-py3.11-abc.part-x", "unfinished", "0"],
        ["2", "in", str(folder)],
    ]
    wrong = parity("--remove", "absent", cache=tmp_path)
    assert (wrong.returncode, "expected: one that is kept" in wrong.stderr) == (2, True)
    assert parity("--remove", name, cache=tmp_path).returncode == 0
    assert [path.name for path, _ in kept_environments(folder)] == ["tinylib-9.0-py3.11-abc.part-x"]
    assert parity("--all", cache=tmp_path).returncode == 0
    assert kept_environments(folder) == []


def test_removing_what_a_dead_run_left_keeps_the_environment(kept: Kept, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(kept[0], folder, symlinks=True)
    target = folder / kept[1].python.parent.parent.name
    dead = folder / f"{target.name}.part-dead"
    dead.mkdir()
    remove_environment(dead, say=none_said)
    assert [path for path, _ in kept_environments(folder)] == [target]
