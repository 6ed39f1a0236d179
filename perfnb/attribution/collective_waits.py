"""Find collectives that run on the host (gloo, MPI), and the time when a step only waits for a collective.

A collective on the host consists of an operator on a thread of the step that starts it, such as ``c10d::allreduce_``,
and a range on a thread of the backend, such as ``gloo:all_reduce``, which ends when the collective ends. The collective
is in flight from the start of the operator to the end of the range.

A step waits for a collective if no operator runs while the collective is in flight. Python code between two operators
looks the same in a trace. In contrast to such code, a wait lasts until a collective ends, so if none ends, the host was
busy. DDP is notified that a collective has ended before the backend records this, but may only wake up later, which can
take milliseconds on a busy machine. In that case, the wait ends when DDP uses the result. On a GPU, a step waits if the
host is in a synchronising call while the device runs only collectives.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.attribution.device_work import column, work_alone
from perfnb.attribution.interval_sets import EMPTY, IntervalSet, difference, intersection, union
from perfnb.recording.nesting import NONE, Bools, Ints, nest
from perfnb.recording.text import found, is_one_of, of_labels
from perfnb.trace_names import CALLS, COLLECTIVE_OP, COLLECTIVE_PARAMETERS, HOST_BACKENDS, OPS, RANGES, collective_kind

_WAITS = re.compile(r"(cuda|hip|cu|ze|sycl)\w*(Synchronize|Memcpy)", re.IGNORECASE)
_RUN = re.compile(r"(\w+):(\w+)")
#: The op that DDP uses to access a bucket that has arrived. It is not inside any other operator.
_VIEW = "aten::as_strided"
#: Backends for devices. If the trace does not contain their kernels, only the host side of their collectives is
#: visible.
_OFTEN_UNSEEN = ("xccl",)


class HostCollectives(NamedTuple):
    """The collectives that ran on the host, in chronological order."""

    #: The row of the operator that started it, and the row of the range around this operator, or -1 if there is none.
    issued: Ints
    ran: Ints
    #: The start of the operator and the end of the backend's range, followed by the start of that range.
    start: Ints
    begin: Ints
    end: Ints
    #: The kind of collective: ``allreduce``, ``allgather``, ...
    kind: np.ndarray


def host_collectives(events: pd.DataFrame, on_device: bool) -> HostCollectives:
    """Return the collectives that ran on the host.

    If `on_device` is true, return the device collectives, which the host only starts.
    """
    issued, ran = _issued(events), _ran(events, on_device)
    start, duration = events["start_ns"].to_numpy(), events["duration_ns"].to_numpy()
    issued, ran = (rows[np.argsort(start[rows], kind="stable")] for rows in (issued, ran))
    if on_device:  # the trace does not show which operators start device collectives
        issued = issued[:0]
    kinds = collective_kinds(events)
    of_run = _started_by(start[ran], kinds[ran], start[issued], kinds[issued])
    started = np.append(issued, NONE)[of_run]
    alone = np.setdiff1d(np.arange(len(issued)), of_run)
    issued_rows = np.concatenate([started, issued[alone]])
    ran_rows = np.concatenate([ran, np.full(len(alone), NONE, dtype=np.int64)])
    begin = np.where(ran_rows != NONE, start[ran_rows], start[issued_rows])
    end = np.where(ran_rows != NONE, (start + duration)[ran_rows], (start + duration)[issued_rows])
    first = np.minimum(np.where(issued_rows != NONE, start[issued_rows], begin), begin)
    kind = np.where(issued_rows != NONE, kinds[issued_rows], kinds[ran_rows])
    order = np.lexsort((begin, first))
    parts = (issued_rows, ran_rows, first, begin, end, kind)
    return HostCollectives(*(part[order] for part in parts))


def starts_collective(events: pd.DataFrame) -> Bools:
    """Check for each event whether it is an operator that starts or waits for a collective."""

    def starts_or_waits(name: str) -> bool:
        known = COLLECTIVE_OP.match(name) and (collective_kind(name) or name.endswith("wait_tensor"))
        return name == COLLECTIVE_PARAMETERS or bool(known)

    return np.asarray(of_labels(events["name"], starts_or_waits) & is_one_of(events["category"], OPS))


def device_collectives_alone(events: pd.DataFrame) -> tuple[IntervalSet, bool]:
    """Return the time when devices run only collectives, and whether they run any."""
    work = work_alone(events)
    is_collective = work.sort == 1
    if not is_collective.any():
        return EMPTY, False
    others = union(work.start[~is_collective], work.end[~is_collective])
    return difference(union(work.start[is_collective], work.end[is_collective]), others), True


def waits_of_host(
    collectives: HostCollectives, steps: IntervalSet, busy: IntervalSet, calls: IntervalSet, received: Ints
) -> IntervalSet:
    """Return the time in the steps during which the host waits for one of its own collectives.

    Parameters
    ----------
    collectives : HostCollectives
    steps : IntervalSet
    busy : IntervalSet
        The time when the step computes or waits for something else.
    calls : IntervalSet
        The time when the step is inside an operator that starts a collective.
    received : array of int
        The times when the step uses results, as returned by `takes_results`.
    """
    quiet = difference(steps, busy)
    ends = np.sort(collectives.end[collectives.ran != NONE])
    last = np.searchsorted(ends, quiet.end, side="right") - 1
    until = np.where(last != NONE, np.append(ends, 0)[last], quiet.start)
    # The host may also wake up late.
    taken = np.isin(quiet.end, received)
    woken = taken & (last != NONE) & (until > quiet.start)
    flying = union(
        np.concatenate([collectives.start, until[woken]]), np.concatenate([collectives.end, quiet.end[woken]])
    )
    until = np.where(taken, quiet.end, until)
    waiting = union(quiet.start, np.maximum(until, quiet.start))
    starting = intersection(calls, quiet)
    either = union(np.concatenate([waiting.start, starting.start]), np.concatenate([waiting.end, starting.end]))
    return intersection(flying, either)


def takes_results(events: pd.DataFrame, is_outer: Bools) -> Ints:
    """Return the times when DDP begins to access buckets that have arrived.

    `is_outer` marks the operators that are not inside another operator.
    """
    rows = np.flatnonzero(is_outer & of_labels(events["name"], lambda name: name == _VIEW))
    return np.asarray(column(events, "start_ns")[rows])


def synchronises(events: pd.DataFrame) -> Bools:
    """Check for each event whether the host may be waiting for a device while it runs."""
    return np.asarray(found(events["name"], _WAITS.match) & is_one_of(events["category"], CALLS))


def pieces(time: IntervalSet, borders: Ints) -> tuple[Ints, Ints]:
    """Return the starts and ends of a set of intervals that is cut at the given borders."""
    if not len(time.start):
        return time.start, time.end
    points = np.unique(np.concatenate([*time, borders]))
    begin, end = points[:-1], points[1:]
    inside = time.within(begin, end) > 0
    return begin[inside], end[inside]


def _issued(events: pd.DataFrame) -> Ints:
    """Return the outermost operators that start a collective."""
    rows = np.flatnonzero(starts_collective(events))
    rows = rows[collective_kinds(events.iloc[rows]) != ""]
    start = column(events, "start_ns")[rows]
    tree = nest(column(events, "thread")[rows], start, start + column(events, "duration_ns")[rows])
    return np.asarray(rows[tree.parent == NONE])


def _ran(events: pd.DataFrame, on_device: bool) -> Ints:
    backends = HOST_BACKENDS if on_device else (*HOST_BACKENDS, *_OFTEN_UNSEEN)

    def runs(name: str) -> bool:
        found = _RUN.fullmatch(name)
        return found is not None and found[1] in backends and bool(collective_kind(name))

    return np.flatnonzero(of_labels(events["name"], runs) & is_one_of(events["category"], (*RANGES, *OPS)))


def collective_kinds(events: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the kind of collective, based on the event's argument or otherwise its name.

    The result is empty if the event is not a collective.
    """
    named = of_labels(events["name"], collective_kind, "")
    if "collective" not in events:
        return np.asarray(named, dtype=object)
    argument = of_labels(events["collective"], collective_kind, "")
    return np.asarray(np.where(argument == "", named, argument), dtype=object)


def _started_by(begin: Ints, kind: np.ndarray, started: Ints, started_kind: np.ndarray) -> Ints:
    """Return the operator that started each run. Backends run collectives in the order they were started.

    If some operators or runs are missing from the trace, the offset with the largest number of matches is used.
    """
    if not len(started):
        return np.full(len(begin), NONE, dtype=np.int64)

    def in_time(shift: int) -> Ints:
        place = np.arange(len(begin)) + shift
        place = np.where((place >= 0) & (place < len(started)), place, NONE)
        return np.where((place != NONE) & (started[place] <= begin), place, NONE)

    spare = len(started) - len(begin)
    fitting = (in_time(shift) for shift in range(min(0, spare), max(0, spare) + 1))
    return max(fitting, key=lambda place: int(((place != NONE) & (started_kind[place] == kind)).sum()))
