"""The steps that a trace marks, and the events that belong to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfnb.trace.columns import MISSING, Ints, TraceColumns
from perfnb.trace_names import BACKWARD_NODE, CALLS, DEVICE_EVENTS, HOST_EVENTS, STEP_MARKS, number_behind

Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class TraceSteps:
    """The steps of a trace, in time order; no two overlap.

    Attributes
    ----------
    rows : ndarray
        Position in the trace of the event that marks each; -1 for a step that stands for the whole trace.
    numbers : ndarray
        From their marks: ``ProfilerStep#12`` is 12.
    starts, ends : ndarray
        Nanoseconds.
    process, thread : int
        Where they ran.
    ignored : int
        Marks on other threads or inside other marks.
    """

    rows: Ints
    numbers: Ints
    starts: Ints
    ends: Ints
    process: int
    thread: int
    ignored: int = 0

    @property
    def marked(self) -> bool:
        """Whether the trace marks its steps."""
        return bool((self.rows != MISSING).all())


def is_in(trace: TraceColumns, categories: tuple[str, ...]) -> Bools:
    """Return whether each event is in one of the categories."""
    return np.isin(np.array(trace.categories, dtype=object), categories)[trace.category]


def numbered_spans(trace: TraceColumns, label: str, categories: tuple[str, ...]) -> tuple[Ints, Ints]:
    """Find events of some categories named `label` and a number: their positions, and their numbers."""
    of_names = np.array([number_behind(label, name) for name in trace.names], dtype=np.int64)
    numbers = of_names[trace.name]
    rows = np.flatnonzero((numbers != MISSING) & is_in(trace, categories))
    return rows, numbers[rows]


def inside(times: Ints, starts: Ints, ends: Ints) -> Bools:
    """Return whether each time lies in one of the disjoint windows."""
    if len(starts) == 0:
        return np.zeros(len(times), dtype=bool)
    order = np.argsort(starts)
    place = np.searchsorted(starts[order], times, side="right") - 1
    return (place >= 0) & (times < ends[order][place])


def steps_of(trace: TraceColumns) -> TraceSteps:
    """Find the steps that a trace marks; without marks, the whole trace is one step.

    Marks count on the thread with the most of them. A step that stands for the whole trace lasts from the start of the
    first host event to the end of the last, and runs on the thread with the most events outside a backward pass;
    without host events it spans what ran on devices.
    """
    for label, categories in STEP_MARKS.items():
        rows, numbers = numbered_spans(trace, label, categories)
        if len(rows):
            return _marked(trace, rows, numbers)
    return _whole(trace)


def belongs_to_steps(trace: TraceColumns, steps: TraceSteps) -> Bools:
    """Return whether each event is part of a step.

    A host event belongs to the step in which it starts; a device event to that of the call that launched it, or to the
    one in which it starts if the trace lacks the call.
    """
    if not steps.marked:
        return np.ones(len(trace), dtype=bool)
    part = inside(trace.start_ns, steps.starts, steps.ends)
    part[steps.rows] = True
    known = trace.correlation != MISSING
    calls = is_in(trace, CALLS) & known
    launched = is_in(trace, DEVICE_EVENTS) & known & np.isin(trace.correlation, trace.correlation[calls])
    of_steps = np.isin(trace.correlation, trace.correlation[calls & part])
    return np.where(launched, of_steps, part)


def _marked(trace: TraceColumns, rows: Ints, numbers: Ints) -> TraceSteps:
    which, threads = _threads(trace, rows)
    count = np.bincount(which)
    process, thread = threads[:, int(count.argmax())].tolist()
    chosen, numbers = rows[which == count.argmax()], numbers[which == count.argmax()]
    order = np.lexsort((-trace.duration_ns[chosen], trace.start_ns[chosen]))
    chosen, numbers = chosen[order], numbers[order]
    starts = trace.start_ns[chosen]
    ends = starts + trace.duration_ns[chosen]
    reached = np.concatenate([starts[:1], np.maximum.accumulate(ends)[:-1]])
    # Rounding can let a step end just after the next one starts; one that starts earlier than that is inside another.
    apart = starts >= reached - max(trace.unit_ns, 1)
    chosen, numbers, starts, ends = chosen[apart], numbers[apart], starts[apart], ends[apart]
    ends[:-1] = np.minimum(ends[:-1], starts[1:])
    return TraceSteps(chosen, numbers, starts, ends, process, thread, len(rows) - len(chosen))


def _whole(trace: TraceColumns) -> TraceSteps:
    host = np.flatnonzero(is_in(trace, HOST_EVENTS))
    rows = host if len(host) else np.arange(len(trace))
    if len(rows) == 0:
        none = np.array([], dtype=np.int64)
        return TraceSteps(none, none, none, none, MISSING, MISSING)
    start, end = trace.start_ns[rows], trace.start_ns[rows] + trace.duration_ns[rows]
    process, thread = _main_thread(trace, host) if len(host) else (MISSING, MISSING)
    one = np.array([0], dtype=np.int64)
    return TraceSteps(one - 1, one, start.min(keepdims=True), end.max(keepdims=True), process, thread)


def _main_thread(trace: TraceColumns, host: Ints) -> tuple[int, int]:
    """Return the thread with the most events outside the nodes of a backward pass."""
    is_node = np.array([name.startswith(BACKWARD_NODE) for name in trace.names], dtype=bool)[trace.name[host]]
    start, end = trace.start_ns[host], trace.start_ns[host] + trace.duration_ns[host]
    which, threads = _threads(trace, host)
    most = (-1, 0)
    for code in range(threads.shape[1]):
        mine = which == code
        nodes = np.flatnonzero(mine & is_node)
        nodes = nodes[np.argsort(start[nodes], kind="stable")]
        reach = np.maximum.accumulate(end[nodes]) if len(nodes) else nodes
        place = np.searchsorted(start[nodes], start[mine], side="right") - 1
        in_backward = np.append(reach, np.iinfo(np.int64).min)[place] > start[mine]
        most = max(most, (int((~in_backward).sum()), -code))
    process, thread = threads[:, -most[1]].tolist()
    return process, thread


def _threads(trace: TraceColumns, rows: Ints) -> tuple[Ints, Ints]:
    """Number the thread of each of the rows, and return the process and thread of each number."""
    processes, process = np.unique(trace.process[rows], return_inverse=True)
    threads, thread = np.unique(trace.thread[rows], return_inverse=True)
    pairs, which = np.unique(process * len(threads) + thread, return_inverse=True)
    return which, np.stack([processes[pairs // len(threads)], threads[pairs % len(threads)]])
