"""What an environment that is made shares with the one that runs this: folders, not copies.

Only folders that packages are installed into are shared, and of their ``.pth`` files nothing is
followed: what is installed for editing, this project among it, is not seen from an environment.
"""

import site
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

_FOLDERS = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Package:
    """A package that is installed somewhere.

    Attributes:
        version: Its version.
        requires: What it requires, as its metadata lists it.
        folder: Where it is installed.
    """

    version: str
    requires: tuple[str, ...]
    folder: str


def shared_folders() -> tuple[str, ...]:
    """Folders of installed packages that this interpreter sees, in order."""
    known = {*site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        known.add(site.getusersitepackages())
    found = [
        path
        for path in sys.path
        if path and (path in known or Path(path).name in _FOLDERS) and Path(path).is_dir()
    ]
    torch = next(iter(metadata.distributions(name="torch")), None)
    if torch is not None:  # wherever it is, it is shared
        found.append(str(torch.locate_file("")))
    return tuple(dict.fromkeys(found))


def packages_in(folders: tuple[str, ...]) -> dict[str, Package]:
    """What is installed in folders, by the name that the index uses; the first found counts."""
    found: dict[str, Package] = {}
    for folder in folders:
        for distribution in metadata.distributions(path=[folder]):
            if "Name" not in distribution.metadata:  # what a removal that was cut off leaves
                continue
            package = Package(distribution.version, tuple(distribution.requires or ()), folder)
            found.setdefault(canonicalize_name(distribution.name), package)
    return found
