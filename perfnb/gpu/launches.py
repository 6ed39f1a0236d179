"""Describe how work reached the GPU.

The module computes launch calls, launch delays and queue lengths, and groups kernels by the op that launched them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.attribution.device_work import DeviceWork, column, device_work, is_in, known_or_na, named, pairs
from perfnb.recording.nesting import NONE, Ints
from perfnb.recording.text import found
from perfnb.trace_names import KERNELS


def launches(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    """Return one row per kernel, copy or fill, in event order.

    Returns
    -------
    DataFrame
        Indexed like `events`: ``name``, ``op`` (the op that launched it), ``rank``, ``device``, ``stream``, ``step``,
        ``call`` (name of the launch call), ``call_ns`` (its duration), ``shared`` (how many pieces of work the call
        launched; a CUDA graph launches several), ``delay_ns`` (from the start of the call to the start of the work),
        ``duration_ns``, ``short`` (whether a kernel was shorter than its share of the launch call), ``shapes`` (of the
        op's inputs), ``layer``. Unknown values are missing. If the trace does not contain the call, all columns that
        describe the call are missing. If the work appears to start before the call, which happens when host and device
        clocks differ, the delay is missing. ``op_row`` and ``call_row`` are positions in `events`, or -1 if unknown.
    """
    work = device_work(events) if work is None else work
    unknown = work.call == NONE
    delay = work.start - column(events, "start_ns")[work.call]
    call_ns = column(events, "duration_ns")[work.call]
    _, group, count = np.unique(work.call, return_inverse=True, return_counts=True)
    duration, shared = work.end - work.start, count[group].astype(np.int64)
    is_kernel = is_in(events, KERNELS)[work.rows]
    return pd.DataFrame(
        {
            "name": named(events, work.rows),
            "op": named(events, work.op),
            **{key: known_or_na(getattr(work, key)) for key in ("rank", "device", "stream", "step")},
            "call": named(events, work.call),
            "call_ns": pd.arrays.IntegerArray(call_ns, unknown),
            "shared": pd.arrays.IntegerArray(shared, unknown),
            "delay_ns": pd.arrays.IntegerArray(delay, unknown | (delay < 0)),
            "duration_ns": duration,
            "short": pd.arrays.BooleanArray(duration * shared < call_ns, unknown | ~is_kernel),
            "shapes": named(events, work.op, "shapes"),
            "layer": named(events, work.rows, "layer"),
            "op_row": work.op,
            "call_row": work.call,
        },
        index=events.index[work.rows],
    )


def launches_by_op(rows: pd.DataFrame) -> pd.DataFrame:
    """Sum the rows of `launches` by launching op, in descending order of time in launch calls.

    Returns
    -------
    DataFrame
        Indexed by ``op`` (missing if unknown): ``calls`` (launch calls), ``launched`` (kernels, copies and fills),
        ``call_ms`` (total), ``delay_us`` (median), ``gpu_ms`` (sum of durations), ``short`` (kernels shorter than their
        launch) and ``short_share`` (of the kernels whose launch is known).
    """
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
    # If no launch of an op is in the trace, its launch time is unknown, not zero.
    table["short_share"] = (table["short"].astype("Float64") / known).astype("Float64")
    table["call_ms"] = once["call_ns"].sum().astype("Float64").reindex(table.index) / 1e6
    table["calls"] = once.size().astype("Int64").reindex(table.index)
    order = ["calls", "launched", "call_ms", "delay_us", "gpu_ms", "short", "short_share"]
    return table[order].sort_values(["call_ms", "gpu_ms"], ascending=False, kind="stable", na_position="last")


def queue_lengths(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    """Return the length of each stream's queue of launched but not yet started work, at each change.

    Work enters its stream's queue when its launch call starts, and leaves the queue when the work starts. Work whose
    launch is not in the trace is not counted. Work that appears to start before its launch was never queued.

    Returns
    -------
    DataFrame
        One row per change, in chronological order within each stream: ``rank``, ``device``, ``stream``, ``time_ns``,
        ``length``. Changes at the same instant share a row.
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
    # The last entry of each stream at each time.
    last = np.append((np.diff(time) != 0) | (np.diff(stream) != 0), True)[: len(time)]
    place = twice[order][last]
    frame = {name: known_or_na(getattr(work, name)[place]) for name in ("rank", "device", "stream")}
    # Everything that enters a queue leaves it, so the running sum is back at zero at the next stream.
    return pd.DataFrame({**frame, "time_ns": time[last], "length": total[last]})


#: Number of time bins in the queue chart.
QUEUE_PIECES = 240


@dataclass(frozen=True)
class LaunchFacts:
    """Facts about launches on the GPUs. A value is ``None`` if the trace has no record of it.

    Attributes
    ----------
    launched, known : float
        The number of kernels, copies and fills per step, and how many of their launches are in the trace.
    call_us, call_us_95, delay_us, delay_us_95 : float or None
        The median and 95th percentile of the time in a launch call (excluding calls that blocked until their copy was
        done), and of the time from the start of the call to the start of the work.
    short_share : float or None
        The share of kernels that were shorter than their launch.
    longest_queue : int or None
        The largest number of pieces of work that were waiting on a device, launched but not started.
    empty_share : float or None
        The share of the devices' time, from their first to their last work, during which nothing was queued.
    """

    launched: float
    known: float
    call_us: float | None
    call_us_95: float | None
    delay_us: float | None
    delay_us_95: float | None
    short_share: float | None
    longest_queue: int | None
    empty_share: float | None


@dataclass(frozen=True)
class QueueChart:
    """Each device's queue length over time.

    Attributes
    ----------
    piece_ms : float
        The width of a time bin.
    longest : mapping of int or None to ndarray
        The longest queue in each bin, for each device (``None`` if the device has no number).
    """

    piece_ms: float
    longest: dict[int | None, Ints]


def launch_facts(rows: pd.DataFrame, queue: pd.DataFrame, spans: pd.DataFrame, steps: int) -> LaunchFacts:
    """Reduce the launches in some steps to a few figures.

    Parameters
    ----------
    rows : DataFrame
        Output of `launches`.
    queue, spans : DataFrame
        The table ``queue``, and a table with ``device``, ``start_ns`` and ``end_ns`` of each device's first and last
        work.
    steps : int
    """
    delays = np.sort(_floats(rows["delay_ns"].dropna()) / 1e3)
    short = _floats(rows["short"].dropna())
    once = np.ones(len(delays))
    longest, empty = _of_queue(queue, spans)
    call_us, call_us_95 = launch_call_us(rows)
    return LaunchFacts(
        launched=len(rows) / max(steps, 1),
        known=float(rows["call_ns"].notna().sum()) / max(steps, 1),
        call_us=call_us,
        call_us_95=call_us_95,
        delay_us=_quantile(delays, once, 0.5),
        delay_us_95=_quantile(delays, once, 0.95),
        short_share=float(short.mean()) if len(short) else None,
        longest_queue=longest,
        empty_share=empty,
    )


def launch_call_us(rows: pd.DataFrame) -> tuple[float | None, float | None]:
    """Return the median and the 95th percentile of the time in the launch calls of `launches`, if any is known.

    A call that launched several pieces of work counts once. A copy call that returned after the copy had ended was
    waiting, so it does not count.
    """
    known = rows[rows["call_ns"].notna()]
    waited = found(known["call"], re.compile("Memcpy").search)
    waited &= (known["call_ns"] >= known["delay_ns"] + known["duration_ns"]).fillna(False).to_numpy(dtype=bool)
    launching = known[~waited]
    calls, weight = _floats(launching["call_ns"]) / 1e3, 1 / _floats(launching["shared"])
    return _quantile(calls, weight, 0.5), _quantile(calls, weight, 0.95)


def queue_chart(queue: pd.DataFrame, spans: pd.DataFrame) -> QueueChart | None:
    """Return the queue lengths in `QUEUE_PIECES` time bins, or ``None`` if no launch is known."""
    if not len(queue):
        return None
    begin = min(int(queue["start_ns"].min()), int(spans["start_ns"].min()))
    end = max(int(spans["end_ns"].max()), begin + 1)
    edges = np.linspace(begin, end, QUEUE_PIECES + 1)
    longest: dict[int | None, Ints] = {}
    for device, time, length in _queues(queue, spans):
        # A bin starts with the length at the end of the previous bin.
        first = np.searchsorted(time, edges[:-1], side="right").tolist()
        last = np.searchsorted(time, edges[1:], side="left").tolist()
        known = np.concatenate(([0], length))
        tops = [known[a : max(b, a) + 1].max() for a, b in zip(first, last, strict=True)]
        longest[device] = np.array(tops, dtype=np.int64)
    return QueueChart((end - begin) / 1e6 / QUEUE_PIECES, longest)


def _queues(queue: pd.DataFrame, spans: pd.DataFrame) -> Iterator[tuple[int | None, Ints, Ints]]:
    """Yield each device with the times when its queues change, and their total length after each change."""
    change = queue["length"] - queue.groupby(["rank", "device", "stream"], dropna=False)["length"].shift(fill_value=0)
    for device in spans["device"]:
        number = None if pd.isna(device) else int(device)
        mine = queue["device"].isna() if number is None else (queue["device"] == number).fillna(False)
        sums = change[mine].groupby(queue["start_ns"][mine]).sum().sort_index().cumsum()
        yield number, sums.index.to_numpy(dtype=np.int64), sums.to_numpy(dtype=np.int64)


def _of_queue(queue: pd.DataFrame, spans: pd.DataFrame) -> tuple[int | None, float | None]:
    """Return the length of the longest queue, and the share of time when the queue was empty."""
    if not len(queue):
        return None, None
    longest = filled = 0
    for (_, time, length), begin, end in zip(_queues(queue, spans), spans["start_ns"], spans["end_ns"], strict=True):
        longest = max(longest, int(length.max(initial=0)))
        inside = np.clip(np.append(time, end), begin, end)
        filled += int(np.diff(inside)[length > 0].sum())
    whole = int((spans["end_ns"] - spans["start_ns"]).sum())
    return longest, 1 - filled / whole if whole else None


def _quantile(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], share: float) -> float | None:
    """Return a weighted quantile: the smallest value such that at least `share` of the weight is at or below it."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, share * reached[-1] - 1e-9))  # rounding of fractions of one
    return float(values[order][min(place, len(values) - 1)])


def _floats(values: pd.Series) -> npt.NDArray[np.float64]:
    return np.asarray(values.to_numpy(dtype=float))


def kernels_by_op(rows: pd.DataFrame, key: Sequence[str] = ("op", "shapes")) -> pd.DataFrame:
    """Group the rows of `launches` by launching op and its input shapes, in descending order of time.

    The op is the innermost op around the launch call or, if the call is not in the trace, the op with the same external
    id.

    Returns
    -------
    DataFrame
        ``op`` and ``shapes`` (missing if unknown), ``op_calls`` (calls of the op that launched something), ``kernels``
        (distinct names), ``calls``, ``total_ms``, ``mean_us``, ``min_us``, ``max_us``, ``layers`` (how many layers
        launched it), ``layer`` (the layer with most of this time; missing if there is none) and ``layer_share`` (its
        share). Layer columns are missing if the events have no layers. Times are totals over the trace, not per step.
    """
    by = rows.groupby([*key], dropna=False, sort=False, observed=True)
    ns = by["duration_ns"]
    table = pd.DataFrame(
        {
            "op_calls": by["op_row"].nunique().astype("Int64"),
            "kernels": by["name"].nunique(),
            "calls": ns.size(),
            "total_ms": ns.sum() / 1e6,
            "mean_us": ns.mean() / 1e3,
            "min_us": ns.min() / 1e3,
            "max_us": ns.max() / 1e3,
        }
    ).reset_index()
    # If the op is unknown, so is its number of calls.
    table["op_calls"] = table["op_calls"].mask(table["op"].isna())
    table = table.merge(_layers(rows, [*key]), on=[*key], how="left")
    return table.sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)


def _layers(rows: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """For each value of the key, find the layer that accounts for most of its time, and that layer's share."""
    sums = rows.groupby([*key, "layer"], dropna=False, sort=False, observed=True)["duration_ns"].sum().reset_index()
    total = sums.groupby(key, dropna=False, sort=False, observed=True)["duration_ns"].transform("sum")
    sums["layer_share"] = (sums["duration_ns"] / total.where(total > 0)).astype("Float64")
    known = sums[sums["layer"].notna()].sort_values("duration_ns", ascending=False, kind="stable")
    count = known.groupby(key, dropna=False, sort=False, observed=True)["layer"].transform("size")
    known.insert(len(key), "layers", count.astype("Int64"))
    return known.drop_duplicates(key).drop(columns="duration_ns")
