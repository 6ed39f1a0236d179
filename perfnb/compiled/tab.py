"""Create the tab about compiled code, which shows its kernels, the layers that they compute, and graph breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.compiled.tables import compiled_summary, place_in_words
from perfnb.draw.document import Budget, Column, Document, Figure, Inner, Section, Table, Verdict
from perfnb.draw.tab import Tab

if TYPE_CHECKING:
    from perfnb.compiled.tables import CompiledSummary

#: The verdict mentions time outside kernels if it exceeds this share of the regions' time.
_MUCH = 0.3


def compiled_document(summary: CompiledSummary) -> Document:
    """Return a document about a step's compiled code."""
    return Document(
        "compiled",
        verdict=compiled_verdict(summary),
        figures=tuple(figure for figure in _figures(summary) if figure.value is not None),
        sections=tuple(_sections(summary)),
        notes=tuple(_notes(summary)),
    )


def compiled_verdict(summary: CompiledSummary) -> Verdict:
    """Return the verdict on graph breaks and on the share of the regions' time that is overhead."""
    regions = summary.regions
    # A function without guards is one that torch left uncompiled.
    broken = regions[regions["broke"].notna() & (regions["calls"].notna() | regions["guards"].isna())]
    places = broken.drop_duplicates("broke_at")
    if len(places):
        times, first = "once" if len(places) == 1 else f"in {len(places)} places", places.iloc[0]
        gap_ms = float(broken["gap_ms"].sum())
        between = f"code between regions runs uncompiled for {fmt.duration(gap_ms)} per step"
        return Verdict(
            "bad",
            f"Graphs break {times}: {between if gap_ms else 'functions stay uncompiled'}.",
            f"{first['broke']}, at {place_in_words(first['broke_at'])}.",
            selects="regions",
        )
    whole, overhead = regions["ms"].sum(), fmt.known(regions["overhead_ms"].sum(min_count=1))
    if overhead is None or not whole:
        return Verdict("none", "The trace does not record which kernels compute which layers.")
    if summary.on_gpu:  # the host only launches the kernels
        return Verdict("none", f"No graph breaks: kernels take {fmt.duration(float(summary.kernels['ms'].sum()))}.")
    part = f"{fmt.share(overhead / whole)} of the forward regions' time is spent outside kernels"
    if overhead > _MUCH * whole:
        return Verdict(
            "bad", f"{part}: their kernels are small.", "Larger batches or larger regions reduce this overhead."
        )
    return Verdict("good", f"No graph breaks: {part}.")


def _figures(summary: CompiledSummary) -> Iterator[Figure]:
    regions, kernels = summary.regions, summary.kernels
    yield Figure("forward regions", fmt.known(regions["ms"].sum()), "ms", basis="per traced step, on the host")
    if len(kernels):
        place = ", on the GPU" if summary.on_gpu else ""
        yield Figure("kernels", float(kernels["ms"].sum()), "ms", basis=f"per traced step, forward and backward{place}")
    lookups = fmt.known(regions["lookup_ms"].sum(min_count=1))
    yield Figure("checking guards", lookups, "ms", basis="per traced step")
    yield Figure("compiling", fmt.known(1e3 * regions["compile_s"].sum(min_count=1)), "ms", basis="once")


def _sections(summary: CompiledSummary) -> Iterator[Section]:
    tables = [_regions(summary.regions), *([_kernels(summary)] if len(summary.kernels) else [])]
    breaks = summary.regions["broke"].notna().any() or summary.regions["recompiled"].notna().any()
    yield from tables if breaks else tables[::-1]


def _kernels(summary: CompiledSummary) -> Table:
    kernels = summary.kernels
    columns = {
        "kernel": Column("kernel"),
        "few": Column("layers", help="Layers whose operations the kernel computes, sorted by their share of its time"),
        "direction": Column("direction", priority=3),
        "ops": Column("ops", priority=4, live=True),
        "calls": Column("calls", "count", priority=3),
        "ms": Column("per step", "ms"),
        "part": Column("share", "share", bar=True, help="Share of the time of all kernels of compiled code"),
        "bytes_per_s": Column("bandwidth", "bytes/s", 2, help="Bytes read and written, based on the graph's shapes"),
    }
    few = [fmt.named(str(names).split(", ")) if pd.notna(names) else "" for names in kernels["layers"]]
    part = kernels["ms"] / (float(kernels["ms"].sum()) or 1.0)
    shares = summary.shares
    return Table.of(
        "Kernels of compiled code per step",
        kernels.assign(few=few, part=part),
        columns,
        budget=Budget(12, 30),
        noun="kernel",
        names=[f"{row.kernel} of graph {row.graph}" for row in _rows(kernels)],
        details=[_lines(row.source) for row in _rows(kernels)],
        inner=Inner(
            "Layers whose operations it computes",
            (Column("layer"), Column("share", "share"), Column("per step", "ms")),
            [(str(row.layer), row.share, row.ms) for row in _rows(shares)],
            shares["kernel"].tolist(),
            "layers",
        )
        if len(shares)
        else None,
        key="compiled_kernels",
    )


def _regions(regions: pd.DataFrame) -> Table:
    columns = {
        "region": Column("region", help="torch's numbers for the function and for the version of its code"),
        "function": Column("function"),
        "calls": Column("calls", "count", priority=3),
        "ms": Column("per step", "ms", help="Time of the forward pass on the host"),
        "overhead_ms": Column(
            "overhead", "ms", priority=1, help="Time outside kernels, or outside their launches if they run on a GPU"
        ),
        "gap_ms": Column("until the next", "ms", priority=2, help="From a graph break to the next region"),
        "compile_ms": Column("compiling", "ms", priority=4),
    }
    shown = regions.reset_index().assign(compile_ms=regions["compile_s"].to_numpy() * 1e3)
    details = [_happened(row) for row in _rows(shown)]
    title, budget = "Compiled regions per step", Budget(8, 20)
    return Table.of(title, shown, columns, budget=budget, noun="region", details=details, key="regions")


def _happened(row: Any) -> str:
    """Describe why a region was recompiled, and where its graph breaks."""
    parts = []
    if pd.notna(row.broke):
        parts.append(f"Graph break at {place_in_words(row.broke_at)}: {row.broke}")
    if pd.notna(row.recompiled):
        parts.append(f"Recompiled because a guard failed: {row.recompiled}")
    return ". ".join(parts)


def _lines(source: Any) -> str:
    """Return the first line of user code that a kernel computes."""
    lines = [] if pd.isna(source) else str(source).splitlines()
    more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
    place, _, code = lines[0].partition(": ") if lines else ("", "", "")
    return f"{place_in_words(place)}: {code}{more}" if code else f"{place}{more}"


def _rows(frame: pd.DataFrame) -> Any:
    return frame.itertuples(index=False)


def _notes(summary: CompiledSummary) -> Iterator[str]:
    if (summary.shares["share"] < 1).any():
        yield (
            "If several layers share a kernel, its time is divided among them according to the bytes and FLOPs of "
            "their operations. This is an estimate. p.layers.fused_ms is the part of each layer's time that is based "
            "on it."
        )


def _shows(report: Any) -> CompiledSummary | None:
    summary: CompiledSummary | None = report.part("compiled", lambda analysis: compiled_summary(analysis.recording))
    return summary


TAB = Tab("compiled", _shows, compiled_document)
