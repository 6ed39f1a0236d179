"""Compute the facts about a watch that all of its views display."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from perfnb.arguments import shown
from perfnb.recording.recording import WatchRecord
from perfnb.recording.schema import METRICS
from perfnb.watching.charts import Chart, charts_of, device_word, without_limits

#: The driver updates a GPU's energy counter every 20 to 100 ms, so the difference between two readings may be off by
#: the energy used during that time at either end. This is too inaccurate over less than `LEAST_ENERGY_S`.
ENERGY_RENEWED_S, LEAST_ENERGY_S = 0.1, 1.0

#: A rate has a total if it was known for at least this share of the time. For example, PCIe traffic may be read rarely.
KNOWN_ENOUGH = 0.95

_TABLE = ("median", "p95", "max", "total", "uncertainty", "readings")


@dataclass(frozen=True)
class StepsWatched:
    """The steps of a profile on the clock of its samples, with times in seconds."""

    passes: pd.DataFrame  # one row per pass: `pass`, `start_s`, `end_s`, `steps`
    #: One row per interval of a phase: `phase`, `start_s`, `end_s`, `placed` (whether it was estimated and not traced).
    phases: pd.DataFrame
    #: By `phase`, `device` and `metric`: `mean` (missing if there are too few readings in the phase) and `readings`.
    by_phase: pd.DataFrame


@dataclass(frozen=True)
class MachineSummary:
    """The facts about a watch. The views only format and draw them."""

    running: bool  # whether the sampler is still reading
    interval_s: float  # the requested time between readings
    duration_s: float  # from the first reading to the last
    ticks: int  # the number of readings
    missed: int  # the number of readings that were skipped because the previous one took too long
    gap_p99_ms: float | None  # 99th percentile of the time between readings
    cost_percent: float | None  # the sampler's CPU time, in percent of one core
    words: Mapping[str, str]  # the name of each device, such as "GPU 0 (NVIDIA H100)"
    charts: tuple[Chart, ...]  # the charts to draw, in order
    samples: pd.DataFrame  # in the format described in `perfnb.recording.schema`, like the marks
    marks: pd.DataFrame
    #: By `device` and `metric`: `median`, `p95`, `max`, `total` (for rates in bytes and for energy), `uncertainty` (of
    #: the total, if it is known) and `readings`. Unknown figures are missing, and a cgroup without limits is left out.
    table: pd.DataFrame
    absent: tuple[str, ...] = ()  # the sources that are missing on this machine, and the reasons
    notes: tuple[str, ...] = ()  # caveats
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # facts about each device that do not change
    steps: StepsWatched | None = None  # the steps that ran during the watch, if it was part of a profile


def machine_summary(
    record: WatchRecord, meta: Mapping[str, Any], wanted: Sequence[str] | None = None
) -> MachineSummary:
    """Compute the facts about a watch.

    `meta` comes from `perfnb.telemetry.watcher.Watcher`, and `wanted` contains the keys of the charts to draw.
    """
    samples, devices = record.samples, meta["devices"]
    times = samples["t_s"].to_numpy(float)
    cpu_s, lived_s = meta.get("sampler_cpu_s"), meta.get("sampler_lived_s")
    return MachineSummary(
        running=bool(meta.get("running", False)),
        interval_s=float(meta["interval_s"]),
        duration_s=float(np.ptp(times)) if len(times) else 0.0,
        ticks=int(meta["ticks"]),
        missed=int(meta["missed"]),
        gap_p99_ms=_gap_p99_ms(samples),
        cost_percent=100 * cpu_s / lived_s if cpu_s is not None and lived_s else None,
        words={device: device_word(device, facts) for device, facts in devices.items()},
        charts=charts_of(samples, devices, wanted),
        samples=samples,
        marks=record.marks,
        table=machine_table(samples[~samples["device"].isin(without_limits(devices))], meta.get("exact")),
        absent=tuple(meta.get("absent", {}).values()),
        notes=(*meta.get("notes", ()), *_caveats(samples, devices, int(meta.get("unsent", 0)))),
        facts=devices,
    )


def machine_table(samples: pd.DataFrame, exact: Mapping[str, Mapping[str, Any]] | None = None) -> pd.DataFrame:
    """Return the median, 95th percentile and maximum of each device's metrics, and the totals of rates and energy.

    If a row of `samples` represents several readings, it counts that many times. A rate has a total if it was known
    nearly all of the time. `exact` comes from `perfnb.telemetry.history.History`. It is needed because old rows contain
    means, from which the maxima cannot be computed.
    """
    rows: list[dict[str, Any]] = []
    for device, own in samples.groupby("device", observed=True, sort=False):
        whole_s = float(own["window_s"].sum())
        for metric in METRICS:
            known = own[own[metric].notna()]
            if len(known):
                figures = None if exact is None else exact.get(str(device), {}).get(metric)
                row = _row(known, metric, whole_s, figures)
                rows.append({"device": str(device), "metric": metric, **row})
    frame = pd.DataFrame(rows, columns=["device", "metric", *_TABLE]).set_index(["device", "metric"])
    return frame.astype(dict.fromkeys(_TABLE[:-1], "Float64") | {"readings": "Int64"})


def inside_mark(record: WatchRecord, name: str) -> pd.DataFrame:
    """Return the samples inside all marks with a given name.

    Raises
    ------
    ValueError
        If there is no such mark, or if there are no readings inside it.
    """
    samples, marks = record.samples, record.marks
    named = marks[marks["name"] == name]
    if named.empty:
        near = difflib.get_close_matches(name, sorted(set(marks["name"])), n=3, cutoff=0.3)
        hint = f": did you mean {' or '.join(map(repr, near))}?" if near else "; see `marks` for all of them."
        raise ValueError(f"there is no mark {shown(name)}{hint}")
    inside = pd.Series(False, index=samples.index)
    for start, end in zip(named["start_s"], named["end_s"].fillna(float("inf")), strict=True):
        inside |= samples["t_s"].between(float(start), float(end))
    if not inside.any():
        raise ValueError(f"the mark {shown(name)} contains no readings, because it is shorter than the interval.")
    return samples[inside]


def _row(known: pd.DataFrame, metric: str, whole_s: float, exact: Mapping[str, Any] | None) -> dict[str, Any]:
    values = known[metric].to_numpy(float)
    weights = known["readings"].to_numpy(float)
    windows = known["window_s"].to_numpy(float, na_value=0.0)
    if exact is None:
        exact = {
            "max": values.max(),
            "integral": (values * windows).sum(),
            "known_s": windows.sum(),
            "readings": weights.sum(),
        }
    readings = int(exact["readings"])
    if metric == "energy_j":
        return {**_energy(known), "readings": readings}
    quantiles = {name: weighted_quantile(values, weights, q) for name, q in (("median", 0.5), ("p95", 0.95))}
    row: dict[str, Any] = {**quantiles, "max": float(exact["max"]), "readings": readings}
    if metric.endswith("_bytes_per_s") and exact["known_s"] >= KNOWN_ENOUGH * whole_s:
        row["total"] = float(exact["integral"])
    return row


def _energy(known: pd.DataFrame) -> dict[str, Any]:
    """Return the energy in joules between the first and the last reading.

    The result is empty if the readings are less than a second apart, or if the counter was reset.
    """
    joules, times = known["energy_j"].to_numpy(float), known["t_s"].to_numpy(float)
    if times[-1] - times[0] < LEAST_ENERGY_S or (np.diff(joules) < 0).any():
        return {}
    total = float(joules[-1] - joules[0])
    ends = known["power_w"].to_numpy(float, na_value=np.nan)[[0, -1]]
    at_ends = np.where(np.isnan(ends), total / (times[-1] - times[0]), ends)
    return {"total": total, "uncertainty": float(ENERGY_RENEWED_S * at_ends.sum())}


def weighted_quantile(values: np.ndarray, weights: np.ndarray, q: float) -> float:
    """Return a weighted quantile, or the midpoint if the quantile lies between two values.

    With equal weights, this is the same as numpy's ``averaged_inverted_cdf`` (Hyndman and Fan's second definition).
    """
    order = np.argsort(values, kind="stable")
    ordered, reached = values[order], np.cumsum(weights[order])
    goal = q * reached[-1]
    place = int(np.searchsorted(reached, goal * (1 - 1e-12)))
    if place + 1 < len(ordered) and np.isclose(reached[place], goal, rtol=1e-9):
        return float((ordered[place] + ordered[place + 1]) / 2)
    return float(ordered[place])


def _gap_p99_ms(samples: pd.DataFrame) -> float | None:
    """Return the 99th percentile of the time between consecutive readings, excluding joined readings."""
    if samples.empty:
        return None
    own = samples[samples["device"] == samples["device"].iloc[0]]
    single = (own["readings"] == 1).to_numpy(bool, na_value=False)
    gaps = np.diff(own["t_s"].to_numpy(float))[single[1:] & single[:-1]]
    return float(1e3 * np.percentile(gaps, 99)) if len(gaps) else None


def _caveats(samples: pd.DataFrame, devices: Mapping[str, Mapping[str, Any]], unsent: int) -> Iterator[str]:
    """Yield notes about throttled GPUs, and about readings that were averaged or lost.

    The notes about throttled GPUs include each reason and how often it occurred.
    """
    for device, own in samples[samples["throttle_reasons"].notna()].groupby("device", observed=True):
        counts = Counter[str]()
        for words, readings in own.groupby("throttle_reasons", observed=True)["readings"].sum().items():
            counts.update({word: int(readings) for word in filter(None, str(words).split(", "))})
        if counts:
            said = ", ".join(f"{word} in {count:,}" for word, count in counts.most_common())
            name = device_word(str(device), devices.get(str(device), {}))
            yield f"{name} was throttled: {said} of {int(own['readings'].sum()):,} readings."
    if len(samples) and int(samples["readings"].max()) > 1:
        yield (
            "Old readings were averaged to save memory. Medians and percentiles are computed from the averages, but "
            "maxima are exact."
        )
    if unsent:
        yield f"{unsent:,} readings were lost because the notebook's process was blocked for too long."
