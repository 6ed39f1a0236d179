"""Flame graphs as pictures of documents: what the browser draws, and their static forms."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from perfnb.draw import escape
from perfnb.draw.document import Picture, words
from perfnb.draw.picture import GROUND, INK, picture_html
from perfnb.flame.data import flame_data
from perfnb.recording.nesting import Floats
from perfnb.stacks.tree import CallTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Most calls that a browser gets: the widest are kept.
_LIVE_CALLS = 30_000
#: Levels and calls of a static picture, and levels and least cells of a call as text.
_LEVELS, _CALLS = 24, 2_000
_TEXT_LEVELS, _TEXT_CELLS = 8, 4
_WIDTH, _LEVEL_INCHES, _INCHES_A_CHARACTER = 8.8, 0.17, 0.062
_LEAST_PART = 1 / 1_000
#: Units of documents.
UNITS = {"ms": "ms", "bytes": "bytes", "samples": "count", "none": "number"}


def flame_section(
    tree: CallTree, unit: str, title: str, before: Floats | None = None, in_order: bool = False
) -> Picture:
    """A flame graph; of two profiles, if `before` is what each call took in the other one.

    Parameters
    ----------
    tree : CallTree
    unit : str
        Of its values: ``ms``, ``samples``, ``bytes`` or ``none``.
    title : str
    before : ndarray, optional
    in_order : bool
        Whether the calls of the tree come in the order in which they were first seen.
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
    """The outer levels as rows of names, each as wide as its call."""
    depth, start, wide, whole = _boxes(data)
    lines = []
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


def _boxes(data: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Depth, start and width of each call, which come in the order of a walk over the tree; and the whole."""
    depth, wide = np.array(data["depth"], dtype=np.int64), np.array(data["self"], dtype=np.float64)
    whole, start = float(wide.sum()) or 1.0, np.zeros(len(depth))
    around: list[int] = []
    parents = []
    for place, level in enumerate(depth.tolist()):
        del around[level:]
        parents.append(around[-1] if around else -1)
        around.append(place)
    for place in range(len(depth) - 1, -1, -1):
        if parents[place] >= 0:
            wide[parents[place]] += wide[place]
    reached = [0.0]
    for place, level in enumerate(depth.tolist()):
        del reached[level + 1 :]
        start[place] = reached[level]
        reached[level] += wide[place]
        reached.append(float(start[place]))
    return depth, start, wide, whole


def _html(data: dict[str, Any], tree: CallTree, unit: str) -> str:
    """The widest calls of the outer levels as a picture; empty if there are none."""
    depth, start, wide, whole = _boxes(data)
    shown = (depth < _LEVELS) & (wide >= _LEAST_PART * whole)
    if not shown.any():
        return ""
    levels = int(depth[shown].max()) + 1
    alt = f"Flame graph of {len(tree):,} calls, {words(whole, UNITS[unit])}; the table has the figures"
    draw = functools.partial(_draw, data=data, boxes=(depth, start, wide, np.flatnonzero(shown)), whole=whole)
    cut = int(tree.depth.max(initial=0)) + 1 - levels
    hint = f"Outermost calls at the top{f'; {cut:,} more levels are not drawn' if cut > 0 else ''}."
    return f"<p>{hint}</p><p>{picture_html(draw, (_WIDTH, 0.15 + levels * _LEVEL_INCHES), alt)}</p>"


def _draw(figure: Figure, data: dict[str, Any], boxes: Any, whole: float) -> None:
    depth, start, wide, shown = boxes
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_xlim(0, whole)
    axes.set_ylim(int(depth[shown].max()) + 1, 0)
    colours = _box_colours(data)
    axes.barh(
        depth[shown] + 0.5, wide[shown], height=1.0, left=start[shown],
        color=[colours[place] for place in shown.tolist()], edgecolor=GROUND, linewidth=0.6,
    )  # fmt: skip
    for place in shown.tolist():
        room = int(wide[place] / whole * _WIDTH / _INCHES_A_CHARACTER)
        if room < 4:
            continue
        text = axes.text(
            start[place] + 0.004 * whole, depth[place] + 0.5, escape.chart(data["names"][data["name"][place]], room),
            ha="left", va="center", size=6.5, color=_ink(colours[place]), clip_on=True,
        )  # fmt: skip
        text.set_in_layout(False)


def _box_colours(data: dict[str, Any]) -> list[str]:
    """The colour of each box: of its phase, if the outermost calls are phases, else of its package."""
    phase: dict[str, str] | None = None
    colours = []
    for level, name in zip(data["depth"], data["name"], strict=True):
        if level == 0:
            phase = data["phases"][name]
        colours.append(phase["colour"] if phase else data["groups"][data["group"][name]]["colour"])
    return colours


def _ink(colour: str) -> str:
    """Black or white, whichever reads better on a colour."""
    red, green, blue = bytes.fromhex(colour[1:])
    return INK if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else GROUND
