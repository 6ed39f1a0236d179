"""What the views of a watch show: rows of formatted figures, and the payload of the charts in the browser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.recording.schema import METRICS, conform
from perfnb.watching.charts import Chart, charts_of, columns_of
from perfnb.watching.points import thinned

if TYPE_CHECKING:
    from perfnb.watching.summary import MachineSummary, StepsWatched

#: The name of each metric, and its unit for `fmt.reading`.
METRIC_WORDS: dict[str, tuple[str, str]] = {
    "cpu_percent": ("CPU, 100 % is one core", "percent"),
    "throttled_percent": ("CPU throttled", "percent"),
    "load": ("load average, 1 min", ""),
    "processes": ("processes", ""),
    "memory_bytes": ("memory", "bytes"),
    "disk_read_bytes_per_s": ("disk read", "bytes_per_s"),
    "disk_write_bytes_per_s": ("disk written", "bytes_per_s"),
    "network_receive_bytes_per_s": ("network received", "bytes_per_s"),
    "network_send_bytes_per_s": ("network sent", "bytes_per_s"),
    "busy_percent": ("busy (any kernel)", "percent"),
    "torch_allocated_bytes": ("torch allocated", "bytes"),
    "torch_reserved_bytes": ("torch reserved", "bytes"),
    "power_w": ("power", "watts"),
    "energy_j": ("energy", "joules"),
    "temperature_c": ("temperature", "celsius"),
    "sm_clock_mhz": ("SM clock", "megahertz"),
    "memory_clock_mhz": ("memory clock", "megahertz"),
    "pcie_receive_bytes_per_s": ("PCIe to the GPU", "bytes_per_s"),
    "pcie_send_bytes_per_s": ("PCIe from the GPU", "bytes_per_s"),
}
TABLE_HEADS = ("median", "95th percentile", "maximum", "total")
TOO_FEW = "too few readings"
#: Why rates are missing if levels are known.
WHOLE_ONLY = "rates such as CPU need phases longer than the reading interval"


def watch_facts(summary: MachineSummary) -> list[str]:
    """How the machine was watched: how often, what is missing, what it cost."""
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
    """A length of time: ``42.5 s``, ``2:05 min``, ``1:02:03 h``."""
    if 0 < seconds < 0.1:
        return fmt.duration(1e3 * seconds)
    if seconds < 60:
        return f"{fmt.significant(seconds, trim=True)} s"
    return f"{fmt.clock(seconds)} {'min' if seconds < 3599.5 else 'h'}"


def table_rows(summary: MachineSummary) -> list[list[str]]:
    """Device, metric, and the figures of `TABLE_HEADS`; empty if a figure has no meaning."""
    rows = []
    for row in summary.table.reset_index().to_dict("records"):
        device, metric = str(row["device"]), str(row["metric"])
        word, unit = METRIC_WORDS.get(metric, (metric, ""))
        name = escape.plain(summary.words.get(device, device), 60)
        figures = ["" if unit == "joules" else fmt.reading(row[column], unit) for column in ("median", "p95", "max")]
        rows.append([name, word, *figures, _total(row, unit)])
    return rows


def phase_rows(summary: MachineSummary, steps: StepsWatched) -> tuple[list[str], list[list[str | None]]]:
    """The phases, and the mean of each device's metrics in each; ``None`` if too few readings fall into the phase.

    Phases and metrics without any figure are left out.
    """
    if not len(steps.by_phase):
        return [], []
    frame = steps.by_phase if "phase" in steps.by_phase.columns else steps.by_phase.reset_index()
    phases = list(dict.fromkeys(map(str, frame["phase"])))
    rows: list[list[str | None]] = []
    for (device, metric), own in frame.groupby(["device", "metric"], sort=False, observed=True):
        word, unit = METRIC_WORDS.get(str(metric), (str(metric), ""))
        means = dict(zip(map(str, own["phase"]), own["mean"], strict=True))
        shown = [None if fmt.known(means.get(name)) is None else fmt.reading(means[name], unit) for name in phases]
        if unit != "joules" and any(shown):
            rows.append([escape.plain(summary.words.get(str(device), str(device)), 60), word, *shown])
    known = [any(row[2 + place] for row in rows) for place in range(len(phases))]
    kept = [[*row[:2], *(cell for cell, some in zip(row[2:], known, strict=True) if some)] for row in rows]
    return [name for name, some in zip(phases, known, strict=True) if some], kept


def _total(row: Mapping[Any, Any], unit: str) -> str:
    total, uncertainty = row["total"], row["uncertainty"]
    if unit == "joules":
        return fmt.reading(total, unit) + ("" if pd.isna(uncertainty) else f" ± {fmt.reading(uncertainty, unit)}")
    return fmt.reading(total, "bytes") if unit == "bytes_per_s" else ""


#: Limits on the points of a line, and on the numbers in the whole history.
MOST_POINTS, MOST_NUMBERS = 2_000, 22_000
#: Limits on marks, and on stretches of phases.
MOST_MARKS, MOST_STRETCHES = 500, 6_000

#: How many of the newest readings are not thinned.
_LATEST = 240
_DIGITS = 4
#: The unit of a number in the history, by the end of its column's name.
_FACTORS = {"_bytes": 2**20, "_bytes_per_s": 1000}


def watch_data(summary: MachineSummary, view_id: str, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """Everything that a panel shows at first, ready for JSON.

    While the watch runs, `charts` has every possible line; those without a reading are not drawn.

    `view_id` links the live panel to its static twin; `wanted` are the keys of the charts to draw, all by default.
    """
    charts = _possible(summary, wanted) if summary.running else summary.charts
    marks = _marks(summary.marks)
    return {
        "id": view_id,
        "state": "running" if summary.running else "stopped",
        "interval_s": float(summary.interval_s),
        "duration_s": round(float(summary.duration_s), 3),
        "facts": watch_facts(summary),
        "words": {device: escape.plain(word, 60) for device, word in summary.words.items()},
        "charts": [_chart(chart) for chart in charts],
        "history": _history(summary, charts),
        "marks": marks[-MOST_MARKS:],
        "marks_left_out": max(0, len(marks) - MOST_MARKS),
        "absent": [escape.plain(words, 600) for words in summary.absent],
        "notes": [escape.plain(note, 600) for note in summary.notes],
        "table": [] if summary.running else table_rows(summary),
    }


def machine_data(summary: MachineSummary) -> dict[str, Any]:
    """As `watch_data`, with the steps that ran during the watch."""
    steps = summary.steps
    return {**watch_data(summary, "machine"), "steps": None if steps is None else _steps(summary, steps)}


def row_data(device: str, t_s: float, window_s: float | None, values: Mapping[str, float | None]) -> list[Any]:
    """A reading in the panel's format."""
    known = {metric: fmt.short(value) for metric, value in values.items() if metric in METRICS}
    return [device, round(t_s, 3), None if window_s is None else round(window_s, 3), known]


def mark_data(name: str, depth: int, start_s: float, end_s: float | None) -> list[Any]:
    """A mark in the panel's format."""
    end = fmt.known(end_s)
    return [escape.plain(name, 60), int(depth), round(float(start_s), 3), None if end is None else round(end, 3)]


def _possible(summary: MachineSummary, wanted: Sequence[str] | None) -> tuple[Chart, ...]:
    devices = list(summary.facts)
    everything = pd.DataFrame({"t_s": 0.0, "device": devices, **dict.fromkeys(METRICS, 0.0)})
    return charts_of(conform(everything, "samples"), summary.facts, wanted)


def _chart(chart: Chart) -> dict[str, Any]:
    lines = [{**asdict(line), "word": escape.plain(line.word, 60)} for line in chart.lines]
    return {**asdict(chart), "lines": lines}


def _history(summary: MachineSummary, charts: Iterable[Chart]) -> dict[str, Any]:
    columns, samples = columns_of(charts), summary.samples
    drawn = {device: samples[samples["device"] == device] for device in columns}
    lists = sum(1 + sum(bool(own[name].notna().any()) for name in columns[device]) for device, own in drawn.items())
    most = min(MOST_POINTS, MOST_NUMBERS // max(1, lists))
    return {
        device: _device(own, columns[device], summary.interval_s, most) for device, own in drawn.items() if len(own)
    }


def _device(own: pd.DataFrame, columns: Sequence[str], interval_s: float, most: int) -> dict[str, Any]:
    """One device: times as differences in ms, where its lines are broken, and a factor and numbers by column."""
    points = thinned(own, columns, interval_s, most, _LATEST)
    factors = {name: next((by for end, by in _FACTORS.items() if name.endswith(end)), 1) for name in points.values}
    return {
        "t": np.diff(np.rint(1000 * points.t_s).astype("int64"), prepend=0).tolist(),
        "broken": np.flatnonzero(points.broken).tolist(),
        "columns": {
            name: [factors[name], [fmt.short(value / factors[name], _DIGITS) for value in values]]
            for name, values in points.values.items()
        },
        "since": round(float(own["t_s"].iloc[0]), 3),
        "until": round(float(own["t_s"].iloc[-1]), 3),
    }


def _marks(marks: pd.DataFrame) -> list[list[Any]]:
    rows = zip(*(marks[name] for name in ("name", "depth", "start_s", "end_s")), strict=True)
    return [mark_data(str(name), depth, start, end) for name, depth, start, end in rows]


def _steps(summary: MachineSummary, steps: StepsWatched) -> dict[str, Any]:
    measured_first = steps.phases.sort_values(["placed", "start_s"], kind="stable")
    stretches = measured_first.head(MOST_STRETCHES).sort_values("start_s", kind="stable")
    used = list(dict.fromkeys(map(str, stretches["phase"])))
    phases, rows = phase_rows(summary, steps)
    starts = [round(1e6 * float(start)) for start in stretches["start_s"]]
    ends = [round(1e6 * float(end)) for end in stretches["end_s"]]
    return {
        "passes": [
            [fmt.PASS_WORDS.get(str(row[0]), escape.plain(row[0], 60)), float(row[1]), float(row[2]), int(row[3])]
            for row in zip(*(steps.passes[name] for name in ("pass", "start_s", "end_s", "steps")), strict=True)
        ],
        "phases": [_phase(name) for name in used],
        "stretches": {
            "phase": [used.index(str(name)) for name in stretches["phase"]],
            "start": np.diff(np.array(starts, dtype="int64"), prepend=0).tolist(),
            "us": [end - start for start, end in zip(starts, ends, strict=True)],
            "placed": [int(bool(placed)) for placed in stretches["placed"]],
            "left_out": len(steps.phases) - len(stretches),
        },
        "by_phase": {"phases": [_phase(name) for name in phases], "rows": rows},
    }


def _phase(name: str) -> dict[str, str]:
    mark = palette.mark(name)
    return {"word": escape.plain(mark.word, 60), "colour": mark.colour, "pattern": mark.pattern}
