"""Where files are kept that are made of others: converted GGUF files, joined parts."""

import os
from pathlib import Path

from .errors import UsageError

CACHE_VARIABLE = "LOGITS_PARITY_CACHE"
"""Environment variable that names the folder."""


def default_cache_dir() -> Path:
    """The folder unless the caller names another.

    `$LOGITS_PARITY_CACHE`, else `$XDG_CACHE_HOME/logits-parity`, else `~/.cache/logits-parity`.

    Raises:
        UsageError: The user has no home folder, and no other is named.
    """
    named = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(base) if base else Path.home() / ".cache") / "logits-parity"
    except RuntimeError:  # a container may run as a user of whom the system knows nothing
        raise UsageError(
            "cache folder",
            expected=f"a home folder, or the name of another folder in {CACHE_VARIABLE}",
            found=f"no home folder{f' for {named}' if named else ''}",
            advice=f"set {CACHE_VARIABLE} to a folder that can be written",
        ) from None
