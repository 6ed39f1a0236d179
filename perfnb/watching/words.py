"""What a watch says in words: its headline and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape

if TYPE_CHECKING:
    from perfnb.watching.machine import MachineSummary, StepsWatched

#: What each metric is called, and its unit as `fmt.reading` knows it.
METRIC_WORDS: dict[str, tuple[str, str]] = {
    "cpu_percent": ("CPU, 100 % is one core", "percent"),
    "throttled_percent": ("CPU held by the limit", "percent"),
    "load": ("load, 1 min mean", ""),
    "processes": ("processes", ""),
    "memory_bytes": ("memory", "bytes"),
    "disk_read_bytes_per_s": ("disk read", "bytes_per_s"),
    "disk_write_bytes_per_s": ("disk written", "bytes_per_s"),
    "network_receive_bytes_per_s": ("network received", "bytes_per_s"),
    "network_send_bytes_per_s": ("network sent", "bytes_per_s"),
    "busy_percent": ("a kernel was running", "percent"),
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
#: Why rates are missing where levels are known.
WHOLE_ONLY = "rates such as CPU need phases longer than the time between readings"


def watch_facts(summary: MachineSummary) -> list[str]:
    """How it was watched: how often, what is missing, what that cost."""
    facts = [f"every {fmt.significant(summary.interval_s, trim=True)} s"]
    if summary.running:
        return facts
    readings = "1 reading" if summary.ticks == 1 else f"{summary.ticks:,} readings"
    facts.append(f"{readings}, {summary.missed:,} missed")
    if summary.gap_p99_ms is not None:
        facts.append(f"99 % of them at most {fmt.duration(summary.gap_p99_ms)} after the one before")
    if summary.cost_percent is not None:
        facts.append(f"the sampler took {fmt.share(summary.cost_percent / 100)} of one core")
    return facts


def lasted(seconds: float) -> str:
    """How long, in words: ``42.5 s``, ``2:05 min``, ``1:02:03 h``."""
    if 0 < seconds < 0.1:
        return fmt.duration(1e3 * seconds)
    if seconds < 60:
        return f"{fmt.significant(seconds, trim=True)} s"
    return f"{fmt.clock(seconds)} {'min' if seconds < 3599.5 else 'h'}"


def table_rows(summary: MachineSummary) -> list[list[str]]:
    """Device, metric, and its figures as `TABLE_HEADS` has them; empty where a figure has no meaning."""
    rows = []
    for row in summary.table.reset_index().to_dict("records"):
        device, metric = str(row["device"]), str(row["metric"])
        word, unit = METRIC_WORDS.get(metric, (metric, ""))
        name = escape.plain(summary.words.get(device, device), 60)
        figures = ["" if unit == "joules" else fmt.reading(row[column], unit) for column in ("median", "p95", "max")]
        rows.append([name, word, *figures, _total(row, unit)])
    return rows


def phase_rows(summary: MachineSummary, steps: StepsWatched) -> tuple[list[str], list[list[str | None]]]:
    """The phases, and by device and metric its mean in each; ``None`` where too few readings fall into the phase.

    Phases and metrics of which nothing is known are left out.
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
