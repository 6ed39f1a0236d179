"""Compute how a GPU spent its time, and why it was idle.

A GPU can be idle because the host was late, because of a dependency, or for a reason that the trace does not show. The
module computes busy, computing, communicating, copying and idle time, and the communication hidden by computation. Work
can overlap across streams and even within a stream, so each figure is the length of a union of intervals instead of a
sum of durations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import (
    SORTS,
    DeviceWork,
    Work,
    column,
    device_work,
    is_in,
    known_or_na,
    matching,
    named,
    pairs,
    thread_keys,
    work_alone,
)
from perfnb.attribution.interval_sets import intersection, union
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.trace_names import CALLS, KERNELS, SYNCHRONISATION

_WHOLE, _BY_STEP = ("rank", "device"), ("rank", "device", "step")
_MS = (
    *("total_ms", "busy_ms", "computation_ms", "communication_ms", "memcpy_ms", "idle_ms"),
    *("idle_pct", "overlap_ms", "overlap_pct"),
)


def gpu_time(events: pd.DataFrame, work: Work | None = None) -> pd.DataFrame:
    """Return how each device spent its time over the whole trace.

    Parameters
    ----------
    events : DataFrame
        One row per event, as described in `Recording.events`.
    work : Work, optional
        The result of `work_alone` for the events, if it has already been computed.

    Returns
    -------
    DataFrame
        One row per device: ``rank`` and ``device`` (missing if the events do not specify them), ``total_ms`` (from the
        start of the first kernel, copy or fill to the end of the last), ``busy_ms`` (while at least one was running),
        ``computation_ms`` (fills, and kernels that are not collectives), ``communication_ms`` (NCCL and RCCL kernels),
        ``memcpy_ms``, ``idle_ms`` and ``idle_pct`` (total minus busy), ``overlap_ms`` and ``overlap_pct``
        (communication during computation, as a time and as a share of all communication), ``kernels`` and ``kernel_ms``
        (the number of kernels and the sum of their durations). Times are totals over the trace, not per step. A share
        is missing if its denominator is zero.
    """
    return _table(work_alone(events) if work is None else work, events, _WHOLE)


def gpu_time_by_step(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    """Return the times of `gpu_time`, with one row per device and step.

    Work belongs to the step that launched it. If its launch is not in the trace, it belongs to the step that was
    running when it started. A step's total is the time from the start of its first work to the end of its last work.
    Idle time between two steps therefore belongs to neither step. If steps overlap on the device, their totals add up
    to more than the total for the whole trace.
    """
    work = device_work(events) if work is None else work
    return _table(work, events, _BY_STEP, work.step != NONE)


def _table(work: Work, events: pd.DataFrame, by: tuple[str, ...], chosen: Bools | None = None) -> pd.DataFrame:
    is_kernel = is_in(events, KERNELS)[work.rows]
    rows = [{**key, **_figures(work, places, is_kernel)} for key, places in groups(work, by, chosen)]
    table = pd.DataFrame(rows, columns=[*by, *_MS, "kernels", "kernel_ms"])
    types = dict.fromkeys((*by, "kernels"), "Int64") | dict.fromkeys((*_MS, "kernel_ms"), "Float64")
    return table.astype(types)


def groups(
    work: Work, by: tuple[str, ...], chosen: Bools | None = None
) -> Iterator[tuple[dict[str, int | None], Ints]]:
    """Yield each combination of values in the columns `by` together with the indices of its work, sorted by value."""
    places = np.arange(len(work)) if chosen is None else np.flatnonzero(chosen)
    if len(places) and all((getattr(work, name)[places] == getattr(work, name)[places[0]]).all() for name in by):
        only = {name: int(getattr(work, name)[places[0]]) for name in by}  # one device: nothing to sort
        yield {name: None if value == NONE else value for name, value in only.items()}, places
        return
    keys = pd.DataFrame({name: getattr(work, name)[places] for name in by})
    for _, group in keys.groupby(list(by), sort=True):
        first = group.iloc[0]
        known = {name: None if first[name] == NONE else int(first[name]) for name in by}
        yield known, places[group.index.to_numpy()]


def _figures(work: Work, places: Ints, is_kernel: Bools) -> dict[str, float | int | None]:
    start, end, sort = work.start[places], work.end[places], work.sort[places]
    of_sort = {name: union(start[sort == code], end[sort == code]) for code, name in enumerate(SORTS)}
    total, busy = int(end.max() - start.min()), union(start, end).length
    communication = of_sort["communication"].length
    overlap = intersection(of_sort["communication"], of_sort["computation"]).length
    kernels = places[is_kernel[places]]
    return {
        "total_ms": total / 1e6,
        "busy_ms": busy / 1e6,
        "computation_ms": of_sort["computation"].length / 1e6,
        "communication_ms": communication / 1e6,
        "memcpy_ms": of_sort["memcpy"].length / 1e6,
        "idle_ms": (total - busy) / 1e6,
        "idle_pct": 100 * (total - busy) / total if total else None,
        "overlap_ms": overlap / 1e6,
        "overlap_pct": 100 * overlap / communication if communication else None,
        "kernels": len(kernels),
        "kernel_ms": int((work.end - work.start)[kernels].sum()) / 1e6,
    }


_BY = ("rank", "device")
#: Reasons why a device was idle, in column order.
REASONS = ("host", "dependency", "other")
#: The longest gap that can be explained by switching from one kernel to the next. A switch takes 1 to 3 µs on NVIDIA
#: GPUs, and sometimes 10 µs on AMD GPUs.
HANDOVER_NS = 10_000
#: The longest time from the return of a launch call to the start of its work that launch latency can explain. The
#: latency is usually 2 to 6 µs on NVIDIA GPUs, and 7 to 24 µs on AMD GPUs.
LAUNCH_NS = 30_000
_WAIT_CALL = re.compile(r"(?:cuda|hip|cu)StreamWaitEvent")


def idle_gaps(
    events: pd.DataFrame,
    work: DeviceWork | None = None,
    own_step: bool = False,
) -> pd.DataFrame:
    """Find the gaps between a device's first and last work during which the device was idle.

    Each gap is divided at the moment when the call that launched the next work returned. Its parts are assigned to one
    of the following reasons.

    ``host``
        The host was late. This is the time until the call returned, or until the work started if that was earlier. It
        includes the rest of the gap if the rest is no longer than launch latency.
    ``dependency``
        The rest of the gap, if the work had to wait for something else: for the previous work, if the gap is no longer
        than a switch between kernels; for earlier work in the same CUDA graph; or for an event that its stream had to
        wait for and whose completion is not in the trace.
    ``other``
        The rest of the gap, if nothing in the trace explains it, or the whole gap, if the launch is not in the trace.

    Parameters
    ----------
    events : DataFrame
        One row per event.
    work : DeviceWork, optional
        The result of `device_work` for the events, if it has already been computed.
    own_step : bool
        Only look for gaps between work of the same step, ignoring all other steps.

    Returns
    -------
    DataFrame
        One row per gap: ``rank``, ``device``, ``step`` (of the work after the gap), ``start_ns``, ``duration_ns``;
        ``host_ns``, ``dependency_ns`` and ``other_ns``, which add up to the duration; ``call_ns`` and ``latency_ns``
        (the parts of `host_ns` inside the launch call and after it returned), ``reason`` (the longest of the three
        parts), ``launch_known``, ``before_step`` (whether the gap precedes the first work of its step), ``next_event``
        (position in `events` of the work after the gap), ``next`` and ``op`` (names of that work and of the op that
        launched it). The durations add up to the idle time.
    """
    work = device_work(events) if work is None else work
    waits, sibling = _awaits_unknown(events, work), _first(work.call, work)
    called = column(events, "start_ns")[work.call]
    returned = called + column(events, "duration_ns")[work.call]
    first = _first(pairs(work.rank, work.device, work.step), work)
    chosen = work.step != NONE if own_step else None
    of_groups = groups(work, (*_BY, "step") if own_step else _BY, chosen)
    none = np.empty((3, 0), dtype=np.int64)
    begin, end, after = np.concatenate([none, *(_gaps(work, places) for _, places in of_groups)], axis=1)
    known = work.call[after] != NONE
    graph = known & (sibling[after] < begin)
    called, returned = called[after], returned[after]
    given = np.clip(returned, begin, end)
    # A short gap is just the switch to the next kernel if the call started in time, even if it had not returned.
    short = end - begin <= HANDOVER_NS
    in_time = graph | (short & (np.where(returned > end, called, returned) <= begin))
    given = np.where(known & ~in_time, given, begin)
    soon = known & ~in_time & (end - returned <= LAUNCH_NS) & ((given > begin) | ~waits[after])
    host = np.where(soon, end, given) - begin
    rest = end - begin - host
    waited = known & (in_time | waits[after])
    three = np.stack((host, np.where(waited, rest, 0), np.where(waited, 0, rest)))
    return pd.DataFrame(
        {
            **{name: known_or_na(getattr(work, name)[after]) for name in (*_BY, "step")},
            "start_ns": begin,
            "duration_ns": end - begin,
            **{f"{reason}_ns": values for reason, values in zip(REASONS, three, strict=True)},
            "call_ns": np.where(known, given - np.clip(called, begin, given), 0),
            "latency_ns": begin + host - given,
            "before_step": (work.step[after] != NONE) & (begin < first[after]) & (not own_step),
            "reason": pd.Categorical.from_codes(three.argmax(axis=0), categories=pd.Index(REASONS)),
            "launch_known": known,
            "next_event": work.rows[after],
            "next": named(events, work.rows[after]),
            "op": named(events, work.op[after]),
        }
    )


def idle_time(
    events: pd.DataFrame,
    by_step: bool = False,
    work: DeviceWork | None = None,
    own_step: bool = False,
) -> pd.DataFrame:
    """Sum the result of `idle_gaps` by rank and device, and optionally by step.

    Returns
    -------
    DataFrame
        ``rank``, ``device``, ``step`` if requested, then ``idle_ms``, its parts ``host_ms``, ``dependency_ms`` and
        ``other_ms``, ``call_ms`` and ``latency_ms`` (parts of `host_ms`), ``unknown_ms`` (the part of `other_ms` where
        the next launch is not in the trace), ``before_ms`` (the part of `idle_ms` before the first work of a step) and
        ``gaps``. A device that was never idle does not have a row. A gap between two steps belongs to the second step,
        or with `own_step`, to neither of them.
    """
    rows = idle_gaps(events, work, own_step)
    by = [*_BY, *(["step"] if by_step else [])]
    parts = {f"{name}_ms": rows[f"{name}_ns"] / 1e6 for name in (*REASONS, "call", "latency")}
    idle = rows["duration_ns"] / 1e6
    sums = rows[by].assign(
        idle_ms=idle,
        **parts,
        unknown_ms=parts["other_ms"].where(~rows["launch_known"], 0.0),
        before_ms=idle.where(rows["before_step"], 0.0),
        gaps=1,
    )
    return sums.groupby(by, dropna=False).sum().reset_index()


def _gaps(work: DeviceWork, places: Ints) -> Ints:
    """Return the start and end of each gap, and the work that ended it.

    If several pieces of work start when the gap ends, the longest is returned. Work of zero duration also ends a gap.
    Otherwise the gaps and the work would not add up to the time from the first start to the last end.
    """
    order = places[np.lexsort((-work.end[places], work.start[places]))]
    reach = np.maximum.accumulate(work.end[order])[:-1]
    after = order[1:]
    gaps = np.stack((reach, work.start[after], after))
    return gaps[:, gaps[1] > gaps[0]]


def _first(group: Ints, work: DeviceWork) -> Ints:
    """Return the start of the first work in the group of each piece of work."""
    return pd.Series(work.start).groupby(group).transform("min").to_numpy()


def _awaits_unknown(events: pd.DataFrame, work: DeviceWork) -> Bools:
    """Check whether a stream had to wait for an event that the trace does not identify before each piece of work.

    Only waits since the stream's previous launch count. If the trace has no synchronization events, the stream of a
    wait call is not recorded, so the wait is assumed to affect the next work that the same thread launches.
    """
    is_sync = is_in(events, SYNCHRONISATION)
    result = np.zeros(len(work), dtype=bool)
    launched = np.flatnonzero(work.call != NONE)
    begin = column(events, "start_ns")
    if is_sync.any():
        waits = np.flatnonzero(is_sync & (events["name"] == "Stream Wait Event").to_numpy())
        waits = waits[column(events, "wait_correlation")[waits] == NONE]
        everything = pairs(
            np.concatenate((work.rank, column(events, "rank")[waits])),
            np.concatenate((work.device, column(events, "device")[waits])),
            np.concatenate((work.stream, column(events, "stream")[waits])),
        )
        of_work, of_wait = everything[: len(work)], everything[len(work) :]
    else:
        waits = np.flatnonzero(is_in(events, CALLS) & matching(events, _WAIT_CALL))
        thread = thread_keys(events)
        of_work, of_wait = thread[work.call], thread[waits]
    order = launched[np.lexsort((begin[work.call[launched]], of_work[launched]))]
    # A wait applies to the first work launched after it on its stream.
    time = begin[work.call[order]]
    key = of_work[order]
    for stream in np.unique(of_wait):
        low, high = np.searchsorted(key, [stream, stream + 1])
        place = low + np.searchsorted(time[low:high], begin[waits[of_wait == stream]])
        result[order[place[place < high]]] = True
    return result
