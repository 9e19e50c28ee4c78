"""logits-parity under a name of its own: ``from logits_parity import HFEngine, check``.

The packages ``harness`` and ``references`` are installed at the top level, where a repository may
have folders of the same names. This module is a package whose parts are ours in any case:
``logits_parity.harness`` and ``logits_parity.references``. The command line and the pytest plugin
go by these names, never by ``harness`` alone.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import (
        Case,
        HFEngine,
        ParityError,
        Prompt,
        ReferenceEngine,
        RunResult,
        Verdict,
        check,
        check_law,
        run_case,
    )

#: With a path, a module is a package. What lies beside this file is found under it; all imports
#: within ``harness`` and ``references`` are relative, so that they do not notice.
__path__ = [str(Path(__file__).absolute().parent)]

__all__ = [
    "Case",
    "HFEngine",
    "ParityError",
    "Prompt",
    "ReferenceEngine",
    "RunResult",
    "Verdict",
    "check",
    "check_law",
    "run_case",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("logits_parity.harness"), name)


def main() -> None:
    """Entry point of the ``parity`` command."""
    importlib.import_module("logits_parity.harness.start").main()


if __name__ == "__main__":
    main()
