"""A report as HTML that needs no script and reads well even where styles are stripped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed
from perfnb.draw.tree import Line, Tree, build_tree, page_of, split_layers
from perfnb.findings.view import findings_html, verdict_html
from perfnb.gpu.view import gpu_html
from perfnb.memory.view import memory_html
from perfnb.profile.noise import notes_of
from perfnb.profile.summary import Summary
from perfnb.profile.text import UNKNOWN_NOTE, headline_facts, left_out_text, optional_columns
from perfnb.roofline.view import roofline_html
from perfnb.timeline.view import timeline_html
from perfnb.watching.view import machine_html

if TYPE_CHECKING:
    from perfnb.timeline.timeline import Timeline

#: Greatest number of layers and of lines in their place.
TABLE_LINES = 60

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
    "activation_bytes": "saved",
}
#: How figures are written, by the last word of their column; the others are times.
_FORMATS: dict[str, Callable[[Any], str]] = {
    "calls": fmt.count,
    "share": fmt.share,
    "flops": fmt.flops,
    "bytes": fmt.size,
}
_COUNTED = ("forward_flops", "backward_flops", "activation_bytes")


def summary_html(summary: Summary, timeline: Timeline | None = None) -> str:
    """The report as tables without scripts: for GitHub, an export, a notebook that is not trusted.

    The element that holds it has the class ``perfnb-static``.
    """
    return framed(
        "".join(
            [
                _headline(summary),
                _phases(summary),
                "" if summary.findings is None else findings_html(summary.findings),
                _layers(summary),
                "" if timeline is None else timeline_html(timeline),
                "" if summary.gpu is None else gpu_html(summary.gpu),
                "" if summary.memory is None else memory_html(summary.memory),
                "" if summary.machine is None else machine_html(summary.machine),
                "" if summary.roofline is None else roofline_html(summary.roofline),
                _notes(summary),
            ]
        )
    )


def _headline(summary: Summary) -> str:
    step, *facts = headline_facts(summary)
    what = f"<strong>{escape.html(summary.name)}</strong> · {escape.html(summary.device)}"
    verdict = "<br>" if summary.findings is None else f'</p>{verdict_html(summary.findings)}<p class="pf-head">'
    rest = "".join(f"<br>{escape.html_sentence(fact)}" for fact in facts)
    return f'<p class="pf-head">{what}{verdict}<strong class="pf-step">{escape.html_sentence(step)}</strong>{rest}</p>'


def _phases(summary: Summary) -> str:
    shown = [(str(name), row) for name, row in summary.phases.iterrows() if (fmt.known(row["ms"]) or 0) > 0]
    if not shown:
        return ""
    widths = [max(0.0, fmt.known(row["share"]) or 0.0) for _, row in shown]
    total = sum(widths) or 1.0
    bar = "".join(
        f'<i class="pf-{palette.mark(name).pattern}" style="{_fill(name, width / total)}"></i>'
        for (name, _), width in zip(shown, widths, strict=True)
    )
    rows = [
        (tables.keyed(palette.mark(name)), fmt.duration(row["ms"]), escape.html(fmt.share(row["share"])))
        for name, row in shown
    ]
    caption = f"Phases of a traced step ({fmt.duration(summary.traced_ms)})"
    return f'<div class="pf-bar" aria-hidden="true">{bar}</div>' + tables.table(
        caption, ["phase", "time", "share"], rows
    )


def _fill(phase: str, width: float) -> str:
    return f"width:{100 * width:.2f}%;background-color:{palette.mark(phase).colour}"


def _layers(summary: Summary) -> str:
    modules, special = split_layers(summary.layers)
    if not len(modules) and not len(special):
        return ""
    tree = build_tree(modules)
    weights = [fmt.known(value) or 0.0 for value in modules["total_ms"]]
    lines = page_of(tree, weights, summary.hot_path, TABLE_LINES)
    extra = optional_columns(summary.layers)
    columns = ["calls", "forward_ms", "backward_ms", *extra, "total_ms", "share"]
    columns += [name for name in _COUNTED if summary.layers[name].notna().any()]
    shares = [fmt.known(value) for value in modules["share"]]
    rows = [_layer_row(tree, line, modules, columns, shares) for line in lines]
    rows += [_special_row(str(name), row, columns) for name, row in special.iterrows()]
    heads = tables.head_row(["layer", "class", *(_HEADS[column] for column in columns)], texts=2)
    caption = "Layers (times of a traced step, layers inside included)"
    if any(line.layer < 0 or line.inside for line in lines):
        caption += ": the heaviest ones; +9 stands for 9 layers inside that are not listed"
    body = "".join(rows)
    note = f'<p class="pf-small">{UNKNOWN_NOTE}</p>' if fmt.UNKNOWN in body else ""
    return f"<table><caption>{caption}</caption><thead>{heads}</thead><tbody>{body}</tbody></table>{note}"


def _layer_row(
    tree: Tree, line: Line, modules: pd.DataFrame, columns: Sequence[str], shares: Sequence[float | None]
) -> str:
    # No-break spaces carry the nesting: they survive where styles do not.
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


def _special_row(name: str, row: Any, columns: Sequence[str]) -> str:
    return f"<tr><th {tables.ROW_HEAD}><em>{escape.html(name)}</em></th><td></td>{_cells(row, columns)}</tr>"


def _cells(row: Any, columns: Sequence[str]) -> str:
    return "".join(f"<td {tables.RIGHT}>{escape.html(_cell(row, column))}</td>" for column in columns)


def _cell(row: Any, column: str) -> str:
    return str(_FORMATS.get(column.rsplit("_")[-1], fmt.duration)(row[column]))


def _notes(summary: Summary) -> str:
    items = "".join(f"<li>{escape.html_sentence(note)}</li>" for note in notes_of(summary))
    return f"<p><strong>Notes</strong></p><ul>{items}</ul>" if items else ""
