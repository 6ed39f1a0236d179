"""Determine how a figure has changed over a journal's comparable entries, and what else changed at the same time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from perfnb.experiments.journal_index import SavedEntry
from perfnb.experiments.journal_table import changes_between
from perfnb.recording.text import TEXT
from perfnb.stats.change_points import FEWEST_ASIDE, change_points
from perfnb.stats.comparisons import compare_medians
from perfnb.stats.intervals import interval_of_median

#: The figures that have a trend.
FIGURES = ("step_ms", "peak_bytes")
#: The minimum number of entries in a series. Shorter series do not have a trend.
FEWEST = 2 * FEWEST_ASIDE
_VERDICTS = {"step_ms": ("slower", "faster"), "peak_bytes": ("more", "less")}
#: The facts that all entries in a series have in common.
LIKE = ("name", "kind", "host", "device", "torch", "batch_size", "ranks")
#: The columns of the changes, with their types.
CHANGES: Mapping[str, str] = MappingProxyType(
    {
        "series": "int64",
        **dict.fromkeys(("name", "entry"), TEXT),
        "number": "int64",
        "at": "datetime64[us, UTC]",
        **dict.fromkeys(("before", "after", "ratio", "ratio_ci_low", "ratio_ci_high", "p_value"), "Float64"),
        **dict.fromkeys(("verdict", "also_changed"), TEXT),
        "latest": "bool",
    }
)


def trend_rows(
    table: pd.DataFrame, entries: Mapping[str, SavedEntry], figure: str, across: Collection[str]
) -> pd.DataFrame:
    """Return the entries that contain the figure, with the number of their ``series``.

    Trials that were undone are excluded, because they did not change anything.
    """
    rows = table[table["damaged"].isna() & table[figure].notna() & (table[figure] > 0) & (table["kind"] != "report")]
    rows = rows[np.array([not _is_trial(entries[path]) for path in rows.index], dtype=bool)]
    same = [name for name in LIKE if name not in across]
    number = rows.groupby(same, dropna=False, sort=False).ngroup() + 1 if same else 1
    return rows.assign(series=number)


def _is_trial(entry: SavedEntry) -> bool:
    """Return whether an entry is a lever trial, which did not change anything permanently."""
    return entry.added is not None and bool(entry.added.options.get("lever"))


def trend_changes(
    rows: pd.DataFrame, entries: Mapping[str, SavedEntry], figure: str, equal_within: float
) -> tuple[pd.DataFrame, pd.Series]:
    """Return the changes in all series, with the oldest change first, and the level of each entry.

    The probability of a false change in any of the series is 5 %. Changes smaller than `equal_within` are ignored.
    """
    long = [series for _, series in rows.groupby("series") if len(series) >= FEWEST]
    records, levels = [], rows[figure].astype(float).groupby(rows["series"]).transform("median")
    for series in long:
        found = change_points(series[figure].to_numpy(dtype=float), comparisons=len(long))
        edges = [0, *(change.place for change in found), len(series)]
        parts = [series.iloc[slice(*ends)] for ends in pairwise(edges)]
        for part in parts:
            levels[part.index] = float(part[figure].median())
        for change, (before, after) in zip(found, pairwise(parts), strict=True):
            row = _compared(before, after, figure, equal_within)
            if row is not None:
                others = _also_changed(list(before.index), list(after.index), entries)
                records.append(row | {"p_value": change.p_value, "latest": change is found[-1], "also_changed": others})
    changes = pd.DataFrame(records, columns=list(CHANGES), dtype=object).astype(dict(CHANGES))
    return changes.sort_values(["at", "series"], kind="stable", ignore_index=True), levels


def _compared(before: pd.DataFrame, after: pd.DataFrame, figure: str, equal_within: float) -> dict[str, Any] | None:
    """Return the change between two groups of entries, or ``None`` if the change does not matter."""
    parts = [part[figure].to_numpy(dtype=float) for part in (before, after)]
    old, new = (float(np.median(part)) for part in parts)
    old_ci, new_ci = (None if ends is None else ends[:2] for ends in map(interval_of_median, parts))
    found = compare_medians(old, old_ci, new, new_ci, equal_within)
    if abs(found.ratio - 1) < equal_within:
        return None
    first, (low, high) = after.iloc[0], found.ratio_ci or (None, None)
    return {name: first[name] for name in ("series", "name", "number", "at")} | {
        "entry": first.name,
        **{"before": old, "after": new, "ratio": found.ratio, "ratio_ci_low": low, "ratio_ci_high": high},
        "verdict": _VERDICTS[figure][found.ratio < 1],
    }


def _also_changed(before: Sequence[str], after: Sequence[str], entries: Mapping[str, SavedEntry]) -> str | None:
    """Return the facts that differ between the entries around a change.

    On each side, the most frequent value in a few entries is used. The commits are from the last entry before the
    change and the first entry after it.
    """
    old, new = ([_facts(entries[path]) for path in part] for part in (before[-FEWEST_ASIDE:], after[:FEWEST_ASIDE]))
    changed = changes_between(_usual(old), _usual(new))
    last, first = old[-1].get("commit"), new[0].get("commit")
    if last and first and last != first:
        changed["commit"] = (last[:10], first[:10])
    return "; ".join(f"{key} {a} → {b}" for key, (a, b) in changed.items()) or None


def _facts(entry: SavedEntry) -> dict[str, Any]:
    found = entry.outcome
    own = {} if found is None else {key: getattr(found, key) for key in ("host", "device", "torch", "batch_size")}
    commit = None if found is None else found.commit
    return {key: value for key, value in (entry.environment | own | {"commit": commit}).items() if value is not None}


def _usual(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the most frequent value of each fact."""
    names = dict.fromkeys(name for one in facts for name in one)
    values = {name: [one[name] for one in facts if name in one] for name in names}
    return {name: max(known, key=known.count) for name, known in values.items()}
