"""Where files are kept that are made of others: converted GGUF files, joined parts."""

import os
from pathlib import Path

CACHE_VARIABLE = "LOGITS_PARITY_CACHE"
"""Environment variable that names the folder."""


def default_cache_dir() -> Path:
    """The folder unless the caller names another.

    `$LOGITS_PARITY_CACHE`, else `$XDG_CACHE_HOME/logits-parity`, else `~/.cache/logits-parity`.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "logits-parity"
