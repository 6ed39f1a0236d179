"""Draw the parts of a static SVG: axis labels, boxes, and the element around the whole drawing."""

from __future__ import annotations

from collections.abc import Iterable

from perfnb.draw import escape

#: The minimum width of a visible box.
_LEAST_WIDTH = 0.3


def box(x: float, y: float, width: float, height: float) -> str:
    """Return the path of a rectangle that is wide enough to be seen."""
    width = max(width, _LEAST_WIDTH)
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"


def label(x: float, y: float, anchor: str, text: str) -> str:
    """Return a text element whose start, middle or end is at the given point."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="11" fill="currentColor" fill-opacity=".75" '
        f'text-anchor="{anchor}">{escape.html(text)}</text>'
    )


def picture(parts: Iterable[str], width: float, height: float, alt: str) -> str:
    """Return the element around the whole drawing. It shrinks with the page, and `alt` describes it in words."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px" role="img" '
        f'aria-label="{escape.html_sentence(alt)}">{"".join(parts)}</svg>'
    )
