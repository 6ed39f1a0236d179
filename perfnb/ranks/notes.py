"""What to know about several ranks, in sentences, and names of their files that tell them apart."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.ranks.tables import RanksSummary

#: Ranks that a sentence names.
_MOST_NAMED = 8
#: Characters before the first difference that stay.
_BEFORE = 2
_ENDING = re.compile(r"(\.pt)?(\.trace)?\.json(\.gz)?$", re.IGNORECASE)


def ranks_count(count: int) -> str:
    """``1 rank``, ``22 ranks``."""
    return f"{count:,} rank{'s' * (count != 1)}"


def rank_notes(summary: RanksSummary) -> Iterator[str]:
    """Who held the others up, how far the clocks are apart, and why to doubt both."""
    yield from _doubts(summary)
    yield _straggler(summary)
    yield from _clocks(summary)


def _clocks(summary: RanksSummary) -> Iterator[str]:
    known = summary.clocks[summary.clocks["collectives"].fillna(0) > 0]
    lost = [rank for rank in summary.names if rank not in summary.matched]
    if summary.matched and lost:
        yield (
            f"No collective of {_listed(lost)} could be matched with those of other ranks: nothing tells that they are "
            "of the same job, and clocks and waiting there are not known."
        )
    if known["reference"].nunique() > 1:
        parts = "; ".join(_listed(list(part.index)) for _, part in known.groupby("reference"))
        yield (
            f"These share no collectives that could be matched with the others: {parts}. In each, clocks are told from "
            "that of its first rank, and nothing is known of how far those are apart."
        )
    told = known[(known["reference"] != known.index).fillna(False)]
    if len(told):
        rank = told["ahead_us"].abs().sort_values(ascending=False, kind="stable").index[0]
        ahead, spread, reference, count = (
            told[name][rank] for name in ("ahead_us", "spread_us", "reference", "collectives")
        )
        apart, sure = (fmt.duration(abs(us) / 1e3) for us in (ahead, spread))
        sign = "+" if ahead >= 0 else "−"
        yield (
            f"Clocks were told from the ends of collectives: that of rank {rank} is {sign}{apart} "
            f"from that of rank {reference} (± {sure}, {count:,} collectives); waiting is corrected for it."
        )


def _straggler(summary: RanksSummary) -> str:
    doubts, straggler = summary.doubts, summary.straggler
    if not summary.matched:
        one = "" if len(summary.names) < 2 else ", and nothing tells that the traces are of one job"
        return f"No collective could be matched between the ranks: waiting and clocks are not known{one}."
    of = " of those loaded" if doubts.absent else ""
    if straggler is None:
        return f"No rank{of} stands out as the one that the others wait for."
    mean = summary.times.groupby("rank")["waiting_ms"].mean()
    others, own = fmt.duration(mean.drop(straggler).mean()), fmt.duration(mean[straggler])
    return (
        f"Rank {straggler} is the straggler{of}: in collectives the others waited {others} a step for the last to "
        f"come, it waited {own}."
    )


def _doubts(summary: RanksSummary) -> Iterator[str]:
    doubts, loaded = summary.doubts, len(summary.names)
    if doubts.absent:
        are = "is" if loaded == 1 else "are"
        yield (
            f"{loaded:,} of {ranks_count(doubts.world_size or 0)} {are} loaded: what the other {doubts.absent:,} did "
            "is not known, and any of them may have held up these."
        )
    elif doubts.world_size is not None and loaded > doubts.world_size:
        yield f"The job has {ranks_count(doubts.world_size)}, as the traces say, but {loaded:,} are loaded."
    if doubts.world_sizes:
        sizes = "; ".join(f"{size:,} ({_listed(ranks)})" for size, ranks in sorted(doubts.world_sizes.items()))
        yield f"The traces do not agree on how many ranks there are, so they are not of one job: {sizes}."
    if doubts.devices:
        kinds = "; ".join(f"{escape.plain(name, 60)} ({_listed(ranks)})" for name, ranks in doubts.devices.items())
        yield f"The ranks ran on different GPUs, so they may not be of one job: {kinds}."
    for ranks in doubts.same:
        who, times = _listed(ranks, "Ranks"), "twice" if len(ranks) == 2 else f"{len(ranks):,} times"
        yield f"{who} hold the same events at the same times: one trace, loaded {times}."
    for rank, ranks in doubts.one_rank.items():
        who = _listed(ranks, "Ranks")
        yield f"{who} all are rank {rank}, as their traces or names say; so all ranks were numbered by place."


def _listed(ranks: Sequence[int], word: str = "ranks") -> str:
    """``rank 3``, ``ranks 0, 1, 2``; of many the first."""
    numbers = ", ".join(map(str, ranks[:_MOST_NAMED]))
    more = f" and {len(ranks) - _MOST_NAMED:,} more" if len(ranks) > _MOST_NAMED else ""
    return f"{word.removesuffix('s') if len(ranks) == 1 else word} {numbers}{more}"


def distinct_names(names: Sequence[str], width: int) -> list[str]:
    """Names of files in at most `width` cells, which differ where the names do, as far as that has room.

    The endings of traces go first, then the middle; where that makes two alike, what they begin with.
    """
    whole = [escape.plain(name, 1000) for name in names]
    bare = [_ENDING.sub("", name) or name for name in whole]
    if any(escape.cells(name) > width for name in whole) and len(set(bare)) == len(set(whole)):
        whole = bare
    shown = [escape.shorten(name, width) for name in whole]
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(shown):
        alike[name].append(place)
    for places in alike.values():
        group = [whole[place] for place in places]
        if len(set(group)) == 1:
            continue
        first = max(0, _first_difference(group) - _BEFORE)
        for place in places:
            shown[place] = "…" + escape.shorten(whole[place][first:], width - 1)
    return shown


def _first_difference(names: Sequence[str]) -> int:
    places = (place for place, chars in enumerate(zip(*names, strict=False)) if len(set(chars)) > 1)
    return next(places, min(map(len, names)))
