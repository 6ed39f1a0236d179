"""Mark steps with user ranges, if a trace's format does not have step marks or if the user specifies a range.

For each step, an event is added next to the range itself, with a name like those that torch's profiler uses
(``ProfilerStep#3``).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from perfnb.errors import TraceError
from perfnb.trace.columns import EVENT_COLUMNS, MISSING, Ints, TraceColumns
from perfnb.trace.trace_steps import MOST_STEPS, is_in
from perfnb.trace_names import OPS, RANGES, STEP_MARKS, TORCH_STEP, step_number

#: A name followed by a number: ``iteration 12``, ``step_3``, ``batch#7``, ``epoch 1 step 2``.
_NUMBERED = re.compile(r"(?P<name>.*?)[\s_#:=\-\[(]*(?P<number>[0-9]{1,15})[\])]?", re.DOTALL)
#: Range names that suggest steps.
_SAYS_STEP = re.compile(r"(?:^|[^a-z])(?:(?:step|iter|iteration|batch)s?|batches)(?:$|[^a-z])", re.IGNORECASE)
#: The fraction of the time from a thread's first range to its last that ranges with any other name must cover in order
#: to be considered.
_FILLS = 0.8
_MOST_LISTED = 5


def with_steps(trace: TraceColumns, name: str | None, source: str, guess: bool = False) -> TraceColumns:
    """Mark a trace's steps using a range that repeats.

    Parameters
    ----------
    trace : TraceColumns
    name : str, optional
        The name of the range, which may be followed by a number. If it is passed, marks in the trace are ignored.
    source : str
        The name of the trace, for error messages.
    guess : bool
        Whether to look for such a range if no name is passed and the trace does not contain marks.

    Raises
    ------
    TraceError
        If the trace does not contain a range with that name.
    """
    if name is None:
        if not guess or not len(trace) or any(step_number(one) >= 0 for one in trace.names):
            return trace
        rows, numbers, base = _guessed(trace)
        if not len(rows):
            return trace
        note = f"Steps are the ranges named {base!a}; choose others with load(..., steps=) or perfnb show --steps."
        return replace(_marked(trace, rows, numbers), caveats=[*trace.caveats, note])
    trace = _without_marks(trace)
    wanted = np.array([one == name or _split(one)[0] == name for one in trace.names], dtype=bool)
    rows = np.flatnonzero(wanted[trace.name] & is_in(trace, (*RANGES, *OPS))) if len(trace) else np.array([], dtype=int)
    if not len(rows):
        raise TraceError(f"{source} has no range named {ascii(name)[:80]} to mark its steps{_others(trace)}.")
    return _marked(trace, rows, _numbers(trace, rows))


def _split(name: str) -> tuple[str, int]:
    found = _NUMBERED.fullmatch(name)
    return (found["name"], int(found["number"])) if found and found["name"] else (name, MISSING)


def _numbers(trace: TraceColumns, rows: Ints) -> Ints:
    """Return the numbers in the ranges' names.

    If the numbers are not unique, the ranges are numbered from 0 in chronological order instead.
    """
    own = np.array([_split(one)[1] for one in trace.names], dtype=np.int64)[trace.name[rows]]
    if (own != MISSING).all() and len(np.unique(own)) == len(own):
        return own
    return np.argsort(np.argsort(trace.start_ns[rows], kind="stable")).astype(np.int64)


def _guessed(trace: TraceColumns) -> tuple[Ints, Ints, str]:
    """Find the ranges that mark steps, on the thread with the most ranges.

    These are the ranges whose names suggest steps, or the most frequent ranges if there are no such names.
    """
    none = np.array([], dtype=np.int64)
    # Without numbered ops, user ranges are listed as ops.
    rows = np.flatnonzero(is_in(trace, RANGES if (trace.external_id != MISSING).any() else (*RANGES, *OPS)))
    if not len(rows):
        return none, none, ""
    _, place, count = np.unique(
        np.stack([trace.process[rows], trace.thread[rows]]), axis=1, return_inverse=True, return_counts=True
    )
    rows = rows[place.reshape(-1) == count.argmax()]
    bases: dict[str, int] = {}
    of_names = np.array([bases.setdefault(_split(one)[0], len(bases)) for one in trace.names], dtype=np.int64)
    group = of_names[trace.name[rows]]
    order = np.lexsort((trace.start_ns[rows], group))
    rows, group = rows[order], group[order]
    start, length = trace.start_ns[rows], trace.duration_ns[rows]
    overlaps = np.append((group[1:] == group[:-1]) & (start[1:] < (start + length)[:-1]), False)
    count = np.bincount(group, minlength=len(bases))
    once = (count >= 2) & (count <= MOST_STEPS) & (np.bincount(group[overlaps], minlength=len(bases)) == 0)
    filled = np.bincount(group, weights=length, minlength=len(bases))
    span = int((start + length).max() - start.min())
    labels = list(bases)
    says = np.array([_SAYS_STEP.search(one) is not None for one in labels], dtype=bool)
    fits = once & (says | (filled >= _FILLS * span)) & (filled > 0)
    if not fits.any():
        return none, none, ""
    chosen = int(np.where(fits, filled + says * (filled.max() + 1), -1).argmax())
    rows = rows[group == chosen]
    return rows, _numbers(trace, rows), labels[chosen]


def _marked(trace: TraceColumns, rows: Ints, numbers: Ints) -> TraceColumns:
    """Insert an event for each step before the other events."""
    names, codes = [f"{TORCH_STEP}{number}" for number in numbers.tolist()], dict[str, int]()
    of_marks = np.array([codes.setdefault(one, len(codes)) for one in names], dtype=np.int64) + len(trace.names)
    categories = [*trace.categories] if RANGES[0] in trace.categories else [*trace.categories, RANGES[0]]
    own = {
        "name": of_marks,
        "category": np.full(len(rows), categories.index(RANGES[0]), dtype=np.int64),
        **{one: getattr(trace, one)[rows] for one in ("start_ns", "duration_ns", "process", "thread")},
    }
    columns = {
        one: np.concatenate([own.get(one, np.full(len(rows), MISSING, dtype=np.int64)), getattr(trace, one)])
        for one in EVENT_COLUMNS
    }
    changed: dict[str, Any] = {"names": [*trace.names, *codes], "categories": categories, **columns}
    return replace(trace, **changed)


def _without_marks(trace: TraceColumns) -> TraceColumns:
    marks = np.array([step_number(one) >= 0 for one in trace.names], dtype=bool)
    if not marks.any():
        return trace
    categories = tuple({category for categories in STEP_MARKS.values() for category in categories})
    rows = np.flatnonzero(~(marks[trace.name] & is_in(trace, categories)))
    kept: dict[str, Any] = {one: getattr(trace, one)[rows] for one in EVENT_COLUMNS}
    return replace(trace, **kept)


def _others(trace: TraceColumns) -> str:
    """Return the part of an error message that lists the repeating ranges."""
    rows = np.flatnonzero(is_in(trace, RANGES)) if len(trace) else np.array([], dtype=np.int64)
    if not len(rows):
        return ": it has no user ranges"
    names = pd.Series([_split(one)[0] for one in trace.names], dtype=object)
    most = names.iloc[trace.name[rows]].value_counts().head(_MOST_LISTED)
    return "; it has " + ", ".join(f"{ascii(name)[:60]} ({count:,})" for name, count in most.items())
