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
from perfnb.watching.charts import Chart, ChartLine, charts_of, columns_of, thinned

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
    "sm_active_percent": ("multiprocessors active", "percent"),
    "tensor_active_percent": ("Tensor Cores active", "percent"),
    "dram_active_percent": ("memory bandwidth in use", "percent"),
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
        names, unit = _named(summary, row["device"], row["metric"])
        figures = ["" if unit == "joules" else fmt.reading(row[column], unit) for column in ("median", "p95", "max")]
        total = ""
        if unit == "joules":
            uncertainty = "" if pd.isna(row["uncertainty"]) else f" ± {fmt.reading(row['uncertainty'], unit)}"
            total = fmt.reading(row["total"], unit) + uncertainty
        elif unit == "bytes_per_s":
            total = fmt.reading(row["total"], "bytes")
        rows.append([*names, *figures, total])
    return rows


def phase_rows(summary: MachineSummary, steps: StepsWatched) -> tuple[list[str], list[list[str | None]]]:
    """The phases, and the mean of each device's metrics in each; ``None`` if too few readings fall into the phase.

    Phases and metrics without any figure are left out.
    """
    means = steps.by_phase["mean"]
    means = means[np.isfinite(means.to_numpy(float, na_value=np.nan))]
    seen = set(means.index.get_level_values("phase"))
    phases = [name for name in steps.by_phase.index.unique("phase") if name in seen]
    rows: list[list[str | None]] = []
    for (device, metric), own in means.groupby(["device", "metric"], sort=False):
        names, unit = _named(summary, device, metric)
        known = own.droplevel(["device", "metric"])
        rows.append([*names, *(fmt.reading(known[name], unit) if name in known else None for name in phases)])
    return phases, rows


def _named(summary: MachineSummary, device: object, metric: object) -> tuple[list[str], str]:
    """The names of a device and a metric, and its unit."""
    word, unit = METRIC_WORDS.get(str(metric), (str(metric), ""))
    return [escape.plain(summary.words.get(str(device), str(device)), 60), word], unit


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
    marks = [mark_data(*row) for row in summary.marks[["name", "depth", "start_s", "end_s"]].itertuples(index=False)]
    return {
        "id": view_id,
        "state": "running" if summary.running else "stopped",
        "interval_s": float(summary.interval_s),
        "duration_s": round(float(summary.duration_s), 3),
        "facts": watch_facts(summary),
        "words": {device: escape.plain(word, 60) for device, word in summary.words.items()},
        "charts": [asdict(chart) | {"lines": [_line(line) for line in chart.lines]} for chart in charts],
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


def _line(line: ChartLine) -> dict[str, str]:
    return asdict(line) | {"word": escape.plain(line.word, 60)}


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


def _steps(summary: MachineSummary, steps: StepsWatched) -> dict[str, Any]:
    measured_first = steps.phases.sort_values(["placed", "start_s"], kind="stable")
    stretches = measured_first.head(MOST_STRETCHES).sort_values("start_s", kind="stable")
    places, used = pd.factorize(stretches["phase"])
    phases, rows = phase_rows(summary, steps)
    starts, ends = (np.rint(1e6 * stretches[name].to_numpy(float)).astype("int64") for name in ("start_s", "end_s"))
    return {
        "passes": [
            [fmt.PASS_WORDS.get(str(name), escape.plain(name, 60)), float(start), float(end), int(count)]
            for name, start, end, count in steps.passes.itertuples(index=False)
        ],
        "phases": [_phase(name) for name in used],
        "stretches": {
            "phase": places.tolist(),
            "start": np.diff(starts, prepend=0).tolist(),
            "us": (ends - starts).tolist(),
            "placed": stretches["placed"].astype(int).tolist(),
            "left_out": len(steps.phases) - len(stretches),
        },
        "by_phase": {"phases": [_phase(name) for name in phases], "rows": rows},
    }


def _phase(name: str) -> dict[str, str]:
    mark = palette.mark(name)
    return {"word": escape.plain(mark.word, 60), "colour": mark.colour, "pattern": mark.pattern}
