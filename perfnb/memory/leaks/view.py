"""What many steps leak: a sentence, the growth, and who allocates it; as text and static HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header
from perfnb.memory.leaks.judge import PROCESS_FLOOR_BYTES, LeakReport
from perfnb.stats.slope import FEWEST_STEPS, Slope

#: Greatest number of owners listed.
MOST_OWNERS = 12
#: Least width that fits the columns.
MIN_WIDTH = 80

_LEVELS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60
_SERIES = {"allocator": ("torch's allocator", "allocated_bytes"), "process": ("process (resident)", "process_bytes")}
_PICTURE = "display:flex;align-items:flex-end;gap:1px;width:240px;height:32px"
_TITLE = "Leaked per step"


def leaks_text(report: LeakReport, name: str = "step", width: int = 100) -> str:
    """The report as text for a terminal, a log, or a notebook without HTML."""
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
    """The verdict in words, and what to do if it is uncertain."""
    torch = None if report.allocator is None else slope_words(report.allocator)
    process = None if report.process is None else slope_words(report.process)
    if report.reason == "kept":
        owner = _owner_words(report.survivors.iloc[0])
        beyond = _beyond(report)
        return f"Memory grows by {torch}: a leak. Each step leaves memory behind, most of it {owner}.{beyond}"
    if report.reason == "growing":
        owner = _owner_words(report.survivors.iloc[0])
        return (
            f"Memory grows by {torch}: a leak. Each step replaces an allocation with a larger one, {owner}: "
            f"perhaps a tensor that is appended to.{_beyond(report)}"
        )
    if report.reason == "outside":
        what = "but torch's allocator does not" if torch else "and torch's allocator was not watched"
        return (
            f"The process grows by {process}, {what}: a leak outside torch's tensors, such as NumPy arrays, Python "
            "objects or library caches."
        )
    if report.reason == "shapes":
        return (
            f"The process grows by {process} but torch's allocator does not, while batches kept arriving in new "
            "shapes. Libraries such as oneDNN cache what they prepare for each shape: watch steps of one shape to rule "
            "out a leak."
        )
    if report.reason == "garbage" and report.allocator is not None and report.allocator.grows:
        return (
            f"No leak seen. Memory grows by {torch} while the steps run, but Python's garbage collector frees it: the "
            "tensors are in reference cycles."
        )
    if report.reason == "unexplained":
        return f"Memory grows by {torch}, but nothing from the early steps is still alive: watch more steps."
    if report.reason == "unseen":
        return (
            f"Each step leaves allocations behind, {torch}, but the process changes only by {process}: older "
            "allocations may be freed at the same rate, as in a fixed-length buffer. Watch more steps, or warm up "
            "longer."
        )
    if report.reason == "hidden":
        kept = fmt.size(report.survivors["bytes_per_step"].sum())
        return (
            f"Each step leaves {kept} behind, but memory varies so much from step to step that growth is uncertain: "
            f"{torch}. Watch more steps, or batches of one shape."
        )
    if report.reason == "few":
        return f"Too few steps: a confidence interval needs at least {FEWEST_STEPS}."
    if report.reason == "unknown":
        return "Neither torch's allocator nor the process could be watched."
    changes = [f"{what} {by}" for what, by in (("torch's memory", torch), ("process", process)) if by]
    small = report.process is not None and report.process.grows
    note = f" Process growth below {fmt.size(PROCESS_FLOOR_BYTES)} per step is bookkeeping." if small else ""
    if report.reason == "garbage":
        waited = fmt.size(report.garbage_bytes * len(report.per_step))
        note += f" After the last step, {waited} in reference cycles waited for Python's garbage collector."
    return f"No leak seen. Measured growth: {', '.join(changes)}.{note}"


def slope_words(slope: Slope) -> str:
    """A slope with its interval: ``1.00 MiB per step [0.990, 1.01]``."""
    return fmt.growth(slope.bytes_per_step, (slope.ci_low, slope.ci_high))


def _beyond(report: LeakReport) -> str:
    if report.beyond_bytes is None:
        return ""
    return f" The process grows by another {fmt.size(report.beyond_bytes)} per step outside torch's tensors."


def _owner_words(row: Any) -> str:
    """``allocated in encoder (forward) by aten::add``."""
    layer = "outside any layer" if pd.isna(row["layer"]) else f"in {escape.plain(row['layer'], 60)}"
    phase = "" if pd.isna(row["phase"]) else f" ({palette.mark(str(row['phase'])).word})"
    op = "" if pd.isna(row["op"]) else f" by {escape.plain(row['op'], 60)}"
    return f"allocated {layer}{phase}{op}"


def _series(report: LeakReport) -> list[tuple[str, Slope, list[float]]]:
    """Each measured series: name, slope, and levels."""
    found = []
    for key, (words, column) in _SERIES.items():
        slope = getattr(report, key)
        if slope is not None:
            levels = [float(level) for level in report.per_step[column].dropna()]
            found.append((words, slope, levels))
    return found


def _heights(levels: Sequence[float], most: int) -> list[float]:
    """Levels scaled to 0 (lowest) to 1, thinned to at most `most`; all 0 if nothing changes."""
    every = -(-len(levels) // most) if levels else 1
    shown = list(levels)[::-1][::every][::-1]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    return [(level - low) / (high - low) if high > low else 0.0 for level in shown]


def _range_words(levels: Sequence[float]) -> str:
    change = max(levels, default=0.0) - min(levels, default=0.0)
    return f"{fmt.size(change)} from lowest to highest"


def _growth_lines(report: LeakReport, width: int) -> list[str]:
    lines = []
    for words, slope, levels in _series(report):
        left = f"{words:<19} {slope_words(slope):<34} "
        bars = (_LEVELS[round(7 * height)] for height in _heights(levels, width - len(left)))
        lines.append(left + "".join(bars))
    return ["Growth (95 % interval) and level after each step", "─" * width, *lines] if lines else []


def _survivor_lines(survivors: pd.DataFrame, width: int) -> list[str]:
    if not len(survivors):
        return []
    right = f"{'bytes per step':>14} {'count per step':>14} {'steps':>6}  kind"
    room = width - len(right) - 6
    names = (room - 14) // 2
    lines = [_TITLE, f"{'layer':<{names}} {'phase':<14} {'op':<{names}} {right}", "─" * width]
    for _, row in survivors.head(MOST_OWNERS).iterrows():
        layer, phase, op = _words(row)
        figures = f"{fmt.size(row['bytes_per_step']):>14} {fmt.significant(row['count_per_step']):>14}"
        left = f"{escape.fit(layer, names)} {escape.fit(phase, 14)} {escape.fit(op, names)}"
        lines.append(f"{left} {figures} {fmt.count(row['steps']):>6}  {row['kind']}")
    return [*lines, *_left_out(survivors)]


def _words(row: Any) -> tuple[str, str, str]:
    layer = "(no layer)" if pd.isna(row["layer"]) else str(row["layer"])
    phase = fmt.UNKNOWN if pd.isna(row["phase"]) else palette.mark(str(row["phase"])).word
    return layer, phase, fmt.UNKNOWN if pd.isna(row["op"]) else str(row["op"])


def _left_out(survivors: pd.DataFrame) -> list[str]:
    rest = survivors.iloc[MOST_OWNERS:]
    return [f"… {len(rest):,} more, {fmt.size(rest['bytes_per_step'].sum())} per step"] if len(rest) else []


def _growth_table(report: LeakReport) -> str:
    rows = []
    for words, slope, levels in _series(report):
        bars = "".join(
            f'<i style="flex:1;min-width:2px;height:{4 + 96 * height:.0f}%;background-color:{palette.GREY}"></i>'
            for height in _heights(levels, _MOST_BARS)
        )
        picture = f'<div aria-hidden="true" style="{_PICTURE}">{bars}</div>{escape.html(_range_words(levels))}'
        rows.append((escape.html(words), escape.html(slope_words(slope)), picture))
    heads = ["memory", "growth", "level after each step"]
    return tables.table("Growth with its 95 % interval", heads, rows, last_texts=1) if rows else ""


def _survivor_table(survivors: pd.DataFrame) -> str:
    if not len(survivors):
        return ""
    rows = []
    for _, row in survivors.head(MOST_OWNERS).iterrows():
        layer, phase, op = _words(row)
        mark = palette.mark("other" if pd.isna(row["phase"]) else str(row["phase"]))
        rows.append(
            (
                tables.name(layer),
                f"{tables.key(mark)}{escape.html(phase)}",
                tables.name(op),
                fmt.size(row["bytes_per_step"]),
                fmt.significant(row["count_per_step"]),
                fmt.count(row["steps"]),
                escape.html(row["kind"]),
            )
        )
    heads = ["layer", "phase", "op", "bytes per step", "count per step", "in steps", "kind"]
    rest = "".join(f'<p class="pf-small">{escape.html(line)}</p>' for line in _left_out(survivors))
    return tables.table(_TITLE, heads, rows, texts=3, last_texts=1) + rest
