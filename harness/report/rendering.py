"""What pages without a script of data share: templates, escapes, and hashes for the policy."""

import base64
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from .wording import visible

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"


def environment() -> "Environment":
    """Where templates are found; whatever they are given is shown as text, never as markup."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # A subclass of str is what jinja has already escaped.
        finalize=lambda value: visible(value, keep="\n") if type(value) is str else value,
    )


def template_text(name: str) -> str:
    """A file beside the templates, for example a style."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def address(name: str) -> str:
    """A relative address in which no character of a file's name means anything."""
    return quote(os.fsencode(name.replace(os.sep, "/")))


def source_hash(content: str) -> str:
    """What a content security policy knows an inline element by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
