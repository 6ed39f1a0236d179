"""What the GPUs did, without scripts: bars and tables, and text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, palette, tables
from perfnb.gpu.words import (
    device_word,
    headline,
    launch_figures,
    launch_sentence,
    layer_words,
    path_title,
    shape_words,
)

if TYPE_CHECKING:
    from perfnb.gpu.summary import GpuSummary

#: Most kernels, and parts of the critical path by op, that are listed.
KERNELS_IN_HTML, KERNELS_IN_TEXT, OPS_IN_TEXT = 15, 5, 4
_MOST_DEVICES = 16


def gpu_html(summary: GpuSummary) -> str:
    """The tab of the GPUs as bars and tables."""
    return "".join(
        [
            f"<p><strong>GPU</strong> · {escape.html_sentence(headline(summary))}</p>",
            *_devices_html(summary),
            _path_html(summary),
            _launches_html(summary),
            _kernels_html(summary),
            "".join(f'<p class="pf-small">{escape.html_sentence(note)}</p>' for note in summary.notes),
        ]
    )


def gpu_text(summary: GpuSummary, width: int = 100) -> list[str]:
    """The same as lines of at most `width` cells."""
    lines = escape.wrapped(f"GPU · {headline(summary)}", width)
    for row in _rows(summary.devices.head(_MOST_DEVICES)):
        shown = _shown(row)
        marks = [palette.GPU[name] for name, _ in shown]
        if len(summary.devices) > 1:
            lines.append(f"{device_word(row.device)}, {fmt.duration(row.total_ms)}")
        lines.append(bars.stacked(marks, [ms for _, ms in shown], width))
        entries = [(mark, ms, ms / row.total_ms) for mark, (_, ms) in zip(marks, shown, strict=True)]
        lines += _in_columns(entries, width)
    if summary.path is not None and len(summary.path.kinds):
        lines += escape.wrapped(f"{path_title(summary.path)} (saves: at most, if it took no time)", width)
        lines += [_part_text(palette.PATH[str(row.kind)].word, row, width) for row in _heaviest(summary.path.kinds)]
        lines += [_part_text(row.op, row, width) for row in _rows(summary.path.ops.head(OPS_IN_TEXT))]
    lines += escape.wrapped(launch_sentence(summary), width)
    lines += _kernels_text(summary, width)
    for note in summary.notes:
        lines += escape.wrapped(escape.plain(note, 2000), width)
    return [line.rstrip() for line in lines]


def _shown(row: Any) -> list[tuple[str, float]]:
    """The parts of a device's time that are not nothing."""
    parts = [(name, fmt.known(getattr(row, name)) or 0.0) for name in palette.GPU]
    return [(name, ms) for name, ms in parts if ms > 0]


def _devices_html(summary: GpuSummary) -> list[str]:
    rows, drawn = [], []
    for row in _rows(summary.devices.head(_MOST_DEVICES)):
        shown = _shown(row)
        fills = "".join(
            f'<i class="pf-{palette.GPU[name].pattern}" '
            f'style="width:{100 * ms / row.total_ms:.2f}%;background-color:{palette.GPU[name].colour}"></i>'
            for name, ms in shown
        )
        drawn.append(f'<div class="pf-bar" aria-hidden="true">{fills}</div>')
        for name, ms in shown:
            share = escape.html(fmt.share(ms / row.total_ms))
            rows.append((device_word(row.device), tables.keyed(palette.GPU[name]), fmt.duration(ms), share))
    caption = "What each GPU did, from its first work to its last"
    return [*drawn, tables.table(caption, ["GPU", "what", "time", "share"], rows, texts=2)]


def _path_html(summary: GpuSummary) -> str:
    path = summary.path
    if path is None or not len(path.kinds):
        return ""
    heads = ["part", "on the path", "share", "would save up to"]
    kinds = [(tables.keyed(palette.PATH[str(row.kind)]), *_figures(row)) for row in _rows(path.kinds)]
    ops = [(tables.name(row.op), *_figures(row)) for row in _rows(path.ops)]
    by_op = tables.table("The same by op, with what it launched", heads, ops) if ops else ""
    return tables.table(escape.html_sentence(path_title(path)), heads, kinds) + by_op


def _figures(row: Any) -> tuple[str, str, str]:
    return fmt.duration(row.path_ms), escape.html(fmt.share(row.share)), fmt.duration(row.saves_ms)


def _launches_html(summary: GpuSummary) -> str:
    rows = [tuple(map(escape.html, (word, small, value))) for word, value, small, _ in launch_figures(summary)]
    table = tables.table("Launches", ["", "", ""], rows, texts=2)
    return f"{table}<p>{escape.html_sentence(launch_sentence(summary))}</p>"


def _kernels_html(summary: GpuSummary) -> str:
    first = summary.kernels.head(KERNELS_IN_HTML)
    rows = [
        (
            tables.name(_op(row)),
            tables.name(shape_words(row.shapes) or "", 40),
            "" if pd.isna(row.kernel) else tables.name(row.kernel, 40),
            tables.name(layer_words(row), 50),
            fmt.count(row.calls),
            fmt.duration(row.total_ms),
            fmt.duration(row.mean_us / 1e3),
            escape.html(fmt.share(row.share)),
        )
        for row in _rows(first)
    ]
    left = summary.kernels_in_all - len(first)
    more = f"; {left:,} more are not listed" if left > 0 else ""
    heads = ["op", "input shapes", "heaviest kernel", "layers", "calls", "time", "mean", "share"]
    return tables.table(f"Kernels, copies and fills of a step, by op and input shapes{more}", heads, rows, texts=4)


def _op(row: Any) -> str:
    return "no op known" if pd.isna(row.op) else str(row.op)


def _kernels_text(summary: GpuSummary, width: int) -> list[str]:
    if not len(summary.kernels):
        return []
    names = width - 35
    lines = [f"{'kernels of a step by op and input shapes':<{names}} {'calls':>7} {'time':>9} {'mean':>8} {'share':>7}"]
    for row in _rows(summary.kernels.head(KERNELS_IN_TEXT)):
        name = f"{row.kernel}" if pd.isna(row.op) else f"{row.op} {shape_words(row.shapes) or ''}".rstrip()
        figures = f"{fmt.count(row.calls):>7} {fmt.duration(row.total_ms):>9} {fmt.duration(row.mean_us / 1e3):>8}"
        lines.append(f"{escape.fit(name, names)} {figures} {fmt.share(row.share):>7}")
    left = summary.kernels_in_all - KERNELS_IN_TEXT
    return [*lines, f"… {left:,} more"] if left > 0 else lines


def _heaviest(kinds: pd.DataFrame) -> Any:
    """The parts of the path that are worth a line."""
    return _rows(kinds[kinds["share"] >= min(0.01, kinds["share"].max())])


def _rows(frame: pd.DataFrame) -> Any:
    return frame.itertuples(index=False)


def _part_text(word: str, row: Any, width: int) -> str:
    figures = f"{fmt.duration(row.path_ms):>8} {fmt.share(row.share):>6}   saves {fmt.duration(row.saves_ms):>8}"
    return f"  {escape.fit(word, min(48, width - 35))} {figures}"


def _in_columns(entries: Sequence[tuple[palette.Mark, float, float]], width: int) -> list[str]:
    if not entries:  # all that ran took less time than the trace can tell
        return []
    words = max(escape.cells(mark.word) for mark, _, _ in entries)
    cells = [
        f"{mark.glyph} {escape.fit(mark.word, words)} {fmt.duration(ms):>8} {fmt.share(part):>6}"
        for mark, ms, part in entries
    ]
    columns = max(1, (width + 4) // (max(map(escape.cells, cells)) + 4))
    return ["    ".join(cells[i : i + columns]) for i in range(0, len(cells), columns)]
