"""Show host profiles, their differences and the Python code of a step as documents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import Budget, Cell, Column, Document, Figure, Section, Table, Verdict, words
from perfnb.flame.comparison import HostDiff
from perfnb.flame.picture import UNITS, flame_section
from perfnb.flame.step_stacks import STEP, StepStacks
from perfnb.stacks.formats import HostRecord
from perfnb.stacks.tables import function_table

#: The maximum number of functions in a document.
_MOST = 2_000
#: The quantity that a profile measures, by unit.
_MEASURES = {"ms": "time", "bytes": "memory", "samples": "samples"}


def host_document(record: HostRecord, functions: pd.DataFrame) -> Document:
    """Return a document about a program's time, with its heaviest function, the flame graph, and all functions.

    Parameters
    ----------
    record : HostRecord
    functions : DataFrame
        The table returned by `perfnb.stacks.tables.function_table`.
    """
    tree = record.tree
    own = record.calls["self_ms"] if record.calls is not None else None if tree is None else tree.self
    whole = 0.0 if own is None else float(own.sum())
    facts = [record.format, fmt.counted(len(functions), "function")]
    if record.samples is not None and record.unit != "samples":
        facts.append(fmt.counted(record.samples, "sample"))
    if functions["calls"].notna().any():
        facts.append(fmt.counted(int(functions["calls"].sum()), "call"))
    label = _MEASURES.get(record.unit)
    graph: tuple[Section, ...] = ()
    if tree is not None and len(tree):
        title = "Flame graph" if record.calls is None else "Flame graph, approximate"
        graph = (flame_section(tree, record.unit, title, in_order=record.format in ("speedscope", "perf script")),)
    notes = list(record.notes)
    if len(functions) > _MOST:
        notes.append(f"Only the {_MOST:,} functions with the most time of their own are listed; .functions has all.")
    return Document(
        "host profile",
        record.name,
        verdict=_heaviest(record, functions, whole),
        figures=(Figure(label, whole, UNITS[record.unit]),) if label else (),
        facts=tuple(facts),
        sections=(*graph, _function_table(record.unit, functions, Budget(15, 30))),
        notes=tuple(notes),
    )


def _heaviest(record: HostRecord, functions: pd.DataFrame, whole: float) -> Verdict:
    if functions.empty:
        return Verdict("none", "No function took any time")
    first = functions.iloc[0]
    share = fmt.share(first["self_share"])
    if record.unit == "none":
        return Verdict("none", f"{_named(first, 1)} itself takes the most: {share} of the whole")
    amounts = " of ".join(words(amount, UNITS[record.unit]) for amount in (first[f"self_{record.unit}"], whole))
    return Verdict("none", f"{_named(first, 1)} takes {share} of the {_MEASURES[record.unit]} itself, {amounts}")


def _function_table(unit: str, functions: pd.DataFrame, budget: Budget) -> Table:
    columns = {
        "function": Column("function"),
        f"self_{unit}": Column("itself", UNITS[unit]),
        "self_share": Column("share", "share", bar=True),
        f"total_{unit}": Column("with calls", UNITS[unit]),
        "total_share": Column("share with calls", "share", priority=1),
        "calls": Column("calls", "count", priority=1),
        "where": Column("where", priority=2),
    }
    listed = functions.head(_MOST)
    places = listed.to_dict("records")
    shown = listed.assign(where=list(map(_place, places)))
    return Table.of(
        "Functions by their own time",
        shown,
        {name: column for name, column in columns.items() if name in shown},
        budget=budget,
        noun="function",
        selects=(("flame", "Callers and callees"),),
        names=list(map(_named, places)),
        key="functions",
    )


def _place(row: Any, folders: int = 1) -> str:
    """Return a function's file and line. The file includes the innermost `folders` folders."""
    if not isinstance(row["file"], str):
        return ""
    line, file = row.get("line"), "/".join(row["file"].replace(chr(92), "/").split("/")[-1 - folders :])
    return file if line is None or pd.isna(line) else f"{file}:{line}"


def _named(row: Any, folders: int = 99) -> str:
    place = _place(row, folders)
    return f"{row['function']} ({place})" if place else str(row["function"])


def host_diff_document(diff: HostDiff) -> Document:
    """Return a document about the comparison of two host profiles.

    It shows the largest changes, the flame graph of both profiles, and all functions by their change.
    """
    table, in_ms = diff.functions, diff.measure == "grew_ms"
    figure, unit = ("self_ms", "ms") if in_ms else ("self_share", "share")
    change = table[diff.measure].astype("Float64").fillna(0.0)
    more, less = int((change > 0).sum()), int((change < 0).sum())
    changed = table[change != 0]
    sentence = "No function has changed"
    if len(changed):
        row = changed.iloc[0]
        sides = [words(fmt.known(row[f"{figure}_{side}"]) or 0.0, unit) for side in "ab"]
        sentence = f"{_named(row, 1)} changed most: {' → '.join(sides)} of {'its own' if in_ms else 'the whole'}"
    baseline, candidate = (float(table[f"self_ms_{side}"].sum()) for side in "ab")
    figures = (Figure("baseline", baseline, "ms"), Figure("candidate", candidate, "ms")) if in_ms else ()
    if in_ms and baseline > 0:
        figures = (*figures, Figure("candidate against baseline", candidate / baseline, "ratio"))
    functions = Table(
        f"Functions by change of their own {'time' if in_ms else 'share'}",
        (
            *(Column("function"), Column("baseline", unit), Column("candidate", unit)),
            Column("change", "ms") if in_ms else Column("points", "number", help="change in percentage points"),
            *(Column("ratio", "ratio", priority=1), Column("file", priority=2)),
        ),
        [_changed(row, diff.measure, figure) for row in changed.head(_MOST).to_dict("records")],
        noun="function",
        selects=(("flame", "Callers and callees"),),
        key="functions",
    )
    graph = () if diff.tree is None else (flame_section(diff.tree, diff.unit, "Flame graph of both", diff.before),)
    return Document(
        "comparison of host profiles",
        f"{diff.names[1]} against {diff.names[0]}",
        verdict=Verdict("none", sentence),
        figures=figures,
        facts=(f"{fmt.counted(more, 'function')} {'takes' if more == 1 else 'take'} more, {less:,} less",),
        sections=(*graph, functions),
        notes=diff.notes,
    )


def _changed(row: Any, measure: str, figure: str) -> tuple[Cell, ...]:
    before, after = (fmt.known(row[f"{figure}_{side}"]) for side in "ab")
    change = float(row[measure]) * (1.0 if measure == "grew_ms" else 100.0)
    sides = ("none" if side is None else side for side in (before, after))
    return (str(row["function"]), *sides, change, after / before if before and after is not None else "", _place(row))


def stacks_document(stacks: StepStacks) -> Document:
    """Return a document about a step's Python code.

    It shows the heaviest line of user code, the flame graph, the lines and the functions.
    """
    record = stacks.record
    assert record.tree is not None
    steps = fmt.counted(stacks.steps, "step")
    workers = f" and {fmt.counted(stacks.workers, 'loader worker')}" if stacks.workers else ""
    columns = {
        **{"place": Column("line"), "mark": Column("phase"), "code": Column("code", priority=1)},
        **{"self_ms": Column("itself", "ms"), "total_ms": Column("with calls", "ms")},
        "share": Column("share", "share", bar=True),
    }
    lines = stacks.lines.head(_MOST)
    records = lines.to_dict("records")
    places, marks = [_place(row, 0) for row in records], pd.Series(map(_mark, records), lines.index, dtype=object)
    lines = lines.assign(place=places, mark=marks, code=lines["code"].fillna(""))
    table = Table.of("Lines of your code by their own time", lines, columns, budget=Budget(10, 10), noun="line")
    sentence = ""
    if table.rows:
        place, mark, code, own, *_ = table.rows[0]
        sentence = f"The slowest line of your code, {fmt.duration(own)} in {mark.word}: {place} {code}"
    return Document(
        "flame graph",
        verdict=Verdict("none", sentence.strip()),
        facts=(f"{fmt.counted(record.samples or 0, 'sample')} of {steps}{workers}; times per step",),
        sections=(
            flame_section(record.tree, "ms", "Python code under phases and layers", in_order=True),
            table,
            _function_table("ms", function_table(record), Budget(5, 10)),
        ),
        notes=record.notes,
    )


def _mark(row: Any) -> palette.Mark:
    mark = palette.mark(str(row["phase"]))
    return mark if str(row["process"]) == STEP else replace(mark, word=f"{mark.word} (workers)")
