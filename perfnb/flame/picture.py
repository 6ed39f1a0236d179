"""Create the flame graphs in documents, with the data that the browser draws and the static versions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from perfnb.draw import escape, svg
from perfnb.draw.boxes import ROW, WIDE, Box, boxes_svg
from perfnb.draw.document import Picture, words
from perfnb.flame.data import flame_data
from perfnb.recording.nesting import Floats, Ints
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


def _text(data: dict[str, Any], width: int) -> list[str]:
    """Return the outer levels as rows of names. Each name is as wide as its call."""
    depth, start, wide = _boxes(data)
    whole, lines = float(wide[depth == 0].sum()) or 1.0, []
    for level in range(_TEXT_LEVELS):
        line, reached = "", 0
        for place in np.flatnonzero(depth == level).tolist():
            begin, end = (round(at / whole * width) for at in (start[place], start[place] + wide[place]))
            if end - begin >= _TEXT_CELLS:
                line += f"{' ' * (begin - reached)}▏{escape.fit(data['names'][data['name'][place]], end - begin - 1)}"
                reached = end
        if not line:
            break
        lines.append(line)
    return lines


def _boxes(data: dict[str, Any]) -> tuple[Ints, Floats, Floats]:
    """Return each call's depth, start and width, in the order of a tree traversal."""
    depth, wide = np.array(data["depth"], dtype=np.int64), np.array(data["self"], dtype=np.float64)
    start, levels = np.zeros(len(depth)), int(depth.max(initial=0)) + 2
    inside, reached = [0.0] * levels, [0.0] * levels
    for place in range(len(depth) - 1, -1, -1):
        level = depth[place]
        wide[place] += inside[level + 1]
        inside[level + 1] = 0.0
        inside[level] += wide[place]
    for place, level in enumerate(depth.tolist()):
        start[place] = reached[level + 1] = reached[level]
        reached[level] += wide[place]
    return depth, start, wide


def _html(data: dict[str, Any], tree: CallTree, unit: str) -> str:
    """Return a picture of the widest calls in the outer levels, or an empty string if there are none."""
    depth, start, wide = _boxes(data)
    whole = float(wide[depth == 0].sum())
    shown = np.flatnonzero((depth < _LEVELS) & (wide >= _LEAST_PART * whole) & (wide > 0))
    if not len(shown):
        return ""
    scale, colours = WIDE / whole, _colours(data)
    boxes = [
        Box(start[at] * scale, depth[at] * ROW, wide[at] * scale, colours[at], data["names"][data["name"][at]])
        for at in shown.tolist()
    ]
    levels = int(depth[shown].max()) + 1
    cut = int(tree.depth.max(initial=0)) + 1 - levels
    hint = f"Outermost calls at the top{f'; {cut:,} more levels are not drawn' if cut > 0 else ''}."
    alt = f"Flame graph of {len(tree):,} calls, {words(whole, UNITS[unit])}; the table has the figures"
    return f"<p>{hint}</p>{svg.picture([boxes_svg(boxes)], WIDE, levels * ROW, alt)}"


def _colours(data: dict[str, Any]) -> list[str]:
    """Return each call's colour.

    If the outermost calls are phases, the colour depends on the call's phase, and otherwise on its package.
    """
    phase, colours = None, list[str]()
    for level, name in zip(data["depth"], data["name"], strict=True):
        phase = data["phases"][name] if level == 0 else phase
        colours.append((phase or data["groups"][data["group"][name]])["colour"])
    return colours
