"""Create the flame graphs in documents, with the data that the browser draws and the static versions."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from perfnb.draw import escape, svg
from perfnb.draw.boxes import ROW, WIDE, Box, boxes_svg
from perfnb.draw.document import Picture, words
from perfnb.flame.data import flame_data
from perfnb.recording.nesting import Floats
from perfnb.stacks.tree import CallTree

#: The maximum number of calls that are sent to a browser. The widest calls are kept.
_LIVE_CALLS = 30_000
#: The maximum number of levels and calls in a static picture, and the maximum number of levels and minimum width of a
#: call in text.
_LEVELS, _CALLS = 24, 2_000
_TEXT_LEVELS, _TEXT_CELLS = 8, 4
_LEAST_PART = 1 / 1_000
#: The units that are used in documents.
UNITS = {"ms": "ms", "bytes": "bytes", "samples": "count", "none": "number"}


def flame_section(
    tree: CallTree, unit: str, title: str, before: Floats | None = None, in_order: bool = False
) -> Picture:
    """Return a flame graph. If `before` contains each call's time in another profile, the graph compares the two.

    Parameters
    ----------
    tree : CallTree
    unit : str
        The unit of its values: ``ms``, ``samples``, ``bytes`` or ``none``.
    title : str
    before : ndarray, optional
    in_order : bool
        Whether the calls in the tree are in order of first appearance.
    """
    data = functools.cache(lambda most: flame_data(tree, unit, most, before, in_order))
    return Picture(
        "flame",
        title,
        lambda width: _text(data(_CALLS), width),
        lambda: "" if before is not None else _html(data(_CALLS), tree, unit),
        lambda: data(_LIVE_CALLS),
        "flame/js/view.js",
        "flame/js/flame.css",
        "flame",
    )


class _Call(NamedTuple):
    """A call's level, its start and width in the tree's unit, its label and its colour."""

    level: int
    start: float
    wide: float
    name: str
    colour: str


def _calls(data: dict[str, Any]) -> list[_Call]:
    """Return the calls in the order of a tree traversal.

    If the outermost calls are phases, the colour depends on the call's phase, and otherwise on its package.
    """
    depth, wide = data["depth"], list(data["self"])
    inside, reached = ([0.0] * (max(depth, default=0) + 2) for _ in range(2))
    for place in reversed(range(len(depth))):
        level = depth[place]
        wide[place] += inside[level + 1]
        inside[level + 1] = 0.0
        inside[level] += wide[place]
    phase, calls = None, list[_Call]()
    for level, name, width in zip(depth, data["name"], wide, strict=True):
        phase = data["phases"][name] if level == 0 else phase
        colour = (phase or data["groups"][data["group"][name]])["colour"]
        calls.append(_Call(level, reached[level], width, data["names"][name], colour))
        reached[level + 1] = reached[level]
        reached[level] += width
    return calls


def _whole(calls: list[_Call]) -> float:
    return sum(call.wide for call in calls if call.level == 0)


def _text(data: dict[str, Any], width: int) -> list[str]:
    """Return the outer levels as rows of names. Each name is as wide as its call."""
    calls = _calls(data)
    scale, lines = width / (_whole(calls) or 1.0), [""] * _TEXT_LEVELS
    for call in calls:
        begin, end = (round(at * scale) for at in (call.start, call.start + call.wide))
        if call.level < _TEXT_LEVELS and end - begin >= _TEXT_CELLS:
            name = escape.fit(call.name, end - begin - 1)
            lines[call.level] += f"{' ' * (begin - escape.cells(lines[call.level]))}▏{name}"
    return [line for line in lines if line]


def _html(data: dict[str, Any], tree: CallTree, unit: str) -> str:
    """Return a picture of the widest calls in the outer levels, or an empty string if there are none."""
    calls = _calls(data)
    whole = _whole(calls)
    shown = [call for call in calls if call.level < _LEVELS and call.wide > 0 and call.wide >= _LEAST_PART * whole]
    if not shown:
        return ""
    scale = WIDE / whole
    boxes = [Box(call.start * scale, call.level * ROW, call.wide * scale, call.colour, call.name) for call in shown]
    levels = max(call.level for call in shown) + 1
    cut = int(tree.depth.max(initial=0)) + 1 - levels
    hint = f"Outermost calls at the top{f'; {cut:,} more levels are not drawn' if cut > 0 else ''}."
    alt = f"Flame graph of {len(tree):,} calls, {words(whole, UNITS[unit])}; the table has the figures"
    return f"<p>{hint}</p>{svg.picture([boxes_svg(boxes)], WIDE, levels * ROW, alt)}"
