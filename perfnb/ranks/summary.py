"""Summarise several ranks of one job.

The summary contains their computation and waits, the straggler, and reasons to doubt that they belong together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from perfnb.attribution.events import all_events
from perfnb.gpu.device_time import gpu_time, gpu_time_by_step
from perfnb.ranks.collectives import collectives, matching, waited_beyond, waited_for, waits, with_waiting
from perfnb.ranks.host import HostRank, LateWork, host_rank, late_work, waits_alone, with_host_times
from perfnb.ranks.lanes import StepLanes, gpu_lane, step_lanes
from perfnb.ranks.lateness import Lateness, judge_lateness
from perfnb.recording.recording import Recording
from perfnb.recording.text import is_one_of
from perfnb.trace_names import DEVICE_WORK

#: A rank is a straggler if the others wait at least this share of the step longer than it.
_STRAGGLES = 0.01
_TIMES = ("computation_ms", "communication_ms", "overlap_ms", "memcpy_ms", "busy_ms", "idle_ms")
#: The placeholder for a device whose name is not in the trace.
_NAMELESS = re.compile(r"GPU \d+")


@dataclass(frozen=True)
class Doubts:
    """Reasons to doubt that the traces are all ranks of one job. Each value is empty or 0 if there is no doubt.

    Attributes
    ----------
    absent : int
        The number of ranks that are not loaded.
    world_size : int or None
        The number of ranks in the job, if the traces contain it and agree on it.
    world_sizes : dict of int to tuple of int
        The ranks for each world size in the traces, if the sizes differ.
    devices : dict of str to tuple of int
        The ranks for each GPU name, if the names differ.
    one_rank : dict of int to tuple of int
        The ranks that were renumbered because several traces or file names contain the same rank number. The keys are
        these original numbers.
    on_host : bool
        Whether none of the ranks recorded any GPU work, so that no collectives on GPUs are visible.
    reduced : bool
        Whether some of the profiles were reduced to their tables and no longer contain events.
    """

    absent: int
    world_size: int | None
    world_sizes: dict[int, tuple[int, ...]]
    devices: dict[str, tuple[int, ...]]
    one_rank: dict[int, tuple[int, ...]]
    on_host: bool
    reduced: bool


@dataclass(frozen=True)
class RanksSummary:
    """The facts about several ranks that the report shows.

    Attributes
    ----------
    names : mapping of int to str
        The name of each rank's file.
    times : DataFrame
        One row per rank and step: ``rank``, ``step``, ``wall_ms`` (on the host), ``computation_ms``,
        ``communication_ms``, ``overlap_ms`` (communication during computation), ``exposed_ms`` (communication without
        computation), ``memcpy_ms``, ``copying_ms`` (while only copying), ``idle_ms``, ``waiting_ms`` (in collectives,
        for the last rank to arrive; missing if no collectives could be matched). If a rank has several devices, their
        times are summed.
    clocks : DataFrame
        Indexed by ``rank``: ``ahead_us`` (how far the clock is ahead of the clock of rank ``reference``, which is the
        first rank that shares collectives with this rank, directly or through others), ``spread_us``, ``collectives``.
    straggler : int or None
        The rank that the others waited for in shared collectives, if any rank stands out.
    lateness : Lateness or None
        The evidence for the straggler, or the reason why it is insufficient. It is ``None`` if no rank waited.
    doubts : Doubts
        Reasons to doubt that these are all ranks of one job.
    matched : tuple of int
        The ranks whose collectives were also found on other ranks.
    parts : DataFrame
        The parts of each rank's mean step on its GPUs in milliseconds, indexed by ``rank``: ``computing_ms`` (while not
        communicating), ``both_ms``, ``exposed_ms``, ``copying_ms``, ``idle_ms``. The parts do not overlap. If the
        collectives run on the host, computing is the time in forward, loss, backward and the optimizer, and the
        remaining time without exposed communication is idle.
    collectives : DataFrame
        Collectives found on several ranks: ``rank``, ``step``, ``kind``, ``group``, ``start_ns``, ``end_ns`` (on the
        rank's own clock), ``on_host``, ``place`` (which identifies the collective), ``waiting_ns``, ``is_last``.
    late : LateWork or None
        The work that made the straggler late, if it is known.
    host : mapping of int to HostRank or None
        How the host spent its time, for ranks whose collectives ran on the host.
    samples : mapping of int to float
        The mean number of samples in a step, for ranks that recorded it.
    base_ns : mapping of int to int
        The offset added to the times of each rank's events.
    lanes : StepLanes or None
        One step of all ranks on a common clock, if the clock offsets are known.
    """

    names: dict[int, str]
    times: pd.DataFrame
    clocks: pd.DataFrame
    straggler: int | None
    lateness: Lateness | None
    doubts: Doubts
    matched: tuple[int, ...]
    parts: pd.DataFrame
    collectives: pd.DataFrame
    late: LateWork | None
    host: dict[int, HostRank | None]
    samples: dict[int, float]
    base_ns: dict[int, int]
    lanes: StepLanes | None


def summarize_ranks(recordings: Sequence[Recording]) -> RanksSummary:
    """Compare the recordings of different ranks."""
    parts: list[pd.DataFrame] = []
    tables: dict[int, pd.DataFrame] = {}
    lanes: dict[int, pd.DataFrame] = {}
    hosts: dict[int, HostRank | None] = {}
    bases = {recording.rank: int(recording.meta.get("base_ns", 0)) for recording in recordings}
    for recording in recordings:
        rank, events = recording.rank, all_events(recording)
        tables[rank] = collectives(events, rank, bases[rank], _only_step(recording))
        hosts[rank] = host = host_rank(recording) if tables[rank]["on_host"].any() else None
        times = _times(recording, events)
        parts.append(times if host is None else with_host_times(times, host))
        lanes[rank] = gpu_lane(events) if host is None else host.lane
    matched, clocks = matching(tables)
    known_hosts = {rank: host for rank, host in hosts.items() if host is not None}
    alone = {rank: waits_alone(host, bases[rank]) for rank, host in known_hosts.items()}
    shared = with_waiting(matched, clocks, alone)
    waited = waits(shared).astype({"rank": "Int64", "step": "Int64"})
    times = pd.concat(parts, ignore_index=True).merge(waited, on=["rank", "step"], how="left")
    times["waiting_ms"] = times["waiting_ms"].astype("Float64")
    straggler, lateness = _candidate(times, waited_for(shared)), None
    if straggler is not None:
        lateness = judge_lateness(straggler, waited_beyond(shared, straggler), len(recordings))
        straggler = straggler if lateness.certain else None
    together = tuple(int(rank) for rank in clocks.index[clocks["collectives"].fillna(0) > 0]) if len(matched) else ()
    ahead = clocks["ahead_us"].dropna()
    shift = {int(rank): round(us * 1e3) - bases[int(rank)] for rank, us in ahead.items() if rank in together}
    drawn = {rank: lanes[rank] for rank in shift}
    return RanksSummary(
        names={recording.rank: str(recording.meta["name"]) for recording in recordings},
        times=times,
        clocks=clocks,
        straggler=straggler,
        lateness=lateness,
        doubts=_doubts_of(recordings),
        matched=together,
        parts=_parts(times),
        collectives=shared,
        late=late_work(known_hosts, straggler),
        host=hosts,
        samples=_samples(recordings),
        base_ns=bases,
        lanes=step_lanes(drawn, shared, times, shift) if len(drawn) > 1 else None,
    )


def with_waits(calls: pd.DataFrame, summary: RanksSummary, rank: int) -> pd.DataFrame:
    """Add ``waiting_ns`` to a rank's collectives from `collective_calls`.

    The value is missing for collectives that were not found on other ranks.
    """
    mine = summary.collectives[summary.collectives["rank"] == rank]
    base = summary.base_ns[rank]
    known = pd.DataFrame(
        {
            "begin_ns": mine["start_ns"].to_numpy() - base,
            "end_ns": mine["end_ns"].to_numpy() - base,
            "waiting_ns": mine["waiting_ns"].to_numpy(),
        }
    ).drop_duplicates(["begin_ns", "end_ns"])
    found = calls[["begin_ns", "end_ns"]].merge(known, how="left", on=["begin_ns", "end_ns"])["waiting_ns"]
    return calls.assign(waiting_ns=found.astype("Int64").array)


def _samples(recordings: Sequence[Recording]) -> dict[int, float]:
    known = {one.rank: one.steps["samples"].dropna() for one in recordings}
    return {rank: float(samples.mean()) for rank, samples in known.items() if len(samples)}


def _times(recording: Recording, events: pd.DataFrame) -> pd.DataFrame:
    only = _only_step(recording)
    by_step = gpu_time_by_step(events) if only is None else gpu_time(events).assign(step=only)
    by_step = by_step.astype({"step": "Int64"}).groupby("step", as_index=False)[list(_TIMES)].sum()
    steps = recording.steps[recording.steps["pass"] == "traced"][["step", "wall_ms"]]
    table = steps.astype({"step": "Int64", "wall_ms": "Float64"}).merge(by_step, on="step", how="left")
    table.insert(0, "rank", pd.Series(recording.rank, index=table.index, dtype="Int64"))
    exposed = table["communication_ms"] - table["overlap_ms"]
    table.insert(table.columns.get_loc("overlap_ms") + 1, "exposed_ms", exposed)  # type: ignore[arg-type, operator]
    copying = (table["busy_ms"] - table["computation_ms"] - exposed).round(6).clip(lower=0.0)  # whole nanoseconds
    return table.assign(busy_ms=copying).rename(columns={"busy_ms": "copying_ms"})


def _parts(times: pd.DataFrame) -> pd.DataFrame:
    means = times.groupby("rank")[["computation_ms", "overlap_ms", "exposed_ms", "copying_ms", "idle_ms"]].mean()
    means["computation_ms"] -= means["overlap_ms"]
    return means.rename(columns={"computation_ms": "computing_ms", "overlap_ms": "both_ms"})


def _only_step(recording: Recording) -> int | None:
    """Return the number of the step that represents the whole trace, or ``None`` if the trace marks its steps."""
    whole = recording.is_from_trace and not recording.meta["trace"]["steps_marked"]
    return int(recording.steps["step"].iloc[0]) if whole and len(recording.steps) else None


def _candidate(times: pd.DataFrame, waited: pd.Series) -> int | None:
    """Return the rank that waited clearly less than every rank that it shares collectives with, if there is one.

    There can be several such ranks if the ranks form groups that share no collectives. In that case, return the rank
    that the others waited for the longest.
    """
    mean = times.groupby("rank")[["waiting_ms", "wall_ms"]].mean()
    if len(mean) < 2 or mean["waiting_ms"].isna().any():
        return None
    steps = times.dropna(subset=["waiting_ms"]).groupby("rank").size()
    ordered = (waited / steps.reindex(waited.index)).sort_values(ascending=False)
    second = max(float(ordered.iloc[1]), 0.0) if len(ordered) > 1 else 0.0
    clearly = ordered.iloc[0] - second > _STRAGGLES * mean["wall_ms"].mean()
    return int(ordered.index[0]) if clearly else None


def _doubts_of(recordings: Sequence[Recording]) -> Doubts:
    """Find contradictions between the metadata of the recordings."""
    sizes = _grouped((_told(one, "world_size"), one.rank) for one in recordings)
    size = next(iter(sizes)) if len(sizes) == 1 else None
    devices = _grouped((_devices(one), one.rank) for one in recordings)
    told = _grouped((_told(one, "rank"), one.rank) for one in recordings)
    return Doubts(
        absent=0 if size is None else max(0, int(size) - len(recordings)),
        world_size=None if size is None else int(size),
        world_sizes=sizes if len(sizes) > 1 else {},
        devices=devices if len(devices) > 1 else {},
        one_rank={rank: ranks for rank, ranks in told.items() if len(ranks) > 1},
        on_host=not any(is_one_of(one.events["category"], DEVICE_WORK).any() for one in recordings),
        reduced=any("reduced" in one.meta for one in recordings),
    )


def _grouped(pairs: Iterable[tuple[Hashable, int]]) -> dict[Any, tuple[int, ...]]:
    """Group ranks by a value, leaving out ranks whose value is unknown."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for key, rank in pairs:
        if key is not None:
            groups[key].append(rank)
    return {key: tuple(ranks) for key, ranks in groups.items()}


def _told(recording: Recording, name: str) -> int | None:
    told = (recording.meta.get("job") or recording.meta.get("trace", {})).get(name)
    return int(told) if isinstance(told, int) and told >= 0 else None


def _devices(recording: Recording) -> str | None:
    names = {str(name) for name in recording.meta.get("environment", {}).get("gpus", [])}
    named = sorted(name for name in names if not _NAMELESS.fullmatch(name))
    if not named:  # a trace may also name unused devices of the same kind
        others = [device for device in recording.meta.get("devices", []) if isinstance(device, dict)]
        named = sorted({device["name"] for device in others if isinstance(device.get("name"), str)})
    return ", ".join(named) or None
