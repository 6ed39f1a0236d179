"""Show several ranks of one job: the cause of the delay, each rank's step, and which ranks waited for others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import Bar, Bars, Budget, Column, Document, Figure, Heat, Part, Section, Table, Verdict
from perfnb.findings.finding import Findings
from perfnb.findings.tab import finding_cards, verdict_of_finding
from perfnb.ranks.buckets import BucketSizes, bucket_sentence
from perfnb.ranks.findings import listed
from perfnb.ranks.lanes_view import lanes_picture
from perfnb.ranks.summary import RanksSummary

#: The maximum numbers of ranks and steps in pictures.
_MOST, _MOST_STEPS = 64, 60
#: A note is added if the durations of traced and timed steps differ by more than this factor.
_UNLIKE = 1.5
_COLUMNS = {
    "rank": Column("rank"),
    "file": Column("file", priority=3),
    "wall_ms": Column("step", "ms"),
    "computation_ms": Column("computing", "ms", priority=1),
    "communication_ms": Column("communicating", "ms", help="with or without computing at the same time"),
    "exposed_ms": Column("alone", "ms", priority=1, help="communicating without computing"),
    "waiting_ms": Column("waiting", "ms", help="in collectives, for the last rank to arrive"),
    "copying_ms": Column("copying alone", "ms", help="copying without computing or communicating"),
    "idle_ms": Column("idle", "ms", priority=1, help="idle time of a GPU between its first and last work in the step"),
    "clock_ms": Column("clock ahead", "ms", 2, help="relative to the first rank that shares collectives with it"),
}


@dataclass(frozen=True)
class JobSteps:
    """The step times of a job: each rank's median timed step, the mean traced step, and the numbers of both steps."""

    timed_ms: dict[int, float]
    timed: int
    traced: int
    traced_ms: float


def ranks_document(
    summary: RanksSummary, steps: JobSteps, findings: Findings, buckets: BucketSizes | None = None
) -> Document:
    """Return the document about the ranks of a job."""
    count, size = fmt.counted(len(summary.names), "rank"), summary.doubts.world_size
    return Document(
        "ranks",
        f"{count} of {size:,}" if summary.doubts.absent else count,
        verdict=_verdict(summary, findings),
        figures=tuple(_figures(steps)),
        sections=tuple(_sections(summary, findings)),
        notes=tuple(_notes(summary, steps, findings, buckets)),
    )


def _figures(steps: JobSteps) -> Iterator[Figure]:
    if steps.timed_ms:
        slowest = max(steps.timed_ms, key=lambda rank: steps.timed_ms[rank])
        of = f", rank {slowest}, the slowest" if len(steps.timed_ms) > 1 else ""
        basis = f"median of {fmt.counted(steps.timed, 'timed step')}{of}"
        yield Figure("step", steps.timed_ms[slowest], "ms", basis=basis)
    mean = f"mean of {fmt.counted(steps.traced, 'step')}"
    label, basis = ("traced step", f"{mean}, as below") if steps.timed_ms else ("step", f"as traced, {mean}")
    yield Figure(label, fmt.known(steps.traced_ms), "ms", basis=basis)


def _verdict(summary: RanksSummary, findings: Findings) -> Verdict:
    """Return a verdict with the decisive finding or, if there is none, about whether the ranks wait for one of them."""
    if (place := findings.verdict.finding) is not None:
        return verdict_of_finding(findings, place)
    if not summary.matched:
        return Verdict("open", "It is unknown which ranks wait for others", _why_unmatched(summary))
    among = " among those loaded" if summary.doubts.absent else ""
    return Verdict("good", f"No rank{among} stands out as a straggler", _undecided(summary))


def _why_unmatched(summary: RanksSummary) -> str:
    if summary.doubts.reduced:
        return (
            "These profiles were reduced to their tables when they were created, so overlap, waiting times and clock "
            "offsets are unknown. To keep this data, create the profiles with keep_trace=True."
        )
    if summary.doubts.on_host:
        return (
            "None of the ranks recorded any GPU work, and no collective on the host could be matched between ranks. "
            "Waiting times and clock offsets are therefore unknown."
        )
    doubt = "" if len(summary.names) < 2 else ", and the traces may not belong to the same job"
    return f"No collective could be matched between ranks. Waiting times and clock offsets are unknown{doubt}."


def _undecided(summary: RanksSummary) -> str:
    """Return the reason why the rank that the others waited for is not reported as a straggler."""
    late = summary.lateness
    if late is None or late.certain:
        return ""
    seen = f"{fmt.counted(late.collectives, 'collective')} in {fmt.counted(late.steps, 'step')}"
    why = f"{seen} are too few to be certain" if late.too_few else f"the difference varies too much across {seen}"
    return (
        f"Other ranks waited {fmt.duration(late.more_ms)} longer per step than rank {late.rank} on average, but {why}."
    )


def _sections(summary: RanksSummary, findings: Findings) -> Iterator[Section]:
    yield _bars(summary)
    times = summary.times
    if times["waiting_ms"].notna().any() and times["step"].nunique() > 1:
        waits = times.pivot_table(index="rank", columns="step", values="waiting_ms", aggfunc="sum", dropna=False)
        waits = waits.iloc[:_MOST, :_MOST_STEPS]
        values = [[fmt.known(value) for value in row] for row in waits.itertuples(index=False)]
        title = "Waiting in collectives for the last rank"
        yield Heat(title, "ms", [f"rank {rank}" for rank in waits.index], list(map(str, waits)), values, "step")
    if summary.lanes is not None:
        yield lanes_picture(summary.lanes)
    if len(findings.table) > (findings.verdict.finding is not None):  # the verdict covers a single finding
        yield finding_cards(findings, "What each finding costs at most per step")
    yield _table(summary)


def _bars(summary: RanksSummary) -> Bars:
    """Return a bar for each rank's mean step.

    If the collectives run on the host, the bar is divided into phases, and otherwise into parts of the GPUs' time.
    """
    hosts = {rank: host.phases.mean() for rank, host in summary.host.items() if host is not None}
    if on_host := len(hosts) == len(summary.names):
        parts = {rank: {palette.mark(str(phase)): ms for phase, ms in means.items()} for rank, means in hosts.items()}
    else:
        frame = summary.parts.reindex(list(summary.names))
        marks = [palette.RANK_PARTS[str(name)] for name in frame]
        parts = {int(rank): dict(zip(marks, row, strict=True)) for rank, *row in frame.itertuples()}
    bars = [
        Bar(f"rank {rank}", tuple(Part(mark, fmt.known(ms) or 0.0) for mark, ms in part.items()))
        for rank, part in list(parts.items())[:_MOST]
    ]
    more = f" (the first {_MOST} ranks)" if len(parts) > _MOST else ""
    return Bars(f"{'Time' if on_host else 'GPU time'} in the mean step{more}", "ms", tuple(bars))


def _table(summary: RanksSummary) -> Table:
    means = summary.times.groupby("rank").mean().reindex(list(summary.names))
    unlike = len(set(summary.names.values())) > 1
    shown = means.reset_index().assign(
        rank=[str(rank) for rank in means.index],
        file=list(summary.names.values()) if unlike else "",
        clock_ms=summary.clocks["ahead_us"].reindex(means.index).array / 1e3,
    )
    return Table.of("Mean over each rank's steps", shown, _COLUMNS, budget=Budget(_MOST, _MOST), noun="rank")


def _notes(summary: RanksSummary, steps: JobSteps, findings: Findings, buckets: BucketSizes | None) -> Iterator[str]:
    """Yield reasons for doubt, the cost of the DDP buckets, and the accuracy of the clock offsets."""
    if steps.timed_ms and not 1 / _UNLIKE <= steps.traced_ms / max(steps.timed_ms.values()) <= _UNLIKE:
        yield (
            f"Traced steps took {fmt.duration(steps.traced_ms)}, unlike timed steps. This may be due to other work on "
            "the machine, uneven steps or the cost of tracing. Profile again before you trust these figures."
        )
    yield from _doubts(summary)
    if findings.verdict.finding is not None and not summary.matched:
        yield _why_unmatched(summary)
    if buckets is not None:
        yield bucket_sentence(buckets)
    yield from _clocks(summary)


def _clocks(summary: RanksSummary) -> Iterator[str]:
    known = summary.clocks[summary.clocks["collectives"].fillna(0) > 0]
    lost = [rank for rank in summary.names if rank not in summary.matched]
    if summary.matched and lost:
        yield (
            f"No collective of {listed(lost)} could be matched with other ranks. They may not belong to the same job, "
            "and their clock offsets and waiting times are unknown."
        )
    if known["reference"].nunique() > 1:
        parts = "; ".join(listed(list(part.index)) for _, part in known.groupby("reference"))
        yield (
            f"No collectives could be matched between these groups: {parts}. Clocks are relative to the first rank of "
            "each group, and the offsets between groups are unknown."
        )
    others = known[(known["reference"] != known.index).fillna(False)]
    if len(others):
        spread = fmt.duration(others["spread_us"].max() / 1e3)
        yield f"Clocks are aligned by the ends of collectives (± {spread}), and waiting times are corrected for this."


def _doubts(summary: RanksSummary) -> Iterator[str]:
    doubts, loaded = summary.doubts, len(summary.names)
    if doubts.absent:
        are = "is" if loaded == 1 else "are"
        yield (
            f"Only {loaded:,} of {fmt.counted(doubts.world_size or 0, 'rank')} {are} loaded. Some of the waits may be "
            f"for ranks that are missing ({doubts.absent:,})."
        )
    if doubts.world_sizes:
        sizes = "; ".join(f"{size:,} ({listed(ranks)})" for size, ranks in sorted(doubts.world_sizes.items()))
        yield f"The traces disagree on the number of ranks, so they are not from the same job: {sizes}."
    if doubts.devices:
        kinds = "; ".join(f"{name} ({listed(ranks)})" for name, ranks in doubts.devices.items())
        yield f"The ranks ran on different GPUs, so they may not be from the same job: {kinds}."
    for rank, ranks in doubts.one_rank.items():
        who = listed(ranks, "Ranks")
        yield (
            f"{who} are all rank {rank} according to their traces or file names, so ranks are numbered in the "
            "order of the arguments."
        )
