"""Determine what GPU work, blocking host calls and threads waited for.

Work can start on a device once a call has launched it, the previous work on its stream has ended, and the events that
its stream had to wait for have completed. Whichever of these happened last determined when the work started.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import (
    DeviceWork,
    column,
    is_in,
    matching,
    nested_ends,
    pairs,
    step_rows,
    thread_keys,
)
from perfnb.gpu.device_time import HANDOVER_NS, LAUNCH_NS
from perfnb.recording.nesting import NONE, Bools, Ints, forest_of, innermost_over_time
from perfnb.trace.trace_steps import first_match
from perfnb.trace_names import ACCUMULATE_GRAD, BACKWARD_NODE, CALLS, OPS, SYNCHRONISATION

#: The names of backward nodes. Older traces do not record the forward thread of a node.
_NODE = re.compile(rf"{BACKWARD_NODE}|torch::autograd::{ACCUMULATE_GRAD}|[A-Za-z_]+Backward[0-9]*$")
_FIRST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class HostTimeline:
    """Each thread's time, cut wherever the innermost event changes.

    Attributes
    ----------
    thread, time : ndarray
        The thread number (see `thread_keys`) and the time of each cut in nanoseconds, sorted by thread and time. The
        first cut of each thread precedes all events.
    owner : ndarray
        The position of the event that runs between this cut and the next, or -1 if no op or call is running.
    around : ndarray
        For each op or call, the enclosing op, or -1 if there is none.
    """

    thread: Ints
    time: Ints
    owner: Ints
    around: Ints

    def of(self, thread: int) -> slice:
        """Return the slice of the arrays that contains a thread's cuts."""
        low, high = np.searchsorted(self.thread, [thread, thread + 1])
        return slice(int(low), int(high))

    def cut(self, thread: int, begin: int, end: int) -> tuple[Ints, Ints, Ints]:
        """Return the owner, start and end of each piece of an interval on a thread."""
        place = self.of(thread)
        time, owner = self.time[place], self.owner[place]
        if len(time) == 0:
            return np.array([NONE]), np.array([begin]), np.array([end])
        first = int(np.searchsorted(time, begin, side="right")) - 1
        last = max(int(np.searchsorted(time, end, side="left")), first + 1)
        borders = np.append(time[first:last], end)
        borders[0] = begin
        return owner[first:last], borders[:-1], borders[1:]


def host_timeline(events: pd.DataFrame) -> HostTimeline:
    """Return the timeline of each of a rank's threads."""
    is_op = is_in(events, OPS) & ~step_rows(events)
    rows = np.flatnonzero(is_op | is_in(events, CALLS))
    thread, start = thread_keys(events)[rows], column(events, "start_ns")[rows]
    end, parent = nested_ends(thread, start, start + np.maximum(column(events, "duration_ns")[rows], 0))
    around = np.full(len(events), NONE, dtype=np.int64)
    around[rows] = above = np.append(rows, NONE)[parent]
    threads, time, owner = innermost_over_time(thread, start, end, forest_of(parent).depth, rows, above)
    first = np.unique(threads, return_index=True)[1]
    return HostTimeline(
        np.insert(threads, first, threads[first]), np.insert(time, first, _FIRST), np.insert(owner, first, NONE), around
    )


@dataclass(frozen=True)
class Handovers:
    """The points where one thread resumed because another had finished.

    The forward and backward passes alternate between two threads.

    Attributes
    ----------
    thread, time : ndarray
        The thread that resumed and the time when it resumed, sorted by thread and time.
    other, ended : ndarray
        The thread that had been working, and the time when it finished.
    """

    thread: Ints
    time: Ints
    other: Ints
    ended: Ints


def handovers(events: pd.DataFrame, timeline: HostTimeline, main: int) -> Handovers:
    """Find the points where the main thread and the backward threads waited for each other.

    If a thread was idle when another thread finished, it is assumed to have waited for that thread.
    """
    backward = (column(events, "forward_thread") > 0) | matching(events, _NODE)
    backward &= is_in(events, OPS)
    joined = np.unique(np.append(thread_keys(events)[backward], main))
    idle = np.flatnonzero((timeline.owner == NONE) & np.isin(timeline.thread, joined))
    idle = idle[np.append(timeline.thread, NONE)[idle + 1] == timeline.thread[idle]]
    thread, begin, end = timeline.thread[idle], timeline.time[idle], timeline.time[idle + 1]
    other, ended = np.full(len(idle), NONE, dtype=np.int64), begin.copy()
    for one in joined:
        place = timeline.of(int(one))
        stops = timeline.time[place][(timeline.owner[place] == NONE) & (timeline.time[place] != _FIRST)]
        if len(stops) == 0:
            continue
        last = np.searchsorted(stops, end, side="right") - 1
        stop = np.where(last >= 0, stops[np.maximum(last, 0)], _FIRST)
        better = (thread != one) & (stop > ended)
        other[better], ended[better] = one, stop[better]
    found = other != NONE
    return Handovers(thread[found], end[found], other[found], ended[found])


#: What a piece of work waited for.
UNKNOWN, LAUNCH, STREAM, EVENT = -1, 0, 1, 2
_WAITING = re.compile(r"(?:cuda|hip|cu)(?:Device|Ctx|Stream|Event)Synchronize")
_STREAM_WAITING, _EVENT_WAITING = (re.compile(rf"(?:cuda|hip|cu){what}Synchronize") for what in ("Stream", "Event"))
_COPYING = re.compile(r"(?:cuda|hip|cu)Memcpy")


@dataclass(frozen=True)
class HeldUp:
    """What each piece of work waited for.

    Attributes
    ----------
    launch, thread : ndarray
        The start of the launch call and its thread number (see `thread_keys`), or -1 if the call is unknown.
    before, awaited : ndarray
        The indices of the previous work on its stream, and of the last work on another stream that it waited for
        through an event. The index is -1 if there is no such work.
    by : ndarray
        `LAUNCH`, `STREAM` (the previous work), `EVENT` (the awaited work) or `UNKNOWN`.
    inferred : ndarray of bool
        Whether the awaited work was inferred. The trace does not identify it, but it was the only work that ended just
        before this work started.
    explained : ndarray
        The time up to which the cause explains the delay. This is the start of the work, or an earlier time if the work
        started later than launch latency can explain. The trace does not show the cause of the remaining delay.
    """

    launch: Ints
    thread: Ints
    before: Ints
    awaited: Ints
    by: Ints
    inferred: Bools
    explained: Ints


@dataclass(frozen=True)
class Waits:
    """Calls where the host waits for a device, sorted by thread and time of return.

    Attributes
    ----------
    rows : ndarray
        The positions in the events.
    thread, start, end : ndarray
        The thread number, and the start and end in nanoseconds.
    work : ndarray
        The index of the awaited work that ended last. It may have ended before the call.
    waiting, awaited : ndarray
        Pairs of a call's index in these arrays and the index of the last work on a stream that the call waits for.
    """

    rows: Ints
    thread: Ints
    start: Ints
    end: Ints
    work: Ints
    waiting: Ints
    awaited: Ints


def held_up(events: pd.DataFrame, work: DeviceWork) -> HeldUp:
    """Determine what each piece of work waited for."""
    known = work.call != NONE
    launch = np.where(known, column(events, "start_ns")[work.call], NONE)
    thread = np.where(known, thread_keys(events)[work.call], NONE)
    returned = launch + np.where(known, column(events, "duration_ns")[work.call], 0)
    # The host had certainly submitted the work by the time the launch call returned or the work started, whichever came
    # first.
    ready = np.where(returned <= work.start, returned, launch)
    place = pairs(work.device, work.stream)
    before = np.where(work.stream != NONE, _ended_before(place, work), NONE)
    awaited = _awaited(events, work, place)
    ends = np.append(work.end, np.iinfo(np.int64).min)
    by = np.where(known, LAUNCH, np.where(before != NONE, STREAM, UNKNOWN))
    held = np.where(known, ready, ends[before])
    # One call launches all kernels of a CUDA graph, so only the first kernel on each stream waits for the call.
    graph = known & (before != NONE) & (work.call[before] == work.call)
    after = (before != NONE) & ((ends[before] > held) | graph)
    by, held = np.where(after, STREAM, by), np.where(after, ends[before], held)
    by, held = np.where(ends[awaited] > held, EVENT, by), np.maximum(held, ends[awaited])
    # If the trace has no synchronization events: the work that ended just before, if nothing else explains the delay.
    nearest = _ended_before(pairs(work.device), work)
    inferred = (work.start - np.maximum(held, work.start.min(initial=0)) > HANDOVER_NS) & (by != UNKNOWN)
    inferred &= (ends[nearest] > held) & (work.start - np.maximum(ends[nearest], held) <= HANDOVER_NS)
    awaited, by = np.where(inferred, nearest, awaited), np.where(inferred, EVENT, by)
    free = np.where(by == LAUNCH, returned, np.where(by == STREAM, ends[before], ends[awaited]))
    # The kernels of a CUDA graph run in the order, and with the gaps, that the graph defines.
    late = (by != UNKNOWN) & ~(graph & (by == STREAM)) & (work.start - np.minimum(free, work.start) > LAUNCH_NS)
    return HeldUp(launch, thread, before, awaited, by, inferred, np.where(late, free, work.start))


def host_waits(events: pd.DataFrame, work: DeviceWork) -> Waits:
    """Return the calls that synchronize with a device or block until a copy is done, and the work they waited for."""
    start = column(events, "start_ns")
    end = start + column(events, "duration_ns")
    is_call = is_in(events, CALLS)
    of_event = is_call & matching(events, _EVENT_WAITING)
    others = np.flatnonzero(is_call & matching(events, _WAITING) & ~of_event)
    rows = np.flatnonzero(of_event)
    waiting, awaited = np.arange(len(rows)), _work_of_events(events, work, rows)
    call, last = _work_of_streams(events, work, others, matching(events, _STREAM_WAITING)[others])
    waiting, awaited = np.concatenate((waiting, len(rows) + call)), np.concatenate((awaited, last))
    rows = np.concatenate((rows, others))
    # A copy call was blocking if its copy had ended by the time it returned.
    copied = np.flatnonzero(work.call != NONE)
    call = work.call[copied]
    blocks = matching(events, _COPYING)[call] & (work.end[copied] > start[call]) & (work.end[copied] <= end[call])
    waiting = np.concatenate((waiting, len(rows) + np.arange(blocks.sum())))
    rows, awaited = np.concatenate((rows, call[blocks])), np.concatenate((awaited, copied[blocks]))
    waiting, awaited = waiting[awaited != NONE], awaited[awaited != NONE]
    thread = thread_keys(events)[rows]
    order = np.lexsort((end[rows], thread))
    place = np.argsort(order)
    last = np.full(len(rows), NONE, dtype=np.int64)
    by_end = np.argsort(work.end[awaited], kind="stable")
    last[place[waiting[by_end]]] = awaited[by_end]
    rows = rows[order]
    return Waits(rows, thread[order], start[rows], end[rows], last, place[waiting], awaited)


def latest(group: Ints, time: Ints, of_group: Ints, until: Ints, side: Literal["left", "right"] = "left") -> Ints:
    """Return the last member of each requested group before a time, or with ``right``, at or before that time.

    The result is -1 if there is no such member.
    """
    moments = np.unique(np.concatenate((time, until)))
    key = group * len(moments) + np.searchsorted(moments, time)
    order = np.argsort(key, kind="stable")
    wanted = of_group * len(moments) + np.searchsorted(moments, until)
    place = np.append(order, NONE)[np.searchsorted(key[order], wanted, side=side) - 1]
    found = (place != NONE) & (np.append(group, NONE)[place] == of_group)
    return np.where(found, place, NONE)


def _ended_before(group: Ints, work: DeviceWork) -> Ints:
    """Return the last work in the same group that had ended when each piece of work started, or -1 if there is none."""
    order = np.lexsort((np.arange(len(work)), work.start, work.end))
    place = np.argsort(order)
    # Work is ranked by its end; otherwise, work of zero duration would precede itself.
    until = np.minimum(np.searchsorted(work.end[order], work.start, side="right"), place)
    return latest(group, place, group, until)


def _launched(events: pd.DataFrame, work: DeviceWork) -> Ints:
    """Return the launch time of each piece of work, or its start time if the launch is unknown."""
    return np.where(work.call != NONE, column(events, "start_ns")[work.call], work.start)


def _streams(events: pd.DataFrame, work: DeviceWork, rows: Ints, name: str) -> tuple[Ints, Ints]:
    """Return numbers that identify the stream of each piece of work, and the stream in each row's column `name`."""
    device = np.concatenate((work.device, column(events, "device")[rows]))
    both = pairs(device, np.concatenate((work.stream, column(events, name)[rows])))
    return both[: len(work)], both[len(work) :]


def _source(events: pd.DataFrame, work: DeviceWork, rows: Ints) -> Ints:
    """Return the work after which the event of each synchronization row was recorded, or -1 if it is unknown."""
    correlation = column(events, "wait_correlation")[rows]
    calls = np.flatnonzero(is_in(events, CALLS))
    place = first_match(column(events, "correlation")[calls], correlation)
    # If the trace does not contain the time, the event precedes everything.
    recorded = np.append(column(events, "start_ns")[calls], _FIRST)[np.where(correlation != NONE, place, NONE)]
    of_work, of_row = _streams(events, work, rows, "wait_stream")
    source = latest(of_work, _launched(events, work), of_row, recorded)
    return np.where(column(events, "wait_stream")[rows] != NONE, source, NONE)


def _awaited(events: pd.DataFrame, work: DeviceWork, place: Ints) -> Ints:
    """Return the last work on another stream that each piece of work had to wait for because of an event."""
    rows = np.flatnonzero(is_in(events, SYNCHRONISATION) & (events["name"] == "Stream Wait Event").to_numpy())
    result = np.full(len(work), NONE, dtype=np.int64)
    source = _source(events, work, rows)
    rows, source = rows[source != NONE], source[source != NONE]
    if len(rows) == 0:
        return result
    # Find the first work launched on the stream afterwards. With time reversed, this is the last work before it.
    of_work, of_row = _streams(events, work, rows, "stream")
    target = latest(of_work, -_launched(events, work), of_row, -column(events, "start_ns")[rows], side="right")
    real = (target != NONE) & (work.end[source] <= work.start[target])
    source, target = source[real], target[real]
    order = np.argsort(work.end[source], kind="stable")
    result[target[order]] = source[order]
    return result


def _detail(events: pd.DataFrame, rows: Ints) -> Ints:
    """Return the synchronization event that describes each blocking call, or -1 if there is none."""
    described = np.flatnonzero(is_in(events, SYNCHRONISATION) & (column(events, "correlation") != NONE))
    place = first_match(column(events, "correlation")[described], column(events, "correlation")[rows])
    return np.append(described, NONE)[place]


def _work_of_events(events: pd.DataFrame, work: DeviceWork, rows: Ints) -> Ints:
    """Return the work that each call waited for when it waited for an event.

    If the trace does not identify the work, return the last work that ended before the call returned.
    """
    detail = _detail(events, rows)
    start = column(events, "start_ns")[rows]
    end = start + column(events, "duration_ns")[rows]
    last = latest(np.zeros_like(work.rows), work.end, np.zeros_like(rows), end, side="right")
    result = np.where(np.append(_launched(events, work), 0)[last] < start, last, NONE)
    known = detail != NONE
    result[known] = _source(events, work, detail[known])
    return result


def _work_of_streams(events: pd.DataFrame, work: DeviceWork, rows: Ints, of_stream: Bools) -> tuple[Ints, Ints]:
    """Pair each call that waits for a stream or device with the last work launched before it on each stream."""
    detail = _detail(events, rows)
    device = np.append(column(events, "device"), NONE)[detail]
    stream = np.append(column(events, "stream"), NONE)[detail]
    start, launched = column(events, "start_ns")[rows], _launched(events, work)
    # The call did not wait for work that ended after it returned. A small difference is due to clock skew.
    until = start + column(events, "duration_ns")[rows] + HANDOVER_NS
    none = np.array([], dtype=np.int64)
    calls, awaited = [none], [none]
    ends = np.append(work.end, np.iinfo(np.int64).min)
    place = pairs(work.device, work.stream)
    for one in np.unique(place):
        member = np.flatnonzero(place == one)
        of_device, of_member = work.device[member[0]], work.stream[member[0]]
        order = member[np.argsort(launched[member], kind="stable")]
        last = np.append(NONE, order)[np.searchsorted(launched[order], start)]
        fits = (device == NONE) | (device == of_device) | (of_device == NONE)
        fits &= ~of_stream | (stream == NONE) | (stream == of_member)
        fits &= (last != NONE) & (ends[last] <= until)
        calls.append(np.flatnonzero(fits))
        awaited.append(last[fits])
    return np.concatenate(calls), np.concatenate(awaited)
