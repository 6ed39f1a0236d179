"""Lay out one step of all ranks on a common clock, with each rank's work and its arrivals at collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind
from perfnb.attribution.device_work import step_windows, work_alone
from perfnb.attribution.interval_sets import difference, intersection, union

#: The maximum number of stretches in a lane. Gaps shorter than the span divided by this number are closed.
_FINEST = 800


@dataclass(frozen=True)
class StepLanes:
    """One step of all ranks, with times in milliseconds since the earliest start, on the first rank's clock.

    Attributes
    ----------
    step : int
    span_ms : float
    lanes : DataFrame
        ``rank``, ``part`` (a phase, or for a GPU ``computing_ms``, ``both_ms`` or ``exposed_ms``), ``start_ms``,
        ``end_ms``. Later rows are drawn over earlier rows.
    arrivals : DataFrame
        ``place`` (which identifies the collective), ``kind``, ``rank``, ``at_ms``, ``waiting_ms``.
    """

    step: int
    span_ms: float
    lanes: pd.DataFrame
    arrivals: pd.DataFrame


def host_lane(attribution: Attribution, numbers: np.ndarray) -> pd.DataFrame:
    """Return the phases of each step of a rank, followed by the waits for collectives.

    The columns are ``step``, ``part``, ``start_ns`` and ``end_ns``.
    """
    blocks, depth = attribution.host.blocks, attribution.host.forest.depth
    inside = blocks["main"].to_numpy()
    waits = (blocks["kind"] == Kind.COMMUNICATION).to_numpy()
    chosen = pd.concat([blocks[one].sort_values("start") for one in (inside & (depth == 1) & ~waits, inside & waits)])
    lane = chosen[["phase", "start", "end"]].set_axis(["part", "start_ns", "end_ns"], axis="columns")
    return lane.assign(step=numbers[chosen["step"].to_numpy()])


def gpu_lane(events: pd.DataFrame) -> pd.DataFrame:
    """Return the work of a rank's GPUs, with the same columns as `host_lane`.

    Work is assigned to the step during which it ran.
    """
    work = work_alone(events)
    computing, communicating = (union(work.start[work.sort == sort], work.end[work.sort == sort]) for sort in (0, 1))
    parts = {
        "computing_ms": difference(computing, communicating),
        "both_ms": intersection(computing, communicating),
        "exposed_ms": difference(communicating, computing),
    }
    windows = step_windows(events)
    frames = []
    for part, time in parts.items():
        place = np.searchsorted(windows["start"].to_numpy(), time.start, side="right") - 1
        step = np.append(windows["number"].to_numpy(), -1)[place]
        frames.append(pd.DataFrame({"step": step, "part": part, "start_ns": time.start, "end_ns": time.end}))
    return pd.concat(frames, ignore_index=True)


def step_lanes(
    lanes: Mapping[int, pd.DataFrame], collectives: pd.DataFrame, times: pd.DataFrame, ahead_ns: Mapping[int, int]
) -> StepLanes | None:
    """Return the lanes of the step with the median duration, or ``None`` if the ranks have no step in common.

    The lane of each rank comes from `host_lane` or `gpu_lane`, `collectives` and `times` from a `RanksSummary`, and
    `ahead_ns` contains the offsets to subtract from the times of each rank's lane.
    """
    steps = [set(lane["step"]) for lane in lanes.values() if len(lane)]
    common = set.intersection(*steps) - {-1} if steps else set()
    lasted = times.groupby("step")["wall_ms"].max().dropna().sort_values()
    lasted = lasted[lasted.index.isin(common)]
    if not len(lasted):
        return None
    step = int(lasted.index[(len(lasted) - 1) // 2])
    parts = {rank: lane[lane["step"] == step] for rank, lane in lanes.items()}
    zero = min(int(part["start_ns"].min()) - ahead_ns[rank] for rank, part in parts.items() if len(part))
    until = max(int(part["end_ns"].max()) - ahead_ns[rank] for rank, part in parts.items() if len(part))
    drawn, gap_ns = [], (until - zero) // _FINEST
    for rank, rows in parts.items():
        for part, mine in rows.groupby("part", sort=False):
            # Stretches of the same part are joined if the gap between them is too small to be visible.
            time = union(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy() + gap_ns)
            start_ms, end_ms = ((ends - zero - ahead_ns[rank]) / 1e6 for ends in (time.start, time.end - gap_ns))
            drawn.append(pd.DataFrame({"rank": rank, "part": part, "start_ms": start_ms, "end_ms": end_ms}))
    arrived = collectives[(collectives["step"] == step).to_numpy()]
    arrivals = arrived[["place", "kind", "rank"]].assign(
        at_ms=(arrived["on_clock_ns"] - zero) / 1e6, waiting_ms=arrived["waiting_ns"] / 1e6
    )
    return StepLanes(step, (until - zero) / 1e6, pd.concat(drawn, ignore_index=True), arrivals)
