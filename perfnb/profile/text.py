"""A report as text: the headline, the phases, the layers that matter, what to know about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, palette
from perfnb.draw.tree import Line, Tree, build_tree, page_of, split_layers
from perfnb.findings.view import findings_text, verdict_text
from perfnb.gpu.view import gpu_text
from perfnb.memory.view import memory_text
from perfnb.profile.noise import notes_of
from perfnb.profile.summary import Summary
from perfnb.roofline.view import roofline_text
from perfnb.timeline.view import timeline_text
from perfnb.watching.view import machine_text

if TYPE_CHECKING:
    from perfnb.timeline.timeline import Timeline

#: Greatest number of lines of the layer tree.
TREE_LINES = 24
#: Least width in which the columns have room.
MIN_WIDTH = 80

#: Why a figure is unknown, in one line.
UNKNOWN_NOTE = f"{fmt.UNKNOWN}: was not measured, or does not apply to this row"

_BAR_CELLS = 8
#: Cells that the names of layers get before bars and classes get theirs.
_NAME_CELLS = 26
_EIGHTHS = " ▏▎▍▌▋▊▉"
#: Columns of times that are listed only where they hold something.
_OPTIONAL = {"recompute_ms": "recompute", "gpu_ms": "GPU"}


def summary_text(summary: Summary, width: int = 100, timeline: Timeline | None = None) -> str:
    """The report as text for a terminal, a log or a notebook without HTML.

    Parameters
    ----------
    summary : Summary
    width : int
        Greatest width of a line, in character cells; `MIN_WIDTH` at least.
    timeline : Timeline, optional
        Of the same profile.
    """
    width = max(MIN_WIDTH, width)
    memory = [] if summary.memory is None else memory_text(summary.memory, width)
    parts = [
        _headline(summary, width),
        _phases(summary, width),
        [] if summary.findings is None else findings_text(summary.findings, width),
        _layers(summary, width),
        [] if timeline is None else timeline_text(timeline, width),
        [] if summary.gpu is None else gpu_text(summary.gpu, width),
        memory,
        [] if summary.machine is None else machine_text(summary.machine, width),
        [] if summary.roofline is None else roofline_text(summary.roofline, width),
        _notes(summary, width),
    ]
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in map(list, parts) if part)


def headline_facts(summary: Summary) -> list[str]:
    """The sentences of the headline: how long a step takes, and how that was found out."""
    timing = summary.timing
    if summary.source is not None:
        step = f"step {fmt.UNKNOWN} (a trace has no timed steps)"
    elif not timing.steps:
        step = f"step {fmt.UNKNOWN} (no timed step)"
    else:
        step = f"step {fmt.interval(timing.median_ms, timing.ci_ms)} ({timing.basis})"
    facts = [step]
    if timing.steps and timing.throughput_per_s is not None:
        size = "" if timing.batch_size is None else f", batch of {timing.batch_size:,}"
        facts.append(f"{fmt.rate(timing.throughput_per_s, 'samples')}{size}")
    if summary.source is None:
        facts.append(fmt.executions(summary.executed))
    else:
        facts.append(f"read from {escape.plain(summary.source, 200)}")
    if summary.traced_ms is None:
        facts.append("no trace" if summary.source is None else "no events")
    elif summary.source is not None:
        count = summary.executed.get("traced", 0)
        mean = "" if count == 1 else f" (mean of {count:,})"
        facts.append(f"traced step {fmt.duration(summary.traced_ms)}{mean}")
        if summary.until_gpu_ms is not None:
            facts.append(
                f"the GPU works on after it: findings count {fmt.duration(summary.until_gpu_ms)} until it is done"
            )
    elif summary.slowdown is None:
        facts.append(f"traced step {fmt.duration(summary.traced_ms)}")
    else:
        facts.append(f"traced step {fmt.duration(summary.traced_ms)}, {fmt.ratio(summary.slowdown)} the timed one")
    return facts


def left_out_text(line: Line, shares: Sequence[float | None]) -> str:
    """What stands in place of the layers that a line leaves out: ``23 more layers, 4.0 % of the step``."""
    known = [value for value in (shares[i] for i in line.left_out) if value is not None]
    layers = "1 more layer" if len(line.left_out) == 1 else f"{len(line.left_out):,} more layers"
    return f"{layers}, {fmt.share(sum(known))} of the step" if known else layers


def optional_columns(layers: pd.DataFrame) -> list[str]:
    """The columns of times that hold a figure above zero in some layer."""
    return [column for column in _OPTIONAL if (layers[column].fillna(0) > 0).any()]


def _headline(summary: Summary, width: int) -> list[str]:
    title = f"perfnb · {escape.plain(summary.name, width // 2)} · {escape.plain(summary.device, width)}"
    verdict = [] if summary.findings is None else verdict_text(summary.findings, width)
    return [escape.shorten(title, width), *verdict, *_joined(headline_facts(summary), width)]


def _joined(facts: Sequence[str], width: int) -> Iterator[str]:
    line = ""
    for fact in facts:
        if line and escape.cells(line) + 3 + escape.cells(fact) > width:
            yield from escape.wrapped(line, width)
            line = ""
        line = f"{line} · {fact}" if line else fact
    yield from escape.wrapped(line, width)


def _phases(summary: Summary, width: int) -> list[str]:
    shown = [(str(name), row) for name, row in summary.phases.iterrows() if (fmt.known(row["ms"]) or 0) > 0]
    if not shown:
        return []
    shares = [max(0.0, fmt.known(row["share"]) or 0.0) for _, row in shown]
    bar = bars.stacked([palette.mark(name) for name, _ in shown], shares, width)
    figures = [(palette.mark(name), fmt.duration(row["ms"]), fmt.share(row["share"])) for name, row in shown]
    words = max(len(mark.word) for mark, _, _ in figures)
    entries = [f"{mark.glyph} {escape.fit(mark.word, words)} {ms:>8} {part:>6}" for mark, ms, part in figures]
    columns = max(1, (width + 4) // (max(map(escape.cells, entries)) + 4))
    rows = ["    ".join(entries[i : i + columns]) for i in range(0, len(entries), columns)]
    return [f"Phases of a traced step ({fmt.duration(summary.traced_ms)})", bar, *rows]


def _layers(summary: Summary, width: int) -> list[str]:
    modules, special = split_layers(summary.layers)
    if not len(modules) and not len(special):
        return []
    tree = build_tree(modules)
    weights = [fmt.known(value) or 0.0 for value in modules["total_ms"]]
    lines = page_of(tree, weights, summary.hot_path, TREE_LINES)
    extra = optional_columns(summary.layers)
    columns = ["forward_ms", "backward_ms", *extra, "total_ms"]
    heads = ["forward", "backward", *(_OPTIONAL[column] for column in extra), "total"]
    shares = [fmt.known(value) for value in modules["share"]]

    heads = [f"{head:>8}" for head in heads]
    right = f" {'calls':>5} {' '.join(heads)} {'share':>6}"
    classes = max([6, *(escape.cells(escape.plain(value)) for value in modules["module"].dropna())])
    room = width - len(right) - 1
    bar_cells = 1 + _BAR_CELLS if room - min(classes, 20) - 1 - _BAR_CELLS >= _NAME_CELLS else 0
    classes = max(6, min(classes, 20, room - bar_cells - _NAME_CELLS))
    names = room - bar_cells - classes
    heaviest = max([value for value in shares if value is not None], default=0.0)
    rows = [
        *escape.wrapped(f"Layers (times of a traced step, layers inside included{_legend(lines)})", width),
        f"{'layer':<{names}} {'class':<{classes}}{right}{' ' * bar_cells}",
        "─" * width,
    ]
    for line in lines:
        if line.layer < 0:
            rows.append(escape.shorten(f"{_glyphs(line, names - 10)}… {left_out_text(line, shares)}", width))
            continue
        row = modules.iloc[line.layer]
        kind = "" if pd.isna(row["module"]) else row["module"]
        bar = f" {_bar(fmt.known(row['share']), heaviest)}" if bar_cells else ""
        figures = _figures(row, columns, heads)
        rows.append(f"{_name(tree, line, names)} {escape.fit(kind, classes)}{figures}{bar}")
    for name, row in special.iterrows():
        rows.append(f"{escape.fit(name, names + classes + 1)}{_figures(row, columns, heads)}")
    return [*rows, UNKNOWN_NOTE] if any(fmt.UNKNOWN in row for row in rows) else rows


def _legend(lines: Sequence[Line]) -> str:
    return "; +9: 9 layers inside, not listed" if any(line.inside for line in lines) else ""


def _name(tree: Tree, line: Line, width: int) -> str:
    glyphs = _glyphs(line, width - 10)
    closed = f" +{line.inside:,}" if line.inside else ""
    room = width - len(glyphs) - len(closed)
    return escape.fit(f"{glyphs}{escape.plain(tree.labels[line.layer], room)}{closed}", width)


def _glyphs(line: Line, width: int) -> str:
    if not line.depth:
        return ""
    step = next((step for step in (3, 2) if step * line.depth <= width), 0)
    if not step:
        return f"{line.depth}: ".rjust(width)
    lines = "".join((" " if last else "│").ljust(step) for last in line.last[:-1])
    return lines + ("└" if line.last[-1] else "├") + ("─ " if step == 3 else " ")


def _figures(row: Any, columns: Sequence[str], heads: Sequence[str]) -> str:
    times = "".join(f" {fmt.duration(row[column]):>{len(head)}}" for column, head in zip(columns, heads, strict=True))
    return f" {fmt.count(row['calls']):>5}{times} {fmt.share(row['share']):>6}"


def _bar(value: float | None, heaviest: float) -> str:
    if not value or heaviest <= 0:
        return ""
    eighths = max(1, round(8 * _BAR_CELLS * min(1.0, value / heaviest)))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _notes(summary: Summary, width: int) -> list[str]:
    lines: list[str] = []
    for note in notes_of(summary):
        wrapped = escape.wrapped(escape.plain(note, 2000), width - 2)
        lines += [f"{'  ' if i else '• '}{line}" for i, line in enumerate(wrapped)]
    return ["Notes", *lines] if lines else []
