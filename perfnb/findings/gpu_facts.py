"""Determine how a GPU was used in a step, and why it was idle, based on the host's work at the time.

A step comprises the host's step and the GPU's remaining work for it afterwards. Time before the GPU's first work and
after its last work also counts as idle time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind
from perfnb.attribution.device_work import (
    SORTS,
    DeviceWork,
    column,
    device_work,
    is_in,
    matching,
    named,
    step_rows,
    step_windows,
    thread_keys,
)
from perfnb.attribution.events import all_events
from perfnb.attribution.interval_sets import EMPTY, IntervalSet, difference, intersection, union
from perfnb.gpu.device_time import HANDOVER_NS, LAUNCH_NS, gpu_time, idle_gaps
from perfnb.gpu.launches import launch_call_us, launches
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT, found
from perfnb.trace_names import CALLS, DEVICE_WORK, OPS, PYTHON_CALLS

#: Calls to the CUDA and ROCm runtimes that allocate or free memory, copy, and wait.
ALLOCATES = re.compile(r"(?:cuda|hip)(?:Free|Malloc|Host(?:Alloc|Malloc|Free)|FreeHost|MallocHost)")
COPIES = re.compile(r"(?:cuda|hip|cu)Memcpy")
WAITS = re.compile(r"(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize")
#: Operators that copy a number, or the indices of nonzero elements, to the host.
READS = re.compile(r"aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$")

#: The causes that blocked the host while it was late, in order of precedence.
HELD = ("data", "allocator", "copies", "synchronisation")
#: Idle time without a known cause: the stream waited for an event that is not in the trace, the trace does not show
#: what it waited for, or the launch is not in the trace.
UNEXPLAINED = ("awaited", "other", "unknown")
#: Longest idle time that a single launch explains, including the ops and the Python code that lead to it: 16 to 940 µs
#: in public traces of eager steps, profiler overhead included.
LONG_NS = 1_000_000
#: The kinds of events that show the host's work, most specific first.
PLACES = {"calls": CALLS, "ops": OPS, "functions": PYTHON_CALLS}
#: Share of the longest event above which an event is nested in it.
_SAME = 0.9
_PAGEABLE, _PINNED = re.compile("Pageable"), re.compile("Pinned")
#: Number of bytes below which a copy takes no longer than the call itself.
_SMALL = 64 * 2**10
_NO_KERNEL = re.compile("Memcpy|Memset")

#: Copies between host and device, by their direction.
TO_DEVICE = re.compile(r"HtoD|HostToDevice", re.IGNORECASE)
TO_HOST = re.compile(r"DtoH|DeviceToHost", re.IGNORECASE)


class Doing(NamedTuple):
    """The host's work during a period of time."""

    #: For each of `PLACES`, the share of the time spent in it but not in the previous ones.
    shares: dict[str, float]
    #: For each of them, the innermost name that takes most of its time; empty if there is none.
    longest: dict[str, str]

    @property
    def seen(self) -> float:
        """The share of the time when the trace shows the host's work."""
        return sum(self.shares.values())


@dataclass(frozen=True)
class Runs:
    """The steps' kernels, copies and fills, with one value for each in every array."""

    names: pd.Categorical
    #: Indices into `SORTS`.
    sort: Ints
    #: Nanoseconds.
    start: Ints
    end: Ints
    #: Position in the events of the trace.
    row: Ints
    #: The time when the launching call started; -1 if unknown.
    called: Ints

    def named(self, pattern: re.Pattern[str]) -> Bools:
        """Return a mask of the runs whose names match the pattern."""
        return found(pd.Series(self.names), pattern.search)

    def time(self, chosen: Bools) -> IntervalSet:
        """Return the time during which at least one of the chosen runs ran."""
        return union(self.start[chosen], self.end[chosen])


@dataclass(frozen=True)
class Copies:
    """The copies between host and device in one direction, in all traced steps."""

    #: The number of copies, and of those with memory that the trace labels as pageable or pinned.
    count: int
    pageable: int
    pinned: int
    #: Median size of a copy; ``None`` if the trace does not record it.
    each_bytes: float | None
    #: Host time per step in the calls that launched them.
    call_ms: float

    @property
    def is_small(self) -> bool:
        """Whether a copy takes no longer than its call."""
        return self.each_bytes is not None and self.each_bytes < _SMALL


@dataclass(frozen=True)
class GpuFacts:
    """The busiest GPU's figures, in milliseconds per traced step."""

    #: The host's step, and the GPU's work on it afterwards.
    span_ms: float
    #: Lengths of unions. ``exposed_ms`` is the time of communication, and ``copies_ms`` that of copies between host and
    #: device, while nothing is computed.
    busy_ms: float
    communication_ms: float
    exposed_ms: float
    copies_ms: float
    idle_ms: float
    #: Idle time by cause: one of `HELD`, ``launches`` (the host could not launch faster), ``host`` (it did other things
    #: for longer than a launch takes), ``dependency``, or one of `UNEXPLAINED`.
    idle_by: Mapping[str, float]
    #: For each of `HELD`, the idle time during such a call although it is not known whether the host was late.
    idle_perhaps: Mapping[str, float]
    #: The host's work during the idle time with the cause ``host``.
    doing: Doing
    #: The time when the host had not launched work that the GPU could have done.
    late: IntervalSet
    #: Factor from nanoseconds of all traced steps to milliseconds of one.
    per_step: float
    #: Host time in calls that allocate, copy and wait, and the number of calls, by cause as in `idle_by`.
    calls_ms: Mapping[str, tuple[float, int]]
    #: Kernels, copies and fills per step.
    kernels: float
    #: Share of kernels that were shorter than their launch.
    short_share: float | None
    #: Median duration of a launching call and of a kernel.
    call_us: float | None
    kernel_us: float | None
    #: Share of the work that was launched by CUDA graphs.
    graph_share: float
    #: Operators whose work ended idle times, heaviest first.
    late_ops: list[str]
    #: Names of kernels, heaviest first.
    kernel_names: pd.Series
    #: Everything that ran.
    runs: Runs
    #: Factor from nanoseconds in `runs` to milliseconds per step.
    run_ms: float
    #: Copies between host and device.
    to_device: Copies
    to_host: Copies

    def ran_ms(self, chosen: Bools) -> float:
        """Return the milliseconds per step during which at least one of the chosen `runs` ran."""
        return self.runs.time(chosen).length * self.run_ms

    @property
    def idle_share(self) -> float:
        """Idle time as a share of the step."""
        return self.idle_ms / self.span_ms if self.span_ms > 0 else 0.0

    @property
    def unexplained_ms(self) -> float:
        """Idle time that the trace does not explain."""
        return sum(self.idle_by[why] for why in UNEXPLAINED)

    def held_ms(self, cause: str) -> float:
        """Return the idle time during which this cause, one of `HELD`, blocked the host."""
        return self.idle_by[cause] + self.idle_perhaps[cause]

    def is_unsure(self, cause: str) -> bool:
        """Return whether it is uncertain that the GPU waited for the host during most of this time.

        While copies run, the GPU is busy rather than idle, so there is no uncertainty about their time.
        """
        known = self.idle_by[cause] + (self.copies_ms if cause == "copies" else 0.0)
        return self.idle_perhaps[cause] > known

    def late_ms(self, blocks: pd.DataFrame) -> float:
        """Return the idle time caused by a late host within the given blocks."""
        inside = union(blocks["start"].to_numpy(dtype=np.int64), blocks["end"].to_numpy(dtype=np.int64))
        return intersection(self.late, inside).length * self.per_step

    def in_step_of(self, ms: float) -> GpuFacts:
        """Return the same facts for a step of this duration, where the GPU is idle for less time than in a traced step.

        If the GPU's work took longer than this duration, tracing must have slowed down its work as well.
        """
        if self.busy_ms > ms:
            slower = ("communication_ms", "exposed_ms", "copies_ms", "run_ms")
            shorter: dict[str, Any] = {name: getattr(self, name) * ms / self.busy_ms for name in slower}
            return replace(self, busy_ms=ms, **shorter).in_step_of(ms)
        if ms - self.busy_ms >= self.idle_ms:
            return self
        factor = (ms - self.busy_ms) / self.idle_ms
        return replace(
            self,
            span_ms=self.busy_ms + self.idle_ms * factor,
            idle_ms=self.idle_ms * factor,
            idle_by={cause: time * factor for cause, time in self.idle_by.items()},
            idle_perhaps={cause: time * factor for cause, time in self.idle_perhaps.items()},
            per_step=self.per_step * factor,
        )


def gpu_facts(recording: Recording, attribution: Attribution) -> GpuFacts | None:
    """Return the facts about the busiest GPU; ``None`` if no GPU did any work."""
    events = all_events(recording)
    if not is_in(events, DEVICE_WORK).any():
        return None
    done = device_work(events)
    times = gpu_time(events, done)
    steps = max(attribution.steps, 1)
    per_step = 1e-6 / steps
    device = times["device"].iloc[int(times["busy_ms"].astype(float).to_numpy().argmax())]
    idle_by, idle_perhaps, late, doing = _idle(
        events, done, done.device == (-1 if pd.isna(device) else device), attribution
    )
    gaps, rows = (_of(frame, device) for frame in (idle_gaps(events, work=done), launches(events, done)))
    if rows["step"].notna().any():  # time between steps belongs to no step
        gaps, rows = (frame[frame["step"].notna()] for frame in (gaps, rows))
    kernels, known = rows[rows["short"].notna()], rows[rows["call_ns"].notna()]
    runs = _runs(events, done, rows.index.to_numpy())
    computing, communicating, copying = (runs.sort == code for code in range(len(SORTS)))
    to_device, to_host = runs.named(TO_DEVICE), runs.named(TO_HOST)
    communication = runs.time(communicating)
    busy_ms = union(runs.start, runs.end).length * per_step
    idle_ms = (sum(idle_by.values()) + sum(idle_perhaps.values())) * per_step
    return GpuFacts(
        span_ms=busy_ms + idle_ms,
        busy_ms=busy_ms,
        communication_ms=communication.length * per_step,
        exposed_ms=difference(communication, runs.time(computing)).length * per_step,
        copies_ms=difference(runs.time(to_device | to_host), runs.time(~copying)).length * per_step,
        idle_ms=idle_ms,
        idle_by={cause: ns * per_step for cause, ns in idle_by.items()},
        idle_perhaps={cause: ns * per_step for cause, ns in idle_perhaps.items()},
        doing=doing,
        late=late,
        per_step=per_step,
        calls_ms=_calls(events, steps),
        kernels=len(rows) / steps,
        short_share=float(kernels["short"].astype(float).mean()) if len(kernels) else None,
        call_us=launch_call_us(rows)[0],
        kernel_us=float(rows["duration_ns"].median()) / 1e3 if len(rows) else None,
        graph_share=float((known["shared"] > 1).mean()) if len(known) else 0.0,
        late_ops=[op for op in _heaviest(gaps[gaps["host_ns"] > 0], "op", "host_ns") if op not in ("nan", "<NA>")],
        kernel_names=_heaviest(rows[~found(rows["name"], _NO_KERNEL.match)], "name", "duration_ns"),
        runs=runs,
        run_ms=per_step,
        to_device=_copies(events, rows, to_device, steps),
        to_host=_copies(events, rows, to_host, steps),
    )


def _runs(events: pd.DataFrame, work: DeviceWork, rows: Ints) -> Runs:
    """Return the GPU work in the given rows of the events."""
    chosen = np.isin(work.rows, rows)
    called = np.where(work.call != NONE, column(events, "start_ns")[work.call], NONE)
    return Runs(
        named(events, work.rows[chosen]),
        *(values[chosen] for values in (work.sort, work.start, work.end, work.rows, called)),
    )


def _copies(events: pd.DataFrame, rows: pd.DataFrame, chosen: Bools, steps: int) -> Copies:
    of_these = rows[chosen]
    name = of_these["name"]
    moved = column(events, "bytes")[of_these.index.to_numpy()]
    return Copies(
        count=len(of_these),
        pageable=int(found(name, _PAGEABLE.search).sum()),
        pinned=int(found(name, _PINNED.search).sum()),
        each_bytes=float(np.median(moved[moved >= 0])) if (moved >= 0).any() else None,
        call_ms=float(of_these["call_ns"].astype("Float64").fillna(0.0).sum()) / 1e6 / steps,
    )


def _of(frame: pd.DataFrame, device: Any) -> pd.DataFrame:
    """Return the rows that belong to a device."""
    return frame[frame["device"].isna() if pd.isna(device) else (frame["device"] == device).fillna(False)]


def _calls(events: pd.DataFrame, steps: int) -> dict[str, tuple[float, int]]:
    duration, in_calls, spent = column(events, "duration_ns"), is_in(events, CALLS), {}
    for cause, pattern in (("allocator", ALLOCATES), ("copies", COPIES), ("synchronisation", WAITS)):
        chosen = matching(events, pattern) & in_calls
        spent[cause] = (float(duration[chosen].sum()) / 1e6 / steps, int(chosen.sum()))
    return spent


def _heaviest(frame: pd.DataFrame, name: str, ns: str) -> pd.Series:
    """Return the values of a column, sorted by the sum of another column, largest first."""
    sums = frame.groupby(frame[name].astype(TEXT))[ns].sum().sort_values(ascending=False, kind="stable")
    return pd.Series(sums.index)


def _idle(
    events: pd.DataFrame, work: DeviceWork, mine: Bools, attribution: Attribution
) -> tuple[dict[str, float], dict[str, float], IntervalSet, Doing]:
    """Attribute idle time to causes, for the device that does the part `mine` of the work.

    Returns the nanoseconds of all traced steps for `GpuFacts.idle_by` and `GpuFacts.idle_perhaps`, followed by
    `GpuFacts.late` and `GpuFacts.doing`.
    """
    steps = _steps(events, work, mine, attribution)
    parts = _parts(events, work, mine, steps)
    busy, held = _held(events, attribution)
    late = parts[parts["why"].isin(("late", "tail"))]
    whole = _set(late, steps)
    rest, by, perhaps = whole, dict.fromkeys(HELD, 0.0), dict.fromkeys(HELD, 0.0)
    start, end = late["start"].to_numpy(), late["end"].to_numpy()
    # When the host returns from waiting, the queue is empty.
    drained = late[(late["why"] == "late") & (held.within(start, start + 1) > 0)]
    for cause, spans in {**busy, "synchronisation": _set(drained, steps)}.items():
        by[cause] = float(intersection(rest, spans).length)
        rest = difference(rest, spans)
    is_long = rest.within(start, end) > LONG_NS
    other = intersection(rest, union(start[is_long], end[is_long]))
    by["host"] = float(other.length)
    by["launches"] = float(rest.length - other.length)
    by["dependency"] = float(_set(parts[parts["why"] == "dependency"], steps).length)
    for why in UNEXPLAINED:
        left = _set(parts[parts["why"] == why], steps)
        # Work that was launched in time does not wait for a host that is blocked or allocating, but it may wait for a
        # copy on its stream.
        for cause, spans in {**busy, "synchronisation": held}.items():
            if why == "unknown" or cause == "copies":
                perhaps[cause] += float(intersection(left, spans).length)
                left = difference(left, spans)
        by[why] = float(left.length)
    return by, perhaps, whole, _doing(events, work, other)


def _steps(events: pd.DataFrame, work: DeviceWork, mine: Bools, attribution: Attribution) -> IntervalSet:
    """Return the time of the steps, which includes the GPU's remaining work for the last step.

    The remaining work is excluded if the GPU is mostly idle during this time. In a trace without step marks, the time
    starts with the first work if it had waited in a queue, because the work before it is not in the trace.
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
        in_time = first - _spans(events)[1][call] <= LAUNCH_NS
        begin = np.array([min(int(whole["start"].min()), first) if in_time else first])
        end = np.array([int(whole["end"].max())])
    after = work.end[mine].max(initial=end[-1])
    busy = union(np.maximum(work.start[mine], end[-1]), work.end[mine]).length
    if 2 * busy >= after - end[-1]:
        end = np.append(end[:-1], after)
    return union(begin, end)


def _spans(events: pd.DataFrame) -> tuple[Ints, Ints]:
    """Return the start and end of each event."""
    begin = column(events, "start_ns")
    return begin, begin + column(events, "duration_ns")


def _parts(events: pd.DataFrame, work: DeviceWork, mine: Bools, steps: IntervalSet) -> pd.DataFrame:
    """Return a frame of the periods of idle time with the columns ``start``, ``end`` and ``why``."""
    gaps = idle_gaps(events, work=work)
    gaps = gaps[gaps["next_event"].isin(work.rows[mine])]
    columns = ("start_ns", "host_ns", "duration_ns", "dependency_ns")
    start, late, whole, depends = (gaps[name].to_numpy(dtype=np.int64) for name in columns)
    reasons = (~gaps["launch_known"].to_numpy(dtype=bool), depends > HANDOVER_NS, depends > 0)
    why = np.select(reasons, ("unknown", "awaited", "dependency"), "other")
    parts = [
        pd.DataFrame({"start": start, "end": start + late, "why": "late"}),
        pd.DataFrame({"start": start + late, "end": start + whole, "why": why}),
    ]
    if len(steps.start):
        parts.append(_edges(events, work, mine, int(steps.start[0]), int(steps.end[-1])))
    frame = pd.concat(parts)
    return frame[frame["end"] > frame["start"]].sort_values("start", kind="stable", ignore_index=True)


def _edges(events: pd.DataFrame, work: DeviceWork, mine: Bools, begin: int, end: int) -> pd.DataFrame:
    """Return the idle periods before the device's first work and after its last work."""
    first, last = int(work.start[mine].min()), int(work.end[mine].max())
    call = int(work.call[mine][work.start[mine].argmin()])
    pieces = [(begin, first, "unknown")]
    if call != NONE:
        returned = int(_spans(events)[1][call])
        given = first if first - returned <= LAUNCH_NS else returned
        pieces = [(begin, max(given, begin), "late"), (given, first, "other")]
    after = "tail" if (work.call[mine] != NONE).mean() > 0.5 else "unknown"
    return pd.DataFrame([*pieces, (last, end, after)], columns=["start", "end", "why"])


def _held(events: pd.DataFrame, attribution: Attribution) -> tuple[dict[str, IntervalSet], IntervalSet]:
    """Return when the host waited for data, allocated and copied, and separately when it waited for the device."""
    begin, end = _spans(events)
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


def _set(parts: pd.DataFrame, steps: IntervalSet) -> IntervalSet:
    if parts.empty:
        return EMPTY
    return intersection(union(parts["start"].to_numpy(dtype=np.int64), parts["end"].to_numpy(dtype=np.int64)), steps)


def _doing(events: pd.DataFrame, work: DeviceWork, time: IntervalSet) -> Doing:
    """Return what the launching threads did during the given time."""
    shares, longest = dict.fromkeys(PLACES, 0.0), dict.fromkeys(PLACES, "")
    keys = thread_keys(events)
    launch = np.unique(keys[work.call[work.call != NONE]])
    here = np.isin(keys, launch) & ~step_rows(events)
    begin, end = _spans(events)
    rest = time
    for place, categories in PLACES.items():
        rows = np.flatnonzero(here & is_in(events, categories))
        overlap = time.within(begin[rows], end[rows])
        rows, overlap = rows[overlap > 0], overlap[overlap > 0]
        if len(rows) == 0:
            continue
        spans = union(begin[rows], end[rows])
        shares[place] = intersection(rest, spans).length / time.length
        rest = difference(rest, spans)
        lengths = pd.DataFrame({"name": named(events, rows).astype(TEXT), "ns": overlap}).groupby("name")["ns"]
        whole, each = lengths.sum(), lengths.mean()
        longest[place] = str(each[whole >= _SAME * whole.max()].idxmin())
    return Doing(shares, longest)
