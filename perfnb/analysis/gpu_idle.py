"""Why a GPU was idle: the host was late, a kernel waited for another stream or event, or something else."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.analysis.device_work import DeviceWork, column, device_work, is_in, named, pairs
from perfnb.analysis.gpu_time import groups
from perfnb.analysis.launches import submitted
from perfnb.analysis.nesting import NONE, Bools, Ints

#: Why a device was idle, in the order of the columns of the sums.
REASONS = ("host", "dependency", "other")
#: Longest gap between two kernels that handing over from one to the next explains. NVIDIA's need 1 to 3 µs, AMD's
#: sometimes 10 and more.
HANDOVER_NS = 10_000
#: Longest time from the end of a launching call to the begin of the work that launching alone explains.
LAUNCH_NS = 20_000


def idle_gaps(
    events: pd.DataFrame,
    per_stream: bool = False,
    handover_ns: int = HANDOVER_NS,
    work: DeviceWork | None = None,
) -> pd.DataFrame:
    """One row a gap in which a device ran nothing, between its first and its last work.

    The reason is that of the work which ended the gap:

    ``host``
        The host was late: when the device fell idle, the call that launched the work had not returned (where the work
        began before the call returned: the call had not begun). Or it had returned so late that the work began as soon
        after it as a launch takes.
    ``dependency``
        It had been launched and waited: for what ran before it, if the gap is no longer than handing over takes; for
        earlier work of the same CUDA graph; or for an event of another stream of which the trace does not tell when it
        came about.
    ``other``
        It had been launched, and nothing in the trace explains why it did not run; or its launch is not in the trace.

    Parameters
    ----------
    events : DataFrame
        One row an event.
    per_stream : bool
        Look for gaps in each stream instead of in each device.
    handover_ns : int
        Longest gap that handing over from one kernel to the next explains, in nanoseconds.
    work : DeviceWork, optional
        What `device_work` finds in the events, where that is known.

    Returns
    -------
    DataFrame
        ``rank``, ``device`` (with `per_stream` also ``stream``), ``step`` (of the work after the gap), ``start_ns``,
        ``duration_ns``, ``reason``, ``launch_known``, ``host_ns`` (how long after the begin of the gap the call began;
        0 where it had, missing where there is none), ``next_event`` (position in `events` of the work after the gap),
        ``next`` and ``op`` (names of this and of the operator that launched it). The durations add up to the idle time.
    """
    work = device_work(events) if work is None else work
    by = ("rank", "device", "stream") if per_stream else ("rank", "device")
    ready, waits, sibling = submitted(events, work), _awaits_unknown(events, work), _first_of_call(work)
    begin_of_call = column(events, "start_ns")[work.call]
    parts: list[pd.DataFrame] = []
    ops: list[Ints] = []
    for key, places in groups(work, by):
        begin, end, after = _gaps(work, places)
        duration = end - begin
        known = work.call[after] != NONE
        graph = known & (sibling[after] < begin)
        waited = graph | (duration <= handover_ns) | waits[after]
        late = ~graph & (ready[after] > begin)
        late |= ~waited & (work.start[after] - ready[after] <= LAUNCH_NS)
        code = np.where(known & late, 0, np.where(known & waited, 1, 2))
        step = pd.Series(work.step[after], dtype="Int64")
        until_call = np.maximum(begin_of_call[after] - begin, 0)
        part = pd.DataFrame(
            {
                **{name: pd.Series([value] * len(after), dtype="Int64") for name, value in key.items()},
                "step": step.where(step != NONE),
                "start_ns": begin,
                "duration_ns": duration,
                "reason": pd.Categorical.from_codes(code, categories=pd.Index(REASONS)),
                "launch_known": known,
                "host_ns": pd.Series(np.minimum(until_call, duration), dtype="Int64").where(pd.Series(known)),
                "next_event": work.rows[after],
            }
        )
        parts.append(part)
        ops.append(work.op[after])
    if not parts:
        return _no_gaps(by)
    whole = pd.concat(parts, ignore_index=True)
    return whole.assign(next=named(events, whole["next_event"].to_numpy()), op=named(events, np.concatenate(ops)))


def idle_time(
    events: pd.DataFrame,
    by_step: bool = False,
    per_stream: bool = False,
    handover_ns: int = HANDOVER_NS,
    work: DeviceWork | None = None,
) -> pd.DataFrame:
    """Sums of `idle_gaps` over each device of each rank (and each step, or each stream).

    Returns
    -------
    DataFrame
        ``rank``, ``device``, ... then ``idle_ms``, its parts ``host_ms``, ``dependency_ms`` and ``other_ms``,
        ``unknown_ms`` (the part of `other_ms` whose launch is not in the trace) and ``gaps``. A device that was never
        idle has no row. Gaps between the work of two steps belong to the second.
    """
    rows = idle_gaps(events, per_stream, handover_ns, work)
    by = ["rank", "device", *(["stream"] if per_stream else []), *(["step"] if by_step else [])]
    duration = rows["duration_ns"] / 1e6
    parts = {"idle_ms": duration}
    parts |= {f"{reason}_ms": duration.where(rows["reason"] == reason, 0.0) for reason in REASONS}
    parts |= {"unknown_ms": duration.where(~rows["launch_known"].astype(bool), 0.0), "gaps": duration.notna()}
    return pd.DataFrame({**{name: rows[name] for name in by}, **parts}).groupby(by, dropna=False).sum().reset_index()


def _gaps(work: DeviceWork, places: Ints) -> tuple[Ints, Ints, Ints]:
    """Begin and end of each gap between the given work, and what ended it: of what began then, the longest.

    Work without duration ends a gap too, so that first begin, gaps, work and last end fit together.
    """
    order = places[np.lexsort((-work.end[places], work.start[places]))]
    reach = np.maximum.accumulate(work.end[order])[:-1]
    after = order[1:]
    real = work.start[after] > reach
    return reach[real], work.start[after[real]], after[real]


def _first_of_call(work: DeviceWork) -> Ints:
    """Begin of the first work that the same call launched."""
    _, group = np.unique(work.call, return_inverse=True)
    first = np.full(group.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, group, work.start)
    return first[group]


def _awaits_unknown(events: pd.DataFrame, work: DeviceWork) -> Bools:
    """Whether the stream was told, since its last work was launched, to wait for an event the trace does not know."""
    waits = np.flatnonzero(is_in(events, ("cuda_sync",)) & (events["name"] == "Stream Wait Event").to_numpy())
    waits = waits[column(events, "wait_correlation")[waits] == NONE]
    result = np.zeros(len(work), dtype=bool)
    if len(waits) == 0:
        return result
    begin, rank = column(events, "start_ns"), column(events, "rank")
    everything = pairs(
        np.concatenate((work.rank, rank[waits])),
        np.concatenate((work.device, column(events, "device")[waits])),
        np.concatenate((work.stream, column(events, "stream")[waits])),
    )
    of_work, of_wait = everything[: len(work)], everything[len(work) :]
    launched = np.flatnonzero(work.call != NONE)
    order = launched[np.lexsort((begin[work.call[launched]], of_work[launched]))]
    # A wait counts for the first work launched after it on its stream.
    time = begin[work.call[order]]
    key = of_work[order]
    for stream in np.unique(of_wait):
        low, high = np.searchsorted(key, [stream, stream + 1])
        place = low + np.searchsorted(time[low:high], begin[waits[of_wait == stream]])
        result[order[place[place < high]]] = True
    return result


def _no_gaps(by: tuple[str, ...]) -> pd.DataFrame:
    integers = pd.Series([], dtype="int64")
    reason = pd.Categorical([], categories=list(REASONS))
    missing, text = pd.Series([], dtype="Int64"), pd.Categorical([])
    return pd.DataFrame(
        {
            **dict.fromkeys((*by, "step"), missing),
            **{"start_ns": integers, "duration_ns": integers, "reason": reason},
            **{"launch_known": pd.Series([], dtype=bool), "host_ns": missing, "next_event": integers},
            **{"next": text, "op": text},
        }
    )
