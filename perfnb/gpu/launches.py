"""How work came to the GPU: the calls that launched it, how long it waited, and how much was queued."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import DeviceWork, column, device_work, is_in, named, pairs
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.trace_names import KERNELS


def submitted(events: pd.DataFrame, work: DeviceWork) -> Ints:
    """When the host had surely given each piece of work to its device, in nanoseconds; -1 where no call is known.

    That is the end of the launching call, but its begin where the work began before the call returned.
    """
    known = work.call != NONE
    begin = column(events, "start_ns")[work.call]
    end = begin + column(events, "duration_ns")[work.call]
    return np.where(known, np.where(end <= work.start, end, begin), NONE)


def launches(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    """One row a kernel, copy or fill, in the order of the events.

    Returns
    -------
    DataFrame
        Indexed as `events`: ``name``, ``op`` (that launched it), ``rank``, ``device``, ``stream``, ``step``, ``call``
        (name of the launching call), ``call_ns`` (its duration), ``shared`` (how many pieces of work this one call
        launched, as that of a CUDA graph does), ``delay_ns`` (from the begin of the call to the begin of the work),
        ``duration_ns``, ``short`` (of a kernel: whether it ran for less time than its share of the call took). What is
        not known is missing: all of the call where the trace holds none, the delay where the work seems to begin before
        the call, as it does where the clocks of host and device differ.
    """
    return _rows(events, device_work(events) if work is None else work)


def _rows(events: pd.DataFrame, work: DeviceWork) -> pd.DataFrame:
    known = work.call != NONE
    begin, length = column(events, "start_ns"), column(events, "duration_ns")
    delay = work.start - begin[work.call]
    call_ns = length[work.call]
    shared = _shared(work)
    duration = work.end - work.start
    is_kernel = is_in(events, KERNELS)[work.rows]
    short = duration * np.maximum(shared, 1) < call_ns
    frame = pd.DataFrame(
        {
            "name": named(events, work.rows),
            "op": named(events, work.op),
            **{key: _integers(getattr(work, key), getattr(work, key) != NONE) for key in ("rank", "device", "stream")},
            "step": _integers(work.step, work.step != NONE),
            "call": named(events, work.call),
            "call_ns": _integers(call_ns, known),
            "shared": _integers(shared, known),
            "delay_ns": _integers(delay, known & (delay >= 0)),
            "duration_ns": duration,
            "short": pd.Series(short, dtype="boolean").where(pd.Series(known & is_kernel)),
        },
    )
    frame.index = events.index[work.rows]
    return frame


def launches_by_op(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    """Sums of `launches` over each launching operator, the longest in launch calls first.

    Returns
    -------
    DataFrame
        Indexed by ``op`` (missing where unknown): ``calls`` (launching calls), ``launched`` (kernels, copies and
        fills), ``call_ms`` (in all), ``delay_us`` (median), ``gpu_ms`` (sum of durations), ``short`` (how many
        kernels ran for less time than their launch took) and ``short_share`` (of kernels whose launch is known).
    """
    work = device_work(events) if work is None else work
    rows = _rows(events, work)
    rows["call_row"] = work.call
    once = rows[rows["call_row"] != NONE].drop_duplicates("call_row").groupby("op", dropna=False, observed=True)
    by = rows.groupby("op", dropna=False, observed=True)
    known = by["short"].count()
    table = pd.DataFrame(
        {
            "launched": by.size(),
            "delay_us": by["delay_ns"].median().astype("Float64") / 1e3,
            "gpu_ms": by["duration_ns"].sum() / 1e6,
            "short": by["short"].sum().astype("Int64").mask(known == 0),
        }
    )
    # An operator none of whose launches is in the trace has no time in them, rather than none of it.
    table["short_share"] = (table["short"].astype("Float64") / known).astype("Float64")
    table["call_ms"] = once["call_ns"].sum().astype("Float64").reindex(table.index) / 1e6
    table["calls"] = once.size().astype("Int64").reindex(table.index)
    order = ["calls", "launched", "call_ms", "delay_us", "gpu_ms", "short", "short_share"]
    return table[order].sort_values(["call_ms", "gpu_ms"], ascending=False, kind="stable", na_position="last")


def launch_summary(events: pd.DataFrame) -> pd.DataFrame:
    """Sums of `launches` over each device of each rank.

    Returns
    -------
    DataFrame
        ``rank``, ``device``, ``launched``, ``known`` (with their launch in the trace), ``call_ms`` (in launching calls,
        in all), ``call_us`` and ``delay_us`` (median), ``short`` and ``short_share`` (kernels that ran for less
        time than their launch took), ``before_launch`` (seem to begin before it).
    """
    work = device_work(events)
    rows = _rows(events, work)
    rows["call_row"] = work.call
    rows["early"] = (work.call != NONE) & rows["delay_ns"].isna().to_numpy()
    once = rows[rows["call_row"] != NONE].drop_duplicates("call_row")
    key = ["rank", "device"]
    by, calls = rows.groupby(key, dropna=False), once.groupby(key, dropna=False)
    table = pd.DataFrame({"launched": by.size(), "known": by["call_ns"].count()})
    kernels = by["short"].count()
    table["call_ms"] = calls["call_ns"].sum().astype("Float64").reindex(table.index) / 1e6
    table["call_us"] = calls["call_ns"].median().astype("Float64").reindex(table.index) / 1e3
    table["delay_us"] = by["delay_ns"].median().astype("Float64") / 1e3
    table["short"] = by["short"].sum().astype("Int64").mask(kernels == 0)
    table["short_share"] = table["short"].astype("Float64") / kernels
    table["before_launch"] = by["early"].sum().astype("Int64").mask(table["known"] == 0)
    return table.reset_index()


def queue_lengths(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    """How much launched work had not begun, at each change.

    Work enters its stream's queue at the begin of the launching call and leaves it when it begins. Work whose launch is
    not in the trace is not counted; what seems to begin before its launch was never in the queue.

    Returns
    -------
    DataFrame
        One row a change, in order of time for each stream: ``rank``, ``device``, ``stream``, ``time_ns``, ``length``.
        Changes at one instant are one row.
    """
    work = device_work(events) if work is None else work
    known = np.flatnonzero(work.call != NONE)
    enter = column(events, "start_ns")[work.call[known]]
    known, enter = known[enter < work.start[known]], enter[enter < work.start[known]]
    twice = np.concatenate((known, known))
    time = np.concatenate((enter, work.start[known]))
    change = np.repeat(np.array([1, -1], dtype=np.int64), len(known))
    stream = pairs(work.rank[twice], work.device[twice], work.stream[twice])
    order = np.lexsort((time, stream))
    stream, time, total = stream[order], time[order], np.cumsum(change[order])
    last = _changes(stream, time)
    frame = {
        name: _integers(values[twice][order][last], values[twice][order][last] != NONE)
        for name, values in (("rank", work.rank), ("device", work.device), ("stream", work.stream))
    }
    # All that entered a stream's queue left it, so that the sum starts from zero again at the next stream.
    return pd.DataFrame({**frame, "time_ns": time[last], "length": total[last]})


def _changes(stream: Ints, time: Ints) -> Bools:
    """Whether each is the last at its time in its stream."""
    if len(time) == 0:
        return np.array([], dtype=bool)
    return np.append((np.diff(time) != 0) | (np.diff(stream) != 0), True)


def _shared(work: DeviceWork) -> Ints:
    """How many pieces of work came from the same call as each."""
    _, group, count = np.unique(work.call, return_inverse=True, return_counts=True)
    return count[group].astype(np.int64)


def _integers(values: Ints, known: Bools) -> pd.Series:
    return pd.Series(values, dtype="Int64").where(pd.Series(known, dtype=bool))
