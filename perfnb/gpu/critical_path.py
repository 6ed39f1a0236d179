"""Find the critical path of a step: the chain of host work, launches, GPU work and waits that determined its duration.

The path is traced back from the end of the step. At each point, perfnb looks for the work that had to finish last
before the step could continue. On the host, this is the previous work on the thread, or if the thread was waiting, the
work that it waited for. On a device, this is the launch of the work, the previous work on its stream, or an event on
another stream. Every nanosecond belongs to exactly one segment.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import (
    SORTS,
    DeviceWork,
    column,
    device_work,
    is_in,
    known_or_na,
    named,
    step_windows,
    thread_keys,
)
from perfnb.gpu.dependencies import (
    EVENT,
    LAUNCH,
    UNKNOWN,
    Handovers,
    HeldUp,
    HostTimeline,
    Waits,
    handovers,
    held_up,
    host_timeline,
    host_waits,
)
from perfnb.recording.nesting import NONE, Ints
from perfnb.trace_names import CALLS, OPS

#: The kinds of segments. On the host: inside an op, inside a call to the GPU's runtime, or outside both; returning from
#: a wait for a device; switching threads. Launch: from the start of the call to the start of the work. On the device:
#: the work, and the delay from the end of work to the start of the work that waited for it. Unknown: for example, if
#: work starts much later than can be explained by its launch or by the end of the work that it waited for.
KINDS = ("operator", "call", "host", "synchronisation", "handover", "launch", *SORTS, "delay", "unknown")
_HOST = -1  # replaced with the kinds in the host's timeline
_CODE = {name: code for code, name in enumerate(KINDS)}
#: The kind, event position, work index, start, end and thread number, which are -1 where they do not apply.
_Segment = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class WaitGraph:
    """The dependencies of one rank.

    For each thread, `jumps` contains the times when the thread resumed after waiting, and the cause of each wait. A
    non-negative cause is an index into `waits`. A negative cause is -1 minus an index into `handovers`.
    """

    events: pd.DataFrame
    work: DeviceWork
    held: HeldUp
    waits: Waits
    timeline: HostTimeline
    handovers: Handovers
    jumps: dict[int, tuple[list[int], list[int]]]


@dataclass(frozen=True)
class Window:
    """The interval to search for the path, and the thread at its end, or -1 if it ends with device work."""

    begin: int
    end: int
    thread: int


def prepare(events: pd.DataFrame, work: DeviceWork | None = None) -> WaitGraph:
    """Find all dependencies between the events of one rank."""
    work = device_work(events) if work is None else work
    waits, timeline = host_waits(events, work), host_timeline(events)
    over = handovers(events, timeline, main_thread(events))
    real = np.flatnonzero((waits.work != NONE) & (np.append(work.end, NONE)[waits.work] > waits.start))
    frame = pd.DataFrame(
        {
            "thread": np.concatenate((waits.thread[real], over.thread)),
            "time": np.concatenate((waits.end[real], over.time)),
            "place": np.concatenate((real, -1 - np.arange(len(over.time)))),
        }
    ).sort_values("time", kind="stable")
    of_thread = ((one, frame[frame["thread"] == one]) for one in frame["thread"].unique().tolist())
    jumps = {one: (part["time"].tolist(), part["place"].tolist()) for one, part in of_thread}
    return WaitGraph(events, work, held_up(events, work), waits, timeline, over, jumps)


def window_of(graph: WaitGraph, step: int | None) -> Window:
    """Return the interval of a step, or of the whole trace, extended until the last work launched in it has ended."""
    events = graph.events
    if len(events) == 0:
        return Window(0, 0, NONE)
    if step is not None:
        steps = step_windows(events)
        steps = steps[steps["number"] == step]
        thread = int(thread_keys(events)[steps["event"].to_numpy()[0]])
        return until_done(graph, Window(int(np.min(steps["start"])), int(np.max(steps["end"])), thread))
    real = is_in(events, (*OPS, *CALLS)).copy()
    real[graph.work.rows] = True
    real = real if real.any() else np.ones(len(events), dtype=bool)
    start = column(events, "start_ns")
    end = start + np.maximum(column(events, "duration_ns"), 0)
    return until_done(graph, Window(int(start[real].min()), int(end[real].max()), main_thread(events)))


def until_done(graph: WaitGraph, window: Window) -> Window:
    """Extend the window until the last work launched in it has ended, if that is after the window's end."""
    launched = np.where(graph.held.launch != NONE, graph.held.launch, graph.work.start)
    inside = (launched >= window.begin) & (launched < window.end)
    last = int(graph.work.end[inside].max(initial=window.begin))
    return Window(window.begin, last, NONE) if inside.any() and last >= window.end else window


def path_in(graph: WaitGraph, window: Window) -> pd.DataFrame:
    """Return the critical path in an interval.

    Returns
    -------
    DataFrame
        One row per segment, in chronological order and without gaps: ``kind`` (one of `KINDS`), ``name`` (of the op,
        call or work), ``op`` (the op itself, or the op that contains or launched the segment), ``layer`` (if the events
        have layers), ``start_ns``, ``duration_ns``, ``thread``, ``device``, ``stream``, ``event`` (position in the
        events) and ``inferred`` (whether this is a delay after work that was inferred and not named in the trace). The
        durations add up to the interval.
    """
    kind, event, place, begin, end, key = _expanded(graph, _walk(graph, window))
    events, work = graph.events, graph.work
    on_device = place != NONE
    op = np.where(on_device, np.append(work.op, NONE)[place], np.append(graph.timeline.around, NONE)[event])
    op = np.where(kind == _CODE["operator"], event, op)
    launched = np.where(on_device, np.append(work.call, NONE)[place], event)
    keys, first = np.unique(thread_keys(events), return_index=True)
    of_key = np.append(column(events, "thread")[first], NONE)
    thread = of_key[np.where(key != NONE, np.searchsorted(keys, key), len(keys))]
    delayed = kind == _CODE["delay"]
    layers = named(events, launched, "layer")
    layers = layers.remove_categories([name for name in layers.categories if name == ""])
    frame = {
        "kind": pd.Categorical.from_codes(kind, categories=pd.Index(KINDS)),
        "name": named(events, event),
        "op": named(events, op),
        "layer": layers,
        "start_ns": begin,
        "duration_ns": end - begin,
        "thread": known_or_na(thread),
        "device": known_or_na(np.append(work.device, NONE)[place]),
        "stream": known_or_na(np.append(work.stream, NONE)[place]),
        "event": known_or_na(event),
        "inferred": delayed & np.append(graph.held.inferred, False)[place],
    }
    return pd.DataFrame(frame)


def _walk(graph: WaitGraph, window: Window) -> list[_Segment]:
    """Return the segments in reverse order, from the end of the window back to its start."""
    work, held, waits, over = graph.work, graph.held, graph.waits, graph.handovers
    starts, ends, sorts, rows = (values.tolist() for values in (work.start, work.end, work.sort, work.rows))
    explained = held.explained.tolist()
    launch, threads, by, calls = (values.tolist() for values in (held.launch, held.thread, held.by, work.call))
    previous = np.where(held.by == EVENT, held.awaited, held.before).tolist()
    segments: list[_Segment] = []
    begin, now, thread = window.begin, window.end, window.thread
    at = NONE  # the work that ends at the current time, or -1 on the host
    if thread == NONE and len(work):
        inside = np.flatnonzero(work.end <= now)
        at = int(inside[np.argmax(work.end[inside])]) if len(inside) else NONE
        if at != NONE:
            segments.append((_CODE["unknown"], NONE, NONE, max(ends[at], begin), now, NONE))
            now = ends[at]
    for _ in range(4 * (len(starts) + len(waits.rows) + len(over.time)) + 4):
        if now <= begin:
            break
        if at != NONE:
            start = min(starts[at], now)
            segments.append((_CODE[SORTS[sorts[at]]], rows[at], at, max(start, begin), now, NONE))
            reason = by[at]
            if reason != UNKNOWN and explained[at] < start:
                segments.append((_CODE["unknown"], NONE, NONE, max(explained[at], begin), max(start, begin), NONE))
                start = explained[at]
            if reason == LAUNCH:
                now = min(launch[at], start)
                thread = threads[at]
                segments.append((_CODE["launch"], calls[at], at, max(now, begin), max(start, begin), thread))
                at = NONE
            elif reason == UNKNOWN:
                segments.append((_CODE["unknown"], NONE, NONE, begin, max(start, begin), NONE))
                break
            else:
                now = min(ends[previous[at]], start)
                segments.append((_CODE["delay"], rows[at], at, max(now, begin), max(start, begin), NONE))
                at = previous[at]
            continue
        times, places = graph.jumps.get(thread, ([], []))
        jump = bisect_right(times, now) - 1
        went_on = max(times[jump], begin) if jump >= 0 else begin
        segments.append((_HOST, NONE, NONE, went_on, now, thread))
        now = went_on
        if jump < 0 or now <= begin:
            break
        place = places[jump]
        if place >= 0:
            at = int(waits.work[place])
            done = min(ends[at], now)
            segments.append((_CODE["synchronisation"], int(waits.rows[place]), NONE, max(done, begin), now, thread))
        else:
            done = int(over.ended[-1 - place])
            segments.append((_CODE["handover"], NONE, NONE, max(done, begin), now, thread))
            thread = int(over.other[-1 - place])
        now = done
    return segments


def _expanded(graph: WaitGraph, segments: list[_Segment]) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """Return the segments in chronological order, as columns.

    Host segments are split wherever the innermost event changes, and empty segments are dropped.
    """
    is_call = is_in(graph.events, CALLS)
    pieces, straight = [], []
    for segment in segments:
        kind, _, _, begin, end, thread = segment
        if end <= begin:
            continue
        if kind != _HOST:
            straight.append(segment)
            continue
        owner, low, high = graph.timeline.cut(thread, begin, end)
        code = np.where(owner == NONE, _CODE["host"], np.where(np.append(is_call, False)[owner], _CODE["call"], 0))
        pieces.append((code, owner, np.full(len(owner), NONE), low, high, np.full(len(owner), thread)))
    columns = np.array(straight, dtype=np.int64).reshape(-1, 6).T
    joined = [np.concatenate([values, *(piece[n] for piece in pieces)]) for n, values in enumerate(columns)]
    order = np.argsort(joined[3], kind="stable")
    kinds, events, places, begins, ends, keys = (values[order] for values in joined)
    return kinds, events, places, begins, ends, keys


def main_thread(events: pd.DataFrame) -> int:
    """Return the number of the main thread.

    This is the thread that ran the steps, or if no steps are marked, the thread with the most time in ops and calls.
    """
    keys = thread_keys(events)
    steps = step_windows(events)
    if len(steps):
        return int(keys[steps["event"].to_numpy()[0]])
    rows = np.flatnonzero(is_in(events, (*OPS, *CALLS)))
    if len(rows) == 0:
        return NONE
    return int(np.argmax(np.bincount(keys[rows], weights=column(events, "duration_ns")[rows])))
