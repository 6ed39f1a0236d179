"""Create the report's memory tab, which shows what owns memory at a step's peak and what would make the step fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.draw.as_json import plain
from perfnb.draw.document import (
    Axis,
    Bar,
    Bars,
    Budget,
    Column,
    Document,
    Figure,
    Line,
    Part,
    Picture,
    Section,
    Series,
    Table,
    Verdict,
)
from perfnb.draw.tab import Tab
from perfnb.memory.table import fullest

if TYPE_CHECKING:
    from perfnb.memory.table import MemorySummary

#: The number of instants in the static picture.
_INSTANTS = 240


def memory_document(summary: MemorySummary) -> Document:
    """Return a document that shows the memory at a step's peak, or at its failure, and what would make the step fit."""
    unused = "" if summary.fragmentation is None else f"{fmt.share(summary.fragmentation)} of it unused"
    figures = (
        Figure(_instant(summary), summary.peak_bytes, "bytes", basis=f"at {_when(summary)}, on {summary.device}"),
        Figure("reserved", summary.reserved_peak_bytes, "bytes", basis=unused),
        Figure("largest free block", summary.largest_free_bytes, "bytes"),
        Figure("process", summary.process_peak_bytes, "bytes", basis="at most"),
    )
    facts = []
    if summary.retries:
        facts.append("1 retry of the allocator" if summary.retries == 1 else f"{summary.retries:,} allocator retries")
    if summary.ooms:
        facts.append(f"out of memory {'once' if summary.ooms == 1 else f'{summary.ooms:,} times'}")
    return Document(
        "memory",
        verdict=_verdict(summary),
        figures=tuple(figure for figure in figures if figure.value is not None) if summary.peak_bytes else (),
        facts=tuple(facts),
        sections=tuple(_sections(summary)),
    )


def options_table(options: pd.DataFrame, peak: int, title: str) -> Table:
    """Return a table of the changes that would free memory at the peak."""
    columns = {
        "option": Column("option"),
        "frees_bytes": Column("frees", "bytes", bar=True),
        "leaves": Column("leaves", "bytes"),
        "basis": Column("basis", priority=1, help="Computed from sizes alone, or estimated"),
    }
    figures = options.assign(leaves=(peak - options["frees_bytes"]).clip(lower=0))
    heading = f"{title} (each option on its own)"
    return Table.of(heading, figures, columns, details=options["detail"].tolist(), noun="option")


def _instant(summary: MemorySummary) -> str:
    """Describe the instant in words."""
    return "peak" if summary.incomplete is None else "failure"


def _when(summary: MemorySummary) -> str:
    phases = summary.phases
    inside = phases[(phases["start_ms"] <= summary.peak_ms) & (summary.peak_ms < phases["end_ms"])]
    where = f" in {palette.mark(str(inside['phase'].iloc[0])).word}" if len(inside) else ""
    return f"{fmt.duration(summary.peak_ms)}{where}"


def _verdict(summary: MemorySummary) -> Verdict:
    if summary.incomplete is not None:
        return Verdict(
            "bad",
            f"Incomplete: the step failed with {fmt.size(summary.peak_bytes)} alive",
            summary.incomplete,
            "A complete step needs more memory than was allocated when it failed. perfnb.estimate_memory predicts the "
            "peak and the largest batch that fits, without running the step.",
        )
    if not summary.peak_bytes:
        return Verdict("none", "No allocations were recorded")
    name, most = max(summary.by_category.items(), key=lambda item: item[1])
    share = f"{fmt.share(most / summary.peak_bytes)} of it {palette.category(name).word}"
    return Verdict("none", f"The peak is {fmt.size(summary.peak_bytes)} at {_when(summary)}, {share}")


def _sections(summary: MemorySummary) -> Iterator[Section]:
    instant, peak = _instant(summary), summary.peak_bytes
    parts = tuple(Part(palette.category(name), size) for name, size in summary.by_category.items())
    yield Picture(
        "memory",
        f"Memory alive over the step, and by category at the {instant}",
        data=partial(curve_data, summary),
        script="memory/js/memory.js",
        style="memory/js/memory.css",
        key="memory",
        static=(*_still(summary), Bars("", "bytes", (Bar("", parts, peak),))),
    )
    columns = {
        "layer": Column("layer"),
        "category": Column("category"),
        "bytes": Column("memory", "bytes", bar=True),
        "share": Column("share", "share"),
        "count": Column("allocations", "count", priority=1),
    }
    marks = summary.owners["category"].astype(object).map(lambda name: palette.category(str(name)))
    layers = summary.owners["layer"].astype(object).fillna("no layer")
    yield Table.of(
        f"Owners at the {instant}",
        summary.owners.assign(layer=layers, category=marks),
        columns,
        budget=Budget(8, 15),
        noun="owner",
        selects=(("layers", "Show in the layers"),),
    )
    title = "What would make it fit?" if summary.incomplete is None else "What would have freed memory at the failure?"
    yield options_table(summary.fits, peak, title)


def _still(summary: MemorySummary) -> Iterator[Section]:
    """Yield the memory curve without its cursor."""
    line = summary.timeline
    if len(line):
        line = line.iloc[fullest(line["t_ms"].to_numpy(float), line["total"].to_numpy("int64"), _INSTANTS)]
        parts = ((mark, line[name].fillna(0.0).tolist()) for name, mark in palette.CATEGORIES.items())
        yield stacked("", line["t_ms"].tolist(), summary.step_ms, parts, _levels(summary), _spans(summary))


def _levels(summary: MemorySummary) -> dict[str, float]:
    return {f"{_instant(summary)} at {fmt.duration(summary.peak_ms)}": float(summary.peak_bytes)}


def _spans(summary: MemorySummary) -> list[tuple[palette.Mark, float, float]]:
    phases = summary.phases.round(6).itertuples(index=False)
    return [(palette.mark(str(phase)), begin, end) for phase, begin, end in phases]


def stacked(
    title: str,
    times_ms: list[float],
    end_ms: float,
    parts: Iterable[tuple[palette.Mark, list[float]]],
    levels: Mapping[str, float],
    spans: Sequence[tuple[palette.Mark, float, float]] = (),
) -> Series:
    """Draw amounts of memory as stacked areas.

    Each amount lasts until the next instant, which means that a single instant has no area.
    """
    parts = parts if len(times_ms) > 1 else ()
    at = [time for ends in zip(times_ms, [*times_ms[1:], end_ms], strict=True) for time in ends]
    lines = (Line(mark, [value for value in values for _ in range(2)]) for mark, values in parts if any(values))
    return Series(
        title, Axis("time", "ms"), Axis("alive", "bytes"), at, tuple(lines), levels, stacked=True, spans=spans
    )


def curve_data(summary: MemorySummary) -> dict[str, Any]:
    """Return the data for the memory curve with its cursor, ready to be written as JSON.

    Amounts are integer bytes, or ``None`` where they are unknown. Categories without any memory are left out. Names are
    stored once in ``names``, and columns of names contain indices into this list, or -1 if there is no name.
    """
    names: dict[str, int] = {}

    def places(values: Iterable[Any]) -> list[int]:
        return [-1 if pd.isna(value) else names.setdefault(str(value), len(names)) for value in values]

    timeline = summary.timeline
    largest = summary.largest.sort_values("start_ms", kind="stable")
    amounts = {
        mark: [None if pd.isna(value) else int(value) for value in timeline[name]]
        for name, mark in palette.CATEGORIES.items()
    }
    return {
        "instant": _instant(summary),
        "step_ms": round(summary.step_ms, 6),
        "peak_ms": round(summary.peak_ms, 6),
        "t": timeline["t_ms"].round(6).tolist(),
        "lines": [{"mark": plain(mark), "values": values} for mark, values in amounts.items() if any(values)],
        "spans": plain(_spans(summary)),
        "levels": plain(_levels(summary)),
        "largest": {
            "bytes": largest["bytes"].tolist(),
            "start": largest["start_ms"].round(6).tolist(),
            "end": largest["end_ms"].round(6).tolist(),
            "category": places(palette.category(str(value)).word for value in largest["category"]),
            "phase": places(phase if pd.isna(phase) else palette.mark(str(phase)).word for phase in largest["phase"]),
            **{column: places(largest[column]) for column in ("layer", "op", "name")},
        },
        "names": [escape.plain(name) for name in names],
    }


TAB = Tab("memory", lambda report: report.summary.memory, memory_document)
