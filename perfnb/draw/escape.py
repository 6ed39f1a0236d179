"""Make names from models and traces safe to display. This is the only module that escapes names.

Such a name can be anything: markup, quotes, line breaks, terminal escapes, text that reverses its neighbours, or ten
thousand characters. The functions here convert it to inert, visible text.
"""

from __future__ import annotations

import html as _html
import json
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

#: The maximum number of characters of a name that are shown.
MAX_NAME = 200

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
#: Control, format (including bidirectional overrides), surrogate, private-use and unassigned characters, and line and
#: paragraph separators.
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
#: The maximum number of combining marks per character. More marks would overlap neighbouring characters.
_MAX_MARKS = 3
#: Characters that start markup in Markdown or in embedded HTML. Bare addresses would become links.
_MARKDOWN = (
    *((char, f"\\{char}") for char in "\\`*_[]|~$"),
    *(("&", "&amp;"), ("<", "&lt;"), ("://", "&#58;//"), ("www.", "www&#46;"), ("@", "&#64;")),
)
#: Units that must stay together with the preceding number.
_UNITS = r"(?:(?:%|×|[µm]?s|[kMGTPE]?B|[KMGTPE]iB|[kMGTPE]?FLOP|W|J|°C|MHz|samples|steps)(?:/\w+)?)(?![\w%])"
#: Spaces at which a line may break. Spaces between a number and its unit are excluded.
_BETWEEN_WORDS = re.compile(rf"(?<!\d) | (?!{_UNITS})")
#: Spaces at which a line must not break: between a number and its unit, and inside an interval.
_INSIDE = re.compile(rf"(?<=\d) (?={_UNITS})|(?<=\d,) (?=[−-]?\d[\d.,]*\])")
_JSON_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def plain(text: Any, width: int = MAX_NAME) -> str:
    """Return one line of visible characters, at most `width` cells wide, shortened in the middle.

    Parameters
    ----------
    text : object
        A name from a model or a trace.
    width : int
        The maximum number of character cells.
    """
    raw = str(text)
    if len(raw) <= width and raw.isascii() and raw.isprintable():
        return raw  # nearly all names are printable
    kept = width + 1  # on both sides, because there is no need to translate characters that will not be shown
    raw = raw[:kept] + raw[max(kept, len(raw) - kept) :]
    shown, marks = [], 0
    for char in unicodedata.normalize("NFC", raw):
        marks = marks + 1 if unicodedata.combining(char) else 0
        shown.append(_visible(char) if marks <= _MAX_MARKS else _code(char))
    return shorten("".join(shown), width)


def shorten(text: str, width: int) -> str:
    """Shorten `text` to at most `width` cells, with an ellipsis in the middle."""
    if sum(map(_cells_at_most, text)) <= width:
        return text
    if width < 1:
        return ""
    tail_room = (width - 1) // 2
    tail = _prefix(text[::-1], tail_room)[::-1]
    return _prefix(text, width - 1 - tail_room) + "…" + tail


def wrapped(text: str, width: int) -> list[str]:
    """Wrap `text` into lines of at most `width` cells, between words if possible.

    A number and its unit stay on the same line.
    """
    lines = [""]
    for word in _BETWEEN_WORDS.split(text):
        rest = word
        if lines[-1] and cells(lines[-1]) + 1 + cells(word) > width:
            lines.append("")
        while cells(rest) > width:
            lines[-1] = _prefix(rest, width)
            rest = rest[len(lines[-1]) :]
            lines.append("")
        lines[-1] = f"{lines[-1]} {rest}" if lines[-1] else rest
    return lines


def bullets(notes: Iterable[str], width: int) -> list[str]:
    """Format sentences, which may quote names, as a bulleted list, and return its wrapped lines."""
    parts = [wrapped(plain(note, 2000), width - 2) for note in notes]
    return [f"{'  ' if place else '• '}{line}" for part in parts for place, line in enumerate(part)]


def cells(text: str) -> int:
    """Return how many cells `text` takes up in a terminal."""
    return sum(0 if unicodedata.combining(char) else _cells_at_most(char) for char in text)


def fit(text: Any, width: int) -> str:
    """Make `text` plain and pad it to exactly `width` cells."""
    shown = plain(text, width)
    return shown + " " * (width - cells(shown))


def html(text: Any, width: int = MAX_NAME) -> str:
    """Make `text` plain and escape it for an HTML element or a quoted attribute."""
    return _html.escape(plain(text, width), quote=True)


def html_sentence(text: Any) -> str:
    """Escape one of perfnb's own sentences, which may quote names, for HTML. It may be longer than in `html`.

    Lines do not break between a number and its unit or inside an interval.
    """
    return _INSIDE.sub("\u00a0", html(text, 2000))


def markdown(text: Any, width: int = MAX_NAME) -> str:
    """Make `text` plain for a line or a table cell in Markdown, without markup or links."""
    shown = plain(text, width)
    for mark, harmless in _MARKDOWN:
        shown = shown.replace(mark, harmless)
    return shown


def json_in_script(value: Any) -> str:
    """Return `value` as JSON that cannot end the script element around it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_JSON_IN_SCRIPT)


def chart(text: Any, width: int = MAX_NAME) -> str:
    """Make `text` plain for matplotlib, which reads ``$`` as the start of a formula."""
    return plain(text, width).replace("\\", "\\\\").replace("$", r"\$")


def _visible(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    if unicodedata.category(char) not in _INVISIBLE:
        return " " if char.isspace() else char
    return _code(char)


def _code(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cells_at_most(char: str) -> int:
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _prefix(text: str, width: int) -> str:
    used = 0
    for position, char in enumerate(text):
        used += _cells_at_most(char)
        if used > width:
            return text[:position]
    return text
