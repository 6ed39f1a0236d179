"""One step of all ranks on one clock, and who waited for whom: a picture that no other section can show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.document import Picture
from perfnb.draw.palette import Mark
from perfnb.ranks.lanes import StepLanes

#: Most ranks and collectives that are drawn.
_MOST, _MOST_LINES = 64, 40
#: Width of pictures, room for the ranks' numbers, and the height of all lanes or rows within bounds.
_WIDTH, _LEFT, _LOW, _HIGH, _ALL = 900, 46, 9, 26, 640
_LINES = (
    "Lines join the arrivals of the ranks at a collective, a dot marks the last; the rank above or below it that is "
    "farthest to the left waited longest."
)


def lanes_picture(lanes: StepLanes) -> Picture:
    """What each rank did when, in one step on one clock."""
    title = f"Step {lanes.step:,} of all ranks on one clock, {fmt.duration(lanes.span_ms)}"
    return Picture(
        "lanes",
        title,
        lambda width: _lanes_text(lanes, width),
        lambda: _lanes_html(lanes, title),
        lambda: _lanes_html(lanes, title),
        "ranks/js/lanes.js",
    )


def _lanes_text(lanes: StepLanes, width: int) -> list[str]:
    """A bar of signs per rank, and who was last at the collective that was waited for longest."""
    room = max(20, width - 7)
    lines = []
    ranks = _ranks(lanes)
    for rank in ranks[:_MOST]:
        signs = [" "] * room
        mine, scale = lanes.lanes[lanes.lanes["rank"] == rank], room / max(lanes.span_ms, 1e-9)
        places = (
            (mine[name].to_numpy(dtype=float) * scale).astype(np.int64).tolist() for name in ("start_ms", "end_ms")
        )
        for part, first, last in zip(mine["part"].tolist(), *places, strict=True):
            for place in range(min(first, room - 1), min(max(last, first + 1), room)):
                signs[place] = _mark(str(part)).glyph
        lines.append(f"{rank:>5} {''.join(signs)}".rstrip())
    if len(ranks) > _MOST:
        lines.append(f"… {len(ranks) - _MOST:,} more")
    seen = dict.fromkeys(_mark(str(part)) for part in lanes.lanes["part"])
    lines += escape.wrapped("  ".join(f"{mark.glyph} {mark.word}" for mark in seen), width)
    longest = _longest(lanes)
    return [*lines, *escape.wrapped(longest, width)] if longest else lines


def _lanes_html(lanes: StepLanes, title: str) -> str:
    """The same as a picture, with a line for each collective from its first to its last arrival."""
    ranks = _ranks(lanes)[:_MOST]
    high = _high(len(ranks))
    top = {rank: place * high for place, rank in enumerate(ranks)}
    scale = (_WIDTH - _LEFT) / max(lanes.span_ms, 1e-9)
    drawn = [_rank_label(rank, top[rank], high) for rank in ranks]
    for (rank, part), rows in lanes.lanes.groupby(["rank", "part"], sort=False):
        if rank in top:
            boxes = zip(rows["start_ms"], rows["end_ms"], strict=True)
            path = "".join(_box(_LEFT + a * scale, top[rank] + 1, (b - a) * scale, high - 2) for a, b in boxes)
            mark = _mark(str(part))
            drawn.append(f'<path d="{path}" fill="{mark.colour}"><title>{escape.html(mark.word)}</title></path>')
    for rows in _joined(lanes):
        places = [(top[rank], _LEFT + at * scale) for rank, at in zip(rows["rank"], rows["at_ms"], strict=True)
                  if rank in top]  # fmt: skip
        places.sort()
        if not places:
            continue
        line = "L".join(f"{x:.1f} {y + high / 2:.1f}" for y, x in places)
        last = rows[rows["is_last"]].iloc[0]
        said = f"{last['kind']}: rank {last['rank']} was last, {fmt.duration(rows['waiting_ms'].max())} after the first"
        dot = ""
        if last["rank"] in top:
            at, y = _LEFT + last["at_ms"] * scale, top[last["rank"]] + high / 2
            dot = f'<circle cx="{at:.1f}" cy="{y:.1f}" r="2.5" fill="currentColor"/>'
        title = f"<title>{escape.html(said)}</title>"
        drawn.append(f'<path d="M{line}" fill="none" stroke="currentColor">{title}</path>{dot}')
    longest = _longest(lanes)
    seen = dict.fromkeys(_mark(str(part)) for part in lanes.lanes["part"])
    keys = " &nbsp; ".join(
        f"{tables.key(replace(mark, pattern='solid'))}&nbsp;{escape.html(mark.word)}" for mark in seen
    )
    lines = escape.html_sentence(_LINES) if len(lanes.arrivals) else ""
    picture = _svg(drawn, high * len(ranks), f"{title}. {longest}")
    return f'{picture}<p>{keys}</p><p class="pf-small">{escape.html_sentence(longest)} {lines}</p>'


def _longest(lanes: StepLanes) -> str:
    """The collective of the step that was waited for longest, in words."""
    if not len(lanes.arrivals):
        return ""
    place = lanes.arrivals["place"].iloc[int(lanes.arrivals["waiting_ms"].to_numpy().argmax())]
    rows = lanes.arrivals[lanes.arrivals["place"] == place]
    last, first = rows[rows["is_last"]].iloc[0], rows.iloc[int(rows["at_ms"].to_numpy().argmin())]
    if not rows["waiting_ms"].max() > 0:
        return ""
    return (
        f"Waited for longest: {escape.plain(last['kind'], 40)}, reached by rank {first['rank']} at "
        f"{fmt.duration(first['at_ms'])} and by rank {last['rank']}, the last, at {fmt.duration(last['at_ms'])}."
    )


def _joined(lanes: StepLanes) -> list[pd.DataFrame]:
    """The arrivals at each collective, of those that were waited for longest."""
    if not len(lanes.arrivals):
        return []
    longest = lanes.arrivals.groupby("place")["waiting_ms"].max().nlargest(_MOST_LINES)
    return [lanes.arrivals[lanes.arrivals["place"] == place] for place in longest.index]


def _ranks(lanes: StepLanes) -> list[int]:
    return sorted({int(rank) for rank in lanes.lanes["rank"]})


def _mark(part: str) -> Mark:
    return palette.RANK_PARTS.get(part) or palette.mark(part)


def _high(count: int) -> float:
    return float(min(_HIGH, max(_LOW, _ALL / max(count, 1))))


def _rank_label(rank: object, y: float, high: float) -> str:
    size = min(11.0, high)
    return (
        f'<text x="{_LEFT - 6}" y="{y + high / 2 + size / 3:.1f}" font-size="{size:.1f}" text-anchor="end" '
        f'fill="currentColor">{escape.html(rank)}</text>'
    )


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.1f} {y:.1f}h{max(width, 0.3):.1f}v{height:.1f}h-{max(width, 0.3):.1f}z"


def _svg(drawn: list[str], height: float, said: str) -> str:
    look = f'style="width:100%;max-width:{_WIDTH}px"'
    words = escape.html_sentence(said)
    return f'<svg role="img" aria-label="{words}" viewBox="0 0 {_WIDTH} {height:.0f}" {look}>{"".join(drawn)}</svg>'
