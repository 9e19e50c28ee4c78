"""While pytest runs, ``harness`` and ``references`` belong to whoever else has them.

An installed package comes before a folder that is found later on ``sys.path`` (rootdir in import
mode ``append``, an editable install) and before any folder without ``__init__.py``. A plugin that
took these names from a repository would break its tests, so a finder in front of all others looks
everywhere else first. Where nobody else has the name, it is another name for the module that the
plugin uses itself, so that there is one class ``RunResult``, not two.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: The names at the top level that somebody else may have.
SHARED = ("harness", "references")


def install(parent: str) -> Callable[[], None]:
    """Let others have the shared names; returns what takes the finder away again.

    Args:
        parent: Name of the package that has our own ``harness`` and ``references`` in it.
    """
    finder = YieldingFinder(parent)
    sys.meta_path.insert(0, finder)

    def remove() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    return remove


class YieldingFinder(MetaPathFinder):
    """Finds somebody else's package of a shared name, else an alias of ours.

    Args:
        parent: Name of the package that has our own ones in it; its module lies beside them.
    """

    def __init__(self, parent: str) -> None:
        self._parent = parent

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a shared name or a module in it; None leaves it to the other finders."""
        top, _, inner = fullname.partition(".")
        if top not in SHARED:
            return None
        if inner:
            ours = sys.modules.get(f"{self._parent}.{top}")
            return self._alias(fullname) if ours and sys.modules.get(top) is ours else None
        if path is not None:  # whoever says where to look means just that place
            return None
        elsewhere = [entry for entry in sys.path if not self._is_our_home(entry)]
        if len(elsewhere) == len(sys.path):
            return None  # ours could not be found under this name in any case
        return self._theirs(fullname, elsewhere, target) or self._alias(fullname)

    def _theirs(
        self, name: str, elsewhere: Sequence[str], target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find: Callable[..., ModuleSpec | None] | None = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, elsewhere, target)
            if spec is not None and not self._is_ours(spec):
                return spec
        return None

    def _alias(self, fullname: str) -> ModuleSpec | None:
        real = f"{self._parent}.{fullname}"
        found = importlib.util.find_spec(real)
        return None if found is None else ModuleSpec(fullname, _Alias(real), origin=found.origin)

    def _is_ours(self, spec: ModuleSpec) -> bool:
        folders = spec.submodule_search_locations or ()
        return any(self._is_our_home(os.path.dirname(folder)) for folder in folders)

    def _is_our_home(self, folder: str) -> bool:
        """Whether an installation of ours is there: the one in use, or an older or newer one."""
        return os.path.isfile(os.path.join(folder, f"{self._parent}.py"))


class _Alias(Loader):
    """Gives a module that has another name already."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: Any = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself."""
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already; the import system has just overwritten its spec."""
        module.__spec__ = self._spec
