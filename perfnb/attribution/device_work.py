"""What ran on the GPUs: of which sort, launched by which call, in which operator and step.

The one place where events on a device meet those of the host; what the other tables of the GPU's time are built on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.recording.labels import as_categories, is_one_of, of_labels
from perfnb.recording.nesting import NONE, Bools, Ints, forest_of, innermost, nest
from perfnb.trace_names import CALLS, COPIES, DEVICE_WORK, KERNELS, OPS, RANGES, step_number

#: Sorts of work on a device; memsets are computation.
SORTS = ("computation", "communication", "memcpy")
#: Names of the collectives' kernels, also as mangled by a compiler.
COLLECTIVE = re.compile(r"(?<![A-Za-z])(?:nccl|rccl)", re.IGNORECASE)
#: How often intervals that cross are cut before what still crosses counts as lying beside each other.
_CUTS = 8


@dataclass(frozen=True)
class Work:
    """Kernels, copies and fills, in the order of the events. Every array has one value for each.

    Attributes
    ----------
    rows : ndarray
        Position in the events.
    start, end : ndarray
        Nanoseconds.
    rank, device, stream : ndarray
        -1 where the event carries none.
    sort : ndarray
        Index into `SORTS`.
    """

    rows: Ints
    start: Ints
    end: Ints
    rank: Ints
    device: Ints
    stream: Ints
    sort: Ints

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class DeviceWork(Work):
    """The same with what launched it.

    Attributes
    ----------
    call : ndarray
        Position in the events of the call that launched it; -1 where the trace holds none.
    op : ndarray
        Position of the innermost operator around that call, or of the one with the same external id where there is no
        call; -1 for none.
    step : ndarray
        Number of the step that it belongs to: the one in which it was launched; -1 outside all.
    """

    call: Ints
    op: Ints
    step: Ints


#: Columns that `work_alone` reads.
WORK_COLUMNS = ("name", "category", "start_ns", "duration_ns", "rank", "device", "stream")


def work_alone(events: pd.DataFrame) -> Work:
    """Find all work on devices in a frame of events."""
    rows = np.flatnonzero(is_in(events, DEVICE_WORK))
    start = column(events, "start_ns")[rows]
    end = start + np.maximum(column(events, "duration_ns")[rows], 0)
    rank, device, stream = (column(events, name)[rows] for name in ("rank", "device", "stream"))
    return Work(rows, start, end, rank, device, stream, _sorts(events)[rows])


def device_work(events: pd.DataFrame) -> DeviceWork:
    """Find all work on devices in a frame of events, and what launched it.

    A column that the frame lacks (`rank`, `external_id`, ...) counts as carried by no event.
    """
    work = work_alone(events)
    call = calls_of(events, work.rows)
    return DeviceWork(
        **vars(work), call=call, op=_ops_of(events, work.rows, call), step=_steps_of(events, work.rows, call)
    )


def column(events: pd.DataFrame, name: str) -> Ints:
    """A column of whole numbers; -1 everywhere, or where missing, if the frame or an event carries none."""
    if name not in events.columns:
        return np.full(len(events), NONE, dtype=np.int64)
    values = events[name]
    if values.dtype == np.int64:
        return values.to_numpy()
    return np.asarray(values.astype("Int64").fillna(NONE), dtype=np.int64)


def is_in(events: pd.DataFrame, categories: tuple[str, ...]) -> Bools:
    """Whether each event is of one of the categories."""
    return is_one_of(events["category"], categories)


def text(events: pd.DataFrame, name: str) -> tuple[Ints, pd.Index]:
    """Codes and labels of a column of text; the code is -1 where it is missing."""
    values = as_categories(events[name])
    return values.cat.codes.to_numpy().astype(np.int64), values.cat.categories


def named(events: pd.DataFrame, rows: Ints, name: str = "name") -> pd.Categorical:
    """What a column of text says of each of the rows; missing where the row is -1, or the text is."""
    codes, labels = text(events, name)
    of_rows = np.append(codes, NONE)[rows]
    used, compact = np.unique(of_rows[of_rows != NONE], return_inverse=True)
    of_rows[of_rows != NONE] = compact
    return pd.Categorical.from_codes(of_rows, categories=labels[used])


def matching(events: pd.DataFrame, pattern: re.Pattern[str]) -> Bools:
    """Whether each event's name matches at its begin; each name is looked at once."""
    return of_labels(events["name"], lambda name: pattern.match(name) is not None)


def pairs(*columns: Ints) -> Ints:
    """One number for each distinct combination of values."""
    result = np.zeros(len(columns[0]), dtype=np.int64)
    for values in columns:
        if len(values) and (values == values[0]).all():
            continue  # tells nothing apart
        codes, labels = pd.factorize(values)
        result = pd.factorize(result * max(len(labels), 1) + codes)[0].astype(np.int64)
    return result


def first_match(key: Ints, wanted: Ints) -> Ints:
    """Position in `key` of the first value equal to each wanted one; -1 for none."""
    order = np.argsort(key, kind="stable")
    place = np.searchsorted(key[order], wanted)
    found = place < len(order)
    found[found] = key[order[place[found]]] == wanted[found]
    result = np.full(len(wanted), NONE, dtype=np.int64)
    result[found] = order[place[found]]
    return result


def calls_of(events: pd.DataFrame, rows: Ints) -> Ints:
    """The call with the same correlation id in the same rank: what launched each of `rows`; -1 for none."""
    correlation = column(events, "correlation")
    calls = np.flatnonzero(is_in(events, CALLS) & (correlation != NONE))
    key = pairs(column(events, "rank"), correlation)
    known = correlation[rows] != NONE
    result = np.full(len(rows), NONE, dtype=np.int64)
    place = first_match(key[calls], key[rows[known]])
    result[known] = np.where(place != NONE, np.append(calls, NONE)[place], NONE)
    return result


def thread_keys(events: pd.DataFrame) -> Ints:
    """One number for each thread of each process of each rank."""
    return pairs(column(events, "rank"), column(events, "process"), column(events, "thread"))


def nested_ends(thread: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Ends cut so that intervals of a thread nest, and the smallest interval around each (-1 for none).

    Times rounded to a microsecond let an interval end a little after the one that it lies in.
    """
    end = end.copy()
    for _ in range(_CUTS):
        parent = nest(thread, start, end).parent
        inside = np.flatnonzero(parent != NONE)
        around = parent[inside]
        over = inside[(end[inside] > end[around]) & (start[inside] < end[around])]
        if len(over) == 0:
            break
        end[over] = end[parent[over]]
    parent = nest(thread, start, end).parent
    lost = (parent != NONE) & (end > end[parent])
    return end, np.where(lost, NONE, parent)


def step_rows(events: pd.DataFrame) -> Bools:
    """Whether each event is the mark of a step, perfnb's or torch's, also of one that does not count."""
    return np.asarray((of_labels(events["name"], step_number, NONE) != NONE) & is_in(events, (*RANGES, *OPS)))


def step_windows(events: pd.DataFrame) -> pd.DataFrame:
    """The steps that `step_rows` finds, in order of time: ``event``, ``number``, ``rank``, ``start``, ``end``."""
    rows = np.flatnonzero(step_rows(events))
    start = column(events, "start_ns")[rows]
    frame = pd.DataFrame(
        {
            "event": rows,
            "number": of_labels(events["name"], step_number, NONE)[rows],
            "rank": column(events, "rank")[rows],
            "start": start,
            "end": start + column(events, "duration_ns")[rows],
        },
        dtype=np.int64,
    )
    return frame.sort_values(["rank", "start"], kind="stable", ignore_index=True)


def _sorts(events: pd.DataFrame) -> Ints:
    collective = of_labels(events["name"], lambda name: COLLECTIVE.search(name) is not None)
    is_copy, is_kernel = is_in(events, COPIES), is_in(events, KERNELS)
    return np.where(is_copy, SORTS.index("memcpy"), np.where(is_kernel & collective, 1, 0)).astype(np.int64)


def _ops_of(events: pd.DataFrame, rows: Ints, call: Ints) -> Ints:
    """The operator that launched each row of work."""
    is_op = is_in(events, OPS) & ~step_rows(events)
    start = column(events, "start_ns")
    used = np.unique(call[call != NONE])
    members = np.concatenate((np.flatnonzero(is_op), used))
    result = np.full(len(rows), NONE, dtype=np.int64)
    if len(used):
        begin, ends = start[members], start[members] + column(events, "duration_ns")[members]
        _, parent = nested_ends(thread_keys(events)[members], begin, ends)
        above = innermost(forest_of(parent), np.arange(len(members)) < len(members) - len(used))
        around = above[len(members) - len(used) :]
        place = np.searchsorted(used, call[call != NONE])
        result[call != NONE] = np.append(members, NONE)[around[place]]
    external = column(events, "external_id")
    # Where there was no operator, Kineto writes the correlation id as the external one.
    lost = (call == NONE) & (external[rows] != NONE) & (external[rows] != column(events, "correlation")[rows])
    ops = np.flatnonzero(is_op & (external != NONE))
    if lost.any() and len(ops):
        key = pairs(column(events, "rank"), external)
        result[lost] = np.append(ops, NONE)[first_match(key[ops], key[rows[lost]])]
    return result


def _steps_of(events: pd.DataFrame, rows: Ints, call: Ints) -> Ints:
    """Number of the step of each row of work: of its launch, else of its own begin."""
    windows = step_windows(events)
    start, rank = column(events, "start_ns"), column(events, "rank")
    when = np.where(call != NONE, start[np.where(call != NONE, call, 0)], start[rows])
    result = np.full(len(rows), NONE, dtype=np.int64)
    for one, group in windows.groupby("rank", sort=False):
        of_rank = np.flatnonzero(rank[rows] == one)
        place = np.searchsorted(group["start"].to_numpy(), when[of_rank], side="right") - 1
        inside = (place >= 0) & (when[of_rank] < group["end"].to_numpy()[place])
        result[of_rank[inside]] = group["number"].to_numpy()[place[inside]]
    return result
