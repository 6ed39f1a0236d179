"""Find the steps that a trace marks and their events, and reject traces that cannot come from a real run.

A report has a row for each thread, stream, device, step and level. A small file could contain millions of them, and
building the report would then take hours or fill the memory. `perfnb.trace.trace_file.Limits` limits the cost of
reading the file, but not the cost of the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.errors import TraceError
from perfnb.trace.columns import MISSING, Ints, TraceColumns
from perfnb.trace_names import BACKWARD_NODE, DEVICE_EVENTS, HOST_EVENTS, STEP_MARKS, number_behind

Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

MOST_THREADS = 2_000
MOST_STREAMS = 2_000
MOST_DEVICES = 256
MOST_STEPS = 5_000
#: The maximum number of steps times devices. The GPU tables have a row for each pair.
MOST_STEPS_OF_DEVICES = 20_000
#: The maximum nesting depth of the events on a thread. Python itself allows about 1,000 nested calls.
MOST_NESTED = 2_000
#: The maximum nesting depth of layers, and the maximum number of characters in all of their names. Each layer's name
#: includes the names of the layers around it.
MOST_LAYERS_NESTED = 500
MOST_LETTERS = 32 * 2**20


@dataclass(frozen=True)
class TraceSteps:
    """The steps in a trace, in chronological order. No two steps overlap.

    Attributes
    ----------
    rows : ndarray
        The row in the trace of the event that marks each step, or -1 for a step that represents the whole trace.
    numbers : ndarray
        The numbers from the marks. For example, ``ProfilerStep#12`` has the number 12.
    starts, ends : ndarray
        The times in nanoseconds.
    process, thread : int
        The process and thread that ran the steps.
    ignored : int
        The number of marks on other threads or inside other marks.
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
        """Whether the trace contains step marks."""
        return bool((self.rows != MISSING).all())


def is_in(trace: TraceColumns, categories: tuple[str, ...]) -> Bools:
    """Check for each event whether it is in one of the categories."""
    return np.isin(np.array(trace.categories, dtype=object), categories)[trace.category]


def numbered_spans(trace: TraceColumns, label: str, categories: tuple[str, ...]) -> tuple[Ints, Ints]:
    """Find the events in some categories that are named `label` plus a number. Return their rows and numbers."""
    of_names = np.array([number_behind(label, name) for name in trace.names], dtype=np.int64)
    numbers = of_names[trace.name]
    rows = np.flatnonzero((numbers != MISSING) & is_in(trace, categories))
    return rows, numbers[rows]


def first_match(key: Ints, wanted: Ints) -> Ints:
    """Return the position in `key` of the first value equal to each wanted value, or -1 if there is none."""
    values, first = np.unique(key, return_index=True)
    return np.asarray(np.append(first, MISSING)[pd.Index(values).get_indexer(pd.Index(wanted))])


def launched_by(correlation: Ints, on_host: Bools, rows: Ints) -> Ints:
    """Find the call that launched each event in `rows`, or -1 if it is unknown.

    This is the first call on the host with the event's correlation id.
    """
    calls = np.flatnonzero(on_host & (correlation != MISSING))
    return np.append(calls, MISSING)[first_match(correlation[calls], correlation[rows])]


def moments_of(start: Ints, rows: Ints, call: Ints) -> Ints:
    """Return the time that determines the step to which each event in `rows` belongs.

    This is the start of the event's launch, or the start of the event if its launch is unknown.
    """
    return np.where(call != MISSING, start[call], start[rows])


def step_of(moments: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the index of the step that contains each time, or -1 for a time outside all steps.

    A step includes its start but not its end. Steps may be in any order. If two steps overlap, the one that starts
    later is returned.
    """
    order = np.argsort(starts, kind="stable")
    step = np.append(MISSING, order)[np.searchsorted(starts[order], moments, side="right")]
    step[moments >= np.append(ends, np.iinfo(np.int64).min)[step]] = MISSING
    return step


def steps_of(trace: TraceColumns) -> TraceSteps:
    """Find the steps that a trace marks. If it does not contain any marks, the whole trace is a single step.

    Only the marks on the thread with the most marks are used. A step that represents the whole trace lasts from the
    start of the first host event to the end of the last, and runs on the thread with the most events outside a backward
    pass. If there are no host events, it covers the work on devices.
    """
    for label, categories in STEP_MARKS.items():
        rows, numbers = numbered_spans(trace, label, categories)
        if len(rows):
            return _marked(trace, rows, numbers)
    return _whole(trace)


def steps_of_events(trace: TraceColumns, starts: Ints, ends: Ints) -> Ints:
    """Return the index of the step to which each event in a trace belongs, or -1 if there is none.

    A host event belongs to the step that contains its start. A device event belongs to the step of the call that
    launched it. If that call is not in the trace, the event belongs to the step that contains its own start.
    """
    on_device = is_in(trace, DEVICE_EVENTS)
    rows, moments = np.flatnonzero(on_device), trace.start_ns.copy()
    moments[rows] = moments_of(trace.start_ns, rows, launched_by(trace.correlation, ~on_device, rows))
    return step_of(moments, starts, ends)


def belongs_to_steps(trace: TraceColumns, steps: TraceSteps) -> Bools:
    """Check for each event whether it is part of a step. Without marks, all events are part of a step."""
    if not steps.marked:
        return np.ones(len(trace), dtype=bool)
    part: Bools = steps_of_events(trace, steps.starts, steps.ends) != MISSING
    part[steps.rows] = True
    return part


def _marked(trace: TraceColumns, rows: Ints, numbers: Ints) -> TraceSteps:
    which, threads = _numbered(trace.process[rows], trace.thread[rows])
    count = np.bincount(which)
    process, thread = threads[:, int(count.argmax())].tolist()
    chosen, numbers = rows[which == count.argmax()], numbers[which == count.argmax()]
    order = np.lexsort((-trace.duration_ns[chosen], trace.start_ns[chosen]))
    chosen, numbers = chosen[order], numbers[order]
    starts = trace.start_ns[chosen]
    ends = starts + trace.duration_ns[chosen]
    reached = np.concatenate([starts[:1], np.maximum.accumulate(ends)[:-1]])
    # Due to rounding, a step may end just after the next one starts. A mark that starts even earlier is inside another
    # mark.
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
    """Return the thread with the most events outside backward nodes."""
    is_node = np.array([name.startswith(BACKWARD_NODE) for name in trace.names], dtype=bool)[trace.name[host]]
    start, end = trace.start_ns[host], trace.start_ns[host] + trace.duration_ns[host]
    which, threads = _numbered(trace.process[host], trace.thread[host])
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


def refuse_odd_trace(trace: TraceColumns, source: str) -> None:
    """Raise an error if a trace contains more threads, streams or other items than a real run.

    Raises
    ------
    TraceError
        If the trace exceeds a limit. The message names the limit and `source`.
    """
    on_device = is_in(trace, DEVICE_EVENTS)
    host, device = np.flatnonzero(~on_device), np.flatnonzero(on_device)
    thread, threads = _numbered(trace.process[host], trace.thread[host])
    _, streams = _numbered(trace.device[device], trace.stream[device])
    _, owners = _numbered(trace.memory.device_type, trace.memory.device)
    working = len(np.unique(trace.device[device]))
    steps = len(steps_of(trace).starts)
    for count, most, what in (
        (threads.shape[1], MOST_THREADS, "threads"),
        (streams.shape[1], MOST_STREAMS, "device streams"),
        (max(working, owners.shape[1]), MOST_DEVICES, "devices"),
        (steps, MOST_STEPS, "steps"),
        (steps * working, MOST_STEPS_OF_DEVICES, "steps on all devices"),
        (_deepest(thread, trace.start_ns[host], trace.duration_ns[host]), MOST_NESTED, "levels of nested events"),
    ):
        if count > most:
            raise TraceError(_odd(source, f"{count:,} {what}", most))


def refuse_odd_layers(depth: Sequence[int], letters: int, source: str) -> None:
    """Raise an error if layers are nested too deeply, or if their names have too many characters in total.

    The error is the same as in `refuse_odd_trace`.
    """
    levels = max(depth, default=-1) + 1
    if levels > MOST_LAYERS_NESTED:
        raise TraceError(_odd(source, f"{levels:,} levels of nested layers", MOST_LAYERS_NESTED))
    if letters > MOST_LETTERS:
        raise TraceError(_odd(source, f"{letters:,} characters in the names of its layers", MOST_LETTERS))


def _odd(source: str, what: str, most: int) -> str:
    return f"{source} was not read: it has {what}, and perfnb shows at most {most:,}; record fewer steps, or split it."


def _numbered(*keys: Ints) -> tuple[Ints, Ints]:
    """Assign a number to each distinct combination of keys, in key order, and return the keys for each number."""
    table = pd.DataFrame(dict(enumerate(keys)))
    codes = table.groupby(list(table)).ngroup().to_numpy().astype(np.int64)
    first = np.unique(codes, return_index=True)[1]
    return codes, np.stack([key[first] for key in keys])


def _deepest(thread: Ints, start: Ints, duration: Ints) -> int:
    """Return the maximum number of events that are open at the same time on any thread."""
    # Events do not overlap if one ends when the other starts. Events without duration are extended to a nanosecond.
    time = np.concatenate([start, start + np.maximum(duration, 1)])
    opens = np.repeat([1, -1], len(start))
    order = np.lexsort((opens, time, np.tile(thread, 2)))
    # All events of a thread are closed at its end, so the sum is 0 at the start of the next thread.
    return int(np.cumsum(opens[order]).max(initial=0))
