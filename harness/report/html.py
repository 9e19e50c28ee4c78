"""The page: one HTML file of a result, with nothing from elsewhere.

What must be readable in print and without a script is rendered here; a small script draws the
rest from one block of data. The policy in the page's head lets exactly that script run, by its
hash.
"""

import base64
import hashlib
from pathlib import Path

from ..result import RunResult
from . import causes, layer_map, page_data, probes, side_by_side, story, wording

_TEMPLATES = Path(__file__).parent / "templates"

#: Parts of the script, in order.
_SCRIPTS = ("data.js", "draw.js", "map.js", "detail.js", "growth.js", "page.js")


def to_html(result: RunResult) -> str:
    """Render a result as a page. Whatever the result holds is shown as text, never as markup."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    code = script()
    return environment.get_template("report.html").render(
        result=result,
        words=wording,
        why=causes,
        probing=probes,
        story=story,
        beside=side_by_side,
        maps=list(layer_map.maps(result)),
        marked=story.marked(result),
        shades=layer_map.SHADES,
        script=Markup(code),  # ours, from the files beside this one
        script_hash=Markup(digest(code)),
        data=page_data.to_blocks(result),
        safe=Markup,  # for base64
    )


def script() -> str:
    """The page's script: strict, and with no name of its own in the page."""
    parts = "\n".join((_TEMPLATES / name).read_text("utf-8") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def digest(code: str) -> str:
    """Hash of a script as a policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode("utf-8")).digest()).decode()


def _finalize(value: object) -> object:
    """Spell out control and direction characters; jinja escapes the markup after this.

    A subclass of str is what jinja has already escaped.
    """
    return wording.visible(value, keep="\n\t") if type(value) is str else value
