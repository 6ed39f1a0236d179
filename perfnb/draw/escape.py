"""The one place where names that came from a model or a trace are made safe to show.

Such a name can be anything: markup, quotes, line breaks, terminal escapes, text that reverses its
neighbours, ten thousand characters. Here it becomes text that shows what it is and does nothing.
"""

from __future__ import annotations

import html as _html
import json
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

#: No name is shown with more characters than this, wherever it is drawn.
MAX_NAME = 200

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
#: Control, format (bidirectional overrides among them), surrogate, private, unassigned; line and paragraph ends.
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
#: Marks on one character that are drawn; more of them would climb over their neighbours.
_MAX_MARKS = 3
#: What begins something in Markdown, or in the HTML that it may hold; addresses become links without any markup.
_MARKDOWN = (
    *((char, f"\\{char}") for char in "\\`*_[]|~$"),
    *(("&", "&amp;"), ("<", "&lt;"), ("://", "&#58;//"), ("www.", "www&#46;"), ("@", "&#64;")),
)
#: What may stand after a number, and belongs to it.
_UNITS = r"(?:(?:%|×|[µm]?s|[kMGTPE]?B|[KMGTPE]iB|[kMGTPE]?FLOP|W|J|°C|MHz|samples|steps)(?:/\w+)?)(?![\w%])"
#: Spaces at which a line may be broken: not between a number and its unit.
_BETWEEN_WORDS = re.compile(rf"(?<!\d) | (?!{_UNITS})")
#: Spaces at which a line may not: those, and those inside an interval.
_INSIDE = re.compile(rf"(?<=\d) (?={_UNITS})|(?<=\d,) (?=[−-]?\d[\d.,]*\])")
_JSON_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def plain(text: Any, width: int = MAX_NAME) -> str:
    """One line of visible characters, at most `width` cells wide, shortened in its middle.

    Parameters
    ----------
    text : object
        A name from a model or a trace.
    width : int
        Greatest number of character cells.
    """
    raw = str(text)
    if len(raw) > 2 * width + 2:  # characters that cannot be shown need no translation
        raw = raw[: width + 1] + raw[-width - 1 :]
    shown, marks = [], 0
    for char in unicodedata.normalize("NFC", raw):
        marks = marks + 1 if unicodedata.combining(char) else 0
        shown.append(_visible(char) if marks <= _MAX_MARKS else _code(char))
    return shorten("".join(shown), width)


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` cells; the middle gives way to an ellipsis."""
    if sum(map(_cells_at_most, text)) <= width:
        return text
    if width < 1:
        return ""
    tail_room = (width - 1) // 2
    tail = _prefix(text[::-1], tail_room)[::-1]
    return _prefix(text, width - 1 - tail_room) + "…" + tail


def wrapped(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` cells, broken between words where that is possible.

    A number and its unit stand on one line.
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


def bullets(notes: Iterable[str], width: int, longest: int = 2000) -> list[str]:
    """Lines of sentences, which may quote names, each cut to `longest` characters and wrapped behind a bullet."""
    parts = [wrapped(plain(note, longest), width - 2) for note in notes]
    return [f"{'  ' if place else '• '}{line}" for part in parts for place, line in enumerate(part)]


def cells(text: str) -> int:
    """Number of cells that `text` takes in a terminal."""
    return sum(0 if unicodedata.combining(char) else _cells_at_most(char) for char in text)


def fit(text: Any, width: int, align: str = "<") -> str:
    """`text` made plain and padded to exactly `width` cells, at the left (``<``) or the right (``>``)."""
    shown = plain(text, width)
    padding = " " * (width - cells(shown))
    return shown + padding if align == "<" else padding + shown


def html(text: Any, width: int = MAX_NAME) -> str:
    """`text` made plain, for an HTML element or a quoted attribute."""
    return _html.escape(plain(text, width), quote=True)


def html_sentence(text: Any) -> str:
    """Our own sentence, which may quote names, for HTML: as `html`, with room for its length.

    No line ends between a number and its unit, nor inside an interval.
    """
    return _INSIDE.sub("\u00a0", html(text, 2000))


def markdown(text: Any, width: int = MAX_NAME) -> str:
    """`text` made plain for Markdown, in a line or in a cell of a table: it holds no markup and no link."""
    shown = plain(text, width)
    for mark, harmless in _MARKDOWN:
        shown = shown.replace(mark, harmless)
    return shown


def json_in_script(value: Any) -> str:
    """`value` as JSON that cannot end the script element that holds it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_JSON_IN_SCRIPT)


def chart(text: Any, width: int = MAX_NAME) -> str:
    """`text` made plain for matplotlib, which reads ``$`` as the start of a formula."""
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
