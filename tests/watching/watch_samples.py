"""Made-up readings of a machine with known figures, for the tests of the views."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from perfnb.recording.recording import WatchRecord
from perfnb.recording.schema import conform
from perfnb.watching.summary import MachineSummary, StepsWatched, machine_summary
from tests.summaries import HOSTILE

MIB, GIB = 1024**2, 1024**3
Row = tuple[str, float, float | None, dict[str, float | None]]

FACTS: dict[str, dict[str, Any]] = {
    "host": {"cpus": 8, "memory_bytes": 64 * GIB},
    "process": {"pid": 4242, "name": "python"},
    "cgroup": {"version": "v2", "cpu_limit": 4.0, "memory_limit_bytes": 16 * GIB},
    "gpu0": {
        "name": "NVIDIA H100", "uuid": "GPU-8f", "index": 0, "memory_bytes": 80 * GIB, "power_limit_w": 700.0,
        "mig": False,
    },
}  # fmt: skip
ABSENT = {"GPU": "no NVIDIA driver on this machine", "cgroup": "no cgroup limits this process"}
_STILL = ("cpu_percent", "_per_s", "throttled_percent")


def rows_of(
    seconds: float, interval_s: float = 0.5, devices: Sequence[str] = ("process", "host"), start_s: float = 0.0
) -> list[Row]:
    """Return readings as they come from the sampler: training with an epoch's evaluation every 20 s."""
    made: list[Row] = []
    for tick in range(round(seconds / interval_s)):
        t = start_s + tick * interval_s
        for device in devices:
            values: dict[str, float | None] = dict(_reading(device, t))
            if tick == 0 and not start_s:
                values = {name: None if any(end in name for end in _STILL) else value for name, value in values.items()}
            made.append((device, t, None if tick == 0 else interval_s, values))
    return made


def _reading(device: str, t: float) -> dict[str, float]:
    """Return one reading; the same at the same time."""
    noise = np.random.default_rng(round(1000 * t) + sum(map(ord, device))).normal(0, 1, 20)
    busy = 0.0 if t % 20 > 16 else 1.0
    step = 0.5 + 0.5 * np.sin(2 * np.pi * t / 3.7)
    if device == "process":
        return {
            "cpu_percent": max(1.0, 185 * busy + 60 * (1 - busy) + 9 * noise[0]),
            "processes": 3,
            "memory_bytes": (2.1 + 0.9 * min(1, t / 60) + 0.25 * step * busy) * GIB,
            "disk_read_bytes_per_s": max(0.0, (34 + 6 * noise[1]) * MIB * busy),
            "disk_write_bytes_per_s": 180 * MIB * (1 - busy) * (16.5 < t % 20 < 18),
        }
    if device == "host":
        return {
            "cpu_percent": max(4.0, 240 * busy + 110 * (1 - busy) + 14 * noise[2]),
            "load": 2.4 + 0.1 * noise[3],
            "memory_bytes": (9.4 + 0.9 * min(1, t / 60) + 0.3 * step) * GIB,
            "disk_read_bytes_per_s": max(0.0, (36 + 7 * noise[1]) * MIB * busy),
            "disk_write_bytes_per_s": 2 * MIB + 185 * MIB * (1 - busy) * (16.5 < t % 20 < 18),
            "network_receive_bytes_per_s": max(0.0, (1.4 + 0.4 * noise[4]) * MIB),
            "network_send_bytes_per_s": max(0.0, (220 + 60 * noise[5]) * 1024),
        }
    if device == "cgroup":
        return {
            "cpu_percent": max(2.0, 200 * busy + 66 * (1 - busy) + 9 * noise[0]),
            "memory_bytes": (3.0 + 0.9 * min(1, t / 60) + 0.25 * step) * GIB,
            "throttled_percent": max(0.0, 7 * busy + 2 * noise[6]),
        }
    part = 1 - 0.13 * int(device.removeprefix("gpu"))
    return {
        "busy_percent": min(100.0, max(0.0, part * (93 * busy + 3 * noise[7] * busy))),
        "memory_bytes": part * (42 + 9 * step * busy) * GIB,
        "torch_reserved_bytes": part * (40 + 7 * min(1, t / 15)) * GIB,
        "torch_allocated_bytes": part * (21 + 16 * step * busy) * GIB,
        "power_w": part * (110 + 505 * busy + 12 * noise[8]),
        "energy_j": 5e5 + part * 540 * t,
        "temperature_c": 38 + part * 24 * (1 - np.exp(-t / 25)) + round(noise[9] / 2),
        "sm_clock_mhz": 1980 if busy else 1200,
        "memory_clock_mhz": 2619,
        "pcie_receive_bytes_per_s": max(0.0, part * (2.2 + 0.3 * noise[10]) * GIB * busy),
        "pcie_send_bytes_per_s": max(0.0, part * (0.3 + 0.1 * noise[11]) * GIB * busy),
    }


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """Return readings as the tidy frame."""
    found = [{"device": device, "t_s": t, "window_s": window, **values} for device, t, window, values in rows]
    frame = pd.DataFrame(found, columns=["device", "t_s", "window_s"] if not found else None)
    return conform(frame.assign(readings=1, missed_ticks=0), "samples")


def marks_of(*marks: tuple[str, int, float, float | None]) -> pd.DataFrame:
    """Marks: name, depth, start, end."""
    return conform(pd.DataFrame(marks, columns=["name", "depth", "start_s", "end_s"]), "marks")


EPOCHS = (
    ("cell 4", 0, 1.0, 14.5),
    ("cell 5", 0, 16.0, None),
    *((f"epoch {i}", 1, 20.0 * i - 4, 20.0 * i + 15) for i in range(1, 5)),
    *(("evaluation", 2, 20.0 * i + 12, 20.0 * i + 15) for i in range(1, 5)),
)


def summary(
    rows: Sequence[Row],
    marks: Sequence[tuple[str, int, float, float | None]] = (),
    *,
    running: bool = False,
    interval_s: float = 0.5,
    absent: Sequence[str] = (),
    notes: Sequence[str] = (),
    devices: Sequence[str] | None = None,
) -> MachineSummary:
    """Return what is shown of these readings."""
    known = devices if devices is not None else list(dict.fromkeys(row[0] for row in rows))
    ticks = len({row[1] for row in rows})
    meta = {
        "running": running,
        "interval_s": interval_s,
        "devices": {device: FACTS.get(device, {**FACTS["gpu0"], "uuid": device}) for device in known},
        "absent": {name: ABSENT[name] for name in absent},
        "notes": list(notes),
        "ticks": ticks,
        "missed": 1,
        "sampler_cpu_s": 0.002 * ticks * interval_s,
        "sampler_lived_s": ticks * interval_s,
    }
    return machine_summary(WatchRecord(frame_of(rows), marks_of(*marks)), meta)


@functools.cache
def laptop(seconds: float = 120.0, **options: Any) -> MachineSummary:
    """Return a machine without a GPU, with a gap of 6 s and marks."""
    rows = [row for row in rows_of(seconds) if not 40 < row[1] < 46]
    return summary(rows, EPOCHS, absent=["GPU", "cgroup"], devices=["process", "host"], **options)


@functools.cache
def server(seconds: float = 120.0, gpus: int = 1, **options: Any) -> MachineSummary:
    """Return a machine with GPUs, in a container with limits."""
    devices = ("process", "cgroup", "host", *(f"gpu{i}" for i in range(gpus)))
    notes = ["GPU 0: PCIe counters cannot be read at times: not permitted."]
    return summary(rows_of(seconds, devices=devices), EPOCHS, notes=notes, **options)


@functools.cache
def hostile() -> MachineSummary:
    """Names that are anything."""
    marks = [(name, i % 3, float(i), i + 2.0) for i, name in enumerate(HOSTILE)]
    made = summary(rows_of(40.0, devices=("process", "gpu0")), marks, notes=HOSTILE)
    words = {"process": "process", "gpu0": f"GPU 0 ({HOSTILE[0]})"}
    return replace(made, words=words, absent=tuple(HOSTILE))


@functools.cache
def empty() -> MachineSummary:
    """Return a watch that ended before its first reading."""
    return summary([], devices=["host", "process"])


@functools.cache
def unknown() -> MachineSummary:
    """Nearly nothing could be read."""
    rows: list[Row] = [
        ("gpu0", 0.5 * i, 0.5, {"busy_percent": None, "temperature_c": 40.0 if i % 7 == 3 else None}) for i in range(40)
    ]
    return replace(summary(rows), gap_p99_ms=None, cost_percent=None)


@functools.cache
def profiled() -> MachineSummary:
    """Return the steps of a profile on the time of its readings."""
    made = server(40.0, interval_s=0.5)
    passes = [("warmup", 2.0, 6.0, 5), ("timed", 6.2, 30.0, 30), ("traced", 31.0, 35.0, 4), ("counted", 35.5, 38.0, 1)]
    parts = (("data", 0.06), ("host_to_device", 0.03), ("forward", 0.3), ("loss", 0.02), ("backward", 0.47))
    phases = []
    for name, start, end, steps in passes:
        length = (end - start) / steps
        for step in range(steps):
            at = start + step * length
            for phase, share in (*parts, ("optimizer", 0.12)):
                phases.append((phase, at, at + share * length, name != "traced"))
                at += share * length
    rows = []
    for device, metric, mean in (
        ("process", "cpu_percent", 184.2), ("process", "memory_bytes", 2.6 * GIB), ("gpu0", "busy_percent", 91.0),
        ("gpu0", "power_w", 612.0), ("gpu0", "sm_clock_mhz", 1978.0),
    ):  # fmt: skip
        for i, (phase, _) in enumerate((*parts, ("optimizer", 0.12))):
            few = phase in ("host_to_device", "loss") and metric != "memory_bytes"
            rows.append((phase, device, metric, pd.NA if few else mean * (1 - 0.03 * i), 1 if few else 14))
    keys = ["phase", "device", "metric"]
    steps = StepsWatched(
        pd.DataFrame(passes, columns=["pass", "start_s", "end_s", "steps"]),
        pd.DataFrame(phases, columns=["phase", "start_s", "end_s", "placed"]),
        pd.DataFrame(rows, columns=[*keys, "mean", "readings"]).astype({"mean": "Float64"}).set_index(keys),
    )
    return replace(made, steps=steps, marks=marks_of())
