"""Text of somebody else's inside Markdown: shown as it is, never obeyed.

Written for GitHub's dialect, where text may also become a mention that notifies people, a
reference to an issue, a link or a formula. Whatever can be shown as code is: nothing in code is
looked at. Characters that would be markup are written as numeric entities, which show as the
character and are never markup.
"""

import re

from .wording import visible

#: In code spans these would end the span, the cell of a table or the line.
_NOT_IN_SPANS = frozenset("`|\\<>&")

_LINK = re.compile(r"https://[A-Za-z0-9][A-Za-z0-9./_~#?=%+-]*")
_ENTITY = re.compile(r"[^A-Za-z0-9 .,;/=-]", re.ASCII)
#: An underscore inside a word is no markup, and names of taps are full of them.
_PROSE = re.compile(r"[\\`*{}\[\]<>&|~^!#\"\u200b]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")

#: What would make a mention, a reference or a link together; an invisible blank goes between.
_TOGETHER = re.compile(
    r"(?i)([@#])(?=\S)|(:)(?=//|[a-z0-9_+-]+:)|\b(mailto:|xmpp:)|\b(www)(?=\.)|\b(GH)(?=-\d)"
)
#: What nothing but code keeps as it is: what may be the beginning of a commit's name (digits behind
#: a decimal point are none), and signs of a formula, which GitHub looks for where escapes are gone.
_AS_CODE = re.compile(r"(?i)((?<!\d\.)\b[0-9a-f]{7,40}\b|\$+)")


def code(text: str, *, most: int = 200) -> str:
    """Text as code: a span where that is safe, else an element with all markup as entities.

    Args:
        text: Whatever a model, a tokenizer or a file name holds.
        most: Characters that are shown; the rest is counted.
    """
    shown = clipped(visible(text), most)
    if not shown.strip():
        return f"<code>{'&#32;' * len(shown) or '&#8203;'}</code>"
    if shown == shown.strip() and not _NOT_IN_SPANS & set(shown):
        return f"`{shown}`"
    return html_code(text, most=most)


def html_code(text: str, *, most: int = 200) -> str:
    """The same as an element, for where Markdown is not read, such as a summary."""
    return f"<code>{_ENTITY.sub(_entity, clipped(visible(text), most))}</code>"


def prose(text: str, *, most: int = 1_000) -> str:
    """A sentence that may hold names of somebody else's; for the middle of a line."""
    parts = _AS_CODE.split(clipped(visible(text), most))
    parts[::2] = [_PROSE.sub(_entity, _TOGETHER.sub(_apart, part)) for part in parts[::2]]
    parts[1::2] = [f"`{part}`" for part in parts[1::2]]
    return "".join(parts)


def link(address: str) -> str:
    """A link if it is plainly an https address, code otherwise."""
    return f"<{address}>" if _LINK.fullmatch(address) else code(address, most=300)


def fenced(text: str, *, language: str = "", most: int = 4_000) -> str:
    """A block of code, fenced by more backticks than the text has in a row."""
    shown = clipped("\n".join(visible(line) for line in text.split("\n")), most)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def clipped(text: str, most: int) -> str:
    """Text up to so many characters, and how many were left out."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more)"


def _apart(found: re.Match[str]) -> str:
    return found[0] + "\u200b"  # `visible` has spelt out any that was there before


def _entity(found: re.Match[str]) -> str:
    return f"&#{ord(found[0])};"
