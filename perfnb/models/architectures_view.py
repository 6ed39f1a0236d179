"""The comparison of architectures: what it shows, as text, as tables and bars without scripts, and as a payload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, palette, tables
from perfnb.draw.frame import framed, header, static_page
from perfnb.draw.palette import GREY, Mark
from perfnb.draw.tree import build_tree, split_layers
from perfnb.roofline.tab import flop_rate

if TYPE_CHECKING:
    from perfnb.models.architecture_figures import ArchitectureFigures

#: How the time is split up, in words, and how each part is drawn.
SHARED_BY: Mapping[str, tuple[str, Mapping[str, Mark]]] = {
    "kind": ("kind of layer", palette.KINDS),
    "phase": ("phase", palette.MARKS),
}

_LAYER_COLUMNS = ("forward_ms", "backward_ms", "recompute_ms", "total_ms", "self_ms", "share")
_NOWHERE = -1

#: What is shown of each architecture, by column of the table: its label and number format. ``step_flops`` is the sum of
#: both passes; only the step time has an interval.
METRICS: Mapping[str, tuple[str, str]] = {
    "median_ms": ("step time", "duration"),
    "throughput_per_s": ("throughput", "rate"),
    "step_flops": ("FLOPs per step", "flops"),
    "forward_flops": ("FLOPs, forward", "flops"),
    "backward_flops": ("FLOPs, backward", "flops"),
    "achieved_flops_per_s": ("achieved FLOP/s", "flop_rate"),
    "intensity": ("FLOP per byte moved", "intensity"),
    "peak_bytes": ("peak memory", "size"),
    "activation_bytes": ("saved for backward", "size"),
    "parameters": ("parameters", "count"),
    "parameter_bytes": ("parameter memory", "size"),
    "launches_or_ops": ("kernels or ops launched", "count"),
}
#: Most pairs listed in text.
PAIRS_IN_TEXT = 15

_FORMS: dict[str, Callable[[Any], str]] = {
    "duration": fmt.duration,
    "rate": lambda value: fmt.rate(value, "samples"),
    "flops": fmt.flops,
    "flop_rate": flop_rate,
    "intensity": fmt.significant,
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


def architectures_data(figures: ArchitectureFigures, view_id: str = "architectures") -> dict[str, Any]:
    """The payload of the live view; unknown figures are ``None``.

    Parameters
    ----------
    figures : ArchitectureFigures
    view_id : str
        Links the live view to its static twin, whose class is ``perfnb-static-<view_id>``.
    """
    names = [str(name) for name in figures.table.index]
    bounds = [_numbers(figures.table[name]) for name in ("ci_low_ms", "ci_high_ms")]
    return {
        "id": view_id,
        "names": [escape.plain(name) for name in names],
        "facts": _comparison_facts(figures),
        "metrics": [
            {
                "key": key,
                "word": word,
                "form": form,
                "values": _numbers(_metric_values(figures, key)),
                "bounds": bounds if key == "median_ms" else None,
            }
            for key, (word, form) in METRICS.items()
        ],
        "shares": [{"word": word, "parts": _shared(figures, by)} for by, (word, _) in SHARED_BY.items()],
        "ratios": [
            {
                "pair": [names.index(str(row.a)), names.index(str(row.b))],
                "ratio": fmt.short(row.ratio),
                "told": _told_apart(row),
                "words": ratio_words(row, figures.equal_within),
                "p": fmt.short(row.p_holm),
                "detectable": fmt.short(row.smallest_detectable),
            }
            for row in figures.ratios.itertuples(index=False)
        ],
        "rule": _ratio_rule(figures),
        "kinds": [_look(mark) for mark in palette.KINDS.values()],
        "trees": [_tree(figures.layers.get(name)) for name in names],
        "notes": [escape.plain(note, 2000) for note in figures.notes],
    }


def _comparison_facts(figures: ArchitectureFigures) -> list[str]:
    """What was compared, where and how often, each in a few words."""
    step = "training step" if figures.training else "inference, forward only"
    times = "once each" if figures.rounds == 1 else f"{figures.rounds:,} times each, interleaved"
    return [step, escape.plain(figures.batch), escape.plain(figures.device), f"measured {times}"]


def _metric_values(figures: ArchitectureFigures, key: str) -> list[float | None]:
    """A metric of each architecture, in table order."""
    table = figures.table
    if key != "step_flops":
        return [fmt.known(value) for value in table[key]]
    forward, backward = _metric_values(figures, "forward_flops"), _metric_values(figures, "backward_flops")
    if not figures.training:
        return forward
    return [None if a is None or b is None else a + b for a, b in zip(forward, backward, strict=True)]


def part_times(figures: ArchitectureFigures, by: str) -> dict[str, list[tuple[float | None, float | None]]]:
    """Milliseconds and share of each part in each architecture, in the order of `SHARED_BY`.

    A part that an architecture lacks takes no time; if it was not measured, all its parts are unknown. Parts that take
    no time anywhere are left out.
    """
    rows = figures.shares[figures.shares["by"] == by].itertuples(index=False)
    known = {(str(row.name), str(row.part)): (fmt.known(row.ms), fmt.known(row.share)) for row in rows}
    measured = {name for name, _ in known}
    order = list(SHARED_BY[by][1])
    taken = {part for (_, part), (ms, _) in known.items() if ms != 0}
    parts = sorted(taken, key=lambda part: order.index(part) if part in order else len(order))
    nothing = {True: (0.0, 0.0), False: (None, None)}
    names = [str(name) for name in figures.table.index]
    return {part: [known.get((name, part), nothing[name in measured]) for name in names] for part in parts}


def _part_mark(by: str, part: str) -> Mark:
    """How a part is drawn; an unknown one looks like ``other`` and keeps its name."""
    return SHARED_BY[by][1].get(part) or Mark(escape.plain(part, 40), GREY, "·", "none")


def ratio_words(row: Any, equal_within: float, width: int = 60) -> tuple[str, str, str]:
    """A pair as a sentence in three parts; the second is the figure."""
    a, b = escape.plain(row.a, width), escape.plain(row.b, width)
    ratio, low, high = fmt.known(row.ratio), fmt.known(row.ci_low), fmt.known(row.ci_high)
    if ratio is None:
        return f"{b} against {a}:", fmt.UNKNOWN, "not measured"
    if low is None or high is None:
        return f"{b} takes", fmt.ratio(ratio), f"the time of {a}: too few measurements for an interval"
    verdict = str(row.verdict)
    if verdict == "same":
        verdict = f"the same within {fmt.share(equal_within)}"
    elif verdict == "inconclusive" and not low <= 1 <= high:
        verdict = f"likely {'slower' if ratio > 1 else 'faster'}, but not significant after correction"
    elif verdict == "inconclusive":
        unseen = max(abs(low - 1), abs(high - 1))
        verdict = f"no detectable difference, but one of up to {fmt.share(unseen)} is possible"
    figure = f"{fmt.ratio(ratio)} [{fmt.significant(low)}, {fmt.significant(high)}]"
    return f"{b} takes", figure, f"the time of {a}: {escape.plain(verdict)}"


def _told_apart(row: Any) -> bool:
    """Whether the times of a pair differ by its verdict, or at least by its interval."""
    low, high = fmt.known(row.ci_low), fmt.known(row.ci_high)
    aside = low is not None and high is not None and not low <= 1 <= high
    return str(row.verdict) in ("faster", "slower") or (str(row.verdict) == "inconclusive" and aside)


def _ratio_rule(figures: ArchitectureFigures) -> str:
    """How to read the sentences about pairs."""
    pairs, same = len(figures.ratios), f"“the same” means within {fmt.share(figures.equal_within)}"
    if pairs < 2:
        return f"Brackets: 95 % interval; {same}."
    return f"Brackets: simultaneous 95 % intervals for all {pairs} pairs; {same}; verdicts are corrected (Holm)."


def _shared(figures: ArchitectureFigures, by: str) -> list[dict[str, Any]]:
    return [
        {
            **_look(_part_mark(by, part)),
            "ms": _numbers(ms for ms, _ in times),
            "share": _numbers(share for _, share in times),
        }
        for part, times in part_times(figures, by).items()
    ]


def _look(mark: Mark) -> dict[str, str]:
    return {"word": mark.word, "colour": mark.colour, "pattern": mark.pattern}


def _tree(layers: pd.DataFrame | None) -> dict[str, Any] | None:
    """A model's layers; ``kind`` is an index into the kinds, -1 for none."""
    if layers is None or not len(layers):
        return None
    modules, special = split_layers(layers)
    rows = pd.concat([modules, special])
    tree = build_tree(modules)
    places = {kind: place for place, kind in enumerate(palette.KINDS)}
    return {
        "label": [escape.plain(label) for label in (*tree.labels, *map(str, special.index))],
        "parent": [*tree.parents, *[_NOWHERE] * len(special)],
        "module": [None if pd.isna(kind) else escape.plain(kind) for kind in rows["module"]],
        "kind": [_NOWHERE if pd.isna(kind) else places.get(str(kind), _NOWHERE) for kind in rows["kind"]],
        "modules": len(modules),
        **{name: _numbers(rows[name]) for name in _LAYER_COLUMNS},
    }


def _numbers(values: Iterable[Any]) -> list[float | None]:
    return [fmt.short(value) for value in values]


def architectures_line(figures: ArchitectureFigures) -> str:
    """Each model's step time, in a line for a repr."""
    times = figures.table["median_ms"].items()
    return ", ".join(f"{escape.plain(name, 60)} {fmt.duration(ms)}" for name, ms in times)


def architectures_html(figures: ArchitectureFigures) -> str:
    """The comparison as tables and bars, with its pairs as sentences."""
    parts = [header(_title(figures), " · ".join(_comparison_facts(figures)), *why_words(figures))]
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
        [_title(figures), *escape.wrapped(escape.plain(" · ".join(_comparison_facts(figures)), 2000), width)],
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
    times = [(ms, place) for place, ms in enumerate(_metric_values(figures, "median_ms")) if ms is not None]
    if len(times) < 2:
        return ()
    (least, fast), (most, slow) = min(times), max(times)
    if not _differ(figures, fast, slow):
        return (f"{names[slow]} and {names[fast]} show no detectable difference in time.",)
    more = []
    for part, taken in part_times(figures, "kind").items():
        (here, _), (there, _) = taken[slow], taken[fast]
        if here is not None and there is not None and here != there:
            more.append((here - there, _part_mark("kind", part).word))
    first = f"{names[slow]} takes {fmt.duration(most - least)} more per step than {names[fast]}."
    if not more:
        return (first,)
    listed = (f"{word} {'−' if ms < 0 else '+'}{fmt.duration(abs(ms))}" for ms, word in sorted(more, reverse=True))
    return first, f"By kind of layer: {', '.join(listed)}."


def _differ(figures: ArchitectureFigures, *places: int) -> bool:
    """Whether the times of two architectures differ, if they were compared."""
    pair = {str(figures.table.index[place]) for place in places}
    compared = [row for row in figures.ratios.itertuples(index=False) if {str(row.a), str(row.b)} == pair]
    return all(map(_told_apart, compared))


def _title(figures: ArchitectureFigures) -> str:
    size = len(figures.table)
    return "1 architecture" if size == 1 else f"{size} architectures compared"


def _times(figures: ArchitectureFigures) -> list[str]:
    """Median times with their intervals."""
    rows = figures.table[["median_ms", "ci_low_ms", "ci_high_ms"]].itertuples(index=False)
    return [fmt.interval(ms, (low, high)) for ms, low, high in rows]


def _written(figures: ArchitectureFigures, key: str) -> list[str]:
    form = _FORMS[METRICS[key][1]]
    return [form(value) for value in _metric_values(figures, key)]


def _figures_table(figures: ArchitectureFigures, caption: str, keys: Sequence[str]) -> str:
    written = [_written(figures, key) for key in keys]
    rows = [
        (tables.name(name), *map(escape.html, cells))
        for name, *cells in zip(figures.table.index, _times(figures), *written, strict=True)
    ]
    return tables.table(caption, ["architecture", "step time", *(METRICS[key][0] for key in keys)], rows)


def _shares_table(figures: ArchitectureFigures, by: str) -> str:
    parts = part_times(figures, by)
    if not parts:
        return ""
    longest = max(sum(times[place][0] or 0.0 for times in parts.values()) for place in range(len(figures.table)))
    rows = []
    for place, (name, time) in enumerate(zip(figures.table.index, _times(figures), strict=True)):
        taken = [(_part_mark(by, part), times[place][0] or 0.0) for part, times in parts.items()]
        bar = tables.bar(taken, longest, _BAR_PX) or fmt.UNKNOWN
        words = (escape.html(_share_words(*times[place])) for times in parts.values())
        rows.append((tables.name(name), time, bar, *words))
    heads = ["architecture", "step time", "", *(tables.keyed(_part_mark(by, part)) for part in parts)]
    return tables.table(f"Where the time goes, by {SHARED_BY[by][0]}", heads, rows)


def _share_words(ms: float | None, share: float | None) -> str:
    return "none" if ms == 0 else f"{fmt.share(share)}, {fmt.duration(ms)}" if ms is not None else fmt.UNKNOWN


def _pairs_table(figures: ArchitectureFigures) -> str:
    rows = []
    for row in figures.ratios.itertuples(index=False):
        before, figure, after = (escape.html_sentence(words) for words in ratio_words(row, figures.equal_within))
        least = escape.html(fmt.share(row.smallest_detectable))
        rows.append((f"{before} <strong>{figure}</strong> {after}", fmt.significant(row.p_holm), least))
    if not rows:
        return ""
    table = tables.table(
        "Pair by pair", ["", "p, corrected" if len(rows) > 1 else "p", "smallest detectable difference"], rows
    )
    return f'{table}<p class="pf-small">{escape.html_sentence(_ratio_rule(figures))}</p>'


def _figures_lines(figures: ArchitectureFigures, width: int) -> list[str]:
    names = _names_width(figures)
    room = width - names - 1 - _TIME_WIDTH
    shown = []
    for key, head, wide in _TEXT_COLUMNS:
        if room >= wide + 1:
            shown.append((key, head, wide))
            room -= wide + 1
    columns = [[head, *_written(figures, key)] for key, head, _ in shown]
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
        bar = bars.stacked([_part_mark("kind", part) for part, _ in taken], [ms or 0.0 for _, ms in taken], cells)
        lines.append(f"{escape.fit(name, names)} {bar or fmt.UNKNOWN}")
        for by, parts in (("kind", kinds), ("phase", phases)):
            shared = [
                (times[place][1] or 0.0, _part_mark(by, part)) for part, times in parts.items() if times[place][0]
            ]
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
    return [*lines, *escape.wrapped(_ratio_rule(figures), width)] if lines else []


def _names_width(figures: ArchitectureFigures) -> int:
    return min(_NAMES, max(8, *(escape.cells(escape.plain(name, _NAMES)) for name in figures.table.index), 8))
