"""Find GPU work, its kind, and the call, operator and step that launched it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.recording.nesting import NONE, Bools, Ints, forest_of, innermost, nest_cutting
from perfnb.recording.text import TEXT, as_categories, is_one_of, of_labels
from perfnb.trace.trace_steps import first_match, launched_by, moments_of, step_of
from perfnb.trace_names import COPIES, DEVICE_EVENTS, DEVICE_WORK, KERNELS, OPS, RANGES, step_number

#: The kinds of GPU work. Memsets count as computation.
SORTS = ("computation", "communication", "memcpy")
#: The names of collective kernels, including mangled names.
COLLECTIVE = re.compile(r"(?<![A-Za-z])(?:nccl|rccl|oneccl|xccl)", re.IGNORECASE)


@dataclass(frozen=True)
class Work:
    """The kernels, copies and memsets in the order of the events. Each array contains one value per piece of work."""

    #: The row in the table of events.
    rows: Ints
    #: The start and end in nanoseconds.
    start: Ints
    end: Ints
    #: The rank, device and stream, or -1 if unknown.
    rank: Ints
    device: Ints
    stream: Ints
    #: The index into `SORTS`.
    sort: Ints

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class DeviceWork(Work):
    """GPU work together with the calls that launched it."""

    #: The row of the launching call, or -1 if the trace does not contain it.
    call: Ints
    #: The row of the innermost operator around that call or, if the call is unknown, of the operator with the same
    #: external id. It is -1 if there is none.
    op: Ints
    #: The number of the step that launched it, or -1 outside all steps.
    step: Ints


#: The columns that `work_alone` uses.
WORK_COLUMNS = ("name", "category", "start_ns", "duration_ns", "rank", "device", "stream")


def work_alone(events: pd.DataFrame) -> Work:
    """Find all GPU work in a table of events."""
    rows = np.flatnonzero(is_in(events, DEVICE_WORK))
    start = column(events, "start_ns")[rows]
    end = start + np.maximum(column(events, "duration_ns")[rows], 0)
    rank, device, stream = (column(events, name)[rows] for name in ("rank", "device", "stream"))
    return Work(rows, start, end, rank, device, stream, _sorts(events)[rows])


def device_work(events: pd.DataFrame) -> DeviceWork:
    """Find all GPU work in a table of events, and the calls that launched it. Missing columns are treated as -1."""
    work = work_alone(events)
    call = launches_of(events, work.rows)
    return DeviceWork(
        **vars(work), call=call, op=_ops_of(events, work.rows, call), step=steps_of(events, work.rows, call)
    )


def column(events: pd.DataFrame, name: str) -> Ints:
    """Return a column of integers, with -1 for missing values and for a missing column."""
    if name not in events.columns:
        return np.full(len(events), NONE, dtype=np.int64)
    values = events[name]
    if values.dtype == np.int64:
        return values.to_numpy()
    return np.asarray(values.astype("Int64").fillna(NONE), dtype=np.int64)


def is_in(events: pd.DataFrame, categories: tuple[str, ...]) -> Bools:
    """Check for each event whether it is in one of the categories."""
    return is_one_of(events["category"], categories)


def text(events: pd.DataFrame, name: str) -> tuple[Ints, pd.Index]:
    """Return a text column's codes and labels. Missing text has the code -1."""
    values = as_categories(events[name])
    return values.cat.codes.to_numpy().astype(np.int64), values.cat.categories


def named(events: pd.DataFrame, rows: Ints, name: str = "name") -> pd.Categorical:
    """Return the texts in some rows of a column.

    A text is missing if the row is -1, or if the text or the column is missing.
    """
    if name not in events:
        return pd.Categorical.from_codes(np.full(len(rows), NONE), categories=pd.Index([], dtype=TEXT))
    codes, labels = text(events, name)
    of_rows = np.append(codes, NONE)[rows]
    used, compact = np.unique(of_rows[of_rows != NONE], return_inverse=True)
    of_rows[of_rows != NONE] = compact
    return pd.Categorical.from_codes(of_rows, categories=labels[used])


def texts(events: pd.DataFrame, name: str, *rows: Ints) -> npt.NDArray[np.object_]:
    """Return the texts in some rows of a column as plain strings.

    If a text is missing, the text in the next set of rows is used.
    """
    if name not in events:
        return np.full(len(rows[0]), "", dtype=object)
    codes, labels = text(events, name)
    words = np.array([*map(str, labels), ""], dtype=object)
    return reduce(lambda first, then: np.where(first == "", then, first), (words[codes[of]] for of in rows))


def known_or_na(values: Ints) -> pd.arrays.IntegerArray:
    """Return the values with -1 replaced by missing values."""
    return pd.arrays.IntegerArray(values, values == NONE)


def matching(events: pd.DataFrame, pattern: re.Pattern[str]) -> Bools:
    """Check for each event whether the start of its name matches. Each distinct name is only tested once."""
    return of_labels(events["name"], lambda name: pattern.match(name) is not None)


def pairs(*columns: Ints) -> Ints:
    """Assign a number to each distinct combination of values."""
    result = np.zeros(len(columns[0]), dtype=np.int64)
    for values in columns:
        if len(values) and (values == values[0]).all():
            continue
        codes, labels = pd.factorize(values)
        result = pd.factorize(result * max(len(labels), 1) + codes)[0].astype(np.int64)
    return result


def launches_of(events: pd.DataFrame, rows: Ints) -> Ints:
    """Return the call that launched each of `rows`, by correlation id within the rank, or -1 if it is unknown."""
    correlation = column(events, "correlation")
    number = np.where(correlation != NONE, pairs(column(events, "rank"), correlation), NONE)
    return launched_by(number, ~is_in(events, DEVICE_EVENTS), rows)


def thread_keys(events: pd.DataFrame) -> Ints:
    """Assign a number to each thread in each process of each rank."""
    return pairs(column(events, "rank"), column(events, "process"), column(events, "thread"))


def nested_ends(thread: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return each interval's parent (-1 if there is none), and the ends, which are cut to make a thread's intervals
    nest.

    See `nest_cutting`.
    """
    (parent, _), end = nest_cutting(thread, start, end)
    lost = (parent != NONE) & (end > end[parent])
    return end, np.where(lost, NONE, parent)


def step_rows(events: pd.DataFrame) -> Bools:
    """Check for each event whether it is a step mark from perfnb or torch. Marks that are not used are included."""
    return np.asarray((of_labels(events["name"], step_number, NONE) != NONE) & is_in(events, (*RANGES, *OPS)))


def step_windows(events: pd.DataFrame) -> pd.DataFrame:
    """Return the steps that `step_rows` finds, in chronological order.

    The columns are ``event``, ``number``, ``rank``, ``start`` and ``end``.
    """
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
    """Return the operator that launched each row of GPU work."""
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
    lost = call == NONE
    result[lost] = of_external_id(events, rows[lost], is_op)
    return result


def of_external_id(events: pd.DataFrame, rows: Ints, is_op: Bools) -> Ints:
    """Return the operator with the external id of each row of GPU work, or -1 if there is none."""
    external = column(events, "external_id")
    # If there is no operator, Kineto writes the correlation id as the external id.
    known = (external[rows] != NONE) & (external[rows] != column(events, "correlation")[rows])
    ops = np.flatnonzero(is_op & (external != NONE))
    result = np.full(len(rows), NONE, dtype=np.int64)
    if known.any():
        key = pairs(column(events, "rank"), external)
        result[known] = np.append(ops, NONE)[first_match(key[ops], key[rows[known]])]
    return result


def steps_of(events: pd.DataFrame, rows: Ints, call: Ints) -> Ints:
    """Return the step of each row of GPU work.

    This is the step of its launch, or otherwise the step where it started.
    """
    windows, rank = step_windows(events), column(events, "rank")[rows]
    moments = moments_of(column(events, "start_ns"), rows, call)
    result = np.full(len(rows), NONE, dtype=np.int64)
    for one, group in windows.groupby("rank", sort=False):
        number, starts, ends = (group[name].to_numpy() for name in ("number", "start", "end"))
        result[rank == one] = np.append(number, NONE)[step_of(moments[rank == one], starts, ends)]
    return result
