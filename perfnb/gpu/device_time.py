"""Compute how a GPU spent its time, and why it was idle.

The causes of idle time are a late host, a dependency, or a cause that the trace does not show. The times are busy,
computing, communicating, copying and idle time, and communication hidden by computation. Work overlaps across streams
and even within a stream, so each figure is the length of a union of intervals, and never a sum of durations.
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
    """Return the time of each device of each rank over the whole trace.

    Parameters
    ----------
    events : DataFrame
        One row per event, as described in `Recording.events`.
    work : Work, optional
        The result of `work_alone` for the events, if it is already known.

    Returns
    -------
    DataFrame
        One row per device: ``rank`` and ``device`` (missing if the events have none), ``total_ms`` (start of the first
        kernel, copy or fill to the end of the last), ``busy_ms`` (at least one ran), ``computation_ms`` (fills, and
        kernels that are not collectives), ``communication_ms`` (NCCL and RCCL kernels), ``memcpy_ms``, ``idle_ms`` and
        ``idle_pct`` (total minus busy), ``overlap_ms`` and ``overlap_pct`` (communication during computation; share of
        communication), ``kernels`` and ``kernel_ms`` (number of kernels and sum of their durations). Times are totals
        over the trace, not per step. A share is missing if its whole is zero.
    """
    return _table(work_alone(events) if work is None else work, events, _WHOLE)


def gpu_time_by_step(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    """Return the times of `gpu_time`, with one row per device and step.

    Work belongs to the step that launched it. If its launch is not in the trace, it belongs to the step where it
    started. A step's total is the time from the start of its first work to the end of its last. Idle time between two
    steps therefore belongs to neither step, and the totals of steps that overlap on the device add up to more than the
    whole.
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
    """Yield the values of the columns `by`, each with the indices of the work that has these values, in order of
    value.
    """
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
#: Longest gap that switching from one kernel to the next explains: 1 to 3 µs on NVIDIA GPUs, on AMD's sometimes 10.
HANDOVER_NS = 10_000
#: Longest time from the return of a launch call to the start of its work that launch latency explains: usually 2 to
#: 6 µs on NVIDIA GPUs, 7 to 24 on AMD's.
LAUNCH_NS = 30_000
_WAIT_CALL = re.compile(r"(?:cuda|hip|cu)StreamWaitEvent")


def idle_gaps(
    events: pd.DataFrame,
    work: DeviceWork | None = None,
    own_step: bool = False,
) -> pd.DataFrame:
    """Find the gaps where a device was idle between its first and its last work.

    A gap has up to two parts, which depend on the work that ended it: the part until the call that launched this work
    returned, and the part after.

    ``host``
        The host was late: until the call returned (or until the work started, if earlier), plus the rest if it is no
        longer than launch latency.
    ``dependency``
        The rest, if the work had to wait: for the work before it, if the gap is no longer than a switch between
        kernels; for earlier work of the same CUDA graph; or for an event that its stream had to wait for and
        whose completion is not in the trace.
    ``other``
        The rest, if nothing in the trace explains it; or the whole gap, if the launch is not in the trace.

    Parameters
    ----------
    events : DataFrame
        One row per event.
    work : DeviceWork, optional
        The result of `device_work` for the events, if it is already known.
    own_step : bool
        Only look for gaps between work of the same step, as if there were no other steps.

    Returns
    -------
    DataFrame
        ``rank``, ``device``, ``step`` (of the work after the gap), ``start_ns``, ``duration_ns``; ``host_ns``,
        ``dependency_ns`` and ``other_ns`` (which add up to it); ``call_ns`` and ``latency_ns`` (parts of `host_ns`:
        inside the launch call and after it returned), ``reason`` (the longest of the three), ``launch_known``,
        ``before_step`` (the gap precedes the first work of its step), ``next_event`` (position in `events` of the work
        after the gap), ``next`` and ``op`` (names of that work and of the op that launched it). Durations add up to the
        idle time.
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
    # If the call started in time but had not returned, a short gap is just the switch to the next kernel.
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
        ``other_ms``, ``call_ms`` and ``latency_ms`` (parts of `host_ms`), ``unknown_ms`` (part of `other_ms` whose
        launch is not in the trace), ``before_ms`` (part of `idle_ms` before the first work of a step) and ``gaps``. A
        device that was never idle has no row. A gap between two steps belongs to the second, or to neither with
        `own_step`.
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

    If several pieces of work start at that moment, the longest is returned. Work of zero duration also ends a gap, so
    that the first start, the gaps, the work and the last end add up.
    """
    order = places[np.lexsort((-work.end[places], work.start[places]))]
    reach = np.maximum.accumulate(work.end[order])[:-1]
    after = order[1:]
    gaps = np.stack((reach, work.start[after], after))
    return gaps[:, gaps[1] > gaps[0]]


def _first(group: Ints, work: DeviceWork) -> Ints:
    """Return, for each piece of work, the start of the first work in its group."""
    return pd.Series(work.start).groupby(group).transform("min").to_numpy()


def _awaits_unknown(events: pd.DataFrame, work: DeviceWork) -> Bools:
    """Return whether, since its last launch, the stream had to wait for an event that the trace does not resolve.

    If the trace has no synchronization events, a wait call affects the next work that the same thread launches, because
    the stream is not recorded.
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
    # A wait counts for the first work launched after it on its stream.
    time = begin[work.call[order]]
    key = of_work[order]
    for stream in np.unique(of_wait):
        low, high = np.searchsorted(key, [stream, stream + 1])
        place = low + np.searchsorted(time[low:high], begin[waits[of_wait == stream]])
        result[order[place[place < high]]] = True
    return result
