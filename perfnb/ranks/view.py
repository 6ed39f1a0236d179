"""Several ranks as text and as HTML without scripts: what each did per step, and who held the others up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header, notes_html
from perfnb.ranks.buckets import BucketSizes, bucket_sentence
from perfnb.ranks.lanes_view import heat_html, heat_text, lanes_html, lanes_text
from perfnb.ranks.report_head import JobHead, found_html, found_text, head_lines
from perfnb.ranks.summary import RanksSummary

#: Most ranks listed in tables, and named in a sentence.
_MOST, _MOST_NAMED = 64, 8
#: Width of the longest bar.
_BAR_PX = 400
_COLUMNS = {
    "wall_ms": "step",
    "computation_ms": "computing",
    "communication_ms": "communicating",
    "exposed_ms": "alone",
    "waiting_ms": "waiting",
    "idle_ms": "idle",
}
_LEGEND = (
    "alone: communicating while not computing; waiting: in collectives, for the last rank to arrive; "
    f"{fmt.UNKNOWN}: not known"
)


def ranks_text(summary: RanksSummary, head: JobHead, width: int = 100, buckets: BucketSizes | None = None) -> str:
    """A line per rank, mean over its steps, and notes."""
    means = _means(summary)
    heads = [*_COLUMNS.values(), "clock"]
    widths = [max(len(head), 9) for head in heads]
    room = max(10, width - 6 - sum(widths) - len(widths) - 2)
    lines = [
        f"perfnb · {ranks_count(len(summary.names))} · mean step",
        *(line for words in head_lines(head) for line in escape.wrapped(words, width)),
        f"{'rank':>5} {'':<{room}}{''.join(f' {head:>{w}}' for head, w in zip(heads, widths, strict=True))}",
        "─" * width,
    ]
    for rank, row in means.head(_MOST).iterrows():
        figures = "".join(f" {value:>{w}}" for value, w in zip(_figures(row), widths, strict=True))
        lines.append(f"{rank:>5} {escape.fit(row['name'], room)}{figures}")
    if len(means) > _MOST:
        lines.append(f"… {len(means) - _MOST:,} more")
    if (waits := waits_by_step(summary)) is not None:
        lines += ["", *heat_text(waits, width)]
    if summary.lanes is not None:
        lines += ["", *lanes_text(summary.lanes, width)]
    if found := found_text(head, width):
        lines += ["", *found]
    said = escape.bullets([_legend(summary), *_notes(summary, buckets)], width)
    return "\n".join([*(line.rstrip() for line in lines), "", "Notes", *said])


def ranks_html(summary: RanksSummary, head: JobHead, buckets: BucketSizes | None = None) -> str:
    """The same as a table."""
    means = _means(summary)
    unlike = means["name"].nunique() > 1
    rows = [
        (escape.html(str(rank)), *([tables.name(row["name"])] * unlike), *map(escape.html, _figures(row)))
        for rank, row in means.head(_MOST).iterrows()
    ]
    count = ranks_count(len(summary.names))
    left = f" ({len(means) - _MOST:,} more not listed)" if len(means) > _MOST else ""
    heads = ["rank", *(["file"] * unlike), *_COLUMNS.values(), "clock"]
    table = tables.table(f"{count}, mean step{left}", heads, rows, texts=1 + unlike)
    size = summary.doubts.world_size
    of = f" of {size:,}" if summary.doubts.absent else ""
    title = header(f"{count}{of}", "what each did, and who waited for whom", *head_lines(head))
    waits = waits_by_step(summary)
    heat = "" if waits is None else f"<p><strong>Waiting</strong></p>{heat_html(waits)}"
    lanes = "" if summary.lanes is None else f"<p><strong>One step</strong></p>{lanes_html(summary.lanes)}"
    notes = notes_html([_legend(summary), *_notes(summary, buckets)])
    return framed(f"{title}{found_html(head)}{_bars(summary)}{table}{lanes}{heat}{notes}", narrow=True)


def _legend(summary: RanksSummary) -> str:
    idle = "" if summary.doubts.on_host else "idle: of a GPU, between its first and last work in the step; "
    return _LEGEND.replace(f"{fmt.UNKNOWN}:", f"{idle}{fmt.UNKNOWN}:")


def waits_by_step(summary: RanksSummary) -> pd.DataFrame | None:
    """Waiting by rank and step, if there are several steps of which it is known."""
    times = summary.times
    if times["waiting_ms"].isna().all() or times["step"].nunique() < 2:
        return None
    return times.pivot_table(index="rank", columns="step", values="waiting_ms", aggfunc="sum", dropna=False)


def _bars(summary: RanksSummary) -> str:
    """A bar per rank, all to one scale."""
    parts = summary.parts.head(_MOST)
    longest = fmt.known(parts.sum(axis=1).max()) or 0.0
    if not longest:
        return ""
    rows = [
        (escape.html(str(rank)), _bar(row, longest), "waited for by the others" if rank == summary.straggler else "")
        for rank, row in parts.iterrows()
    ]
    keys = " &nbsp; ".join(tables.keyed(mark) for mark in palette.RANK_PARTS.values())
    what = "Time" if summary.doubts.on_host else "GPU time"
    bars = tables.table(f"{what} in the mean step, without copies", ["rank", "", ""], rows, texts=3)
    return f"{bars}<p>{keys}</p>"


def _bar(row: Any, longest: float) -> str:
    parts = [(mark, fmt.known(row[name]) or 0.0) for name, mark in palette.RANK_PARTS.items()]
    said = ", ".join(f"{mark.word} {fmt.duration(ms)}" for mark, ms in parts if ms > 0)
    return tables.bar(parts, longest, _BAR_PX, said) or fmt.UNKNOWN


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


def ranks_count(count: int) -> str:
    """``1 rank``, ``22 ranks``."""
    return f"{count:,} rank{'s' * (count != 1)}"


def _notes(summary: RanksSummary, buckets: BucketSizes | None) -> Iterator[str]:
    """Reasons for doubt, who held the others up, what buckets cost, and how far the clocks are apart."""
    yield from _doubts(summary)
    yield _straggler(summary)
    if buckets is not None:
        yield bucket_sentence(buckets)
    yield from _clocks(summary)


def _clocks(summary: RanksSummary) -> Iterator[str]:
    known = summary.clocks[summary.clocks["collectives"].fillna(0) > 0]
    lost = [rank for rank in summary.names if rank not in summary.matched]
    if summary.matched and lost:
        yield (
            f"No collective of {_listed(lost)} could be matched with other ranks: they may not belong to the same job, "
            "and their clocks and waiting times are not known."
        )
    if known["reference"].nunique() > 1:
        parts = "; ".join(_listed(list(part.index)) for _, part in known.groupby("reference"))
        yield (
            f"These groups share no collectives that could be matched: {parts}. Clocks are relative to the first rank "
            "of each group; how far the groups are apart is not known."
        )
    told = known[(known["reference"] != known.index).fillna(False)]
    if len(told):
        rank = told["ahead_us"].abs().sort_values(ascending=False, kind="stable").index[0]
        ahead, spread, reference, count = (
            told[name][rank] for name in ("ahead_us", "spread_us", "reference", "collectives")
        )
        apart, sure = (fmt.duration(abs(us) / 1e3) for us in (ahead, spread))
        way = "ahead of" if ahead >= 0 else "behind"
        yield (
            f"Clocks are compared by the ends of collectives: rank {rank} is {apart} {way} rank {reference} "
            f"(± {sure}, {count:,} collectives); waiting times are corrected for it."
        )


def _straggler(summary: RanksSummary) -> str:
    doubts, straggler = summary.doubts, summary.straggler
    if not summary.matched and doubts.reduced:
        return (
            "These profiles were reduced to their tables when they were made: what the GPUs did at the same time, "
            "waiting times and clocks are n/a. Make them with keep_trace=True."
        )
    if not summary.matched and doubts.on_host:
        return (
            "None of the ranks recorded work of a GPU, and no collective on the host could be matched: waiting times "
            "and clocks are not known."
        )
    if not summary.matched:
        one = "" if len(summary.names) < 2 else ", and the traces may not belong to one job"
        return f"No collective could be matched between the ranks: waiting times and clocks are not known{one}."
    of = " among those loaded" if doubts.absent else ""
    if straggler is None:
        return f"No rank{of} stands out as a straggler.{_undecided(summary)}"
    mean = summary.times.groupby("rank")["waiting_ms"].mean()
    others, own = fmt.duration(mean.drop(straggler).mean()), fmt.duration(mean[straggler])
    return (
        f"Rank {straggler} is the straggler{of}: in collectives the others waited {others} per step, it waited {own}."
    )


def _undecided(summary: RanksSummary) -> str:
    """Why the rank that was waited for the most is not called a straggler."""
    late = summary.lateness
    if late is None or late.certain:
        return ""
    seen = f"{fmt.counted(late.collectives, 'collective')} in {fmt.counted(late.steps, 'step')}"
    why = f"{seen} are too few to tell" if late.too_few else f"that differs too much between {seen}"
    return f" Others waited longer than rank {late.rank}, {fmt.duration(late.more_ms)} per step on average, but {why}."


def _doubts(summary: RanksSummary) -> Iterator[str]:
    doubts, loaded = summary.doubts, len(summary.names)
    if doubts.absent:
        are = "is" if loaded == 1 else "are"
        yield (
            f"{loaded:,} of {ranks_count(doubts.world_size or 0)} {are} loaded: any of the other {doubts.absent:,} may "
            "have held these up."
        )
    elif doubts.world_size is not None and loaded > doubts.world_size:
        yield f"The traces say the job has {ranks_count(doubts.world_size)}, but {loaded:,} are loaded."
    if doubts.world_sizes:
        sizes = "; ".join(f"{size:,} ({_listed(ranks)})" for size, ranks in sorted(doubts.world_sizes.items()))
        yield f"The traces disagree on the number of ranks, so they are not from one job: {sizes}."
    if doubts.devices:
        kinds = "; ".join(f"{escape.plain(name, 60)} ({_listed(ranks)})" for name, ranks in doubts.devices.items())
        yield f"The ranks ran on different GPUs, so they may not be from one job: {kinds}."
    for rank, ranks in doubts.one_rank.items():
        who = _listed(ranks, "Ranks")
        yield f"{who} all are rank {rank} by their traces or file names, so ranks are numbered in the order given."


def _listed(ranks: Sequence[int], word: str = "ranks") -> str:
    """``rank 3``, ``ranks 0, 1, 2``; only the first of many."""
    numbers = ", ".join(map(str, ranks[:_MOST_NAMED]))
    more = f" and {len(ranks) - _MOST_NAMED:,} more" if len(ranks) > _MOST_NAMED else ""
    return f"{word.removesuffix('s') if len(ranks) == 1 else word} {numbers}{more}"
