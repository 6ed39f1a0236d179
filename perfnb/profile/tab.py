"""Create the documents for the tabs that show layers and ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.tables import DIRECTIONS
from perfnb.draw.document import Budget, Column, Document, Inner, Nesting, Split, Table, cells_of
from perfnb.draw.palette import mark
from perfnb.draw.tab import Tab
from perfnb.recording.layer_tree import nested, split_layers

if TYPE_CHECKING:
    from perfnb.profile.report import Report

_INSIDE = "in a traced step, including nested layers"
#: The columns of the table of layers after name, class and time, by their names in the data frame. A heading is the
#: same name without its unit, so readers can type the headings that they see in the report.
_LAYER_COLUMNS: dict[str, Column] = {
    "calls": Column("calls", "count", priority=4, help="Calls per step"),
    "forward_ms": Column("forward", "ms", help=f"Forward time {_INSIDE}"),
    "backward_ms": Column("backward", "ms", help=f"Backward time {_INSIDE}"),
    "recompute_ms": Column("recompute", "ms", help=f"Time of forward work repeated in backward {_INSIDE}"),
    "self_ms": Column("self", "ms", 6, help="Time in a traced step, excluding nested layers", live=True),
    "gpu_ms": Column("GPU", "ms", 3, help=f"GPU time {_INSIDE}"),
    "share": Column("share", "share", help="Share of the step, corrected for the cost of tracing"),
    "forward_flops": Column("forward FLOPs", "flops", 7, help="Arithmetic in forward, including nested layers"),
    "backward_flops": Column("backward FLOPs", "flops", 8, help="Arithmetic in backward, including nested layers"),
    "recompute_flops": Column("recompute FLOPs", "flops", 9, live=True),
    "activation_bytes": Column("activation", "bytes", 7, help="Memory saved for backward, including nested layers"),
    "parameters": Column("parameters", "count", 5, help="Parameters, including those of nested layers", live=True),
    "parameter_bytes": Column("parameter memory", "bytes", 9, live=True),
    "moved_bytes": Column("least bytes moved", "bytes", 9, live=True),
    "peak_bytes": Column("peak memory", "bytes", 9, live=True),
    "ops": Column("ops", "count", 9, live=True),
    "kernels": Column("kernels", "count", 9, live=True),
}  # fmt: skip
_OP_COLUMNS: dict[str, Column] = {
    "calls": Column("calls", "count", help="Calls per step"),
    "self_cpu_ms": Column("self CPU", "ms", bar=True, help="CPU time in a traced step, excluding nested ops"),
    "total_cpu_ms": Column("total CPU", "ms", help="CPU time in a traced step, including nested ops"),
    "gpu_ms": Column("GPU", "ms", help="Time of the op's kernels in a traced step"),
    "flops": Column("FLOPs", "flops", 3, help="Arithmetic per step", live=True),
    "bytes": Column("bytes", "bytes", 4, live=True),
}
_INNER_COLUMNS = {
    "calls": Column("calls", "count"),
    "self_cpu_ms": Column("self CPU", "ms"),
    "gpu_ms": Column("GPU", "ms"),
}
#: The maximum number of layers that are listed in an op's row.
_NAMED = 3


def layers_document(report: Report) -> Document:
    """Return the model as a tree of layers with their times, expanded along the path to the heaviest layer."""
    modules, special = split_layers(report.summary.layers)
    layers, (labels, parents) = pd.concat([modules, special]), nested(modules)
    columns = {
        "label": Column("layer"),
        "module": Column("module", priority=2, help="The module's class"),
        "total": Column("total", "ms", bar=True, help=f"Total time {_INSIDE}", marks=tuple(map(mark, DIRECTIONS))),
        **_LAYER_COLUMNS,
    }
    times = [cells_of(layers[f"{name}_ms"]) for name in ("total", *DIRECTIONS)]
    totals = [Split(total, tuple(parts)) for total, *parts in zip(*times, strict=True)]
    parted = pd.Series(totals, layers.index, dtype=object)
    shown = _ran(layers).assign(label=[*labels, *map(str, special.index)], total=parted)
    places = report.layer_places
    weights = [total.number or 0.0 for total in totals[: len(modules)]]
    path = [places[name] for name in map(str, report.summary.hot_path) if name in places]
    slowdown = report.summary.slowdown
    slower = "" if slowdown is None else f"; it takes {fmt.ratio(slowdown)} the time of a timed step"
    table = Table.of(
        f"Times in a traced step, including nested layers{slower}",
        shown,
        columns,
        nesting=Nesting(parents, weights, path),
        tail=len(special),
        budget=Budget(24, 60),
        noun="layer",
        selects=(("timeline", "Show in the timeline"),),
        names=[*map(str, layers.index)],
        inner=_inner("Ops", report.layer_ops, {"op": Column("op"), "direction": Column("direction")}, places, "layer"),
        key="layers",
    )
    return Document("layers", sections=(table,))


def _inner(title: str, used: pd.DataFrame, names: Mapping[str, Column], places: Mapping[str, int], of: str) -> Inner:
    """Return rows of `layer_ops` below the layers or ops that they belong to, which are in the column `of`."""
    cells = [cells_of(used[name]) for name in (*names, *_INNER_COLUMNS)]
    columns = (*names.values(), *_INNER_COLUMNS.values())
    selects = "ops" if of == "layer" else "layers"
    return Inner(title, columns, list(zip(*cells, strict=True)), [places.get(name, -1) for name in used[of]], selects)


def ops_document(report: Report) -> Document:
    """Return a document that lists all operators in the step, along with the layers that call them."""
    ops = report.summary.ops.sort_values("self_cpu_ms", ascending=False, kind="stable")
    names, used = [*map(str, ops.index)], report.layer_ops
    heavy = used.sort_values(["gpu_ms", "self_cpu_ms"], ascending=False, kind="stable")
    layers = heavy.groupby("op", sort=False)["layer"].unique()
    columns = {
        "op": Column("op"),
        **_OP_COLUMNS,
        "layers": Column("layers", priority=2, help="The layers where the op takes the most time", live=True),
    }
    # The names of the first few layers, shortened to their last parts.
    brief = [fmt.named([".".join(layer.split(".")[-2:]) for layer in layers.get(op, ())], _NAMED) for op in names]
    places = {name: place for place, name in enumerate(names)}
    has_layers = not split_layers(report.summary.layers)[0].empty
    table = Table.of(
        "Times in a traced step on all threads, sorted by self time",
        _ran(ops).assign(op=names, layers=brief),
        columns,
        budget=Budget(0, 0) if has_layers else Budget(10, 30),  # in text, ops are listed only if there are no layers
        noun="op",
        inner=_inner("Layers that it runs in", used, {"layer": Column("layer")}, places, "op") if len(used) else None,
        key="ops",
    )
    return Document("ops", sections=(table,))


def _ran(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the data frame without columns for passes or devices that were never used."""
    timed = [name for name in ("recompute_ms", "gpu_ms") if name in frame]
    never: dict[str, Any] = {name: pd.NA for name in timed if not (frame[name].fillna(0) > 0).any()}
    return frame.assign(**never)


LAYERS = Tab("layers", lambda report: report if len(report.summary.layers) else None, layers_document)
OPS = Tab("ops", lambda report: report if len(report.summary.ops) else None, ops_document)
