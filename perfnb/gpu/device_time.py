"""Where a GPU's time went: busy, computing, communicating, copying, idle, and communication hidden by computation.

Work overlaps across streams and even within one, so each figure is the length of a union of intervals, never a sum of
durations.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import SORTS, DeviceWork, Work, device_work, is_in, work_alone
from perfnb.attribution.interval_sets import intersection, union
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.trace_names import KERNELS

_WHOLE, _BY_STEP = ("rank", "device"), ("rank", "device", "step")
_MS = (
    *("total_ms", "busy_ms", "computation_ms", "communication_ms", "memcpy_ms", "idle_ms"),
    *("idle_pct", "overlap_ms", "overlap_pct"),
)


def gpu_time(events: pd.DataFrame, work: Work | None = None) -> pd.DataFrame:
    """Time of each device of each rank, over the whole trace.

    Parameters
    ----------
    events : DataFrame
        One row per event, see `Recording.events`.
    work : Work, optional
        `work_alone` of the events, if known.

    Returns
    -------
    DataFrame
        One row per device: ``rank`` and ``device`` (missing if the events have none), ``total_ms`` (start of the first
        kernel, copy or fill to the end of the last), ``busy_ms`` (at least one ran), ``computation_ms`` (fills, and
        kernels that are not collectives), ``communication_ms`` (NCCL and RCCL kernels), ``memcpy_ms``, ``idle_ms`` and
        ``idle_pct`` (total minus busy), ``overlap_ms`` and ``overlap_pct`` (communication during computation; share of
        communication), ``kernels`` and ``kernel_ms`` (number of kernels and sum of their durations). Times are totals
        over the trace, not per step. A share of nothing is missing.
    """
    return _table(work_alone(events) if work is None else work, events, _WHOLE)


def gpu_time_by_step(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    """Like `gpu_time`, with one row per device and step.

    Work belongs to the step that launched it, or, if its launch is not in the trace, to the step in which it started. A
    step's total runs from the start of its first work to the end of its last: idle time between two steps is in
    neither, and totals of steps that overlap on the device add up to more than the whole.
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
    """The values of the columns `by` and the places of the work that has them, in order of value."""
    places = np.arange(len(work)) if chosen is None else np.flatnonzero(chosen)
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
