"""Compute the roofline, which shows how close each layer and operator comes to the limits of the machine.

A machine has two limits: peak arithmetic and memory bandwidth. Work with few operations per byte is limited by memory
bandwidth, and all other work by peak arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pandas as pd

from perfnb.attribution.arithmetic import (
    main_dtype,
    time_by_layer,
    time_by_op,
    uncounted_ops,
    work_by,
)  # fmt: skip
from perfnb.attribution.attribution import Attribution
from perfnb.recording.nesting import NONE
from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT

COMPUTE, MEMORY = "compute", "memory"
#: The columns of GPU hardware counters in ``samples``. The first one shows how busy a GPU is.
COUNTERS = ("sm_active_percent", "tensor_active_percent", "dram_active_percent")
#: If a part of the step reaches more than this share of a ceiling, the ceiling was measured too low.
_TOO_LOW = 1.02
#: If a layer or operator takes less than this share of the total time, its rate is too uncertain to refute a ceiling.
_COUNTS = 0.01
#: If other programs used more than this share of the CPUs, a measured ceiling is doubted.
_MANY_OTHERS = 0.1

#: The columns of `Roofline.points`, with their types.
POINTS: Mapping[str, Any] = MappingProxyType(
    dict.fromkeys(("kind", "name", "bound", "dtype"), TEXT)
    | dict.fromkeys(("flops", "bytes"), "Int64")
    | dict.fromkeys(("ms", "intensity", "achieved_flops_per_s", "attainable_flops_per_s", "efficiency"), "Float64")
)


@dataclass(frozen=True)
class RooflineLevels:
    """The machine's ceilings, and how close the parts of a step come to them."""

    #: The name of the device.
    device: str
    #: The FLOP/s by dtype, as measured or, if that is more, as reached by a part of this step.
    peaks: Mapping[str, float]
    #: The measured bytes/s.
    bandwidth: float | None
    #: One row per layer or operator that moves bytes; see `POINTS`.
    points: pd.DataFrame
    #: The model FLOPs utilisation, which is the model's arithmetic, without recomputation, as a share of the arithmetic
    #: that the machine could have performed in the same time.
    utilisation: float | None
    #: The number of FLOPs per step, including recomputation.
    flops: int | None
    #: The operators without a formula, with the heaviest first. The columns are ``op``, ``calls``, ``ms`` and
    #: ``share``.
    uncounted: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["op", "calls", "ms", "share"]))
    #: The share of the CPUs that other programs used while the ceilings were measured, from 0 to 1.
    others: float = 0.0
    #: The dtype to whose ceiling `utilisation` refers.
    dtype: str | None = None
    #: The measured FLOP/s of those dtypes where part of this step was faster. The rate of that part then replaces the
    #: peak, because it is unknown how much faster large products would be.
    refuted: Mapping[str, float] = field(default_factory=dict)
    #: The means of a watched GPU's hardware counters over the timed steps, from 0 to 1, by column of ``samples``.
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> pd.DataFrame:
        """The points of the layers, or the points of the ops if no layer has a roof."""
        is_op = self.points["kind"] == "op"
        layers = self.points[~is_op]
        return layers if layers["efficiency"].notna().any() else self.points[is_op]

    @property
    def reached(self) -> float | None:
        """The share of their roofs that `parts` reach, weighted by time, or ``None`` if no roof is known."""
        known = self.parts[self.parts["efficiency"].notna()]
        took = float(known["ms"].sum())
        return float((known["efficiency"] * known["ms"]).sum()) / took if took else None

    @property
    def ceilings_doubted(self) -> bool:
        """Whether the ceilings may be too low because other work ran while they were measured."""
        return self.others > _MANY_OTHERS


def step_roofline(
    recording: Recording, attribution: Attribution, counted: pd.DataFrame, step_ms: float | None
) -> RooflineLevels:
    """Return a profile's roofline, using the work counted in one step and the times from the traced steps.

    Parameters
    ----------
    recording, attribution
        The recording of the traced steps, and the attribution of its events.
    counted : DataFrame
        The result of `counted_ops`.
    step_ms : float or None
        The duration of a step without the profiler.
    """
    on_gpu = bool(attribution.cells["kernels"].sum())
    ceilings, time = recording.meta.get("ceilings"), "gpu_ms" if on_gpu else "ms"
    if ceilings is not None and ceilings.get("on") != ("cuda" if on_gpu else "cpu"):
        ceilings = None  # the machine has a GPU that the step does not use
    layers, ops = work_by(counted, "layer"), work_by(counted, "op")
    by_layer, by_op = time_by_layer(recording, attribution), time_by_op(recording, attribution, ops.index)
    whole_ms = float(attribution.cells["gpu_ns" if on_gpu else "ns"].sum()) / 1e6 / max(attribution.steps, 1)
    inside = counted[counted["block"] != NONE]
    found = roofline_of(
        layers.assign(ms=by_layer[time].reindex(layers.index)),
        ops.assign(ms=by_op[time].reindex(ops.index)),
        uncounted_ops(counted, by_op, whole_ms, on_gpu=on_gpu),
        ceilings=ceilings,
        flops=int(inside["flops"].sum()),
        recompute_flops=int(inside.loc[inside["direction"] == "recompute", "flops"].sum()),
        main_dtype=main_dtype(counted),
        step_ms=step_ms,
    )
    return replace(found, counters=counters_read(recording))


def counters_read(recording: Recording) -> dict[str, float]:
    """Return the mean values of the busiest GPU's hardware counters over the timed steps.

    The result is empty if no counters were read.
    """
    timed = recording.steps[recording.steps["pass"] == "timed"]
    if recording.watch is None or timed.empty:
        return {}
    samples, begin = recording.watch.samples, float(timed["start_s"].min())
    end = float((timed["start_s"] + timed["wall_ms"] / 1e3).max())
    inside = samples[(samples["t_s"] > begin) & (samples["t_s"] <= end)]
    means = inside.groupby("device", observed=True)[list(COUNTERS)].mean().dropna(how="all")
    if means.empty:
        return {}
    busiest = means.iloc[int(means[COUNTERS[0]].fillna(0.0).to_numpy(dtype=float).argmax())]
    return {str(name): float(value) / 100 for name, value in busiest.dropna().items()}


def roofline_of(
    layers: pd.DataFrame,
    ops: pd.DataFrame,
    uncounted: pd.DataFrame,
    *,
    ceilings: Mapping[str, Any] | None,
    flops: int | None,
    recompute_flops: int = 0,
    main_dtype: str | None = None,
    step_ms: float | None = None,
) -> RooflineLevels:
    """Return a step's roofline, given its work and the machine's ceilings.

    Parameters
    ----------
    layers, ops : DataFrame
        The columns ``flops``, ``bytes``, ``uncounted`` and ``dtype`` from `work_by`, and ``ms`` per step, indexed by
        name.
    uncounted : DataFrame
        The operators without a formula.
    ceilings : mapping or None
        ``device``, ``flops_per_s`` by dtype, and ``bytes_per_s``, or ``None`` if they were not measured.
    flops, recompute_flops : int
        The number of FLOPs per step, and how many of them repeat forward work.
    main_dtype : str or None
        The dtype whose ceiling is used for the utilisation.
    step_ms : float or None
        The duration of a step without the profiler.
    """
    ceilings = ceilings or {}
    peaks = {str(name): float(rate) for name, rate in (ceilings.get("flops_per_s") or {}).items()}
    bandwidth = ceilings.get("bytes_per_s")
    bandwidth = float(bandwidth) if bandwidth else None
    work = pd.concat([layers.assign(kind="layer"), ops.assign(kind="op")])
    points = _points(work, peaks, bandwidth)
    reached = _reached(points)
    refuted = {dtype: peak for dtype, peak in peaks.items() if reached.get(dtype, 0.0) > _TOO_LOW * peak}
    if refuted:
        peaks |= {dtype: reached[dtype] for dtype in refuted}
        points = _points(work, peaks, bandwidth)
    utilisation, peak = None, peaks.get(main_dtype or "")
    if peak and step_ms and flops is not None:
        utilisation = (flops - recompute_flops) / (step_ms / 1e3 * peak)
        if utilisation > 1:  # the peak does not apply to this step's arithmetic
            utilisation = None
    return RooflineLevels(
        device=str(ceilings.get("device", "")),
        peaks=MappingProxyType(peaks),
        bandwidth=bandwidth,
        points=points,
        utilisation=utilisation,
        flops=flops,
        uncounted=uncounted,
        others=float(ceilings.get("others") or 0.0),
        dtype=None if utilisation is None else main_dtype,
        refuted=MappingProxyType(refuted),
    )


def _reached(points: pd.DataFrame) -> dict[str, float]:
    """Return the highest FLOP/s for each dtype among the parts that take long enough for a reliable rate."""
    whole = points.groupby("kind")["ms"].transform("sum")
    sure = points[(points["ms"] >= _COUNTS * whole).fillna(False).to_numpy(dtype=bool)]
    best = sure.groupby("dtype")["achieved_flops_per_s"].max().dropna()
    return {str(dtype): float(rate) for dtype, rate in best.items()}


def _points(work: pd.DataFrame, peaks: Mapping[str, float], bandwidth: float | None) -> pd.DataFrame:
    """Return one point for each part of the step.

    Parts that move no bytes, such as layers that only call other layers, do not have a point.
    """
    work = work[(work["bytes"] > 0).fillna(False).to_numpy(dtype=bool)]
    flops, moved, ms = (work[name].astype("Float64") for name in ("flops", "bytes", "ms"))
    intensity = flops / moved
    achieved = flops / (ms.where(ms > 0) / 1e3)
    peak = pd.Series(work["dtype"].map(dict(peaks)), index=work.index).astype("Float64")
    # Work that only moves data is memory-bound. Without a formula, the bound is unknown.
    roof = pd.Series(pd.NA, index=work.index, dtype="Float64")
    bound = pd.Series(pd.NA, index=work.index, dtype="object")
    if bandwidth is not None:
        under_slope = intensity * bandwidth
        computes = (under_slope >= peak).fillna(False)
        roof = under_slope.mask(computes, peak).where(peak.notna())
        moves_only = (flops == 0).fillna(False) & (work["uncounted"] == 0)
        told = ((flops > 0).fillna(False) & peak.notna()) | moves_only
        bound = bound.mask(told.to_numpy(dtype=bool), MEMORY).mask(computes.to_numpy(dtype=bool), COMPUTE)
    table = pd.DataFrame(
        {
            "kind": work["kind"].to_numpy(),
            "name": work.index.astype(TEXT),
            "flops": work["flops"].astype("Int64").to_numpy(),
            "bytes": work["bytes"].astype("Int64").to_numpy(),
            "ms": ms.array,
            "intensity": intensity.array,
            "achieved_flops_per_s": achieved.array,
            "attainable_flops_per_s": roof.array,
            "efficiency": (achieved / roof.where(roof > 0)).array,
            "bound": bound.to_numpy(dtype=object),
            "dtype": work["dtype"].to_numpy(dtype=object),
        }
    )
    return table.astype(dict(POINTS))
