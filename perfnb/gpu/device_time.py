"""Where a GPU's time went: busy, computing, communicating, copying, idle, and communication behind computation.

Work on a device overlaps, on several streams and even on one. So nothing here is a sum of durations: each figure is the
length of a union of intervals.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import SORTS, DeviceWork, Work, device_work, is_in, work_alone
from perfnb.attribution.interval_sets import intersection, union
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.trace_names import KERNELS

#: Columns that say of what a row tells.
_WHOLE, _BY_STEP = ("rank", "device"), ("rank", "device", "step")
_MS = (
    *("total_ms", "busy_ms", "computation_ms", "communication_ms", "memcpy_ms", "idle_ms"),
    *("idle_pct", "overlap_ms", "overlap_pct"),
)


def gpu_time(events: pd.DataFrame, work: Work | None = None) -> pd.DataFrame:
    """The time of each device of each rank, over the whole trace.

    Parameters
    ----------
    events : DataFrame
        One row an event, see `Recording.events`.
    work : Work, optional
        What `work_alone` finds in them, where that is known.

    Returns
    -------
    DataFrame
        One row a device: ``rank`` and ``device`` (missing where the events carry none), ``total_ms`` (from the begin of
        its first kernel, copy or fill to the end of its last), ``busy_ms`` (at least one ran), ``computation_ms``
        (kernels that are no collective, and fills), ``communication_ms`` (kernels of NCCL and RCCL), ``memcpy_ms``,
        ``idle_ms`` and ``idle_pct`` (total less busy), ``overlap_ms`` and ``overlap_pct`` (communication while
        computing, the share is of communication), ``kernels`` and ``kernel_ms`` (number of kernels, and the sum of
        their durations). Times are of the trace, not per step. A share of nothing is missing.
    """
    return _table(work_alone(events) if work is None else work, events, _WHOLE)


def gpu_time_by_step(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    """As `gpu_time`, one row a device and step.

    Work belongs to the step in which it was launched (the one in which it began, where no launch is in the trace). The
    total of a step goes from the begin of its first work to the end of its last, so that waiting between the work of
    two steps is part of neither, and the totals of steps whose work overlaps are longer together than the whole.
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
    """The values of the columns `by` and the places of the work that has them, in the order of the values."""
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
