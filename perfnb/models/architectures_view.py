"""The comparison of architectures as text and as tables and bars without scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, tables
from perfnb.draw.frame import framed, header
from perfnb.draw.page import static_page
from perfnb.models.architectures_data import (
    METRICS,
    SHARED_BY,
    architectures_data,
    comparison_facts,
    metric_values,
    part_mark,
    part_times,
    ratio_rule,
    ratio_words,
    smallest_detectable,
    told_apart,
)
from perfnb.roofline.view import flop_rate, intensity

if TYPE_CHECKING:
    from perfnb.models.architecture_figures import ArchitectureFigures

#: Most pairs listed in text.
PAIRS_IN_TEXT = 15

_FORMS: dict[str, Callable[[Any], str]] = {
    "duration": fmt.duration,
    "rate": lambda value: fmt.rate(value, "samples"),
    "flops": fmt.flops,
    "flop_rate": flop_rate,
    "intensity": lambda value: intensity(value),
    "size": fmt.size,
    "count": fmt.count,
}
#: Tables of figures: caption and columns.
_TABLES = {
    "Speed and FLOPs per step, times with 95 % intervals": (
        "throughput_per_s", "step_flops", "forward_flops", "backward_flops", "achieved_flops_per_s", "intensity",
    ),
    "Size and memory": ("parameters", "parameter_bytes", "peak_bytes", "activation_bytes", "launches_or_ops"),
}  # fmt: skip
#: Columns of the text table, most important first: key, head, width.
_TEXT_COLUMNS = (
    ("throughput_per_s", "throughput", 16),
    ("step_flops", "FLOPs", 10),
    ("achieved_flops_per_s", "achieved", 13),
    ("peak_bytes", "peak", 8),
    ("parameters", "params", 7),
    ("activation_bytes", "saved", 8),
    ("intensity", "FLOP/B", 7),
    ("launches_or_ops", "launched", 8),
)
_TIME_WIDTH = 23
#: Width of the longest bar.
_BAR_PX = 240
_NAMES = 24


def architectures_line(figures: ArchitectureFigures) -> str:
    """Each model's step time, in a line for a repr."""
    times = figures.table["median_ms"].items()
    return ", ".join(f"{escape.plain(name, 60)} {fmt.durations([ms])}" for name, ms in times)


def architectures_html(figures: ArchitectureFigures) -> str:
    """The comparison as tables and bars, with its pairs as sentences."""
    parts = [header(_title(figures), " · ".join(comparison_facts(figures)), *why_words(figures))]
    if len(figures.table):
        parts += [_shares_table(figures, by) for by in SHARED_BY]
        parts += [_figures_table(figures, caption, keys) for caption, keys in _TABLES.items()]
        parts.append(_pairs_table(figures))
    parts += [f'<p class="pf-small">{escape.html_sentence(note)}</p>' for note in figures.notes]
    return framed("".join(parts))


def architectures_page(figures: ArchitectureFigures) -> str:
    """The comparison as one self-contained HTML document."""
    return static_page(_title(figures), architectures_html(figures))


def architectures_text(figures: ArchitectureFigures, width: int = 100) -> str:
    """The comparison as text of at most `width` cells."""
    blocks = [
        [_title(figures), *escape.wrapped(escape.plain(" · ".join(comparison_facts(figures)), 2000), width)],
        _figures_lines(figures, width),
        _share_lines(figures, width),
        [line for words in why_words(figures) for line in escape.wrapped(escape.plain(words, 2000), width)],
        _pair_lines(figures, width),
        [line for note in figures.notes for line in escape.wrapped(escape.plain(note, 2000), width)],
    ]
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks if block)


def why_words(figures: ArchitectureFigures) -> tuple[str, ...]:
    """How much slower the slowest is than the fastest, and which kinds of layers account for it."""
    names = [escape.plain(name, 60) for name in figures.table.index]
    times = [(ms, place) for place, ms in enumerate(metric_values(figures, "median_ms")) if ms is not None]
    if len(times) < 2:
        return ()
    (least, fast), (most, slow) = min(times), max(times)
    if not _differ(figures, fast, slow):
        return (f"{names[slow]} and {names[fast]} show no detectable difference in time.",)
    more = []
    for part, taken in part_times(figures, "kind").items():
        (here, _), (there, _) = taken[slow], taken[fast]
        if here is not None and there is not None and here != there:
            more.append((here - there, part_mark("kind", part).word))
    first = f"{names[slow]} takes {fmt.duration(most - least)} more per step than {names[fast]}."
    if not more:
        return (first,)
    listed = (f"{word} {'−' if ms < 0 else '+'}{fmt.duration(abs(ms))}" for ms, word in sorted(more, reverse=True))
    return first, f"By kind of layer: {', '.join(listed)}."


def _differ(figures: ArchitectureFigures, *places: int) -> bool:
    """Whether the times of two architectures differ, if they were compared."""
    pair = {str(figures.table.index[place]) for place in places}
    compared = [row for row in figures.ratios.itertuples(index=False) if {str(row.a), str(row.b)} == pair]
    return all(map(told_apart, compared))


def _title(figures: ArchitectureFigures) -> str:
    size = len(figures.table)
    return "1 architecture" if size == 1 else f"{size} architectures compared"


def _times(figures: ArchitectureFigures) -> list[str]:
    """Median times with their intervals."""
    columns = (metric_values(figures, name) for name in ("median_ms", "ci_low_ms", "ci_high_ms"))
    return [
        fmt.interval(ms, None if low is None or high is None else (low, high))
        for ms, low, high in zip(*columns, strict=True)
    ]


def _figures_table(figures: ArchitectureFigures, caption: str, keys: Sequence[str]) -> str:
    written = [[_FORMS[METRICS[key].form](value) for value in metric_values(figures, key)] for key in keys]
    rows = [
        (tables.name(name), *map(escape.html, cells))
        for name, *cells in zip(figures.table.index, _times(figures), *written, strict=True)
    ]
    return tables.table(caption, ["architecture", "step time", *(METRICS[key].word for key in keys)], rows)


def _shares_table(figures: ArchitectureFigures, by: str) -> str:
    parts = part_times(figures, by)
    if not parts:
        return ""
    longest = max(sum(times[place][0] or 0.0 for times in parts.values()) for place in range(len(figures.table)))
    rows = []
    for place, (name, time) in enumerate(zip(figures.table.index, _times(figures), strict=True)):
        taken = [(part_mark(by, part), times[place][0] or 0.0) for part, times in parts.items()]
        bar = tables.bar(taken, longest, _BAR_PX) or fmt.UNKNOWN
        words = (escape.html(_share_words(*times[place])) for times in parts.values())
        rows.append((tables.name(name), time, bar, *words))
    heads = ["architecture", "step time", "", *(tables.keyed(part_mark(by, part)) for part in parts)]
    return tables.table(f"Where the time goes, by {SHARED_BY[by][0]}", heads, rows)


def _share_words(ms: float | None, share: float | None) -> str:
    return "none" if ms == 0 else f"{fmt.share(share)}, {fmt.duration(ms)}" if ms is not None else fmt.UNKNOWN


def _pairs_table(figures: ArchitectureFigures) -> str:
    rows = []
    for row in figures.ratios.itertuples(index=False):
        before, figure, after = (escape.html_sentence(words) for words in ratio_words(row, figures.equal_within))
        least = escape.html(fmt.share(smallest_detectable(row)))
        rows.append((f"{before} <strong>{figure}</strong> {after}", fmt.significant(row.p_holm), least))
    if not rows:
        return ""
    table = tables.table(
        "Pair by pair", ["", "p, corrected" if len(rows) > 1 else "p", "smallest detectable difference"], rows
    )
    return f'{table}<p class="pf-small">{escape.html_sentence(ratio_rule(figures))}</p>'


def _figures_lines(figures: ArchitectureFigures, width: int) -> list[str]:
    names = _names_width(figures)
    room = width - names - 1 - _TIME_WIDTH
    shown = []
    for key, head, wide in _TEXT_COLUMNS:
        if room >= wide + 1:
            shown.append((key, head, wide))
            room -= wide + 1
    columns = [
        [head, *(_FORMS[METRICS[key].form](value) for value in metric_values(figures, key))] for key, head, _ in shown
    ]
    lines = []
    for name, time, *cells in zip(["", *figures.table.index], ["step time", *_times(figures)], *columns, strict=True):
        rest = "".join(f" {cell:>{wide}}" for cell, (_, _, wide) in zip(cells, shown, strict=True))
        lines.append(f"{escape.fit(name, names)} {time:<{_TIME_WIDTH}}{rest}")
    return lines if len(figures.table) else []


def _share_lines(figures: ArchitectureFigures, width: int) -> list[str]:
    """For each architecture a bar as long as its time, and its parts in words, largest first."""
    names = _names_width(figures)
    kinds, phases = part_times(figures, "kind"), part_times(figures, "phase")
    sums = [sum(times[place][0] or 0.0 for times in kinds.values()) for place in range(len(figures.table))]
    longest = max([*sums, 1e-12])
    lines = ["where the time goes"] if kinds or phases else []
    for place, name in enumerate(figures.table.index if lines else ()):
        taken = [(part, times[place][0]) for part, times in kinds.items() if times[place][0]]
        cells = round((width - names - 1) * sums[place] / longest)
        bar = bars.stacked([part_mark("kind", part) for part, _ in taken], [ms or 0.0 for _, ms in taken], cells)
        lines.append(f"{escape.fit(name, names)} {bar or fmt.UNKNOWN}")
        for by, parts in (("kind", kinds), ("phase", phases)):
            shared = [(times[place][1] or 0.0, part_mark(by, part)) for part, times in parts.items() if times[place][0]]
            entries = [
                f"{mark.glyph + ' ' if by == 'kind' else ''}{mark.word} {fmt.share(share)}"
                for share, mark in sorted(shared, key=lambda entry: -entry[0])
            ]
            lines += _listed(entries, width)
    return lines


def _listed(entries: list[str], width: int) -> list[str]:
    """Comma-separated entries, indented, none broken."""
    lines: list[str] = []
    for place, entry in enumerate(entries):
        words = entry + ("," if place + 1 < len(entries) else "")
        if lines and escape.cells(lines[-1]) + 1 + escape.cells(words) <= width:
            lines[-1] += f" {words}"
        else:
            lines.append(f"  {words}")
    return lines


def _pair_lines(figures: ArchitectureFigures, width: int) -> list[str]:
    lines = []
    for row in figures.ratios.head(PAIRS_IN_TEXT).itertuples(index=False):
        sentence = " ".join(ratio_words(row, figures.equal_within, 40))
        lines += escape.wrapped(escape.plain(sentence, 2000), width)
    left = len(figures.ratios) - PAIRS_IN_TEXT
    lines += [f"… {left:,} more pairs"] if left > 0 else []
    return [*lines, *escape.wrapped(ratio_rule(figures), width)] if lines else []


def _names_width(figures: ArchitectureFigures) -> int:
    return min(_NAMES, max(8, *(escape.cells(escape.plain(name, _NAMES)) for name in figures.table.index), 8))


def architectures_widget(figures: ArchitectureFigures, view_id: str) -> Any:
    """Make the live view of a comparison."""
    from perfnb.models.widget import ArchitecturesWidget

    return ArchitecturesWidget(architectures_data(figures, view_id))
