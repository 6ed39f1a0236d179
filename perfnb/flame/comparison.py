"""Compare two host profiles to find out which functions take more time and which take less."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.quantities import share
from perfnb.recording.nesting import NONE, Floats
from perfnb.recording.schema import conform
from perfnb.recording.text import TEXT
from perfnb.stacks.formats import HostRecord
from perfnb.stacks.tables import function_table, grouped
from perfnb.stacks.tree import CallTree, Function, TreeBuilder

#: If less than this share of either profile is in common functions, the report says that they have little in common.
_MUCH = 0.5
_FIGURES = ("calls", "self_ms", "total_ms", "self_share", "total_share")


@dataclass(frozen=True)
class HostDiff:
    """A comparison of two host profiles, function by function.

    Attributes
    ----------
    names : tuple of str
        The names of the two profiles.
    functions : DataFrame
    measure : str
        The column that measures changes: ``grew_ms`` if both profiles contain times, and ``grew_share`` otherwise.
    tree : CallTree or None
        The calls in either profile, with the values from the second profile, if both contain stacks in the same unit.
    before : ndarray or None
        The values from the first profile for the calls in `tree`.
    unit : str
        The unit of both profiles.
    notes : tuple of str
    """

    names: tuple[str, str]
    functions: pd.DataFrame
    measure: str
    tree: CallTree | None
    before: Floats | None
    unit: str
    notes: tuple[str, ...]


def diff_records(a: HostRecord, b: HostRecord) -> HostDiff:
    """Compare `b` with `a`, matching functions by name and file."""
    measure = "grew_ms" if a.unit == b.unit == "ms" else "grew_share"
    table = _by_name(a).add_suffix("_a").join(_by_name(b).add_suffix("_b"), how="outer").reset_index()
    for name, column in (("grew_ms", "self_ms"), ("grew_share", "self_share")):
        table[name] = table[f"{column}_b"].fillna(0.0) - table[f"{column}_a"].fillna(0.0)
    if measure != "grew_ms":
        table["grew_ms"] = pd.NA
    order = table[measure].abs().sort_values(ascending=False, kind="stable").index
    table = table.loc[order].reset_index(drop=True)
    table["file"] = table["file"].where(table["file"] != "", None)
    notes = [*_little_in_common(table)]
    notes.append("The two profiles were not recorded in turn, so the machine may have drifted in between.")
    tree: CallTree | None = None
    before: Floats | None = None
    if a.unit != b.unit:
        notes.append(
            f"The baseline is in {_word(a)} and the candidate in {_word(b)}, so only shares of the whole are compared."
        )
    elif a.tree is not None and b.tree is not None:
        tree, before = _merged(a.tree, b.tree)
        if a.calls is not None or b.calls is not None:
            notes.append("The flame graph is approximate, because cProfile does not record stacks.")
        whole, other = float(before.sum()), float(tree.self.sum())
        if a.unit != "ms" and whole > 0 and other > 0:
            before = before * (other / whole)
            notes.append("Shares of the whole are compared. The baseline is scaled to the same total as the candidate.")
    return HostDiff((a.name, b.name), conform(table, "diff_functions"), measure, tree, before, b.unit, tuple(notes))


def _little_in_common(table: pd.DataFrame) -> list[str]:
    """Return a note if most of either profile is in functions that the other profile does not contain."""
    both = table["self_share_a"].notna() & table["self_share_b"].notna()
    shares = [float(table.loc[both, f"self_share_{side}"].sum()) for side in "ab"]
    if min(shares) >= _MUCH:
        return []
    return [
        f"Only {share(shares[0])} of the baseline and {share(shares[1])} of the candidate is in functions that both "
        "have. The profiles may be from different programs, or they may name functions differently."
    ]


def _word(record: HostRecord) -> str:
    return {"ms": "milliseconds", "none": "values without a unit"}.get(record.unit, record.unit)


def _by_name(record: HostRecord) -> pd.DataFrame:
    """Return the figures of functions by name and file. cProfile entries with the same name and file are added up."""
    table = function_table(record)
    table["file"] = table["file"].astype(object).where(table["file"].notna(), "").astype(TEXT)
    return table.groupby(["function", "file"], sort=False)[list(_FIGURES)].sum(min_count=1)


def _merged(a: CallTree, b: CallTree) -> tuple[CallTree, Floats]:
    builder = TreeBuilder("the comparison")
    places = []
    for tree in (a, b):
        functions, group = grouped(tree)
        numbers = [builder.function(Function(each.name, each.file, kind=each.kind)) for each in functions]
        nodes: list[int] = []
        for parent, function in zip(tree.parent.tolist(), group.tolist(), strict=True):
            nodes.append(builder.inside(NONE if parent == NONE else nodes[parent], numbers[function]))
        places.append(np.array(nodes, dtype=np.int64))
    merged = builder.tree()
    values: list[Floats] = [
        np.bincount(place, weights=tree.self, minlength=len(merged)).astype(np.float64)
        for place, tree in zip(places, (a, b), strict=True)
    ]
    whole = CallTree(merged.functions, merged.parent, merged.function, values[1], merged.samples)
    return whole, values[0]
