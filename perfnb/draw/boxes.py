"""Draw rows of named boxes, for flame graphs and timelines without scripts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from perfnb.draw import escape

#: The width of a picture and the height of a row, in pixels.
WIDE, ROW = 880, 15
#: The width of a letter, and the minimum number of letters to which a longer name is cut.
_LETTER, _FEWEST = 5.8, 4
#: The minimum width of a visible box, and the width above which a box leaves a gap to the next box.
_NARROW, _GAP = 0.4, 0.6


class Box(NamedTuple):
    """A box in a row. `top` is the position of the row's top edge in pixels."""

    left: float
    top: float
    width: float
    colour: str
    name: str


def boxes_svg(boxes: Iterable[Box]) -> str:
    """Return all boxes, with one path per colour, and the names that fit into their boxes."""
    paths, names = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for left, top, width, colour, name in boxes:
        wide = f"{max(_NARROW, width - _GAP):.1f}"
        paths[colour].append(f"M{left:.1f} {top:.0f}h{wide}v{ROW - 1}h-{wide}z")
        room = int((width - 6) / _LETTER)
        if room >= _FEWEST or room >= escape.cells(name) > 0:
            names[_ink(colour)].append(
                f'<text x="{left + 3:.1f}" y="{top + 10.5:.1f}">{escape.html(name, room)}</text>'
            )
    drawn = [f'<path d="{"".join(parts)}" fill="{colour}"/>' for colour, parts in paths.items()]
    return "".join(drawn + [f'<g font-size="9.5" fill="{ink}">{"".join(parts)}</g>' for ink, parts in names.items()])


def _ink(colour: str) -> str:
    """Return black or white, whichever is more readable on the given background colour."""
    red, green, blue = bytes.fromhex(colour[1:])
    return "#000" if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else "#fff"
