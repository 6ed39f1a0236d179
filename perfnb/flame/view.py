"""Host profiles as text and as HTML without scripts: the heaviest functions, and the flame graph as a picture."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.frame import framed, header, notes_html
from perfnb.draw.picture import GROUND, INK, picture_html
from perfnb.flame.data import flame_data
from perfnb.stacks.formats import HostRecord
from perfnb.stacks.tree import CallTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Functions listed, and in HTML of a profile without stacks, which has no other view; levels and calls of a picture.
LISTED, _LISTED_ALONE, _LEVELS, _CALLS = 15, 100, 24, 2_000
_WIDTH, _LEVEL_INCHES, _INCHES_A_CHARACTER = 8.8, 0.17, 0.062
_LEAST_PART = 1 / 1_000
_UNITS = {"ms": fmt.duration, "bytes": fmt.size, "samples": fmt.count}


def amount(value: Any, unit: str) -> str:
    """A value of a profile in words."""
    return _UNITS[unit](value) if unit in _UNITS else fmt.UNKNOWN


def headline(record: HostRecord, table: pd.DataFrame) -> str:
    """What a host profile holds, in one line."""
    facts = [f"{len(table):,} functions"]
    if record.samples is not None:
        facts.append(fmt.counted(record.samples, "sample"))
    if record.calls is not None and record.calls["calls"].notna().any():
        facts.append(fmt.counted(int(record.calls["calls"].sum()), "call"))
    if record.unit == "ms":
        whole = record.calls["self_ms"].sum() if record.calls is not None else _total_of(record)
        facts.append(fmt.duration(float(whole)))
    elif record.unit == "bytes":
        facts.append(fmt.size(_total_of(record)))
    return ", ".join(facts)


def _total_of(record: HostRecord) -> float:
    """The sum over all stacks."""
    return 0.0 if record.tree is None else float(record.tree.self.sum())


def _columns(record: HostRecord) -> tuple[str, str]:
    """The columns of own and total figures."""
    kind = {"ms": "ms", "samples": "samples", "bytes": "bytes", "none": "share"}[record.unit]
    return f"self_{kind}", f"total_{kind}"


def host_text(record: HostRecord, table: pd.DataFrame, width: int = 100) -> str:
    """The profile as text."""
    title = f"perfnb · host profile · {escape.plain(record.name, width // 2)} · {record.format}"
    parts = [[escape.shorten(title, width), *escape.wrapped(fmt.capital(headline(record, table)), width)]]
    parts.append(_function_lines(record, table, width))
    if record.notes:
        parts.append(["Notes", *escape.bullets(record.notes, width)])
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)


def _function_lines(record: HostRecord, table: pd.DataFrame, width: int) -> list[str]:
    """The heaviest functions as lines of text."""
    if table.empty:
        return []
    has_calls = bool(table["calls"].notna().any())
    own, total = _columns(record)
    heads = [f"{'self':>9} {'share':>7} {'total':>9} {'share':>7}", *([f"{'calls':>9}"] if has_calls else [])]
    lines = [_caption(table, LISTED), f"{' '.join(heads)}  function"]
    for row in table.head(LISTED).itertuples(index=False):
        figures = [
            f"{_figure(record, getattr(row, own)):>9} {fmt.share(row.self_share):>7}",
            f"{_figure(record, getattr(row, total)):>9} {fmt.share(row.total_share):>7}",
            *([f"{fmt.count(row.calls):>9}"] if has_calls else []),
        ]
        line = " ".join(figures)
        lines.append(f"{line}  {escape.plain(_named(row), max(20, width - len(line) - 2))}")
    return lines


def _figure(record: HostRecord, value: Any) -> str:
    return fmt.UNKNOWN if record.unit == "none" else amount(value, record.unit)


def _named(row: Any) -> str:
    where = _where(row)
    return f"{row.function} ({where})" if where else str(row.function)


def _caption(table: pd.DataFrame, listed: int) -> str:
    if len(table) <= listed:
        return "Functions, most time of their own first"
    return f"The {listed} of {len(table):,} functions with most time of their own"


def host_html(record: HostRecord, table: pd.DataFrame) -> str:
    """The profile as HTML without scripts."""
    words = header(record.name, f"host profile ({record.format})", "", fmt.capital(headline(record, table)))
    return framed(words + _body(record, table) + notes_html(record.notes), narrow=True)


def _body(record: HostRecord, table: pd.DataFrame) -> str:
    """The flame graph as a picture, and the heaviest functions."""
    parts = [] if record.tree is None else [flame_picture(record.tree, record.unit)]
    if len(table):
        has_calls = bool(table["calls"].notna().any())
        own, total = _columns(record)
        listed = _LISTED_ALONE if record.tree is None else LISTED
        rows = [
            [
                tables.name(row.function),
                tables.name(_where(row), 50),
                escape.html(_figure(record, getattr(row, own))),
                fmt.share(row.self_share),
                escape.html(_figure(record, getattr(row, total))),
                fmt.share(row.total_share),
                *([fmt.count(row.calls)] if has_calls else []),
            ]
            for row in table.head(listed).itertuples(index=False)
        ]
        heads = ["function", "file", "self", "share", "total", "share", *(["calls"] if has_calls else [])]
        parts.append(tables.table(_caption(table, listed), heads, rows, texts=2))
    return "".join(parts)


def _where(row: Any) -> str:
    if not isinstance(row.file, str):
        return ""
    return f"{row.file}{'' if pd.isna(row.line) else f':{row.line}'}"


def flame_picture(tree: CallTree, unit: str) -> str:
    """The widest calls of the outer levels as a picture; empty if there are none."""
    data = flame_data(tree, unit, _CALLS)
    depth = np.array(data["depth"], dtype=np.int64)
    if not len(depth):
        return ""
    own = np.array(data["self"], dtype=np.float64)
    start, wide = _places(depth, own)
    shown = (depth < _LEVELS) & (wide >= _LEAST_PART * float(own.sum()))
    levels = int(depth[shown].max(initial=0)) + 1
    whole = float(own.sum())
    alt = f"Flame graph of {len(tree):,} calls, {amount(whole, unit)}; the table has the figures"
    draw = functools.partial(_draw, data=data, boxes=(depth, start, wide, np.flatnonzero(shown)), whole=whole)
    cut = int(tree.depth.max(initial=0)) + 1 - levels
    words = f" · {cut:,} more levels are not drawn" if cut > 0 else ""
    head = f"<p><strong>Flame graph</strong> · outermost calls at the top{words}</p>"
    return f"{head}<p>{picture_html(draw, (_WIDTH, 0.15 + levels * _LEVEL_INCHES), alt)}</p>"


def _places(depth: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and width of each box, given in the order of a walk over the tree."""
    start, wide = np.zeros(len(depth)), own.copy()
    open_: list[int] = []
    reached: list[float] = [0.0]
    order: list[int] = depth.tolist()
    parents = []
    for place, level in enumerate(order):
        del open_[level:]
        parents.append(open_[-1] if open_ else -1)
        open_.append(place)
    for place in range(len(order) - 1, -1, -1):
        if parents[place] >= 0:
            wide[parents[place]] += wide[place]
    for place, level in enumerate(order):
        del reached[level + 1 :]
        start[place] = reached[level]
        reached[level] += wide[place]
        reached.append(float(start[place]))
    return start, wide


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
