"""Draw one step of all ranks on a common clock, and show which ranks waited for others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, svg, tables
from perfnb.draw.document import Picture
from perfnb.draw.palette import Mark
from perfnb.ranks.lanes import StepLanes

#: The maximum numbers of ranks and collectives in the picture.
_MOST, _MOST_LINES = 64, 40
#: The width of the picture, the width of the column of rank numbers, and the minimum and maximum height of a lane.
_WIDTH, _LEFT, _LOW, _HIGH = 900, 46, 11, 26
#: The maximum height of all lanes, unless they have their minimum height.
_ALL = 640
_LINES = "Each line joins the arrivals of the ranks at a collective, and its dot marks the last arrival."


def lanes_picture(lanes: StepLanes) -> Picture:
    """Return a picture of one step of all ranks on a common clock."""
    title = f"Step {lanes.step:,} of all ranks on a common clock, {fmt.duration(lanes.span_ms)}"
    return Picture("lanes", title, lambda width: _lanes_text(lanes, width), lambda: _lanes_html(lanes, title))


def _lanes_text(lanes: StepLanes, width: int) -> list[str]:
    """Draw a bar of characters for each rank, and describe the collective with the longest wait."""
    room, lines = max(20, width - 7), []
    scale = room / max(lanes.span_ms, 1e-9)
    for rank in _ranks(lanes):
        signs, rows = [" "] * room, lanes.lanes[lanes.lanes["rank"] == rank]
        places = ((rows[name].astype(float) * scale).astype(int) for name in ("start_ms", "end_ms"))
        for part, first, last in zip(rows["part"], *places, strict=True):
            for place in range(min(first, room - 1), min(max(last, first + 1), room)):
                signs[place] = _mark(part).glyph
        lines.append(f"{rank:>5} {''.join(signs)}".rstrip())
    lines += escape.wrapped("  ".join(f"{mark.glyph} {mark.word}" for mark in _marks(lanes)), width)
    return [*lines, *escape.wrapped(_longest(lanes), width)]


def _lanes_html(lanes: StepLanes, title: str) -> str:
    """Draw the lanes as a picture, with a line that joins the arrivals at each collective."""
    ranks = _ranks(lanes)
    high = min(_HIGH, max(_LOW, _ALL / len(ranks)))
    top: dict[Any, float] = {rank: place * high for place, rank in enumerate(ranks)}
    scale = (_WIDTH - _LEFT) / max(lanes.span_ms, 1e-9)
    drawn = [svg.label(_LEFT - 6, top[rank] + high / 2 + 4, "end", str(rank)) for rank in ranks]
    for (rank, part), rows in lanes.lanes[lanes.lanes["rank"].isin(ranks)].groupby(["rank", "part"], sort=False):
        boxes = zip(rows["start_ms"], rows["end_ms"], strict=True)
        path = "".join(svg.box(_LEFT + a * scale, top[rank] + 1, (b - a) * scale, high - 2) for a, b in boxes)
        mark = _mark(part)
        drawn.append(f'<path d="{path}" fill="{mark.colour}"><title>{escape.html(mark.word)}</title></path>')
    arrivals = lanes.arrivals[lanes.arrivals["rank"].isin(ranks)].sort_values("rank")
    longest = arrivals.groupby("place")["waiting_ms"].max().nlargest(_MOST_LINES)
    for place, waited in longest.items():
        rows = arrivals[arrivals["place"] == place]
        x, y = _LEFT + rows["at_ms"] * scale, rows["rank"].map(top) + high / 2
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
        last = int(rows["at_ms"].to_numpy().argmax())
        arrived = f"{rows['kind'].iloc[last]}: rank {rows['rank'].iloc[last]} arrived last"
        words = escape.html(f"{arrived}, {fmt.duration(waited)} after the first")
        drawn.append(f'<path d="M{path}" fill="none" stroke="currentColor"><title>{words}</title></path>')
        drawn.append(f'<circle cx="{x.iloc[last]:.1f}" cy="{y.iloc[last]:.1f}" r="2.5" fill="currentColor"/>')
    keys = " &nbsp; ".join(f"{tables.key(mark)}&nbsp;{escape.html(mark.word)}" for mark in _marks(lanes))
    said = escape.html_sentence(f"{_longest(lanes)} {_LINES}") if len(longest) else ""
    picture = svg.picture(drawn, _WIDTH, high * len(ranks), title)
    return f'{picture}<p>{keys}</p><p class="pf-small">{said}</p>'


def _longest(lanes: StepLanes) -> str:
    """Return a sentence about the collective with the step's longest wait."""
    arrivals = lanes.arrivals
    if not arrivals["waiting_ms"].max() > 0:
        return ""
    place = arrivals.nlargest(1, "waiting_ms")["place"].iloc[0]
    rows = arrivals[arrivals["place"] == place].sort_values("at_ms", kind="stable")
    first, last = rows.iloc[0], rows.iloc[-1]
    return (
        f"Longest wait: {escape.plain(last['kind'], 40)}, at which rank {first['rank']} arrived first after "
        f"{fmt.duration(first['at_ms'])}, and rank {last['rank']} last after {fmt.duration(last['at_ms'])}."
    )


def _ranks(lanes: StepLanes) -> list[int]:
    return sorted({int(rank) for rank in lanes.lanes["rank"]})[:_MOST]


def _marks(lanes: StepLanes) -> list[Mark]:
    """Return the marks of all parts. They have no patterns, because the lanes are too small for patterns."""
    return [replace(_mark(part), pattern="solid") for part in dict.fromkeys(lanes.lanes["part"])]


def _mark(part: object) -> Mark:
    return palette.RANK_PARTS.get(str(part)) or palette.mark(str(part))
