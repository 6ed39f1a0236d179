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
    tree, whole = record.tree, 0.0
    if record.calls is not None:
        whole = float(record.calls["self_ms"].sum())
    elif tree is not None:
        whole = float(tree.self.sum())
    facts = [record.format, fmt.counted(len(functions), "function")]
    if record.samples is not None and record.unit != "samples":
        facts.append(fmt.counted(record.samples, "sample"))
    if functions["calls"].notna().any():
        facts.append(fmt.counted(int(functions["calls"].sum()), "call"))
    label = _MEASURES.get(record.unit)
    sections: list[Section] = []
    if tree is not None and len(tree):
        title = "Flame graph" if record.calls is None else "Flame graph, approximate"
        in_order = record.format in ("speedscope", "perf script")
        sections.append(flame_section(tree, record.unit, title, in_order=in_order))
    notes = list(record.notes)
    if len(functions) > _MOST:
        notes.append(f"Only the {_MOST:,} functions with the most time of their own are listed; .functions has all.")
    return Document(
        "host profile",
        record.name,
        verdict=_heaviest(record, functions, whole),
        figures=(Figure(label, whole, UNITS[record.unit]),) if label else (),
        facts=tuple(facts),
        sections=(*sections, _function_table(record.unit, functions, Budget(15, 100 if not sections else 30))),
        notes=tuple(notes),
    )


def _heaviest(record: HostRecord, functions: pd.DataFrame, whole: float) -> Verdict:
    if functions.empty:
        return Verdict("none", "No function took any time")
    first = functions.iloc[0]
    share = fmt.share(first["self_share"])
    if record.unit == "none":
        return Verdict("none", f"{_named(first, 1)} itself takes the most: {share} of the whole")
    own, _ = _columns(record.unit)
    amounts = f"{words(first[own], UNITS[record.unit])} of {words(whole, UNITS[record.unit])}"
    return Verdict("none", f"{_named(first, 1)} takes {share} of the {_MEASURES[record.unit]} itself, {amounts}")


def _columns(unit: str) -> tuple[str, str]:
    """Return the names of the columns that contain the functions' own and total figures."""
    kind = "share" if unit == "none" else unit
    return f"self_{kind}", f"total_{kind}"


def _function_table(unit: str, functions: pd.DataFrame, budget: Budget) -> Table:
    own, total = _columns(unit)
    figures = [("itself", own, UNITS[unit]), ("share", "self_share", "share"), ("with calls", total, UNITS[unit])]
    figures += [("share with calls", "total_share", "share"), ("calls", "calls", "count")]
    if unit == "none":
        figures = [("itself", own, "share"), ("with calls", total, "share"), ("calls", "calls", "count")]
    columns = [
        Column(head, unit, int(place > 2), bar=name == "self_share") for place, (head, name, unit) in enumerate(figures)
    ]
    listed = functions.head(_MOST).to_dict("records")
    rows = [(str(row["function"]), *(fmt.known(row[name]) for _, name, _ in figures), _place(row)) for row in listed]
    return Table(
        "Functions by their own time",
        (Column("function"), *columns, Column("where", priority=2)),
        rows,
        budget=budget,
        noun="function",
        selects=(("flame", "Callers and callees"),),
        names=list(map(_named, listed)),
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
    change = table[diff.measure].astype("Float64").fillna(0.0)
    more, less = int((change > 0).sum()), int((change < 0).sum())
    figure = "self_ms" if in_ms else "self_share"
    sentence = "No function has changed"
    if more or less:
        row = table.iloc[int(change.abs().to_numpy(float).argmax())]
        sides = [words(fmt.known(row[f"{figure}_{side}"]) or 0.0, "ms" if in_ms else "share") for side in "ab"]
        sentence = f"{_named(row, 1)} changed most: {' → '.join(sides)} {'of its own' if in_ms else 'of the whole'}"
    baseline, candidate = (float(table[f"self_ms_{side}"].sum()) for side in "ab")
    figures = (Figure("baseline", baseline, "ms"), Figure("candidate", candidate, "ms")) if in_ms else ()
    if in_ms and baseline > 0:
        figures = (*figures, Figure("candidate against baseline", candidate / baseline, "ratio"))
    rows = [_changed(row, diff.measure, figure) for row in table[change != 0].head(_MOST).to_dict("records")]
    unit = "ms" if in_ms else "share"
    columns = (
        *(Column(head, unit) for head in ("baseline", "candidate")),
        Column("change", "ms") if in_ms else Column("points", "number", help="change in percentage points"),
        Column("ratio", "ratio", priority=1),
    )
    functions = Table(
        f"Functions by change of their own {'time' if in_ms else 'share'}",
        (Column("function"), *columns, Column("file", priority=2)),
        rows,
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
    columns = (
        *(Column("line"), Column("phase"), Column("code", priority=1)),
        *(Column("itself", "ms"), Column("with calls", "ms"), Column("share", "share", bar=True)),
    )
    rows: list[tuple[Any, ...]] = [
        (
            *(_place(row, 0), _mark(row), row["code"] if isinstance(row["code"], str) else ""),
            *(fmt.known(row[name]) for name in ("self_ms", "total_ms", "share")),
        )
        for row in stacks.lines.head(_MOST).to_dict("records")
    ]
    sentence = ""
    if rows:
        place, mark, code, own, *_ = rows[0]
        sentence = f"The slowest line of your code, {fmt.duration(own)} in {mark.word}: {place} {code}"
    return Document(
        "flame graph",
        verdict=Verdict("none", sentence.strip()),
        facts=(f"{fmt.counted(record.samples or 0, 'sample')} of {steps}{workers}; times per step",),
        sections=(
            flame_section(record.tree, "ms", "Python code under phases and layers", in_order=True),
            Table("Lines of your code by their own time", columns, rows, budget=Budget(10, 10), noun="line"),
            _function_table("ms", function_table(record), Budget(5, 10)),
        ),
        notes=record.notes,
    )


def _mark(row: Any) -> palette.Mark:
    mark = palette.mark(str(row["phase"]))
    return mark if str(row["process"]) == STEP else replace(mark, word=f"{mark.word} (workers)")
