"""Define the charts that show a watch, the lines in each chart, and the points on each line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfnb.telemetry.metrics import METRIC_WORDS, unit_of


@dataclass(frozen=True)
class ChartLine:
    """A line in a chart. It shows one metric of one device."""

    device: str
    column: str
    word: str  # the label in the chart


@dataclass(frozen=True)
class Chart:
    """A chart, which consists of lines that share an axis."""

    key: str  # the word that selects the chart in an option
    title: str
    unit: str  # in the notation of `fmt.reading`
    lines: tuple[ChartLine, ...]
    note: str = ""  # a caveat
    ceiling: float | None = None  # the amount that is available on the machine
    ceiling_word: str = ""

    def near_ceiling(self, most: float) -> bool:
        """Check whether readings of up to `most` are close enough to the ceiling for the axis to include it."""
        return self.ceiling is not None and most >= 0.6 * self.ceiling


@dataclass(frozen=True)
class _Kind:
    title: str
    columns: tuple[str, ...]
    on: tuple[str, ...] = ("gpu",)  # kinds of devices: "gpu" means all GPUs
    note: str = ""
    limit: str = ""  # the fact about the devices that contains the ceiling


_KINDS: Mapping[str, _Kind] = {
    "cpu": _Kind(
        "CPU",
        ("cpu_percent",),
        ("process", "cgroup", "host"),
        "100 % is one core; the process includes its child processes",
        "cpus",
    ),
    "throttled": _Kind(
        "CPU throttled by the cgroup",
        ("throttled_percent",),
        ("cgroup",),
        "share of time during which the cgroup's CPU limit paused it",
    ),
    "memory": _Kind("Memory", ("memory_bytes",), ("process", "cgroup", "host"), limit="memory_bytes"),
    "gpu": _Kind(
        "GPU busy (any kernel)",
        ("busy_percent",),
        note="share of the last 1/6 to 1 s during which any kernel ran; does not show how much of the GPU was used",
    ),
    "counters": _Kind(
        "GPU hardware counters",
        ("sm_active_percent", "tensor_active_percent", "dram_active_percent"),
        note="measured shares of the chip's maximum; available since Hopper",
    ),
    "gpu-memory": _Kind(
        "GPU memory",
        ("memory_bytes", "torch_reserved_bytes", "torch_allocated_bytes"),
        note="used by all processes; the lines for torch show this process's allocator",
        limit="memory_bytes",
    ),
    "power": _Kind("Power", ("power_w",), note="the mean over 1 s on recent GPUs", limit="power_limit_w"),
    "temperature": _Kind("Temperature", ("temperature_c",)),
    "clocks": _Kind("Clocks", ("sm_clock_mhz", "memory_clock_mhz")),
    "pcie": _Kind("PCIe", ("pcie_receive_bytes_per_s", "pcie_send_bytes_per_s")),
    "disk": _Kind("Disk", ("disk_read_bytes_per_s", "disk_write_bytes_per_s"), ("process", "host")),
    "network": _Kind(
        "Network",
        ("network_receive_bytes_per_s", "network_send_bytes_per_s"),
        ("host",),
        "for the whole host; the traffic of a single process is unknown",
    ),
}

#: The words that select charts in options.
CHARTS = tuple(_KINDS)

_CEILINGS = {"cpus": "all cores", "memory_bytes": "installed", "power_limit_w": "limit"}


def device_word(device: str, facts: Mapping[str, Any]) -> str:
    """Return the name of a device for display, such as ``GPU 0 (NVIDIA H100)``."""
    if not device.startswith("gpu"):
        return device
    name = facts.get("name")
    return f"GPU {device.removeprefix('gpu')}" + (f" ({name})" if name else "")


def charts_of(
    samples: pd.DataFrame, devices: Mapping[str, Mapping[str, Any]], wanted: Sequence[str] | None = None
) -> tuple[Chart, ...]:
    """Return the charts that have data to draw.

    `wanted` contains the keys of the charts to consider, which are all charts by default. `devices` contains the facts
    about each device.
    """
    found = {
        str(device): set(own.columns[own.notna().any()]) for device, own in samples.groupby("device", observed=True)
    }
    charts = [_chart(key, kind, found, devices) for key, kind in _KINDS.items() if wanted is None or key in wanted]
    return tuple(chart for chart in charts if chart.lines)


def columns_of(charts: Iterable[Chart]) -> dict[str, list[str]]:
    """Return the columns that are drawn in the charts, by device."""
    columns: dict[str, list[str]] = {}
    for line in (line for chart in charts for line in chart.lines):
        if line.column not in columns.setdefault(line.device, []):
            columns[line.device].append(line.column)
    return columns


def without_limits(devices: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the cgroup if it does not limit anything. Its figures would only repeat those of other devices."""
    limits = ("cpu_limit", "memory_limit_bytes")
    return [name for name, facts in devices.items() if name == "cgroup" and not any(map(facts.get, limits))]


def _chart(key: str, kind: _Kind, found: Mapping[str, set[str]], devices: Mapping[str, Mapping[str, Any]]) -> Chart:
    members = [device for group in kind.on for device in devices if device.rstrip("0123456789") == group]
    lines = []
    for device in members:
        names = [device_word(device, {})] * (len(kind.columns) == 1 or len(members) > 1)
        for column in kind.columns:
            if column in found.get(device, ()) and not _idle_cgroup(device, column, devices[device]):
                words = [METRIC_WORDS[column]] * (len(kind.columns) > 1)
                lines.append(ChartLine(device, column, " ".join([*names, *words])))
    ceiling, word = _ceiling(kind, members, devices)
    return Chart(key, kind.title, unit_of(kind.columns[0]), tuple(lines), kind.note, ceiling, word)


def _idle_cgroup(device: str, column: str, facts: Mapping[str, Any]) -> bool:
    """Check whether a column belongs to a cgroup that does not limit it, so that its line would only repeat another."""
    limit = "memory_limit_bytes" if column == "memory_bytes" else "cpu_limit"
    return device == "cgroup" and facts.get(limit) is None


def _ceiling(kind: _Kind, members: Sequence[str], devices: Mapping[str, Mapping[str, Any]]) -> tuple[float | None, str]:
    """Return the upper bound of the lines, and its name.

    This is the cgroup's limit if there is one, and otherwise the installed amount. If the GPUs have different amounts,
    there is no upper bound.
    """
    if not kind.limit:
        return None, ""
    cgroup = devices.get("cgroup", {}) if "cgroup" in kind.on else {}
    factor = 100.0 if kind.limit == "cpus" else 1.0
    limit = cgroup.get("cpu_limit" if kind.limit == "cpus" else "memory_limit_bytes")
    values = {devices[device].get(kind.limit) for device in members} - {None}
    most = values.pop() if len(values) == 1 else None
    if limit is not None and (most is None or limit < most):
        return factor * limit, "cgroup limit"
    return (None, "") if most is None else (factor * most, _CEILINGS[kind.limit])


Floats = NDArray[np.float64]


def on_grid(
    samples: pd.DataFrame, charts: Iterable[Chart], interval_s: float, most: int
) -> tuple[Floats, dict[tuple[str, str], Floats]]:
    """Resample readings on a common grid, so that the lines in a chart have the same positions.

    Return at most `most` points in time, and for each device and column the mean of the readings around each point. The
    mean is `nan` if there were no readings.
    """
    first, last = float(samples["t_s"].min()), float(samples["t_s"].max())
    step = max(interval_s, (last - first) / max(1, most - 1))
    count = round((last - first) / step) + 1
    values = dict[tuple[str, str], Floats]()
    for device, columns in columns_of(charts).items():
        own = samples[samples["device"] == device]
        group = np.rint((own["t_s"].to_numpy(float) - first) / step).astype(int)
        readings = own["readings"].to_numpy(float, na_value=1.0)
        window = own["window_s"].to_numpy(float, na_value=np.nan)
        window = np.where(window > 0, window, readings * interval_s)
        for name in columns:
            weights = window if name.endswith("_per_s") else readings
            values[device, name] = _means(own[name].to_numpy(float, na_value=np.nan), weights, group, count)
    return first + step * np.arange(count, dtype=np.float64), values


def _means(values: Floats, weights: Floats, group: NDArray[np.int_], count: int) -> Floats:
    known = np.isfinite(values)
    weight = np.bincount(group[known], weights[known], count)
    total = np.bincount(group[known], (values * weights)[known], count)
    means: Floats = np.divide(total, weight, out=np.full(count, np.nan), where=weight > 0)
    return means
