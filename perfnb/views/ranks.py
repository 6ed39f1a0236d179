"""Several ranks as text and as HTML without scripts: what each did per step, and who held the others up."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfnb.analysis.ranks import RanksSummary
from perfnb.views import escape, tables
from perfnb.views import format as fmt
from perfnb.views.assets import static_style

#: Most ranks that are listed.
_MOST = 64
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
    widths = [max(len(head), 10) for head in heads]
    room = max(10, width - 6 - sum(widths) - len(widths) - 2)
    lines = [
        f"perfnb · {len(summary.names):,} ranks · mean of a step",
        f"{'rank':>5} {'':<{room}}{''.join(f' {head:>{w}}' for head, w in zip(heads, widths, strict=True))}",
        "─" * width,
    ]
    for rank, row in means.head(_MOST).iterrows():
        figures = "".join(f" {value:>{w}}" for value, w in zip(_figures(row), widths, strict=True))
        lines.append(f"{rank:>5} {escape.fit(escape.plain(row['name'], room), room)}{figures}")
    if len(means) > _MOST:
        lines.append(f"… {len(means) - _MOST:,} more")
    notes = [_LEGEND, *summary.notes]
    wrapped = [escape.wrapped(escape.plain(note, 2000), width - 2) for note in notes]
    said = [f"{'  ' if i else '• '}{line}" for note in wrapped for i, line in enumerate(note)]
    return "\n".join([*(line.rstrip() for line in lines), "", "Notes", *said])


def ranks_html(summary: RanksSummary) -> str:
    """The same as a table."""
    means = _means(summary)
    rows = [
        (escape.html(str(rank)), escape.html(row["name"], 60), *map(escape.html, _figures(row)))
        for rank, row in means.head(_MOST).iterrows()
    ]
    caption = f"{len(summary.names):,} ranks, mean of a step"
    if len(means) > _MOST:
        caption += f" ({len(means) - _MOST:,} more are not listed)"
    table = tables.table(caption, ["rank", "file", *_COLUMNS.values(), "clock"], rows)
    notes = "".join(f"<li>{escape.html_sentence(note)}</li>" for note in [_LEGEND, *summary.notes])
    return (
        f'<div class="perfnb-static"><style>{static_style()}</style>{table}'
        f"<p><strong>Notes</strong></p><ul>{notes}</ul></div>"
    )


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
