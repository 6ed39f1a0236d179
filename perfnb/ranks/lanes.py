"""Lay out one step of all ranks on a common clock, with each rank's work and its arrivals at collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind
from perfnb.attribution.device_work import step_windows, work_alone
from perfnb.attribution.interval_sets import IntervalSet, difference, intersection, union

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
        ``place`` (which identifies the collective), ``kind``, ``rank``, ``at_ms``, ``is_last``, ``waiting_ms``.
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
    kind = blocks["kind"].to_numpy()
    inside = blocks["main"].to_numpy() & (blocks["step"] >= 0).to_numpy()
    whole = blocks[inside & (depth == 1) & (kind != Kind.COMMUNICATION)].sort_values("start")
    waits = blocks[inside & (kind == Kind.COMMUNICATION)].sort_values("start")
    chosen = pd.concat([whole, waits])
    return pd.DataFrame(
        {
            "step": numbers[chosen["step"].to_numpy()],
            "part": chosen["phase"].to_numpy(dtype=object),
            "start_ns": chosen["start"].to_numpy(),
            "end_ns": chosen["end"].to_numpy(),
        }
    )


def gpu_lane(events: pd.DataFrame) -> pd.DataFrame:
    """Return the work of a rank's GPUs, with the same columns as `host_lane`.

    Work is assigned to the step during which it ran.
    """
    work = work_alone(events)
    communicates = work.sort == 1
    computing = union(work.start[work.sort == 0], work.end[work.sort == 0])
    communicating = union(work.start[communicates], work.end[communicates])
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

    Parameters
    ----------
    lanes : mapping of int to DataFrame
        The lane of each rank, from `host_lane` or `gpu_lane`.
    collectives : DataFrame
        As in `RanksSummary`.
    times : DataFrame
        As in `RanksSummary`.
    ahead_ns : mapping of int to int
        The offset to subtract from the times of each rank's lane.
    """
    steps = [set(lane["step"].unique().tolist()) for lane in lanes.values() if len(lane)]
    common = set.intersection(*steps) - {-1} if steps else set()
    lasted = times.groupby("step")["wall_ms"].max()
    lasted = lasted[[step in common for step in lasted.index]].dropna().sort_values()
    if not len(lasted):
        return None
    step = int(lasted.index[(len(lasted) - 1) // 2])
    parts = []
    for rank, lane in lanes.items():
        mine = lane[lane["step"] == step]
        shift = ahead_ns[rank]
        parts.append(mine.assign(rank=rank, start_ns=mine["start_ns"] - shift, end_ns=mine["end_ns"] - shift))
    whole = pd.concat(parts, ignore_index=True)
    zero, until = int(whole["start_ns"].min()), int(whole["end_ns"].max())
    closed = pd.concat([_closed(part, (until - zero) // _FINEST) for _, part in whole.groupby("rank", sort=False)])
    arrived = collectives[(collectives["step"] == step).to_numpy()]
    arrivals = pd.DataFrame(
        {
            "place": arrived["place"].to_numpy(),
            "kind": arrived["kind"].to_numpy(),
            "rank": arrived["rank"].to_numpy(),
            "at_ms": (arrived["on_clock_ns"].to_numpy() - zero) / 1e6,
            "is_last": arrived["is_last"].to_numpy(),
            "waiting_ms": arrived["waiting_ns"].to_numpy() / 1e6,
        }
    )
    drawn = pd.DataFrame(
        {
            "rank": closed["rank"].to_numpy(),
            "part": closed["part"].to_numpy(dtype=object),
            "start_ms": (closed["start_ns"].to_numpy() - zero) / 1e6,
            "end_ms": (closed["end_ns"].to_numpy() - zero) / 1e6,
        }
    )
    return StepLanes(step, (until - zero) / 1e6, drawn, arrivals)


def _closed(lane: pd.DataFrame, gap_ns: int) -> pd.DataFrame:
    """Join stretches of the same part if the gap between them is too small to be visible."""
    joined = []
    for part in dict.fromkeys(lane["part"]):
        mine = lane[lane["part"] == part]
        time = IntervalSet(*(np.asarray(v) for v in union(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())))
        wide = union(time.start, time.end + gap_ns)
        ends = np.minimum(wide.end - gap_ns, lane["end_ns"].max())
        joined.append(pd.DataFrame({"part": part, "start_ns": wide.start, "end_ns": ends}))
    order = {"communication": 1}
    joined.sort(key=lambda one: order.get(str(one["part"].iloc[0]) if len(one) else "", 0))
    return pd.concat(joined, ignore_index=True).assign(rank=lane["rank"].iloc[0])
