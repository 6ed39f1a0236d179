"""How well a job scales: a sentence, a table, efficiency against ranks, and what the loss is made of."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, palette, tables
from perfnb.draw.frame import framed, header
from perfnb.draw.palette import Mark
from perfnb.draw.picture import LINE, QUIET, picture_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfnb.launching.scaling_figures import RankScalingFigures

_INCHES = (6.6, 2.6)
_PARTS = {
    "ideal": Mark("perfect scaling", palette.LIGHT, "·", "none"),
    "compute": Mark("slower computing", palette.BLUE, "█", "solid"),
    "communication": Mark("exposed communication", palette.SKY, "≈", "rising"),
    "imbalance": Mark("waiting for the slowest rank", palette.YELLOW, "▒", "columns"),
    "input": Mark("input", palette.ORANGE, "░", "dots"),
}
_HEADS = ("job", "step", "speed-up", "efficiency", "vs no DDP", "vs 1 proc")
_LOST = ("ranks", "step", "perfect", "computing", "communication", "imbalance", "input")


def rank_scaling_line(figures: RankScalingFigures) -> str:
    """``2 ranks: efficiency 83 % [80, 86], strong scaling``."""
    last = figures.table[figures.table["efficiency"].notna()].iloc[-1]
    return f"{last.name}: efficiency {_percents(last, 'efficiency')}, {figures.mode} scaling"


def rank_scaling_sentences(figures: RankScalingFigures) -> list[str]:
    """The result, what it compares, and what it does not say."""
    same = "the same batch for all ranks together" if figures.mode == "strong" else "the same batch for each rank"
    runs = "once" if figures.rounds == 1 else f"{figures.rounds:,} times"
    threads = int(figures.table["threads"].iloc[0])
    return [
        f"{rank_scaling_line(figures)} ({same}).",
        f"Each job ran {runs}, with {fmt.counted(threads, 'thread')} for each rank, on "
        f"{fmt.counted(figures.cores, 'core')}. "
        "Speed-up and efficiency are against one rank of the same code and threads. Nothing is extrapolated.",
        "vs 1 proc: against one process with all cores. Losses: shares of the traced steps, applied to the timed ones.",
        *figures.notes,
    ]


def rank_scaling_text(figures: RankScalingFigures, width: int = 100) -> str:
    """The study as text."""
    lines = [line for sentence in rank_scaling_sentences(figures) for line in escape.wrapped(sentence, width)]
    lines += ["", _aligned((_HEADS, *_rows(figures)))]
    lines += ["", "Time of a step, and what exceeds perfect scaling", _aligned((_LOST, *_lost(figures)))]
    for ranks, row in figures.losses.iterrows():
        parts = _stack(row)
        lines.append(f"{ranks:>5} {bars.stacked([mark for mark, _ in parts], [ms for _, ms in parts], width - 6)}")
    words = [f"{mark.glyph} {mark.word}" for mark in _PARTS.values()]
    lines += ["   ".join(words[:3]), "   ".join(words[3:])]
    return "\n".join(lines)


def rank_scaling_html(figures: RankScalingFigures) -> str:
    """The study as sentences, pictures and tables."""
    first, *rest = rank_scaling_sentences(figures)
    alt = f"Efficiency against the number of ranks, and the parts of a step; {rank_scaling_line(figures)}"
    return framed(
        f"{header('Scaling over ranks', f'{figures.mode} scaling', first, *rest)}"
        f"<p>{picture_html(functools.partial(_draw, figures=figures), _INCHES, alt)}</p>"
        f"{tables.table('Jobs', _HEADS, [[escape.html(cell) for cell in row] for row in _rows(figures)])}"
        f"{tables.table('What exceeds perfect scaling', _LOST, [list(row) for row in _lost(figures)])}"
    )


def _percents(row: object, name: str) -> str:
    value, low, high = (row[key] for key in (name, f"{name}_low", f"{name}_high"))  # type: ignore[index]
    said = fmt.share(value)
    return said if fmt.known(low) is None else f"{said} [{100 * low:.0f}, {100 * high:.0f}]"


def _times(value: object, low: object = None, high: object = None) -> str:
    known, least, most = fmt.known(value), fmt.known(low), fmt.known(high)
    if known is None:
        return "n/a"
    return f"{known:.2f} ×" + ("" if least is None or most is None else f" [{least:.2f}, {most:.2f}]")


def _rows(figures: RankScalingFigures) -> list[tuple[str, ...]]:
    return [
        (
            str(job),
            fmt.interval(row["step_ms"], (row["ci_low_ms"], row["ci_high_ms"])),
            _times(row["speedup"], row["speedup_low"], row["speedup_high"]),
            _percents(row, "efficiency"),
            _times(row["against_plain"]),
            _times(row["against_best"]),
        )
        for job, row in figures.table.iterrows()
    ]


def _lost(figures: RankScalingFigures) -> list[tuple[str, ...]]:
    names = ("step_ms", "ideal_ms", "compute_ms", "communication_ms", "imbalance_ms", "input_ms")
    return [(f"{ranks}", *(_signed(row[name]) for name in names)) for ranks, row in figures.losses.iterrows()]


def _signed(ms: object) -> str:
    known = fmt.known(ms)
    if known is None:
        return "n/a"
    return f"−{fmt.duration(-known)}" if known < 0 else fmt.duration(known)


def _stack(row: object) -> list[tuple[Mark, float]]:
    """The parts of a step's bar; a part that became shorter is left out."""
    found = [(mark, fmt.known(row[f"{name}_ms"]) or 0.0) for name, mark in _PARTS.items()]  # type: ignore[index]
    return [(mark, max(0.0, ms)) for mark, ms in found]


def _aligned(rows: tuple[tuple[str, ...], ...]) -> str:
    widths = [max(map(escape.cells, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = (
            (cell.ljust if place == 0 else cell.rjust)(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]))
    return "\n".join(lines)


def _draw(figure: Figure, figures: RankScalingFigures) -> None:
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": (2, 3), "wspace": 0.35})
    known = figures.table[figures.table["efficiency"].notna()]
    ranks, efficiency, low, high = (
        known[name].to_numpy(dtype=float, na_value=np.nan)
        for name in ("ranks", "efficiency", "efficiency_low", "efficiency_high")
    )
    left.axhline(100, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
    left.plot(ranks, 100 * efficiency, marker="o", markersize=4, color=palette.BLUE, linewidth=1.2)
    seen = np.isfinite(low)
    left.vlines(ranks[seen], 100 * low[seen], 100 * high[seen], color=palette.BLUE, linewidth=1)
    left.set_xticks(ranks, [f"{one:g}" for one in ranks])
    left.set_ylim(0, max(110.0, 105 * float(np.nanmax([efficiency.max(), *high[seen]]))))
    left.set_xlabel("ranks")
    left.set_ylabel("efficiency, %")
    left.grid(color=LINE, linewidth=0.5)
    places = np.arange(len(figures.losses))
    begin = np.zeros(len(places))
    stacks = [_stack(row) for _, row in figures.losses.iterrows()]
    for number, mark in enumerate(_PARTS.values()):
        sizes = np.array([stack[number][1] for stack in stacks])
        hatch = {"rising": "//", "columns": "||", "dots": ".."}.get(mark.pattern)
        right.barh(places, sizes, left=begin, color=mark.colour, hatch=hatch, edgecolor="white", label=mark.word)
        begin += sizes
    right.set_yticks(places, [f"{one} ranks" for one in figures.losses.index])
    right.set_ylim(-0.6, len(places) - 0.4)
    right.set_xlabel("ms per step")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=6, frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
