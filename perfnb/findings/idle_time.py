"""Idle time of a GPU within steps by its cause: what the host was doing at the time.

A step spans the host's step and the GPU's work on it afterwards: the time before the GPU's first work and after its
last is idle time too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind
from perfnb.attribution.device_work import (
    DeviceWork,
    column,
    is_in,
    matching,
    named,
    step_rows,
    step_windows,
    thread_keys,
)  # fmt: skip
from perfnb.attribution.interval_sets import EMPTY, IntervalSet, difference, intersection, union
from perfnb.gpu.idle import HANDOVER_NS, LAUNCH_NS, idle_gaps
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.recording.text import TEXT
from perfnb.trace_names import CALLS, OPS, PYTHON_CALLS

#: Calls of CUDA's and ROCm's runtimes that allocate or free memory, that copy, and that wait.
ALLOCATES = re.compile(r"(?:cuda|hip)(?:Free|Malloc|Host(?:Alloc|Malloc|Free)|FreeHost|MallocHost)")
COPIES = re.compile(r"(?:cuda|hip|cu)Memcpy")
WAITS = re.compile(r"(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize")
#: Operators that bring a number, or the indices of some, to the host.
READS = re.compile(r"aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$")

#: What blocked the host while it was late, in order of precedence.
HELD = ("data", "allocator", "copies", "synchronisation")
#: Idle time with no known reason: the stream waited for an event that is not in the trace, nothing shows what it waited
#: for, or the launch is not in the trace.
UNEXPLAINED = ("awaited", "other", "unknown")
#: Longest idle time that a single launch explains, with the ops and the Python that lead to it: 16 to 940 µs in public
#: traces of eager steps, profiler overhead included.
LONG_NS = 1_000_000


#: Where the host can be seen, most specific first.
PLACES = {"calls": CALLS, "ops": OPS, "functions": PYTHON_CALLS}
#: Share of the longest event above which an event is nested in it.
_SAME = 0.9


@dataclass(frozen=True)
class Doing:
    """What the host did, in nanoseconds."""

    #: Length of the time in question.
    whole: float
    #: By `PLACES`: the part in each, outside the previous ones.
    by: dict[str, float]
    #: The innermost name that takes most of each; empty if there is none.
    longest: dict[str, str]

    @property
    def seen(self) -> float:
        """The share of the time for which the trace shows what the host did."""
        return sum(self.by.values()) / self.whole if self.whole else 0.0


@dataclass(frozen=True)
class Idle:
    """Idle time of one device, in nanoseconds of all traced steps."""

    #: Length of the steps.
    span_ns: int
    #: `HELD`; ``launches`` (the host could not launch faster), ``host`` (it did other things for longer than a launch
    #: takes); ``dependency``; `UNEXPLAINED`.
    by: Mapping[str, float]
    #: By `HELD`: idle time during such a call, although the host is not known to have been late.
    perhaps: Mapping[str, float]
    #: When the host had not launched work that the device could have done.
    late: IntervalSet
    #: What the host did in the time counted as ``host``.
    doing: Doing

    @property
    def idle_ns(self) -> float:
        """Total idle time."""
        return sum(self.by.values()) + sum(self.perhaps.values())


def idle_of(events: pd.DataFrame, work: DeviceWork, mine: Bools, attribution: Attribution) -> Idle:
    """Attribute the idle time of a device to causes.

    Parameters
    ----------
    events : DataFrame
        All events of the trace.
    work : DeviceWork
        What `device_work` finds in these.
    mine : ndarray of bool
        Which of it is on the device.
    attribution : Attribution
    """
    steps = _steps(events, work, mine, attribution)
    parts = _parts(events, work, mine, steps)
    busy, held = _held(events, attribution)
    late = parts[parts["why"].isin(("late", "tail"))]
    whole = _set(late, steps)
    rest, by, perhaps = whole, dict.fromkeys(HELD, 0.0), dict.fromkeys(HELD, 0.0)
    drained = late[(late["why"] == "late") & _during(late["start"].to_numpy(), held)]
    for cause, spans in {**busy, "synchronisation": _set(drained, steps)}.items():
        by[cause] = float(intersection(rest, spans).length)
        rest = difference(rest, spans)
    start, end = late["start"].to_numpy(), late["end"].to_numpy()
    is_long = rest.within(start, end) > LONG_NS
    other = intersection(rest, union(start[is_long], end[is_long]))
    by["host"] = float(other.length)
    by["launches"] = float(rest.length - other.length)
    by["dependency"] = float(_set(parts[parts["why"] == "dependency"], steps).length)
    for why in UNEXPLAINED:
        left = _set(parts[parts["why"] == why], steps)
        # Work launched in time does not wait for a blocked or allocating host; it may wait for a copy on its stream.
        for cause, spans in {**busy, "synchronisation": held}.items():
            if why == "unknown" or cause == "copies":
                perhaps[cause] += float(intersection(left, spans).length)
                left = difference(left, spans)
        by[why] = float(left.length)
    return Idle(steps.length, by, perhaps, whole, doing(events, work, other))


def _steps(events: pd.DataFrame, work: DeviceWork, mine: Bools, attribution: Attribution) -> IntervalSet:
    """The time of the steps: the host's, and the GPU's remaining work on the last one, unless it is mostly idle then.

    In a trace without step marks it starts with the first work if that had waited in a queue: what ran before it is
    not in the trace.
    """
    first = int(work.start[mine].min())
    marked = step_windows(events)
    if len(marked):
        begin, end = marked["start"].to_numpy(), marked["end"].to_numpy()
        mine = mine & (work.step == marked["number"].iloc[-1])
    else:
        blocks = attribution.host.blocks
        whole = blocks[blocks["kind"] == Kind.STEP]
        call = int(work.call[mine][work.start[mine].argmin()])
        if call == NONE:
            return union(np.array([first]), np.array([work.end[mine].max()]))
        in_time = first - _returned(events, call) <= LAUNCH_NS
        begin = np.array([min(int(whole["start"].min()), first) if in_time else first])
        end = np.array([int(whole["end"].max())])
    after = work.end[mine].max(initial=end[-1])
    busy = union(np.maximum(work.start[mine], end[-1]), work.end[mine]).length
    if 2 * busy >= after - end[-1]:
        end = np.append(end[:-1], after)
    return union(begin, end)


def _returned(events: pd.DataFrame, call: int) -> int:
    return int(column(events, "start_ns")[call] + column(events, "duration_ns")[call])


def _parts(events: pd.DataFrame, work: DeviceWork, mine: Bools, steps: IntervalSet) -> pd.DataFrame:
    """Idle time in pieces: ``start``, ``end``, ``why``."""
    gaps = idle_gaps(events, work=work)
    gaps = gaps[gaps["next_event"].isin(work.rows[mine])]
    start = gaps["start_ns"].to_numpy(dtype=np.int64)
    given, end = start + gaps["host_ns"].to_numpy(dtype=np.int64), start + gaps["duration_ns"].to_numpy(dtype=np.int64)
    depends = gaps["dependency_ns"].to_numpy(dtype=np.int64)
    why = np.where(
        ~gaps["launch_known"].to_numpy(dtype=bool),
        "unknown",
        np.where(depends > HANDOVER_NS, "awaited", np.where(depends > 0, "dependency", "other")),
    )
    parts = [(start, given, np.full(len(start), "late")), (given, end, why)]
    if len(steps.start):
        parts += _edges(events, work, mine, int(steps.start[0]), int(steps.end[-1]))
    columns = [np.concatenate(one) for one in zip(*parts, strict=True)]
    frame = pd.DataFrame(dict(zip(("start", "end", "why"), columns, strict=True)))
    return frame[frame["end"] > frame["start"]].sort_values("start", kind="stable", ignore_index=True)


def _edges(
    events: pd.DataFrame, work: DeviceWork, mine: Bools, begin: int, end: int
) -> list[tuple[Ints, Ints, np.ndarray]]:
    """The pieces before the device's first work and after its last."""
    first, last = int(work.start[mine].min()), int(work.end[mine].max())
    call = int(work.call[mine][work.start[mine].argmin()])
    given = first
    if call == NONE:
        lead = "unknown"
    else:
        lead, returned = "other", _returned(events, call)
        given = first if first - returned <= LAUNCH_NS else returned
    after = "tail" if (work.call[mine] != NONE).mean() > 0.5 else "unknown"
    pieces = [(begin, first, lead)] if lead == "unknown" else [(begin, max(given, begin), "late"), (given, first, lead)]
    return [(np.array([low]), np.array([high]), np.array([why])) for low, high, why in [*pieces, (last, end, after)]]


def _held(events: pd.DataFrame, attribution: Attribution) -> tuple[dict[str, IntervalSet], IntervalSet]:
    """When the host waited for data, allocated and copied; and when it waited for the device."""
    begin = column(events, "start_ns")
    end = begin + column(events, "duration_ns")
    in_calls = is_in(events, CALLS)
    reads = matching(events, READS) & is_in(events, OPS)

    def when(rows: Bools) -> IntervalSet:
        return union(begin[rows], end[rows])

    blocks = attribution.host.blocks
    data = blocks[(blocks["phase"] == "data") & blocks["main"]]
    return {
        "data": union(data["start"].to_numpy(dtype=np.int64), data["end"].to_numpy(dtype=np.int64)),
        "allocator": when(matching(events, ALLOCATES) & in_calls),
        "copies": difference(when(matching(events, COPIES) & in_calls), when(reads)),
    }, when((matching(events, WAITS) & in_calls) | reads)


def _during(times: Ints, spans: IntervalSet) -> Bools:
    """Whether each time is in the set: a host that returns then finds an empty queue."""
    place = np.searchsorted(spans.start, times, side="right") - 1
    result: Bools = (place >= 0) & (times < np.append(spans.end, 0)[place])
    return result


def _set(parts: pd.DataFrame, steps: IntervalSet) -> IntervalSet:
    if parts.empty:
        return EMPTY
    return intersection(union(parts["start"].to_numpy(dtype=np.int64), parts["end"].to_numpy(dtype=np.int64)), steps)


def doing(events: pd.DataFrame, work: DeviceWork, time: IntervalSet) -> Doing:
    """What the launching threads did in the given time."""
    by, longest = dict.fromkeys(PLACES, 0.0), dict.fromkeys(PLACES, "")
    keys = thread_keys(events)
    launch = np.unique(keys[work.call[work.call != NONE]])
    here = np.isin(keys, launch) & ~step_rows(events)
    begin = column(events, "start_ns")
    end = begin + column(events, "duration_ns")
    rest = time
    for place, categories in PLACES.items():
        rows = np.flatnonzero(here & is_in(events, categories))
        overlap = time.within(begin[rows], end[rows])
        rows, overlap = rows[overlap > 0], overlap[overlap > 0]
        if len(rows) == 0:
            continue
        spans = union(begin[rows], end[rows])
        by[place] = float(intersection(rest, spans).length)
        rest = difference(rest, spans)
        lengths = pd.DataFrame({"name": named(events, rows).astype(TEXT), "ns": overlap}).groupby("name")["ns"]
        whole, each = lengths.sum(), lengths.mean()
        longest[place] = str(each[whole >= _SAME * whole.max()].idxmin())
    return Doing(float(time.length), by, longest)
