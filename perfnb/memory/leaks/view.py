"""What many steps leave behind: a sentence, the growth, and the owners of what stays; as text and as static HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.draw.frame import framed, header
from perfnb.memory.leaks.judge import PROCESS_FLOOR_BYTES, LeakReport
from perfnb.stats.slope import FEWEST_STEPS, Slope

#: Greatest number of owners listed.
MOST_OWNERS = 12
#: Least width in which the columns have room.
MIN_WIDTH = 80

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_LEVELS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60
_LEFT = 'align="left" style="text-align:left"'
_RIGHT = 'align="right"'
_SERIES = {"allocator": ("torch's allocator", "allocated_bytes"), "process": ("process (resident)", "process_bytes")}
_PICTURE = "display:flex;align-items:flex-end;gap:1px;width:240px;height:32px"
_STAYS = "What stays of each step"


def leaks_text(report: LeakReport, name: str = "step", width: int = 100) -> str:
    """The report as text for a terminal, a log or a notebook without HTML."""
    width = max(MIN_WIDTH, width)
    title = escape.shorten(f"perfnb · leaks · {escape.plain(name, width // 2)}", width)
    parts = [
        [title, *escape.wrapped(leak_sentence(report), width)],
        _growth_lines(report, width),
        _survivor_lines(report.survivors, width),
    ]
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)


def leaks_html(report: LeakReport, name: str = "step") -> str:
    """The report as tables and bars without scripts."""
    verdict = fmt.capital(report.verdict)
    sentence = leak_sentence(report).removeprefix(f"{verdict}. ")
    words = header(escape.plain(name), "leaks", verdict, sentence)
    return framed(f"{words}{_growth_table(report)}{_survivor_table(report.survivors)}", narrow=True)


def leak_sentence(report: LeakReport) -> str:
    """What was found, in words, and what to do where that is not certain."""
    torch = None if report.allocator is None else growth(report.allocator)
    process = None if report.process is None else growth(report.process)
    if report.reason == "kept":
        owner = _owner_words(report.survivors.iloc[0])
        beyond = _beyond(report)
        return (
            f"Memory grows by {torch}: a leak. Allocations of each step stay alive, most bytes of them {owner}.{beyond}"
        )
    if report.reason == "growing":
        owner = _owner_words(report.survivors.iloc[0])
        return (
            f"Memory grows by {torch}: a leak. Each step replaces an allocation by a larger one, {owner}: "
            f"a tensor that is appended to, perhaps.{_beyond(report)}"
        )
    if report.reason == "outside":
        what = "torch's allocator does not" if torch else "torch's allocator was not watched"
        return (
            f"The process grows by {process}, {what}: a leak that lies outside torch's tensors. NumPy arrays, Python "
            "objects and caches of libraries are there."
        )
    if report.reason == "shapes":
        return (
            f"The process grows by {process} and torch's allocator does not, while batches of new shapes kept coming. "
            "Libraries such as oneDNN keep what they prepared for each shape: watch steps of one shape to tell this "
            "from a leak."
        )
    if report.reason == "garbage" and report.allocator is not None and report.allocator.grows:
        return (
            f"No leak seen. Memory grows by {torch} while the steps run, but Python's garbage collector frees it: "
            "tensors in reference cycles wait for that."
        )
    if report.reason == "unexplained":
        return f"Memory grows by {torch}, yet nothing that an early step made is still alive: watch more steps."
    if report.reason == "unseen":
        return (
            f"Allocations of each step stay alive, {torch} more of them, yet the process changes by {process} only: "
            "older ones, made before the watch began, may go at the same rate, as in a buffer of fixed length. "
            "Watch more steps, or warm up longer."
        )
    if report.reason == "hidden":
        kept = _size(report.survivors["bytes_per_step"].sum())
        return (
            f"{kept} of each step stay alive, yet memory differs so much from step to step that growth is not certain: "
            f"{torch}. Watch more steps, or batches of one shape."
        )
    if report.reason == "few":
        return f"Too few steps to tell: an interval needs at least {FEWEST_STEPS}."
    if report.reason == "unknown":
        return "Neither torch's allocator nor the process could be watched."
    changes = [f"{what} by {by}" for what, by in (("torch's memory", torch), ("the process's", process)) if by]
    small = report.process is not None and report.process.grows
    note = f" Less than {_size(PROCESS_FLOOR_BYTES)} a step of a process is book-keeping." if small else ""
    if report.reason == "garbage":
        waited = _size(report.garbage_bytes * len(report.per_step))
        note += f" After the last step {waited} waited in reference cycles for Python's garbage collector."
    return f"No leak seen. Change: {', '.join(changes)}.{note}"


def growth(slope: Slope) -> str:
    """A slope with its interval: ``1.00 MiB a step [0.99, 1.01]``."""
    bounds = [bound for bound in (slope.ci_low, slope.ci_high) if bound is not None]
    unit = _unit([slope.bytes_per_step, *bounds])
    inside = ", ".join(_amount(bound, unit) for bound in bounds)
    return f"{_amount(slope.bytes_per_step, unit)} {unit} a step" + (f" [{inside}]" if inside else "")


def _size(amount: float) -> str:
    unit = _unit([amount])
    return f"{_amount(amount, unit)} {unit}"


def _unit(amounts: Sequence[float]) -> str:
    """The unit in which the largest of `amounts` is at least 1."""
    largest, step = max(abs(amount) for amount in amounts), 0
    while step < len(_UNITS) - 1 and largest >= 1023.5:
        largest, step = largest / 1024, step + 1
    return _UNITS[step]


def _amount(value: float, unit: str) -> str:
    return fmt.significant(value / 1024.0 ** _UNITS.index(unit), trim=unit == "B")


def _beyond(report: LeakReport) -> str:
    if report.beyond_bytes is None:
        return ""
    return f" The process grows by {_size(report.beyond_bytes)} a step more than that, outside torch's tensors."


def _owner_words(row: Any) -> str:
    """``made in encoder (forward) by aten::add``"""
    layer = "outside any layer" if pd.isna(row["layer"]) else f"in {escape.plain(row['layer'], 60)}"
    phase = "" if pd.isna(row["phase"]) else f" ({palette.mark(str(row['phase'])).word})"
    op = "" if pd.isna(row["op"]) else f" by {escape.plain(row['op'], 60)}"
    return f"made {layer}{phase}{op}"


def _series(report: LeakReport) -> list[tuple[str, Slope, list[float]]]:
    """Each series that was measured: its name, its slope, and at most `_MOST_BARS` of its levels."""
    found = []
    for key, (words, column) in _SERIES.items():
        slope = getattr(report, key)
        if slope is not None:
            levels = [float(level) for level in report.per_step[column].dropna()]
            found.append((words, slope, levels))
    return found


def _heights(levels: Sequence[float], most: int) -> list[float]:
    """Levels between 0 (the lowest) and 1, thinned to at most `most`; all 0 where nothing changes."""
    every = -(-len(levels) // most) if levels else 1
    shown = list(levels)[::-1][::every][::-1]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    return [(level - low) / (high - low) if high > low else 0.0 for level in shown]


def _range_words(levels: Sequence[float]) -> str:
    change = max(levels, default=0.0) - min(levels, default=0.0)
    return f"{_size(change)} from lowest to highest"


def _growth_lines(report: LeakReport, width: int) -> list[str]:
    lines = []
    for words, slope, levels in _series(report):
        left = f"{words:<19} {growth(slope):<34} "
        bars = (_LEVELS[round(7 * height)] for height in _heights(levels, width - len(left)))
        lines.append(left + "".join(bars))
    return ["Growth (95 % interval), and the level after each step", "─" * width, *lines] if lines else []


def _survivor_lines(survivors: pd.DataFrame, width: int) -> list[str]:
    if not len(survivors):
        return []
    right = f"{'bytes a step':>13} {'number a step':>14} {'steps':>6}  kind"
    room = width - len(right) - 6
    names = (room - 14) // 2
    lines = [_STAYS, f"{'layer':<{names}} {'phase':<14} {'op':<{names}} {right}", "─" * width]
    for _, row in survivors.head(MOST_OWNERS).iterrows():
        layer, phase, op = _words(row)
        figures = f"{_size(row['bytes_per_step']):>13} {fmt.significant(row['count_per_step']):>14}"
        left = f"{escape.fit(layer, names)} {escape.fit(phase, 14)} {escape.fit(op, names)}"
        lines.append(f"{left} {figures} {fmt.count(row['steps']):>6}  {row['kind']}")
    return [*lines, *_left_out(survivors)]


def _words(row: Any) -> tuple[str, str, str]:
    layer = "(no layer)" if pd.isna(row["layer"]) else str(row["layer"])
    phase = fmt.UNKNOWN if pd.isna(row["phase"]) else palette.mark(str(row["phase"])).word
    return layer, phase, fmt.UNKNOWN if pd.isna(row["op"]) else str(row["op"])


def _left_out(survivors: pd.DataFrame) -> list[str]:
    rest = survivors.iloc[MOST_OWNERS:]
    return [f"… {len(rest):,} more, {_size(rest['bytes_per_step'].sum())} a step"] if len(rest) else []


def _growth_table(report: LeakReport) -> str:
    rows = []
    for words, slope, levels in _series(report):
        bars = "".join(
            f'<i style="flex:1;min-width:2px;height:{4 + 96 * height:.0f}%;background-color:{palette.GREY}"></i>'
            for height in _heights(levels, _MOST_BARS)
        )
        picture = f'<div aria-hidden="true" style="{_PICTURE}">{bars}</div>'
        rows.append(
            f'<tr><th scope="row" {_LEFT}>{escape.html(words)}</th><td {_RIGHT}>{escape.html(growth(slope))}</td>'
            f"<td {_LEFT}>{picture}{escape.html(_range_words(levels))}</td></tr>"
        )
    if not rows:
        return ""
    heads = _head_row([("memory", _LEFT), ("growth", _RIGHT), ("level after each step", _LEFT)])
    caption = "Growth with its 95 % interval"
    return f"<table><caption>{caption}</caption><thead>{heads}</thead><tbody>{''.join(rows)}</tbody></table>"


def _survivor_table(survivors: pd.DataFrame) -> str:
    if not len(survivors):
        return ""
    rows = []
    for _, row in survivors.head(MOST_OWNERS).iterrows():
        layer, phase, op = _words(row)
        mark = palette.mark("other" if pd.isna(row["phase"]) else str(row["phase"]))
        key = f'<i class="pf-key pf-{mark.pattern}" style="background-color:{mark.colour}"></i>'
        rows.append(
            f'<tr><th scope="row" {_LEFT}><bdi title="{escape.html(layer)}">{escape.html(layer, 60)}</bdi></th>'
            f"<td {_LEFT}>{key}{escape.html(phase)}</td><td {_LEFT}><bdi>{escape.html(op, 60)}</bdi></td>"
            f"<td {_RIGHT}>{_size(row['bytes_per_step'])}</td>"
            f"<td {_RIGHT}>{fmt.significant(row['count_per_step'])}</td>"
            f"<td {_RIGHT}>{fmt.count(row['steps'])}</td><td {_LEFT}>{escape.html(row['kind'])}</td></tr>"
        )
    heads = [("layer", _LEFT), ("phase", _LEFT), ("op", _LEFT)]
    heads += [(word, _RIGHT) for word in ("bytes a step", "number a step", "in steps")] + [("kind", _LEFT)]
    rest = "".join(f'<p class="pf-small">{escape.html(line)}</p>' for line in _left_out(survivors))
    body = "".join(rows)
    return f"<table><caption>{_STAYS}</caption><thead>{_head_row(heads)}</thead><tbody>{body}</tbody></table>{rest}"


def _head_row(heads: Sequence[tuple[str, str]]) -> str:
    cells = (f'<th scope="col" {side}>{word}</th>' for word, side in heads)
    return f"<tr>{''.join(cells)}</tr>"
