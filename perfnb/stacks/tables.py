"""Compute the tables of a host profile."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.errors import TraceError
from perfnb.recording.nesting import NONE, Floats, Ints
from perfnb.recording.schema import conform
from perfnb.stacks.formats import HostRecord
from perfnb.stacks.tree import CallTree, Function, function_frame, numbers_of, sums_by

#: The maximum number of characters in all stacks together.
MOST_LETTERS = 2**28
#: The columns for the tree's values in each unit. Numbers of samples have their own column.
_COLUMNS = {"ms": "ms", "bytes": "bytes"}


def function_table(record: HostRecord) -> pd.DataFrame:
    """Return one row per function, in descending order of own time. Recursive calls count once in the totals."""
    if record.calls is None:
        assert record.tree is not None
        table = _of_tree(record, record.tree)
    else:
        table = pd.concat([function_frame(record.functions), record.calls], axis=1)
        whole = float(table["self_ms"].sum())
        for name in ("self", "total"):
            table[f"{name}_share"] = _shares(table[f"{name}_ms"].to_numpy(dtype=np.float64), whole)
    table = table.sort_values("self_share", ascending=False, kind="stable", ignore_index=True)
    return conform(table, "functions")


def stack_table(record: HostRecord) -> pd.DataFrame:
    """Return one row per distinct stack, with the heaviest stacks first.

    Raises
    ------
    TraceError
        If the stacks would need too much memory as text, because each stack repeats the names of the outer calls.
    """
    tree = record.tree
    if tree is None or record.calls is not None:
        return conform(pd.DataFrame(), "stacks")
    ends = np.flatnonzero((tree.self > 0) | (tree.samples > 0))
    ends = ends[np.argsort(-tree.self[ends], kind="stable")]
    letters = tree.with_outer([len(each.name) + 1 for each in tree.functions])
    if int(letters[ends].sum()) > MOST_LETTERS:
        raise TraceError(
            f"{record.name} has {len(ends):,} stacks with more than {MOST_LETTERS:,} characters in total. "
            "Use its functions or its flame graph instead."
        )
    table = pd.DataFrame({"stack": [tree.text(node) for node in ends.tolist()]})
    if record.samples is not None:
        table["samples"] = tree.samples[ends]
    if column := _COLUMNS.get(record.unit):
        table[column] = tree.self[ends] if column == "ms" else np.rint(tree.self[ends])
    table["share"] = _shares(tree.self[ends], float(tree.self.sum()))
    return conform(table, "stacks")


def grouped(tree: CallTree) -> tuple[list[Function], Ints]:
    """Group functions by name and file. Return the functions, and the number of each call's function.

    The line within a function differs between samples. A function's line is only known if all samples agree on it.
    """
    number = numbers_of((each.name, each.file, each.kind) for each in tree.functions)
    known: dict[int, Function] = {}
    for place, each in zip(number.tolist(), tree.functions, strict=True):
        there = known.setdefault(place, each)
        if there.line != each.line:
            known[place] = there._replace(line=NONE)
    return list(known.values()), number[tree.function] if len(tree) else tree.function


def _of_tree(record: HostRecord, tree: CallTree) -> pd.DataFrame:
    functions, group = grouped(tree)
    sums = sums_by(tree, group, len(functions), {"value": tree.self, "samples": tree.samples})
    table = function_frame(functions)
    whole = float(tree.self.sum())
    for name in ("self", "total"):
        values = sums[f"{name}_value"].to_numpy()
        if column := _COLUMNS.get(record.unit):
            table[f"{name}_{column}"] = values if column == "ms" else np.rint(values)
        if record.samples is not None:
            table[f"{name}_samples"] = sums[f"{name}_samples"].to_numpy()
        table[f"{name}_share"] = _shares(values, whole)
    return table[np.array([each.kind not in ("phase", "layer", "worker") for each in functions], dtype=bool)]


def _shares(values: Floats, whole: float) -> Floats:
    return values / whole if whole > 0 else np.full(len(values), np.nan)
