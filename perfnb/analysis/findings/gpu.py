"""What a GPU did in a step, and what the host was doing while it had nothing to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from perfnb.analysis.attribution import ON_DEVICE, Attribution
from perfnb.analysis.device_work import CALLS, column, device_work, is_in, matching
from perfnb.analysis.events import all_events
from perfnb.analysis.findings.host_doing import Doing
from perfnb.analysis.findings.idle import ALLOCATES, COPIES, UNEXPLAINED, WAITS, idle_of
from perfnb.analysis.gpu_idle import idle_gaps
from perfnb.analysis.gpu_time import gpu_time, gpu_time_by_step
from perfnb.analysis.interval_sets import IntervalSet
from perfnb.analysis.labels import found
from perfnb.analysis.launches import launches
from perfnb.frames.recording import Recording
from perfnb.frames.text import TEXT

_COPIED, _PAGEABLE = re.compile("HtoD|DtoH"), re.compile("Pageable")
_NO_KERNEL = re.compile("Memcpy|Memset")


@dataclass(frozen=True)
class GpuFacts:
    """Of the busiest GPU, in milliseconds of a traced step.

    Attributes
    ----------
    span_ms : float
        The host's step, and what the GPU still worked of it afterwards.
    busy_ms, computation_ms, communication_ms, exposed_ms, memcpy_ms, idle_ms : float
        Lengths of unions; ``exposed_ms`` is communication while nothing was computed.
    idle_by, idle_perhaps : mapping
        Idle time by its cause, as ``by`` and ``perhaps`` of `Idle`.
    doing : Doing
        What the host did in that of ``host``.
    late : IntervalSet
        When the host had not launched what the GPU could have done.
    per_step : float
        From nanoseconds of all traced steps to milliseconds of one.
    calls_ms : mapping
        Time of the host in calls that allocate, copy and wait, and their number, by the words of `idle_by`.
    kernels : float
        Kernels, copies and fills of a step.
    short_share : float or None
        Of kernels, those that ran for less time than their launch took.
    call_us, kernel_us : float or None
        Median duration of a launching call, and of a kernel.
    graph_share : float
        Of the work, what a launch of a CUDA graph gave to the device.
    before : DataFrame
        Operators whose work ended idle times: ``op``, ``ms``; the heaviest first.
    work : DataFrame
        Kernels by name: ``name``, ``sort``, ``ms``, ``calls``; the heaviest first.
    pageable : int
        Copies from or to memory that is not pinned, of all traced steps.
    copies : int
        Copies between host and device, of all traced steps.
    """

    span_ms: float
    busy_ms: float
    computation_ms: float
    communication_ms: float
    exposed_ms: float
    memcpy_ms: float
    idle_ms: float
    idle_by: Mapping[str, float]
    idle_perhaps: Mapping[str, float]
    doing: Doing
    late: IntervalSet
    per_step: float
    calls_ms: Mapping[str, tuple[float, int]]
    kernels: float
    short_share: float | None
    call_us: float | None
    kernel_us: float | None
    graph_share: float
    before: pd.DataFrame
    work: pd.DataFrame
    pageable: int
    copies: int

    @property
    def idle_share(self) -> float:
        """Idle time as a share of the step."""
        return self.idle_ms / self.span_ms if self.span_ms > 0 else 0.0

    @property
    def unexplained_ms(self) -> float:
        """Idle time of which the trace does not show why."""
        return sum(self.idle_by[why] for why in UNEXPLAINED)

    def held_ms(self, cause: str) -> float:
        """Idle time while the host was held by one of `HELD`."""
        return self.idle_by[cause] + self.idle_perhaps[cause]

    def is_unsure(self, cause: str) -> bool:
        """Whether it is not known of most of this time that the GPU waited for the host."""
        return self.idle_perhaps[cause] > self.idle_by[cause]

    def late_ms(self, blocks: pd.DataFrame) -> float:
        """Idle time, for which the host was late, in some blocks of the host that do not overlap."""
        within = self.late.within(blocks["start"].to_numpy(dtype=np.int64), blocks["end"].to_numpy(dtype=np.int64))
        return float(within.sum()) * self.per_step

    def in_step_of(self, ms: float) -> GpuFacts:
        """The same in a step of that length, where the GPU has less time to idle than in one that is traced."""
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
    """The facts of the busiest GPU; ``None`` where none worked."""
    events = all_events(recording)
    if not is_in(events, ON_DEVICE).any():
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
        # What lies between steps is part of none.
        whole, gaps, rows = (frame[frame["step"].notna()] for frame in (_of(by_step, device), gaps, rows))
    else:
        whole = _of(times, device)
    sums = {name: float(whole[name].sum()) / steps for name in _SUMS}
    kernels = rows[rows["short"].notna()]
    known = rows[rows["call_ns"].notna()]
    per_step = 1e-6 / steps
    idle_ms = idle.idle_ns * per_step
    return GpuFacts(
        span_ms=sums["busy_ms"] + idle_ms,
        busy_ms=sums["busy_ms"],
        computation_ms=sums["computation_ms"],
        communication_ms=sums["communication_ms"],
        exposed_ms=sums["communication_ms"] - sums["overlap_ms"],
        memcpy_ms=sums["memcpy_ms"],
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
        before=_before(gaps, steps),
        work=_work(rows, steps),
        pageable=int(found(rows["name"], _PAGEABLE.search).sum()),
        copies=int(found(rows["name"], _COPIED.search).sum()),
    )


_SUMS = ("busy_ms", "computation_ms", "communication_ms", "memcpy_ms", "overlap_ms")


def _of(frame: pd.DataFrame, device: Any) -> pd.DataFrame:
    """The rows of one device."""
    return frame[frame["device"].isna() if pd.isna(device) else (frame["device"] == device).fillna(False)]


def _calls(events: pd.DataFrame, steps: int) -> dict[str, tuple[float, int]]:
    patterns = {"allocator": ALLOCATES, "copies": COPIES, "synchronisation": WAITS}
    duration = column(events, "duration_ns")
    found = {}
    for cause, pattern in patterns.items():
        chosen = matching(events, pattern) & is_in(events, CALLS)
        found[cause] = (float(duration[chosen].sum()) / 1e6 / steps, int(chosen.sum()))
    return found


def _before(gaps: pd.DataFrame, steps: int) -> pd.DataFrame:
    late = gaps[gaps["host_ns"] > 0]
    sums = late.groupby(late["op"].astype(TEXT))["host_ns"].sum().sort_values(ascending=False, kind="stable")
    sums = sums[~sums.index.isin(["nan", "<NA>"])]
    return pd.DataFrame({"op": sums.index, "ms": sums.to_numpy() / 1e6 / steps})


def _work(rows: pd.DataFrame, steps: int) -> pd.DataFrame:
    kernels = rows[~found(rows["name"], _NO_KERNEL.match)]
    sums = kernels.groupby(kernels["name"].astype(TEXT))["duration_ns"].agg(["sum", "size"])
    sums = sums.sort_values("sum", ascending=False, kind="stable")
    return pd.DataFrame(
        {"name": sums.index, "ms": sums["sum"].to_numpy() / 1e6 / steps, "calls": sums["size"].to_numpy() / steps}
    )
