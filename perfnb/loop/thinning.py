"""Thin out the rows of steps as a run grows, while keeping sums, the order and the slowest steps exact.

A row initially represents one step, and later two, four or eight consecutive steps. It stores their number, their sums,
the slowest step, and one step chosen at random. Unlike row means, the times of randomly chosen steps have the same
distribution as those of all steps. Choosing every n-th step instead could mistake a periodic pattern for the whole run.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Rows: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

#: The columns of a row, in this order. Unknown device times are -1.
COLUMNS = (
    *("step", "steps", "begin_ns", "sum_wall_ns", "sum_data_ns", "sum_other_ns"),
    *("slowest_step", "slowest_ns", "slowest_data_ns"),
    *("one_wall_ns", "one_data_ns", "one_device_ns"),
)
#: The columns of a row for a profiled window, and of a row for a memory reading. Unknown times and bytes are -1.
WINDOW_COLUMNS = (*COLUMNS[:6], "timed_steps", "timed_median_ns")
READING_COLUMNS = ("at_ns", "step", "resident_bytes", "allocated_bytes")
_AT = {name: place for place, name in enumerate(COLUMNS)}
_SUMS = slice(_AT["sum_wall_ns"], _AT["sum_other_ns"] + 1)
_SLOWEST = slice(_AT["slowest_step"], _AT["slowest_data_ns"] + 1)
_ONE = slice(_AT["one_wall_ns"], _AT["one_device_ns"] + 1)


def rows_of(step: Any, begin_ns: Any, wall_ns: Any, data_ns: Any, other_ns: Any, device_ns: Any) -> Rows:
    """Return one row for each step."""
    one = np.ones(len(step), dtype=np.int64)
    columns = (step, one, begin_ns, wall_ns, data_ns, other_ns, step, wall_ns, data_ns, wall_ns, data_ns, device_ns)
    return np.column_stack(columns).astype(np.int64).reshape(-1, len(COLUMNS))


def joined(rows: Rows, size: int, choice: np.random.Generator) -> Rows:
    """Join every `size` consecutive rows into one, and the remaining rows at the end into another one."""
    if size == 1:
        return rows
    whole = len(rows) // size * size
    parts = [_of_groups(rows[:whole].reshape(-1, size, len(COLUMNS)), choice)] if whole else []
    if whole < len(rows):
        parts.append(_of_groups(rows[None, whole:], choice))
    return np.concatenate(parts) if parts else rows


def _of_groups(groups: Any, choice: np.random.Generator) -> Rows:
    joined_rows: Rows = groups[:, 0].copy()
    every = np.arange(len(groups))
    counts = groups[:, :, _AT["steps"]]
    joined_rows[:, _AT["steps"]] = counts.sum(axis=1)
    joined_rows[:, _SUMS] = groups[:, :, _SUMS].sum(axis=1)
    joined_rows[:, _SLOWEST] = groups[every, groups[:, :, _AT["slowest_ns"]].argmax(axis=1)][:, _SLOWEST]
    # The probability of each row is proportional to its number of steps, so all steps are equally likely.
    reached = np.cumsum(counts, axis=1)
    drawn = (choice.random(len(groups)) * reached[:, -1]).astype(np.int64)
    joined_rows[:, _ONE] = groups[every, (drawn[:, None] >= reached).sum(axis=1)][:, _ONE]
    return joined_rows
