"""Several ranks as text and as HTML without scripts: what each did per step, and who held the others up."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header
from perfnb.ranks.notes import distinct_names, rank_notes, ranks_count
from perfnb.ranks.tables import RanksSummary

#: Most ranks that are listed.
_MOST = 64
#: Width of the longest bar.
_BAR_PX = 400
_COLUMNS = {
    "wall_ms": "step",
    "computation_ms": "computing",
    "communication_ms": "communicating",
    "exposed_ms": "alone",
    "waiting_ms": "waiting",
    "idle_ms": "GPU idle",
}
_LEGEND = (
    "alone: communicating while not computing; waiting: in collectives, for the last rank to come; "
    f"{fmt.UNKNOWN}: not known"
)


def ranks_text(summary: RanksSummary, width: int = 100) -> str:
    """A line for each rank, mean over its steps, and what to know about them."""
    means = _means(summary)
    heads = [*_COLUMNS.values(), "clock"]
    widths = [max(len(head), 9) for head in heads]
    room = max(10, width - 6 - sum(widths) - len(widths) - 2)
    lines = [
        f"perfnb · {ranks_count(len(summary.names))} · mean of a step",
        f"{'rank':>5} {'':<{room}}{''.join(f' {head:>{w}}' for head, w in zip(heads, widths, strict=True))}",
        "─" * width,
    ]
    names = distinct_names(list(means["name"].head(_MOST)), room)
    for name, (rank, row) in zip(names, means.head(_MOST).iterrows(), strict=True):
        figures = "".join(f" {value:>{w}}" for value, w in zip(_figures(row), widths, strict=True))
        lines.append(f"{rank:>5} {escape.fit(name, room)}{figures}")
    if len(means) > _MOST:
        lines.append(f"… {len(means) - _MOST:,} more")
    notes = [_LEGEND, *rank_notes(summary)]
    wrapped = [escape.wrapped(escape.plain(note, 2000), width - 2) for note in notes]
    said = [f"{'  ' if i else '• '}{line}" for note in wrapped for i, line in enumerate(note)]
    return "\n".join([*(line.rstrip() for line in lines), "", "Notes", *said])


def ranks_html(summary: RanksSummary) -> str:
    """The same as a table."""
    means = _means(summary)
    names = distinct_names(list(means["name"].head(_MOST)), 60)
    rows = [
        (escape.html(str(rank)), _file(row["name"], name), *map(escape.html, _figures(row)))
        for name, (rank, row) in zip(names, means.head(_MOST).iterrows(), strict=True)
    ]
    count = ranks_count(len(summary.names))
    caption = f"{count}, mean of a step"
    if len(means) > _MOST:
        caption += f" ({len(means) - _MOST:,} more are not listed)"
    table = tables.table(caption, ["rank", "file", *_COLUMNS.values(), "clock"], rows, texts=2)
    notes = "".join(f"<li>{escape.html_sentence(note)}</li>" for note in [_LEGEND, *rank_notes(summary)])
    size = summary.doubts.world_size
    of = f" of {size:,}" if summary.doubts.absent else ""
    head = header(f"{count}{of}", "what each did, and who waited for whom")
    return framed(f"{head}{_bars(summary)}{table}<p><strong>Notes</strong></p><ul>{notes}</ul>", narrow=True)


def _file(name: object, shown: str) -> str:
    return f'<bdi title="{escape.html(name)}">{escape.html(shown)}</bdi>'


def _bars(summary: RanksSummary) -> str:
    """A bar for each rank, all to one scale."""
    parts = summary.parts.head(_MOST)
    longest = fmt.known(parts.sum(axis=1).max()) or 0.0
    if not longest:
        return ""
    rows = [
        (escape.html(str(rank)), _bar(row, longest), "waited for by the others" if rank == summary.straggler else "")
        for rank, row in parts.iterrows()
    ]
    keys = " &nbsp; ".join(tables.keyed(mark) for mark in palette.RANK_PARTS.values())
    bars = tables.table("What the GPUs did in the mean step, without copies", ["rank", "", ""], rows, texts=3)
    return f"{bars}<p>{keys}</p>"


def _bar(row: Any, longest: float) -> str:
    lengths = {name: fmt.known(row[name]) or 0.0 for name in palette.RANK_PARTS}
    total = sum(lengths.values())
    if total <= 0:
        return fmt.UNKNOWN
    marks = palette.RANK_PARTS.items()
    words = ", ".join(f"{mark.word} {fmt.duration(lengths[name])}" for name, mark in marks if lengths[name] > 0)
    pieces = "".join(
        f'<i class="pf-{mark.pattern}" style="width:{100 * lengths[name] / total:.2f}%;background-color:{mark.colour}">'
        "</i>"
        for name, mark in marks
        if lengths[name] > 0
    )
    width = max(1, round(_BAR_PX * total / longest))
    return f'<div class="pf-bar" role="img" title="{words}" aria-label="{words}" style="width:{width}px">{pieces}</div>'


def _means(summary: RanksSummary) -> pd.DataFrame:
    means = summary.times.groupby("rank")[list(_COLUMNS)].mean()
    means = means.reindex(list(summary.names))
    return means.assign(
        name=list(summary.names.values()), ahead_us=summary.clocks["ahead_us"].reindex(means.index).array
    )


def _figures(row: Any) -> list[str]:
    ahead = fmt.known(row["ahead_us"])
    clock = fmt.UNKNOWN if ahead is None else f"{'+' if ahead > 0 else ''}{fmt.duration(ahead / 1e3)}"
    return [*(fmt.duration(row[column]) for column in _COLUMNS), clock]
