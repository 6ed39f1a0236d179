"""Draw the parts of static tables and legends. They are readable even without style sheets."""

from __future__ import annotations

from collections.abc import Sequence

from perfnb.draw import escape
from perfnb.draw.palette import Mark

# Words must be left-aligned even without style sheets. Some hosts keep the attribute, and others keep the style.
LEFT = 'align="left" style="text-align:left;min-width:6.5em"'
RIGHT = 'align="right"'


def key(mark: Mark) -> str:
    """Return the small box that shows a mark's colour and pattern in a legend."""
    return f'<i class="pf-key pf-{mark.pattern}" style="background-color:{mark.colour}"></i>'


def keyed(mark: Mark) -> str:
    """Return a mark's box followed by its word."""
    return f"{key(mark)}{escape.html(mark.word)}"


def name(text: object) -> str:
    """Return a possibly shortened name from a model as HTML. The full name is displayed on hover."""
    return f'<bdi title="{escape.html(text)}">{escape.html(text, 60)}</bdi>'


def bar(parts: Sequence[tuple[Mark, float]], width: int | None = None) -> str:
    """Return a stacked bar as HTML. It is as wide as the page, unless `width` is given in pixels.

    Bars are hidden from screen readers, so a table must show the same data.
    """
    total = sum(size for _, size in parts)
    pieces = (
        f'<i class="pf-{mark.pattern}" style="width:{100 * size / total:.2f}%;background-color:{mark.colour}"></i>'
        for mark, size in parts
    )
    style = "" if width is None else f' style="width:{width}px"'
    return f'<div class="pf-bar" aria-hidden="true"{style}>{"".join(pieces)}</div>'
