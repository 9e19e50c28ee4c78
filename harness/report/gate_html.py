"""The page of a gate: one HTML file with nothing from elsewhere and without a script."""

from ..gate.result import GateResult
from . import causes, gate_page, gate_story, story
from . import gate_words as words
from .rendering import address, environment, source_hash, template_text


def to_html(result: GateResult, *, replay: str = "") -> str:
    """Render a result as a page. Whatever the result holds is shown as text, never as markup.

    Args:
        result: What to show.
        replay: Name of the page of the replay beside it, empty where there is none.
    """
    style = template_text("gate.css")
    template = environment().get_template("gate.html")
    return template.render(
        result=result,
        words=words,
        why=causes,
        told=gate_story.tell(result),
        search=gate_story.bisect_command(result),
        search_title=gate_story.search(result),
        links=story.report_links,
        draw=gate_page,
        scale=gate_page.scale_of(result.taps),
        replay=address(replay),
        style=style,
        policy=f"default-src 'none'; img-src data:; style-src '{source_hash(style)}'",
    )
