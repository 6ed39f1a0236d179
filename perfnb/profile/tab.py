"""The tabs of layers and ops: their text, static HTML, and data for the browser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.tab import Tab
from perfnb.draw.tree import Tree, TreeLine, build_tree, page_of, split_layers

if TYPE_CHECKING:
    from perfnb.profile.summary import Summary

#: Maximum number of lines of the layer tree.
TREE_LINES = 24

#: Maximum number of ops listed as text, and in the HTML table, of a profile without layers.
OP_LINES, OP_ROWS = 10, 30

#: Explanation of unknown figures.
UNKNOWN_NOTE = f"{fmt.UNKNOWN}: not measured, or not applicable to this row"

_BAR_CELLS = 8
#: Cells reserved for layer names before bars and classes get theirs.
_NAME_CELLS = 26
_EIGHTHS = " ▏▎▍▌▋▊▉"
#: Cells of figures that need fewer than a time.
_CELLS = {"calls": 5, "share": 6}
#: Time columns that are listed only if they are not empty.
_OPTIONAL = ("recompute_ms", "gpu_ms")
#: Maximum number of lines of the HTML table.
TABLE_LINES = 60

#: A heading is the name of its column without the unit, so that what the report shows can be typed.
_HEADS = {
    "calls": "calls",
    "forward_ms": "forward",
    "backward_ms": "backward",
    "recompute_ms": "recompute",
    "gpu_ms": "GPU",
    "total_ms": "total",
    "share": "share",
    "forward_flops": "forward FLOPs",
    "backward_flops": "backward FLOPs",
    "activation_bytes": "activation",
}
#: Format by the last word of the column; all others are times.
_FORMATS: dict[str, Callable[[Any], str]] = {
    "calls": fmt.count,
    "share": fmt.share,
    "flops": fmt.flops,
    "bytes": fmt.size,
}
_OP_HEADS = {"calls": "calls", "self_cpu_ms": "self CPU", "total_cpu_ms": "total CPU", "gpu_ms": "GPU"}
_COUNTED = ("forward_flops", "backward_flops", "activation_bytes")

#: Numeric columns of each frame that the browser gets.
LAYER_COLUMNS = (
    "calls", "forward_ms", "backward_ms", "recompute_ms", "total_ms", "self_ms", "share", "self_share",
    "forward_flops", "backward_flops", "recompute_flops", "moved_bytes", "parameters", "parameter_bytes",
    "activation_bytes", "peak_bytes", "ops", "kernels", "gpu_ms",
)  # fmt: skip
OP_COLUMNS = ("calls", "self_cpu_ms", "total_cpu_ms", "gpu_ms", "flops", "bytes")
LAYER_OP_COLUMNS = ("calls", "self_cpu_ms", "gpu_ms")

_NOWHERE = -1
_NOT_ATTRIBUTED = {"", "nan", "None", "<NA>"}


def layers_text(summary: Summary, width: int) -> list[str]:
    """Draw the tree of layers as lines: the heaviest layers and the way to them."""
    if summary.layers.empty:
        return []
    modules, special = split_layers(summary.layers)
    tree, lines, shares, columns = _listing(summary, modules, TREE_LINES)
    widths = [_CELLS.get(column, max(8, len(_HEADS[column]))) for column in columns]
    right = "".join(f" {_HEADS[column]:>{cells}}" for column, cells in zip(columns, widths, strict=True))
    classes = max([6, *(escape.cells(escape.plain(value)) for value in modules["module"].dropna())])
    room = width - len(right) - 1
    bar_cells = 1 + _BAR_CELLS if room - min(classes, 20) - 1 - _BAR_CELLS >= _NAME_CELLS else 0
    classes = max(6, min(classes, 20, room - bar_cells - _NAME_CELLS))
    names = room - bar_cells - classes
    legend = "; +9: 9 layers inside not listed" if any(line.inside for line in lines) else ""
    heaviest = max([value for value in shares if value is not None], default=0.0)
    rows = [
        *escape.wrapped(f"Layers (times of a traced step, including layers inside{legend})", width),
        f"{'layer':<{names}} {'module':<{classes}}{right}{' ' * bar_cells}",
        "─" * width,
    ]
    for line in lines:
        if line.layer < 0:
            rows.append(escape.shorten(f"{_glyphs(line, names - 10)}… {left_out_text(line, shares)}", width))
            continue
        row = modules.iloc[line.layer]
        kind = "" if pd.isna(row["module"]) else row["module"]
        bar = f" {_bar(fmt.known(row['share']), heaviest)}" if bar_cells else ""
        figures = _figures(row, columns, widths)
        rows.append(f"{_name(tree, line, names)} {escape.fit(kind, classes)}{figures}{bar}")
    for name, row in special.iterrows():
        rows.append(f"{escape.fit(name, names + classes + 1)}{_figures(row, columns, widths)}")
    return [*rows, UNKNOWN_NOTE] if any(fmt.UNKNOWN in row for row in rows) else rows


def _listing(
    summary: Summary, modules: pd.DataFrame, limit: int
) -> tuple[Tree, list[TreeLine], list[float | None], list[str]]:
    """The tree of layers, the lines of it to list, the share of each layer, and the columns of times."""
    tree = build_tree(modules)
    weights = [fmt.known(value) or 0.0 for value in modules["total_ms"]]
    lines = page_of(tree, weights, summary.hot_path, limit)
    filled = [column for column in _OPTIONAL if (summary.layers[column].fillna(0) > 0).any()]
    columns = ["calls", "forward_ms", "backward_ms", *filled, "total_ms", "share"]
    return tree, lines, [fmt.known(value) for value in modules["share"]], columns


def _name(tree: Tree, line: TreeLine, width: int) -> str:
    glyphs = _glyphs(line, width - 10)
    closed = f" +{line.inside:,}" if line.inside else ""
    room = width - len(glyphs) - len(closed)
    return escape.fit(f"{glyphs}{escape.plain(tree.labels[line.layer], room)}{closed}", width)


def _glyphs(line: TreeLine, width: int) -> str:
    if not line.depth:
        return ""
    step = next((step for step in (3, 2) if step * line.depth <= width), 0)
    if not step:
        return f"{line.depth}: ".rjust(width)
    lines = "".join((" " if last else "│").ljust(step) for last in line.last[:-1])
    return lines + ("└" if line.last[-1] else "├") + ("─ " if step == 3 else " ")


def _figures(row: Any, columns: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f" {figure:>{cells}}" for figure, cells in zip(_words(row, columns), widths, strict=True))


def _words(row: Any, columns: Sequence[str]) -> list[str]:
    return [_FORMATS.get(column.rsplit("_")[-1], fmt.duration)(row[column]) for column in columns]


def _bar(value: float | None, heaviest: float) -> str:
    if not value or heaviest <= 0:
        return ""
    eighths = max(1, round(8 * _BAR_CELLS * min(1.0, value / heaviest)))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def layers_html(summary: Summary) -> str:
    """Draw the layers as a table: the heaviest layers and the way to them."""
    if summary.layers.empty:
        return ""
    modules, special = split_layers(summary.layers)
    tree, lines, shares, columns = _listing(summary, modules, TABLE_LINES)
    columns += [name for name in _COUNTED if summary.layers[name].notna().any()]
    rows = [_layer_row(tree, line, modules, columns, shares) for line in lines]
    for name, row in special.iterrows():
        rows.append(f"<tr><th {tables.ROW_HEAD}><em>{escape.html(name)}</em></th><td></td>{_cells(row, columns)}</tr>")
    heads = tables.head_row(["layer", "module", *(_HEADS[column] for column in columns)], texts=2)
    caption = "Layers (times of a traced step, including layers inside)"
    if any(line.layer < 0 or line.inside for line in lines):
        caption += ": the heaviest; +9 means 9 layers inside that are not listed"
    body = "".join(rows)
    note = f'<p class="pf-small">{UNKNOWN_NOTE}</p>' if fmt.UNKNOWN in body else ""
    return f"<table><caption>{caption}</caption><thead>{heads}</thead><tbody>{body}</tbody></table>{note}"


def _layer_row(
    tree: Tree, line: TreeLine, modules: pd.DataFrame, columns: Sequence[str], shares: Sequence[float | None]
) -> str:
    # No-break spaces show the nesting even without styles.
    indent = "&nbsp;" * min(4 * line.depth, 60)
    if line.layer < 0:
        words = escape.html_sentence(left_out_text(line, shares))
        return f'<tr><td colspan="{len(columns) + 2}" {tables.LEFT}>{indent}<em>… {words}</em></td></tr>'
    row = modules.iloc[line.layer]
    kind = "" if pd.isna(row["module"]) else escape.html(row["module"], 60)
    inside = f" <em>+{line.inside:,}</em>" if line.inside else ""
    name = (
        f'{indent}<bdi title="{escape.html(tree.names[line.layer])}">{escape.html(tree.labels[line.layer], 60)}</bdi>'
    )
    heads = f"<th {tables.ROW_HEAD}>{name}{inside}</th><td {tables.LEFT}><bdi>{kind}</bdi></td>"
    return f"<tr>{heads}{_cells(row, columns)}</tr>"


def _cells(row: Any, columns: Sequence[str]) -> str:
    return "".join(f"<td {tables.RIGHT}>{escape.html(words)}</td>" for words in _words(row, columns))


def layers_data(summary: Summary) -> dict[str, Any]:
    """Return the rows of the tree of layers: labels, parents, classes, and columns of figures."""
    modules, special = split_layers(summary.layers)
    layers, tree = pd.concat([modules, special]), build_tree(modules)
    return {
        "label": [escape.plain(label) for label in (*tree.labels, *map(str, special.index))],
        "parent": [*tree.parents, *[_NOWHERE] * len(special)],
        "module": [None if pd.isna(kind) else escape.plain(kind) for kind in layers["module"]],
        "modules": len(modules),
        **_columns(layers, LAYER_COLUMNS),
    }


def ops_text(summary: Summary, width: int) -> list[str]:
    """List the heaviest ops of a profile without layers, which would say where its time goes."""
    ops, columns = _heaviest_ops(summary, OP_LINES)
    if ops.empty:
        return []
    cells = [max(9, len(_OP_HEADS[column])) for column in columns]
    room = width - sum(cells) - len(cells)
    heads = "".join(f" {_OP_HEADS[column]:>{wide}}" for column, wide in zip(columns, cells, strict=True))
    rows = [*escape.wrapped(_op_caption(summary, ops), width), f"{'op':<{room}}{heads}"]
    return rows + [f"{escape.fit(name, room)}{_figures(row, columns, cells)}" for name, row in ops.iterrows()]


def ops_html(summary: Summary) -> str:
    """Draw the heaviest ops of a profile without layers as a table."""
    ops, columns = _heaviest_ops(summary, OP_ROWS)
    if ops.empty:
        return ""
    rows = [[tables.name(name), *map(escape.html, _words(row, columns))] for name, row in ops.iterrows()]
    return tables.table(_op_caption(summary, ops), ["op", *(_OP_HEADS[column] for column in columns)], rows)


def _heaviest_ops(summary: Summary, limit: int) -> tuple[pd.DataFrame, list[str]]:
    """The ops with most host time of their own, and the columns to list; none if there are layers."""
    ops = summary.ops
    if not split_layers(summary.layers)[0].empty:
        ops = ops.iloc[:0]
    ops = ops[ops["self_cpu_ms"].fillna(0) > 0].sort_values("self_cpu_ms", ascending=False, kind="stable")
    return ops.head(limit), [name for name in _OP_HEADS if name != "gpu_ms" or (ops[name].fillna(0) > 0).any()]


def _op_caption(summary: Summary, ops: pd.DataFrame) -> str:
    some = f" · {len(ops)} of {len(summary.ops):,}" if len(ops) < len(summary.ops) else ""
    return f"Ops, most host time of their own first{some} · per traced step, on all threads"


def ops_data(summary: Summary, places: Iterable[str]) -> dict[str, Any]:
    """Return the rows of the table of ops; `places` are their names in the order of the table."""
    names = list(places)
    ops = summary.ops.set_axis(summary.ops.index.map(str), axis=0)
    ops = ops[~ops.index.duplicated()].reindex(names)
    return {"label": [escape.plain(name) for name in names], **_columns(ops, OP_COLUMNS)}


def layer_ops_data(summary: Summary, layers: Mapping[str, int], ops: Mapping[str, int]) -> dict[str, Any]:
    """Return which op ran in which layer, by their places in the tables."""
    used = summary.layer_ops
    return {
        "layer": [_NOWHERE if str(n) in _NOT_ATTRIBUTED else layers.get(str(n), _NOWHERE) for n in used["layer"]],
        "op": [ops[str(name)] for name in used["op"]],
        "direction": [str(direction) for direction in used["direction"]],
        **_columns(used, LAYER_OP_COLUMNS),
    }


def left_out_text(line: TreeLine, shares: Sequence[float | None]) -> str:
    """Describe the layers that a line leaves out: ``23 more layers, 4.0 % of the step``."""
    known = [value for value in (shares[i] for i in line.left_out) if value is not None]
    layers = "1 more layer" if len(line.left_out) == 1 else f"{len(line.left_out):,} more layers"
    return f"{layers}, {fmt.share(sum(known))} of the step" if known else layers


def _columns(frame: pd.DataFrame, names: Iterable[str]) -> dict[str, list[float | None] | None]:
    """Columns of `frame` by name; ``None`` for one in which nothing is known."""
    known = {name: frame[name] for name in names if frame[name].notna().any()}
    return {name: [fmt.short(value) for value in known[name]] if name in known else None for name in names}


LAYERS = Tab(
    key="layers",
    title="Layers",
    shows=lambda report: report,
    text=lambda report, width: layers_text(report.summary, width),
    html=lambda report: layers_html(report.summary),
    data=lambda report: layers_data(report.summary),
    is_empty=lambda data: not data["label"],
    script="profile/js/layers.js",
)

#: The static twin lists ops only in the place of layers; `Profile.ops` has them all.
OPS = Tab(
    key="ops",
    title="Ops",
    shows=lambda report: report,
    text=lambda report, width: ops_text(report.summary, width),
    html=lambda report: ops_html(report.summary),
    data=lambda report: ops_data(report.summary, report.op_places),
    is_empty=lambda data: not data["label"],
    script="profile/js/ops.js",
)
