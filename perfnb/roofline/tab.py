"""Create the roofline tab, which shows how close a step's layers and ops come to the machine's limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw.document import Axis, Budget, Column, Document, Dot, Figure, Scatter, Section, Table, Verdict, cells_of
from perfnb.draw.palette import BLUE, DARK, GREY, SKY, Mark
from perfnb.draw.tab import Tab

if TYPE_CHECKING:
    from perfnb.roofline.levels import RooflineLevels

#: The maximum number of layers and ops in the view. The heaviest ones are shown.
MOST_LAYERS, MOST_OPS = 400, 100
#: The share of a roof below which layers count as far below it, and the share above which they count as close to it.
_FAR, _CLOSE = 0.1, 0.5
#: Arithmetic is blue, and moving bytes has the colour of copies.
_BOUNDS = {
    "compute": Mark("compute-bound", BLUE, "█", "solid"),
    "memory": Mark("memory-bound", SKY, "≡", "rows"),
    "": Mark("unknown bound", GREY, "·", "none"),
}
#: The factor by which a roof extends beyond the points.
_SPARE = 2.0
_COUNTED = {
    "sm_active_percent": "multiprocessors active",
    "tensor_active_percent": "Tensor Cores active",
    "dram_active_percent": "memory bandwidth in use",
}


def roofline_document(roofline: RooflineLevels) -> Document:
    """Return a document that shows how close the step and its layers and ops come to the machine's ceilings."""
    counters = roofline.counters
    read = ", ".join(f"{word} {fmt.share(counters[name])}" for name, word in _COUNTED.items() if name in counters)
    return Document(
        "roofline",
        device=roofline.device,
        verdict=roofline_verdict(roofline),
        figures=tuple(_figures(roofline)),
        facts=(f"the GPU's hardware counters over the timed steps: {read}",) if read else (),
        sections=tuple(_sections(roofline)),
        notes=tuple(_notes(roofline)),
    )


def roofline_verdict(roofline: RooflineLevels) -> Verdict:
    """Return a verdict on whether arithmetic or memory bandwidth limits the layers."""
    reached, parts = roofline.reached, roofline.parts
    if reached is None:
        known = "Nothing that was counted has a roof" if roofline.peaks else "The machine's ceilings are unknown"
        return Verdict("open", f"{known}, so it is unknown how close the step comes to the machine's limits.")
    who = "ops" if (parts["kind"] == "op").all() else "layers"
    what = f"the {who} reach {fmt.share(reached)} of what the machine allows"
    if reached < _FAR:
        cause = "Neither arithmetic nor memory bandwidth limits them. Often the cause is many small ops."
        return Verdict("bad", f"Far below both roofs: {what}.", cause)
    took = parts.groupby("bound", observed=True)["ms"].sum()
    shares = [(key, float(took.get(key, 0.0)) / float(took.sum() or 1.0)) for key in ("compute", "memory")]
    split = " and ".join(f"{fmt.share(part)} {_BOUNDS[key].word}" for key, part in shares if part > 0)
    why = f"By time, the {who} are {split}."
    if reached < _CLOSE:
        return Verdict("none", f"Below the roofs: {what}.", why)
    return Verdict("good", f"Close to the roofs: {what}.", why)


def _figures(roofline: RooflineLevels) -> Iterator[Figure]:
    if roofline.utilisation is not None:
        basis = f"of the measured {roofline.dtype} peak, over a timed step"
        yield Figure("utilisation", roofline.utilisation, "share", basis=basis)
    yield Figure("arithmetic per step", roofline.flops, "flops", basis="counted from formulas")
    for dtype, rate in roofline.peaks.items():
        reached = "reached by this step" if dtype in roofline.refuted else "measured with large products"
        yield Figure(f"{dtype} ceiling", rate, "flops/s", basis=reached)
    yield Figure("memory bandwidth", roofline.bandwidth, "bytes/s", basis="measured with a large copy")


def _sections(roofline: RooflineLevels) -> Iterator[Section]:
    points = roofline.points.sort_values("ms", ascending=False, kind="stable")
    is_op = points["kind"] == "op"
    layers, ops = points[~is_op], points[is_op]
    drawn, noun = (layers, "layer") if len(layers) else (ops, "op")
    heaviest = drawn.head(MOST_LAYERS)
    marks = heaviest["bound"].astype(object).fillna("").map(_BOUNDS)
    places = (cells_of(heaviest[name]) for name in ("intensity", "achieved_flops_per_s"))
    dots = [Dot(name, x, y, mark) for name, x, y, mark in zip(heaviest["name"], *places, marks, strict=True) if x and y]
    yield Scatter(
        f"{noun.capitalize()}s under the roof",
        Axis("arithmetic intensity, FLOP per byte moved", "number", log=True),
        Axis("achieved", "flops/s", log=True),
        tuple(dots),
        tuple(_roofs(roofline, [dot.x for dot in dots])),
        selects="roofline",
    )
    if len(layers):
        yield _table(layers, MOST_LAYERS, Budget(8, 15), "layer", "roofline")
    yield _table(ops, MOST_OPS, Budget(4, 8), "op", "" if len(layers) else "roofline")
    columns = {
        "op": Column("op"),
        "calls": Column("calls", "count"),
        "ms": Column("time", "ms"),
        "share": Column("share", "share", bar=True),
    }
    title = "Ops without a formula, whose arithmetic is not counted"
    yield Table.of(title, roofline.uncounted, columns, budget=Budget(5, 12), noun="op", selects=_SHOWN["op"])


def _roofs(roofline: RooflineLevels, across: list[float]) -> Iterator[tuple[Mark, tuple[tuple[float, float], ...]]]:
    """Yield the roof for each dtype, which rises with the memory bandwidth up to the ceiling of the arithmetic."""
    bandwidth = roofline.bandwidth
    peaks = {dtype: peak for dtype, peak in roofline.peaks.items() if peak > 0}
    if not peaks or not bandwidth:
        return
    ridges = [peak / bandwidth for peak in peaks.values()]
    left, right = min([*across, *ridges]) / _SPARE, max([*across, *ridges]) * _SPARE
    for (dtype, peak), colour in zip(peaks.items(), (DARK, GREY) * len(peaks), strict=False):
        line = (left, left * bandwidth), (peak / bandwidth, peak), (right, peak)
        yield Mark(f"{dtype}: {fmt.flops(peak)}/s", colour, "─", "none"), line


#: The sections where a row selects the row of the same name.
_SHOWN = {"layer": (("layers", "Show in the layers"),), "op": (("ops", "Show in the ops"),)}


def _table(points: pd.DataFrame, most: int, budget: Budget, noun: str, key: str = "") -> Table:
    columns = {
        "name": Column(noun),
        "bound": Column("bound", help="The limit: arithmetic to the right of the ridge, memory bandwidth to the left"),
        "dtype": Column("dtype", priority=6, live=True),
        "ms": Column("time", "ms", priority=1, help="Per step"),
        "flops": Column("FLOPs", "flops", priority=4, help="Arithmetic per step"),
        "bytes": Column("bytes", "bytes", priority=5, help="At least: inputs read once, outputs written once"),
        "intensity": Column("FLOP/byte", "number", priority=2, help="Arithmetic per byte moved, at most"),
        "achieved_flops_per_s": Column("achieved", "flops/s"),
        "attainable_flops_per_s": Column("roof", "flops/s", priority=3, live=True),
        "efficiency": Column("of the roof", "share", bar=True, help="Achieved over attainable FLOP/s"),
    }
    shown, left = points.head(most), max(0, len(points) - most)
    title = f"{noun.capitalize()}s by time" + (f"; {left:,} shorter ones are not listed" if left else "")
    marks = {bound: replace(mark, word=bound) for bound, mark in _BOUNDS.items() if bound}
    shown = shown.assign(bound=shown["bound"].astype(object).map(marks).fillna(""))
    return Table.of(title, shown, columns, budget=budget, noun=noun, selects=_SHOWN[noun], key=key)


def _notes(roofline: RooflineLevels) -> Iterator[str]:
    for dtype, peak in roofline.refuted.items():
        low = f"The measured {dtype} ceiling ({fmt.flops(peak)}/s) was too low"
        yield f"{low}. Part of this step ran faster, so its rate is used instead."
    if roofline.ceilings_doubted:
        used = fmt.share(roofline.others)
        yield f"Other programs used {used} of the CPUs while the ceilings were measured. The ceilings may be too low."
    if len(roofline.uncounted):
        share = fmt.share(roofline.uncounted["share"].sum())
        yield f"Ops without a formula take {share} of the traced step; these figures exclude their arithmetic."


TAB = Tab("roofline", lambda report: report.summary.roofline, roofline_document)
