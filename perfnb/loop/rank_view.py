"""The runs of several ranks as text and as static HTML."""

from __future__ import annotations

from collections.abc import Iterator

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.frame import framed, header
from perfnb.loop.rank_figures import RankFigures

#: Most ranks listed.
_MOST = 64
_HEADS = ("step (median)", "waiting for data", "working", "between steps")
_CAUTION = (
    "Ranks that exchange gradients all take as long as the slowest: the others wait for it while they work. What each "
    "waits for in collectives, perfnb ranks shows of their profiles or traces."
)


def sentences(figures: RankFigures) -> Iterator[str]:
    """Which rank is slower, by how much, and why; and what cannot be told."""
    expected = {one.ranks for one in figures.runs.values() if one.ranks is not None}
    if expected and (size := max(expected)) > len(figures.runs):
        yield f"{len(figures.runs):,} of {size:,} ranks are here: any of the others may be slower."
    yield _straggler(figures)
    if figures.times["data_ms"].isna().any():
        yield "Waits for data are not known."
    yield _CAUTION


def _straggler(figures: RankFigures) -> str:
    rank, part = figures.straggler, figures.slow_part
    if rank is None or part is None:
        if len(figures.runs) > 1 and figures.differences["low_ms"].isna().all():
            return "Too few steps to say whether a rank is slower than the others."
        return "No rank waits longer for its data, or works longer, than the others."
    found = figures.differences.reset_index()
    row = found[(found["rank"] == rank) & (found["part"] == part)].iloc[0]
    does = "waits for its data" if part == "waiting for data" else "works"
    longer = fmt.interval(row["change_ms"], (row["low_ms"], row["high_ms"]))
    return f"Rank {rank} {does} {longer} longer per step than rank {int(row['than'])} (mean, 95 % interval)."


def _rows(figures: RankFigures) -> Iterator[tuple[str, ...]]:
    for rank, row in figures.times.head(_MOST).iterrows():
        yield str(rank), *(fmt.duration(row[column]) for column in figures.times.columns)


def ranks_text(figures: RankFigures, width: int = 100) -> str:
    """A line per rank, and what they say."""
    lines = [f"perfnb · whole runs of {fmt.counted(len(figures.runs), 'rank')}"]
    for sentence in sentences(figures):
        lines += escape.wrapped(sentence, width)
    lines += ["", f"{'rank':>5} " + " ".join(f"{head:>17}" for head in _HEADS)]
    lines += [f"{rank:>5} " + " ".join(f"{one:>17}" for one in rest) for rank, *rest in _rows(figures)]
    if len(figures.runs) > _MOST:
        lines.append(f"… {len(figures.runs) - _MOST:,} more")
    return "\n".join(lines)


def ranks_html(figures: RankFigures) -> str:
    """The same as a table."""
    count = fmt.counted(len(figures.runs), "rank")
    rows = [tuple(map(escape.html, row)) for row in _rows(figures)]
    left = f" ({len(figures.runs) - _MOST:,} more not listed)" if len(figures.runs) > _MOST else ""
    table = tables.table(f"Mean per step{left}", ["rank", *_HEADS], rows)
    first, *rest = sentences(figures)
    return framed(header(count, "whole runs", first, *rest) + table, narrow=True)
