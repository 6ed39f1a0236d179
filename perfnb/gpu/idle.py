"""Why a GPU was idle: a late host, a dependency on a stream or event, or something the trace does not explain."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import DeviceWork, column, device_work, is_in, matching, named, pairs, thread_keys
from perfnb.gpu.device_time import groups
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.trace_names import CALLS, SYNCHRONISATION

_BY = ("rank", "device")
#: Why a device was idle, in column order.
REASONS = ("host", "dependency", "other")
#: Longest gap that switching from one kernel to the next explains: 1 to 3 µs on NVIDIA GPUs, on AMD's sometimes 10.
HANDOVER_NS = 10_000
#: Longest time from the return of a launch call to the start of its work that launch latency explains: usually 2 to
#: 6 µs on NVIDIA GPUs, 7 to 24 on AMD's.
LAUNCH_NS = 30_000
_WAIT_CALL = re.compile(r"(?:cuda|hip|cu)StreamWaitEvent")


def idle_gaps(
    events: pd.DataFrame,
    work: DeviceWork | None = None,
    own_step: bool = False,
) -> pd.DataFrame:
    """Find the gaps in which a device ran nothing, between its first and its last work.

    A gap has up to two parts, judged by the work that ended it: until the call that launched that work returned, and
    after.

    ``host``
        The host was late: until the call returned (or until the work started, if earlier), plus the rest if it is no
        longer than launch latency.
    ``dependency``
        The rest, if the work had to wait: for the work before it, if the gap is no longer than a switch between
        kernels; for earlier work of the same CUDA graph; or for an event that its stream was told to wait for and
        whose completion is not in the trace.
    ``other``
        The rest, if nothing in the trace explains it; or the whole gap, if the launch is not in the trace.

    Parameters
    ----------
    events : DataFrame
        One row per event.
    work : DeviceWork, optional
        `device_work` of the events, if known.
    own_step : bool
        Look only between work of the same step, as if there were no other steps.

    Returns
    -------
    DataFrame
        ``rank``, ``device``, ``step`` (of the work after the gap), ``start_ns``, ``duration_ns``; ``host_ns``,
        ``dependency_ns`` and ``other_ns`` (which add up to it); ``call_ns`` and ``latency_ns`` (parts of `host_ns`:
        inside the launch call and after it returned), ``reason`` (the longest of the three), ``launch_known``,
        ``before_step`` (the gap precedes the first work of its step), ``next_event`` (position in `events` of the work
        after the gap), ``next`` and ``op`` (names of that work and of the op that launched it). Durations add up to the
        idle time.
    """
    work = device_work(events) if work is None else work
    waits, sibling = _awaits_unknown(events, work), _first(work.call, work)
    called = column(events, "start_ns")[work.call]
    returned = called + column(events, "duration_ns")[work.call]
    first = _first(pairs(work.rank, work.device, work.step), work)
    parts: list[pd.DataFrame] = []
    ops: list[Ints] = []
    chosen = work.step != NONE if own_step else None
    for key, places in groups(work, (*_BY, "step") if own_step else _BY, chosen):
        begin, end, after = _gaps(work, places)
        known = work.call[after] != NONE
        graph = known & (sibling[after] < begin)
        given = np.clip(returned[after], begin, end)
        # If the call started in time but had not returned, a short gap is just the switch to the next kernel.
        short = end - begin <= HANDOVER_NS
        in_time = graph | (short & (np.where(returned[after] > end, called[after], returned[after]) <= begin))
        given = np.where(known & ~in_time, given, begin)
        soon = ~in_time & (end - returned[after] <= LAUNCH_NS) & ((given > begin) | ~waits[after])
        soon &= known
        host = np.where(soon, end, given) - begin
        rest = end - begin - host
        in_call = given - np.clip(called[after], begin, given)
        waited = known & (in_time | waits[after])
        three = np.stack((host, np.where(waited, rest, 0), np.where(waited, 0, rest)))
        step = pd.Series(work.step[after], dtype="Int64")
        part = pd.DataFrame(
            {
                **{name: pd.Series([key[name]] * len(after), dtype="Int64") for name in _BY},
                "step": step.where(step != NONE),
                "start_ns": begin,
                "duration_ns": end - begin,
                **{f"{reason}_ns": values for reason, values in zip(REASONS, three, strict=True)},
                "call_ns": np.where(known, in_call, 0),
                "latency_ns": begin + host - given,
                "before_step": (work.step[after] != NONE) & (begin < first[after]) & (not own_step),
                "reason": pd.Categorical.from_codes(three.argmax(axis=0), categories=pd.Index(REASONS)),
                "launch_known": known,
                "next_event": work.rows[after],
            }
        )
        parts.append(part)
        ops.append(work.op[after])
    if not parts:
        return _no_gaps()
    whole = pd.concat(parts, ignore_index=True)
    return whole.assign(next=named(events, whole["next_event"].to_numpy()), op=named(events, np.concatenate(ops)))


def idle_time(
    events: pd.DataFrame,
    by_step: bool = False,
    work: DeviceWork | None = None,
    own_step: bool = False,
) -> pd.DataFrame:
    """Sum `idle_gaps` by rank and device, and optionally by step.

    Returns
    -------
    DataFrame
        ``rank``, ``device``, ``step`` if asked for, then ``idle_ms``, its parts ``host_ms``, ``dependency_ms`` and
        ``other_ms``, ``call_ms`` and ``latency_ms`` (parts of `host_ms`), ``unknown_ms`` (part of `other_ms` whose
        launch is not in the trace), ``before_ms`` (part of `idle_ms` before the first work of a step) and ``gaps``. A
        device that was never idle has no row. A gap between two steps belongs to the second, or to neither with
        `own_step`.
    """
    rows = idle_gaps(events, work, own_step)
    by = [*_BY, *(["step"] if by_step else [])]
    parts = {"idle_ms": rows["duration_ns"] / 1e6}
    parts |= {f"{name}_ms": rows[f"{name}_ns"] / 1e6 for name in (*REASONS, "call", "latency")}
    parts |= {"unknown_ms": parts["other_ms"].where(~rows["launch_known"].astype(bool), 0.0)}
    parts |= {"before_ms": parts["idle_ms"].where(rows["before_step"].astype(bool), 0.0)}
    parts |= {"gaps": rows["duration_ns"].notna()}
    return pd.DataFrame({**{name: rows[name] for name in by}, **parts}).groupby(by, dropna=False).sum().reset_index()


def _gaps(work: DeviceWork, places: Ints) -> tuple[Ints, Ints, Ints]:
    """Start and end of each gap, and the work that ended it: the longest of those that start at that moment.

    Work of zero duration ends a gap too, so that first start, gaps, work and last end add up.
    """
    order = places[np.lexsort((-work.end[places], work.start[places]))]
    reach = np.maximum.accumulate(work.end[order])[:-1]
    after = order[1:]
    real = work.start[after] > reach
    return reach[real], work.start[after[real]], after[real]


def _first(group: Ints, work: DeviceWork) -> Ints:
    """Start of the first work in each one's group."""
    _, place = np.unique(group, return_inverse=True)
    first = np.full(place.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, place, work.start)
    return first[place]


def _awaits_unknown(events: pd.DataFrame, work: DeviceWork) -> Bools:
    """Whether, since its last launch, the stream was told to wait for an event that the trace does not resolve.

    If the trace has no synchronization events, a wait call counts for whatever the same thread launches next, since the
    stream is not recorded.
    """
    is_sync = is_in(events, SYNCHRONISATION)
    result = np.zeros(len(work), dtype=bool)
    launched = np.flatnonzero(work.call != NONE)
    begin = column(events, "start_ns")
    if is_sync.any():
        waits = np.flatnonzero(is_sync & (events["name"] == "Stream Wait Event").to_numpy())
        waits = waits[column(events, "wait_correlation")[waits] == NONE]
        rank = column(events, "rank")
        everything = pairs(
            np.concatenate((work.rank, rank[waits])),
            np.concatenate((work.device, column(events, "device")[waits])),
            np.concatenate((work.stream, column(events, "stream")[waits])),
        )
        of_work, of_wait = everything[: len(work)], everything[len(work) :]
    else:
        waits = np.flatnonzero(is_in(events, CALLS) & matching(events, _WAIT_CALL))
        thread = thread_keys(events)
        of_work, of_wait = thread[work.call], thread[waits]
    if len(waits) == 0:
        return result
    order = launched[np.lexsort((begin[work.call[launched]], of_work[launched]))]
    # A wait counts for the first work launched after it on its stream.
    time = begin[work.call[order]]
    key = of_work[order]
    for stream in np.unique(of_wait):
        low, high = np.searchsorted(key, [stream, stream + 1])
        place = low + np.searchsorted(time[low:high], begin[waits[of_wait == stream]])
        result[order[place[place < high]]] = True
    return result


def _no_gaps() -> pd.DataFrame:
    integers = pd.Series([], dtype="int64")
    reason = pd.Categorical([], categories=list(REASONS))
    missing, text = pd.Series([], dtype="Int64"), pd.Categorical([])
    lengths = ("start_ns", "duration_ns", *(f"{name}_ns" for name in REASONS), "call_ns", "latency_ns")
    return pd.DataFrame(
        {
            **dict.fromkeys((*_BY, "step"), missing),
            **dict.fromkeys(lengths, integers),
            **{"reason": reason, **dict.fromkeys(("launch_known", "before_step"), pd.Series([], dtype=bool))},
            **{"next_event": integers, "next": text, "op": text},
        }
    )
