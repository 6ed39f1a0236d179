"""Prepare the data for the live charts of a watch as JSON, and choose the marks for their lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.draw.palette import Mark
from perfnb.recording.schema import METRICS, conform
from perfnb.watching.charts import Chart, ChartLine, charts_of, on_grid

if TYPE_CHECKING:
    from perfnb.watching.summary import MachineSummary, StepsWatched

#: A named interval: its name, depth, start and end in seconds, and a note.
Band = tuple[str, int, float, float | None, str]
#: The positions of the devices' marks, so that a device has the same mark in every chart. The position of a GPU's mark
#: is the GPU's number.
_PLACES = {"process": 0, "host": 1, "cgroup": 2}


def line_mark(chart: Chart, line: ChartLine) -> Mark:
    """Return the mark for a line in a chart.

    If each device has a single line, or if there are too many lines for each to have its own mark, this is the device's
    mark.
    """
    if len({line.column for line in chart.lines}) > 1 and len(chart.lines) <= palette.LINES:
        return palette.line(chart.lines.index(line), line.word)
    number = line.device.removeprefix("gpu")
    return palette.line(int(number) if number.isdecimal() else _PLACES.get(line.device, 0), line.word)


def bands_of(summary: MachineSummary) -> list[Band]:
    """Return the named intervals: a profile's passes, and the marks below them."""
    steps = summary.steps
    passes = () if steps is None else steps.passes.itertuples(index=False)
    bands: list[Band] = [
        (fmt.PASS_WORDS.get(str(name), str(name)), 0, float(start), float(end), fmt.counted(count, "step"))
        for name, start, end, count in passes
    ]
    marks = summary.marks[["name", "depth", "start_s", "end_s"]].itertuples(index=False)
    below = steps is not None
    return [*bands, *((str(a), int(b) + below, float(c), fmt.known(d), "") for a, b, c, d in marks)]


def watch_facts(summary: MachineSummary) -> list[str]:
    """Return sentences about the recording: the intervals, missing readings, and the sampler's CPU time."""
    facts = [f"every {fmt.significant(summary.interval_s, trim=True)} s"]
    if summary.running:
        return facts
    readings = "1 reading" if summary.ticks == 1 else f"{summary.ticks:,} readings"
    facts.append(f"{readings}, {summary.missed:,} missed")
    if summary.gap_p99_ms is not None:
        facts.append(f"99 % within {fmt.duration(summary.gap_p99_ms)} of the previous one")
    if summary.cost_percent is not None:
        facts.append(f"the sampler used {fmt.share(summary.cost_percent / 100)} of one core")
    return facts


def lasted(seconds: float) -> str:
    """Format a duration, such as ``42.5 s``, ``2:05 min`` or ``1:02:03 h``."""
    if 0 < seconds < 0.1:
        return fmt.duration(1e3 * seconds)
    if seconds < 60:
        return f"{fmt.significant(seconds, trim=True)} s"
    return f"{fmt.clock(seconds)} {'min' if seconds < 3599.5 else 'h'}"


#: The maximum numbers of points on a line, and of numbers in the whole history.
MOST_POINTS, MOST_NUMBERS = 2_000, 22_000
#: The maximum numbers of marks and of phase intervals.
MOST_MARKS, MOST_STRETCHES = 500, 6_000

_DIGITS = 4
#: The unit of the numbers in the history, by the suffix of the column's name.
_FACTORS = {"_bytes": 2**20, "_bytes_per_s": 1000}


def panel_data(summary: MachineSummary, view_id: str, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the initial data for the panel of a running watch.

    The data includes every line that may get readings later. Lines without readings are not drawn.

    Parameters
    ----------
    summary : MachineSummary
    view_id : str
        The id that links the panel to its static version.
    wanted : sequence of str, optional
        The keys of the charts to draw. By default, all charts are drawn.
    """
    return {
        **_charts_data(summary, _possible(summary, wanted)),
        "id": view_id,
        "running": True,
        "facts": watch_facts(summary),
        "notes": [escape.plain(note, 600) for note in (*summary.absent, *summary.notes)],
    }


def history_data(summary: MachineSummary) -> dict[str, Any]:
    """Return the data for the picture of a watch that has ended, including the steps that ran during the watch."""
    steps = summary.steps
    return {**_charts_data(summary, summary.charts), "steps": None if steps is None else _steps(steps)}


def _charts_data(summary: MachineSummary, charts: Sequence[Chart]) -> dict[str, Any]:
    return {
        "interval_s": float(summary.interval_s),
        "words": {device: escape.plain(word, 60) for device, word in summary.words.items()},
        "charts": [asdict(chart) | {"lines": [_line(chart, line) for line in chart.lines]} for chart in charts],
        "history": _history(summary, charts),
        "marks": [band_data(*band) for band in bands_of(summary)[-MOST_MARKS:]],
    }


def row_data(device: str, t_s: float, window_s: float | None, values: Mapping[str, float | None]) -> list[Any]:
    """Return a reading in the panel's format."""
    known = {metric: fmt.short(value) for metric, value in values.items() if metric in METRICS}
    return [device, round(t_s, 3), None if window_s is None else round(window_s, 3), known]


def band_data(name: str, depth: int, start_s: float, end_s: float | None, more: str = "") -> list[Any]:
    """Return a mark in the panel's format."""
    end = fmt.known(end_s)
    return [escape.plain(name, 60), int(depth), round(float(start_s), 3), None if end is None else round(end, 3), more]


def _possible(summary: MachineSummary, wanted: Sequence[str] | None) -> tuple[Chart, ...]:
    devices = list(summary.facts)
    everything = pd.DataFrame({"t_s": 0.0, "device": devices, **dict.fromkeys(METRICS, 0.0)})
    return charts_of(conform(everything, "samples"), summary.facts, wanted)


def _line(chart: Chart, line: ChartLine) -> dict[str, str]:
    return asdict(line) | {"word": escape.plain(line.word, 60), "colour": line_mark(chart, line).colour}


def _history(summary: MachineSummary, charts: Sequence[Chart]) -> dict[str, Any]:
    """Return the readings on a common grid.

    The result contains the grid's first point in time and its step, and a factor and numbers by device and column.
    """
    samples, devices = summary.samples, dict[str, dict[str, Any]]()
    if samples.empty:
        return {"first": 0.0, "step": summary.interval_s, "devices": devices}
    lines = sum(len(chart.lines) for chart in summary.charts)
    times, values = on_grid(samples, charts, summary.interval_s, min(MOST_POINTS, MOST_NUMBERS // max(1, lines)))
    for (device, name), means in values.items():
        if np.isfinite(means).any():
            factor = next((by for end, by in _FACTORS.items() if name.endswith(end)), 1)
            numbers = [fmt.short(value / factor, _DIGITS) for value in means]
            devices.setdefault(device, {})[name] = [factor, numbers]
    return {
        "first": round(float(times[0]), 3),
        "step": float(times[1] - times[0]) if len(times) > 1 else float(summary.interval_s),
        "devices": devices,
    }


def _steps(steps: StepsWatched) -> dict[str, Any]:
    measured_first = steps.phases.sort_values(["placed", "start_s"], kind="stable")
    stretches = measured_first.head(MOST_STRETCHES).sort_values("start_s", kind="stable")
    places, used = pd.factorize(stretches["phase"])
    starts, ends = (np.rint(1e6 * stretches[name].to_numpy(float)).astype("int64") for name in ("start_s", "end_s"))
    marks = map(palette.mark, used)
    return {
        "phases": [mark.data | {"word": escape.plain(mark.word, 60)} for mark in marks],
        "phase": places.tolist(),
        "start": np.diff(starts, prepend=0).tolist(),
        "us": (ends - starts).tolist(),
        "placed": stretches["placed"].astype(int).tolist(),
    }
