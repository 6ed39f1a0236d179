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


@dataclass(frozen=True)
class _Kind:
    title: str
    columns: tuple[str, ...]
    on: tuple[str, ...] = ("gpu",)  # kinds of devices: "gpu" means all GPUs
    note: str = ""
    #: The facts about the devices and about the cgroup that contain the ceiling, and its name.
    limit: tuple[str, str, str] | None = None


_ON_HOST = ("process", "cgroup", "host")
_KINDS: Mapping[str, _Kind] = {
    "cpu": _Kind(
        "CPU",
        ("cpu_percent",),
        _ON_HOST,
        "100 % is one core; the process includes its child processes",
        ("cpus", "cpu_limit", "all cores"),
    ),
    "throttled": _Kind(
        "CPU throttled by the cgroup",
        ("throttled_percent",),
        ("cgroup",),
        "share of time during which the cgroup's CPU limit paused it",
    ),
    "memory": _Kind("Memory", ("memory_bytes",), _ON_HOST, limit=("memory_bytes", "memory_limit_bytes", "installed")),
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
        limit=("memory_bytes", "", "installed"),
    ),
    "power": _Kind(
        "Power", ("power_w",), note="the mean over 1 s on recent GPUs", limit=("power_limit_w", "", "limit")
    ),
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
    for device in without_limits(devices):
        found.pop(device, None)
    charts = [_chart(key, kind, found, devices) for key, kind in _KINDS.items() if wanted is None or key in wanted]
    return tuple(chart for chart in charts if chart.lines)


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
            if column in found.get(device, ()):
                words = [METRIC_WORDS[column]] * (len(kind.columns) > 1)
                lines.append(ChartLine(device, column, " ".join([*names, *words])))
    ceiling, word = _ceiling(kind, members, devices)
    return Chart(key, kind.title, unit_of(kind.columns[0]), tuple(lines), kind.note, ceiling, word)


def _ceiling(kind: _Kind, members: Sequence[str], devices: Mapping[str, Mapping[str, Any]]) -> tuple[float | None, str]:
    """Return the upper bound of the lines, and its name.

    This is the cgroup's limit if there is one, and otherwise the installed amount. If the GPUs have different amounts,
    there is no upper bound.
    """
    if kind.limit is None:
        return None, ""
    fact, fact_of_cgroup, word = kind.limit
    amounts = {devices[device].get(fact) for device in members} - {None}
    found = [(amounts.pop(), word)] if len(amounts) == 1 else []
    if limit := devices.get("cgroup", {}).get(fact_of_cgroup):
        found.append((limit, "cgroup limit"))
    most, word = min(found, default=(None, ""))
    return most if most is None or fact != "cpus" else 100.0 * most, word


Floats = NDArray[np.float64]


def on_grid(
    samples: pd.DataFrame, charts: Iterable[Chart], interval_s: float, most: int
) -> tuple[Floats, dict[tuple[str, str], Floats]]:
    """Resample readings on a common grid, so that the lines in a chart have the same positions.

    Return at most `most` points in time, and for each device and column the mean of the readings around each point,
    weighted by the time that they cover. The mean is `nan` if there were no readings.
    """
    first, last = float(samples["t_s"].min()), float(samples["t_s"].max())
    step = max(interval_s, (last - first) / max(1, most - 1))
    count = round((last - first) / step) + 1
    lines = [(line.device, line.column) for chart in charts for line in chart.lines]
    values = dict[tuple[str, str], Floats]()
    for device, own in samples.groupby("device", observed=True):
        group = np.rint((own["t_s"].to_numpy(float) - first) / step).astype(int)
        window = own["window_s"].to_numpy(float, na_value=np.nan)
        weights = np.where(window > 0, window, own["readings"].to_numpy(float, na_value=1.0) * interval_s)
        for column in [name for of, name in lines if of == device]:
            known = own[column].notna().to_numpy()
            total = np.bincount(group[known], weights[known] * own[column][known].to_numpy(float), count)
            weight = np.bincount(group[known], weights[known], count)
            values[str(device), column] = np.divide(total, weight, out=np.full(count, np.nan), where=weight > 0)
    return first + step * np.arange(count, dtype=np.float64), values
