"""A watch without scripts: a picture with tables as static HTML, and text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, palette, tables
from perfnb.draw.frame import framed, header
from perfnb.draw.picture import figure_of, picture_html
from perfnb.watching.charts import thinned
from perfnb.watching.data import TABLE_HEADS, TOO_FEW, WHOLE_ONLY, lasted, phase_rows, table_rows, watch_facts
from perfnb.watching.picture import Band, draw_watch, inches

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfnb.watching.summary import MachineSummary

#: How many marks are listed.
MOST_MARKS = 40

_NOTHING = f"No phase is long enough for a mean: {WHOLE_ONLY}."
_PLACED = "phases of untraced steps are estimated from the traced ones"

_SHORT_HEADS, _WIDE = ("median", "95th pct.", "maximum", "total"), (12, 12, 12, 20)


def watch_html(summary: MachineSummary, *, picture: bool = True) -> str:
    """The history of a watch as a picture, with its figures as a table; drawing the `picture` takes up to a second."""
    state = "Watching" if summary.running else "Watched"
    verdict = f"{state} for {lasted(summary.duration_s)}"
    head = header("The machine", "watch", verdict, " · ".join(watch_facts(summary)))
    body = [head, _picture(summary) if picture else "", _table(summary), _marks(summary), _said(summary)]
    return framed("".join(body))


def watch_text(summary: MachineSummary, width: int = 100) -> list[str]:
    """The history of a watch as lines of at most `width` cells."""
    state = "Watching" if summary.running else "Watched"
    facts = [f"{state} for {lasted(summary.duration_s)}", *watch_facts(summary)]
    return [*escape.wrapped(" · ".join(facts), width), *_body_text(summary, width)]


def machine_html(summary: MachineSummary) -> str:
    """Hardware telemetry during the steps of a profile, as static HTML."""
    head = f"<p><strong>Machine</strong> · {escape.html_sentence(' · '.join(watch_facts(summary)))}</p>"
    return "".join([head, _picture(summary), _by_phase(summary), _table(summary), _said(summary)])


def machine_text(summary: MachineSummary, width: int = 100) -> list[str]:
    """Hardware telemetry during the steps of a profile, as lines of at most `width` cells."""
    facts = " · ".join(["Machine", *watch_facts(summary)])
    return [*escape.wrapped(facts, width), *_by_phase_text(summary, width), *_body_text(summary, width)]


def bands_of(summary: MachineSummary) -> list[Band]:
    """The named intervals: the passes of a profile, and the marks."""
    end = float(summary.samples["t_s"].max()) if len(summary.samples) else 0.0
    below = 0
    bands: list[Band] = []
    if summary.steps is not None:
        below = 1
        passes = (summary.steps.passes[name] for name in ("pass", "start_s", "end_s"))
        bands = [(fmt.PASS_WORDS.get(str(a), str(a)), 0, float(b), float(c)) for a, b, c in zip(*passes, strict=True)]
    marks = (summary.marks[name] for name in ("name", "depth", "start_s", "end_s"))
    for name, depth, start, stop in zip(*marks, strict=True):
        bands.append((str(name), int(depth) + below, float(start), end if fmt.known(stop) is None else float(stop)))
    return bands


def watch_figure(summary: MachineSummary) -> Figure:
    """The picture of a watch as a matplotlib figure; empty if nothing was read."""
    if not summary.charts:
        return figure_of(_say_nothing, (6.0, 1.0))
    return figure_of(*_drawing(summary))


def _say_nothing(figure: Figure) -> None:
    figure.text(0.5, 0.5, "No readings.", ha="center", va="center")


def _drawing(summary: MachineSummary) -> tuple[Callable[[Figure], None], tuple[float, float]]:
    bands = bands_of(summary)
    return functools.partial(draw_watch, summary=summary, bands=bands), inches(summary, bands)


def _picture(summary: MachineSummary) -> str:
    if not summary.charts:
        return "<p>No readings.</p>"
    titles = ", ".join(chart.title for chart in summary.charts)
    alt = f"Hardware telemetry over {lasted(summary.duration_s)}: {titles}"
    return f"<p>{picture_html(*_drawing(summary), alt)}</p>"


def _table(summary: MachineSummary) -> str:
    rows = [[escape.html(cell, 60) for cell in row] for row in table_rows(summary)]
    return tables.table("Over the whole watch", ["device", "metric", *TABLE_HEADS], rows, texts=2) if rows else ""


def _marks(summary: MachineSummary) -> str:
    bands = bands_of(summary)
    if not bands:
        return ""
    rows = []
    for name, depth, start, end in bands[-MOST_MARKS:]:
        times = (fmt.clock(start, 1), fmt.clock(end, 1), lasted(max(0.0, end - start)))
        rows.append([f"{'· ' * min(depth, 5)}{tables.name(name)}", *map(escape.html, times)])
    left = len(bands) - len(rows)
    more = f": the last {MOST_MARKS}; {left:,} earlier ones are not listed" if left else ""
    return tables.table(f"Marks{more}", ["name", "from", "to", "lasted"], rows)


def _said(summary: MachineSummary) -> str:
    lines = [*summary.absent, *summary.notes]
    notes = [f"{chart.title}: {chart.note}" for chart in summary.charts if chart.note]
    return "".join(f"<p>{'<br>'.join(map(escape.html_sentence, part))}</p>" for part in (lines, notes) if part)


def _by_phase(summary: MachineSummary) -> str:
    if summary.steps is None or not len(summary.steps.by_phase):
        return ""
    phases, rows = phase_rows(summary, summary.steps)
    if not rows:
        return f"<p>{_NOTHING}</p>"
    heads = ["device", "metric", *(tables.keyed(palette.mark(name)) for name in phases)]
    unknown = f'<em title="{TOO_FEW}">{fmt.UNKNOWN}</em>'
    body = [[escape.html(cell, 60) if cell else unknown for cell in row] for row in rows]
    return tables.table(_by_phase_head(summary), heads, body, texts=2)


def _by_phase_head(summary: MachineSummary) -> str:
    steps = summary.steps
    placed = steps is not None and bool(steps.phases["placed"].any())
    return f"Mean in each phase ({fmt.UNKNOWN}: {TOO_FEW}, {WHOLE_ONLY}{'; ' + _PLACED if placed else ''})"


def _by_phase_text(summary: MachineSummary, width: int) -> list[str]:
    if summary.steps is None or not len(summary.steps.by_phase):
        return []
    phases, rows = phase_rows(summary, summary.steps)
    if not rows:
        return [_NOTHING]
    names = 34
    each = max(1, (width - names) // 15)
    lines = escape.wrapped(_by_phase_head(summary), width)
    for start in range(0, len(phases), each):
        heads = [escape.fit(palette.mark(name).word, 14, ">") for name in phases[start : start + each]]
        shown = [[*row[:2], *(cell or fmt.UNKNOWN for cell in row[2 + start : 2 + start + each])] for row in rows]
        lines += _lined_up(heads, shown, names, [14] * len(heads))
    return lines


def _body_text(summary: MachineSummary, width: int) -> list[str]:
    lines = [*_curves(summary, width), *_table_text(summary, width)]
    lines += escape.bullets([*summary.absent, *summary.notes], width, 600)
    return [line.rstrip() for line in lines] or ["No readings."]


def _curves(summary: MachineSummary, width: int) -> list[str]:
    """The first line of each chart as a row of small bars, ``·`` for no reading, ``_`` for 0."""
    times = summary.samples["t_s"]
    if not len(times):
        return []
    titles, figures = 36, 13
    # Fewer cells than readings, so that none is empty by chance.
    readings = summary.samples.groupby("device", observed=True).size().min()
    cells = max(1, min(width - titles - figures - 2, int(0.8 * readings)))
    edges = np.linspace(float(times.min()), max(float(times.max()), float(times.min()) + 1e-9), cells + 1)
    lines = []
    for chart in summary.charts:
        line = chart.lines[0]
        own = summary.samples[summary.samples["device"] == line.device]
        points = thinned(own, [line.column], summary.interval_s, 4 * cells)
        place = np.clip(np.searchsorted(edges, points.t_s, side="right") - 1, 0, cells - 1)
        tops = np.full(cells, np.nan)
        np.fmax.at(tops, place, points.values[line.column])
        top = float(np.nanmax(tops))
        bar = "".join("·" if np.isnan(one) else bars.heights([one], top) if one > 0 else "_" for one in tops)
        title = f"{chart.title}, {line.word}"
        lines.append(f"{escape.fit(title, titles)} {bar} ≤ {fmt.reading(top, chart.unit)}")
    return lines


def _table_text(summary: MachineSummary, width: int) -> list[str]:
    rows = table_rows(summary)
    return _lined_up(_SHORT_HEADS, rows, width - 4 * 13 - 8, _WIDE) if rows else []


def _lined_up(
    heads: Sequence[str], rows: Sequence[Sequence[str | None]], names: int, widths: Sequence[int]
) -> list[str]:
    """Lines of a table: device and metric in `names` cells, then figures."""
    lines = [" " * names, *(escape.fit(f"{device} {word}", names) for device, word, *_ in rows)]
    figures = [heads, *(row[2:] for row in rows)]
    return [
        line + "".join(f" {text:>{wide}}" for text, wide in zip(texts, widths, strict=True))
        for line, texts in zip(lines, figures, strict=True)
    ]
