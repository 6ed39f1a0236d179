"""What a GPU did in a step, and what the host did while the GPU was idle."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.device_work import SORTS, DeviceWork, column, device_work, is_in, matching, named
from perfnb.attribution.events import all_events
from perfnb.attribution.interval_sets import IntervalSet, difference, union
from perfnb.findings.idle_time import ALLOCATES, COPIES, UNEXPLAINED, WAITS, Doing, idle_of
from perfnb.gpu.device_time import gpu_time, gpu_time_by_step
from perfnb.gpu.idle import idle_gaps
from perfnb.gpu.launches import launches
from perfnb.recording.labels import found
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT
from perfnb.trace_names import CALLS, DEVICE_WORK

_PAGEABLE, _PINNED = re.compile("Pageable"), re.compile("Pinned")
_NO_KERNEL = re.compile("Memcpy|Memset")

#: Copies between host and device, by where they lead.
TO_DEVICE = re.compile(r"HtoD|HostToDevice", re.IGNORECASE)
TO_HOST = re.compile(r"DtoH|DeviceToHost", re.IGNORECASE)


@dataclass(frozen=True)
class Runs:
    """Kernels, copies and fills of the steps; one value per array for each."""

    names: pd.Categorical
    #: Index into `SORTS`.
    sort: Ints
    #: Nanoseconds.
    start: Ints
    end: Ints
    #: Position in the events of the trace.
    row: Ints
    #: When the launching call started; -1 if unknown.
    called: Ints

    def named(self, pattern: re.Pattern[str]) -> Bools:
        """Which of them have a name that contains the pattern."""
        return found(pd.Series(self.names), pattern.search)

    def time(self, chosen: Bools) -> IntervalSet:
        """The time in which at least one of them ran."""
        return union(self.start[chosen], self.end[chosen])


@dataclass(frozen=True)
class Copies:
    """Copies of all traced steps in one direction, between host and device."""

    #: All copies, and those with memory that the trace calls pageable or pinned.
    count: int
    pageable: int
    pinned: int
    #: Median size of a copy; ``None`` if the trace does not say.
    each_bytes: float | None
    #: Host time per step in the calls that launched them.
    call_ms: float


@dataclass(frozen=True)
class GpuFacts:
    """Figures of the busiest GPU, in milliseconds per traced step."""

    #: The host's step, and the GPU's work on it afterwards.
    span_ms: float
    #: Lengths of unions; ``exposed_ms`` is communication, and ``copies_ms`` copies between host and device, with
    #: nothing computing.
    busy_ms: float
    communication_ms: float
    exposed_ms: float
    copies_ms: float
    idle_ms: float
    #: Idle time by its cause, as ``by`` and ``perhaps`` of `Idle`.
    idle_by: Mapping[str, float]
    idle_perhaps: Mapping[str, float]
    #: What the host did in the idle time counted as ``host``.
    doing: Doing
    #: When the host had not launched work that the GPU could have done.
    late: IntervalSet
    #: Factor from nanoseconds of all traced steps to milliseconds of one.
    per_step: float
    #: Host time in calls that allocate, copy and wait, and their number, by cause as in `idle_by`.
    calls_ms: Mapping[str, tuple[float, int]]
    #: Kernels, copies and fills per step.
    kernels: float
    #: Share of kernels that were shorter than their launch.
    short_share: float | None
    #: Median duration of a launching call and of a kernel.
    call_us: float | None
    kernel_us: float | None
    #: Share of the work that CUDA graphs launched.
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
        """Milliseconds per step in which at least one of some `runs` ran."""
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
        """Idle time while one of `HELD` blocked the host."""
        return self.idle_by[cause] + self.idle_perhaps[cause]

    def is_unsure(self, cause: str) -> bool:
        """Whether for most of this time the GPU is not known to have waited for the host."""
        return self.idle_perhaps[cause] > self.idle_by[cause]

    def late_ms(self, blocks: pd.DataFrame) -> float:
        """Idle time because the host was late, within some blocks of the host that do not overlap."""
        within = self.late.within(blocks["start"].to_numpy(dtype=np.int64), blocks["end"].to_numpy(dtype=np.int64))
        return float(within.sum()) * self.per_step

    def in_step_of(self, ms: float) -> GpuFacts:
        """The same for a step of that length, in which the GPU is idle for less time than in a traced one.

        If it worked for longer than that, tracing slowed its work, too.
        """
        if self.busy_ms > ms:
            shorter = ms / self.busy_ms
            return replace(
                self,
                busy_ms=ms,
                communication_ms=self.communication_ms * shorter,
                exposed_ms=self.exposed_ms * shorter,
                copies_ms=self.copies_ms * shorter,
                run_ms=self.run_ms * shorter,
            ).in_step_of(ms)
        factor = max(ms - self.busy_ms, 0.0) / self.idle_ms if self.idle_ms > 0 else 1.0
        if factor >= 1:
            return self
        return replace(
            self,
            span_ms=self.busy_ms + self.idle_ms * factor,
            idle_ms=self.idle_ms * factor,
            idle_by={cause: time * factor for cause, time in self.idle_by.items()},
            idle_perhaps={cause: time * factor for cause, time in self.idle_perhaps.items()},
            per_step=self.per_step * factor,
        )


def gpu_facts(recording: Recording, attribution: Attribution) -> GpuFacts | None:
    """The facts of the busiest GPU; ``None`` if none worked."""
    events = all_events(recording)
    if not is_in(events, DEVICE_WORK).any():
        return None
    done = device_work(events)
    times = gpu_time(events, done)
    steps = max(attribution.steps, 1)
    device = times["device"].iloc[int(times["busy_ms"].astype(float).to_numpy().argmax())]
    idle = idle_of(events, done, done.device == (-1 if pd.isna(device) else device), attribution)
    by_step = gpu_time_by_step(events, done)
    gaps = _of(idle_gaps(events, work=done), device)
    rows = _of(launches(events, done), device)
    if len(by_step) and rows["step"].notna().any():
        # Time between steps belongs to none.
        whole, gaps, rows = (frame[frame["step"].notna()] for frame in (_of(by_step, device), gaps, rows))
    else:
        whole = _of(times, device)
    sums = {name: float(whole[name].sum()) / steps for name in _SUMS}
    kernels = rows[rows["short"].notna()]
    known = rows[rows["call_ns"].notna()]
    per_step = 1e-6 / steps
    runs = _runs(events, done, rows.index.to_numpy())
    to_device, to_host = runs.named(TO_DEVICE), runs.named(TO_HOST)
    copied = difference(runs.time(to_device | to_host), runs.time(runs.sort != SORTS.index("memcpy")))
    idle_ms = idle.idle_ns * per_step
    return GpuFacts(
        span_ms=sums["busy_ms"] + idle_ms,
        busy_ms=sums["busy_ms"],
        communication_ms=sums["communication_ms"],
        exposed_ms=sums["communication_ms"] - sums["overlap_ms"],
        copies_ms=copied.length * per_step,
        idle_ms=idle_ms,
        idle_by={cause: ns * per_step for cause, ns in idle.by.items()},
        idle_perhaps={cause: ns * per_step for cause, ns in idle.perhaps.items()},
        doing=idle.doing,
        late=idle.late,
        per_step=per_step,
        calls_ms=_calls(events, steps),
        kernels=len(rows) / steps,
        short_share=float(kernels["short"].astype(float).mean()) if len(kernels) else None,
        call_us=float(known["call_ns"].astype(float).median()) / 1e3 if len(known) else None,
        kernel_us=float(rows["duration_ns"].median()) / 1e3 if len(rows) else None,
        graph_share=float((known["shared"] > 1).mean()) if len(known) else 0.0,
        late_ops=[op for op in _heaviest(gaps[gaps["host_ns"] > 0], "op", "host_ns") if op not in ("nan", "<NA>")],
        kernel_names=_heaviest(rows[~found(rows["name"], _NO_KERNEL.match)], "name", "duration_ns"),
        runs=runs,
        run_ms=per_step,
        to_device=_copies(events, rows, to_device, steps),
        to_host=_copies(events, rows, to_host, steps),
    )


_SUMS = ("busy_ms", "communication_ms", "overlap_ms")


def _runs(events: pd.DataFrame, work: DeviceWork, rows: Ints) -> Runs:
    """The work in some rows of the events."""
    chosen = np.isin(work.rows, rows)
    called = np.where(work.call != NONE, column(events, "start_ns")[work.call], NONE)
    names = named(events, work.rows[chosen])
    return Runs(names, *(one[chosen] for one in (work.sort, work.start, work.end, work.rows, called)))


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
    """The rows of one device."""
    return frame[frame["device"].isna() if pd.isna(device) else (frame["device"] == device).fillna(False)]


def _calls(events: pd.DataFrame, steps: int) -> dict[str, tuple[float, int]]:
    patterns = {"allocator": ALLOCATES, "copies": COPIES, "synchronisation": WAITS}
    duration = column(events, "duration_ns")
    spent = {}
    for cause, pattern in patterns.items():
        chosen = matching(events, pattern) & is_in(events, CALLS)
        spent[cause] = (float(duration[chosen].sum()) / 1e6 / steps, int(chosen.sum()))
    return spent


def _heaviest(frame: pd.DataFrame, name: str, ns: str) -> pd.Series:
    """The values of a column, by the sum of another, largest first."""
    sums = frame.groupby(frame[name].astype(TEXT))[ns].sum().sort_values(ascending=False, kind="stable")
    return pd.Series(sums.index)
