"""Differential logits parity: do two implementations agree, where first not, why, fault or noise.

Names here are imported when they are used, so that importing the package stays light.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .case import Case, Prompt
    from .checking import check
    from .engines.hf import HFEngine
    from .engines.reference import ReferenceEngine
    from .errors import ParityError
    from .laws.again import check_law
    from .pipeline import run_case
    from .result import RunResult, Verdict

_HOMES = {
    "Case": ".case",
    "HFEngine": ".engines.hf",
    "ParityError": ".errors",
    "Prompt": ".case",
    "ReferenceEngine": ".engines.reference",
    "RunResult": ".result",
    "Verdict": ".result",
    "check": ".checking",
    "check_law": ".laws.again",
    "run_case": ".pipeline",
}

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
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
