"""What each host thread was doing at each moment: the innermost op or runtime call, or neither."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import column, is_in, matching, nested_ends, step_rows, thread_keys
from perfnb.recording.nesting import NONE, Ints, forest_of
from perfnb.trace_names import ACCUMULATE_GRAD, BACKWARD_NODE, CALLS, OPS

#: Backward nodes; older traces do not record their forward thread.
_NODE = re.compile(rf"{BACKWARD_NODE}|torch::autograd::{ACCUMULATE_GRAD}|[A-Za-z_]+Backward[0-9]*$")
_FIRST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class HostTimeline:
    """Each thread's time, cut wherever the innermost event changes.

    Attributes
    ----------
    thread, time : ndarray
        Thread number (see `thread_keys`) and nanosecond of each cut, in this order. Each thread starts with a cut
        before all time.
    owner : ndarray
        Position in the events of what runs from there to the next cut; -1 for no op and no call.
    around : ndarray
        For each op or call: the op around it; -1 for none.
    """

    thread: Ints
    time: Ints
    owner: Ints
    around: Ints

    def of(self, thread: int) -> slice:
        """Slice of a thread's cuts."""
        low, high = np.searchsorted(self.thread, [thread, thread + 1])
        return slice(int(low), int(high))

    def cut(self, thread: int, begin: int, end: int) -> tuple[Ints, Ints, Ints]:
        """Owner, start and end of each piece of an interval of a thread."""
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
    """Cut the time of each thread of one rank."""
    is_op = is_in(events, OPS) & ~step_rows(events)
    rows = np.flatnonzero(is_op | is_in(events, CALLS))
    keys = thread_keys(events)
    thread, start = keys[rows], column(events, "start_ns")[rows]
    end, parent = nested_ends(thread, start, start + np.maximum(column(events, "duration_ns")[rows], 0))
    depth = forest_of(parent).depth
    around = np.full(len(events), NONE, dtype=np.int64)
    around[rows] = np.append(rows, NONE)[parent]
    real = np.flatnonzero(end > start)
    everywhere = np.unique(keys[rows])
    borders = pd.DataFrame(
        {
            "thread": np.concatenate((everywhere, thread[real], thread[real])),
            "time": np.concatenate((np.full(len(everywhere), _FIRST), start[real], end[real])),
            # At one moment the last entry counts: ends from the inside out, then starts from the outside in.
            "order": np.concatenate((np.zeros(len(everywhere), dtype=np.int64), depth[real] + 1, -depth[real] - 1)),
            "owner": np.concatenate((np.full(len(everywhere), NONE), rows[real], np.append(rows, NONE)[parent[real]])),
        }
    )
    borders = borders.iloc[np.lexsort((borders["order"], borders["time"], borders["thread"]))]
    keep = ~borders.duplicated(["thread", "time"], keep="last").to_numpy()
    kept = borders[keep]
    return HostTimeline(kept["thread"].to_numpy(), kept["time"].to_numpy(), kept["owner"].to_numpy(), around)


@dataclass(frozen=True)
class Handovers:
    """Where one thread resumed after another finished: forward and backward alternate between two threads.

    Attributes
    ----------
    thread, time : ndarray
        The thread that resumed, and when, in this order.
    other, ended : ndarray
        The thread that had been working, and when it finished.
    """

    thread: Ints
    time: Ints
    other: Ints
    ended: Ints


def handovers(events: pd.DataFrame, timeline: HostTimeline, main: int) -> Handovers:
    """Find where the main thread and the backward threads waited for each other.

    A thread that was idle while another of them finished is taken to have waited for it.
    """
    backward = (column(events, "forward_thread") > 0) | matching(events, _NODE)
    backward &= is_in(events, OPS)
    joined = np.unique(np.append(thread_keys(events)[backward], main))
    none = np.array([], dtype=np.int64)
    if len(joined) < 2:
        return Handovers(none, none, none, none)
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
