"""Findings about all ranks of a job: each rule is a function from `RanksSummary` to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perfnb import quantities as fmt
from perfnb.findings.finding import Finding, Row, rows
from perfnb.ranks.buckets import BucketSizes, bucket_sentence
from perfnb.ranks.summary import RanksSummary

#: How many times the mean number of samples a rank may have, and how many times the mean time it may wait for data.
_MORE = 1.05
#: Least share of a step that is worth a finding.
_WORTH = 0.02


def straggler(ranks: RanksSummary) -> Iterator[Finding]:
    """The rank that arrives last at collectives, so that the others wait for it."""
    if ranks.straggler is None:
        return
    mean = ranks.times.groupby("rank")[["waiting_ms", "wall_ms"]].mean()
    waited = float(mean["waiting_ms"].drop(ranks.straggler).mean())
    step_ms = float(mean["wall_ms"].mean())
    own = float(mean["waiting_ms"][ranks.straggler])
    yield Finding(
        "straggler",
        f"Rank {ranks.straggler} arrives last at collectives: the others wait {fmt.duration(waited)} per step for "
        f"it ({fmt.share(waited / step_ms)} of the step); it waits {fmt.duration(own) if own > 0 else 'for none'}."
        f"{_late(ranks)}",
        min(waited, step_ms),
        "Check what this rank does more of, or slower: its share of the data, its host, GPU clocks and links; and "
        "its own findings.",
        "",
        "medium",
        f"From the starts of matched collectives; clocks are compared by their ends.{_evidence(ranks)}",
        "Collectives that could not be matched between the ranks.",
        (Row("rank", str(ranks.straggler)), *_late_rows(ranks)),
    )


def _evidence(ranks: RanksSummary) -> str:
    """On what the verdict rests, in words."""
    late = ranks.lateness
    if late is None:
        return ""
    seen = f"{fmt.counted(late.collectives, 'collective')} in {fmt.counted(late.steps, 'step')}"
    if late.low_ms is None or late.high_ms is None:
        return f" The others waited longer in {late.longer:,} of {seen}."
    ends = f"{fmt.duration(max(late.low_ms, 0.0))} to {fmt.duration(late.high_ms)}"
    return f" Each of the others waited at least {ends} per step longer ({seen}, 90 % confidence)."


def _late(ranks: RanksSummary) -> str:
    """Where it was late, in words."""
    late = ranks.late
    if late is None:
        return ""
    phase = "code outside model, loss and optimizer" if late.phase == "other" else late.phase.replace("_", " ")
    layer = f", most of all in {late.layer} ({fmt.duration(late.layer_ms)})" if late.layer else ""
    return f" It is late in {phase}, which takes it {fmt.duration(late.more_ms)} longer than the others{layer}."


def _late_rows(ranks: RanksSummary) -> tuple[Row, ...]:
    late = ranks.late
    if late is None:
        return ()
    return (*rows("phase", [late.phase]), *(rows("layer", [late.layer]) if late.layer else ()))


def unbalanced_input(ranks: RanksSummary) -> Iterator[Finding]:
    """Ranks that get more samples than others, or wait longer for them."""
    mean = ranks.times.groupby("rank")[["waiting_ms", "wall_ms"]].mean()
    step_ms, waits = float(mean["wall_ms"].mean()), mean["waiting_ms"].dropna()
    samples = {rank: count for rank, count in ranks.samples.items() if rank in waits.index}
    most = max(samples, key=lambda rank: samples[rank], default=None)
    if len(waits) < 2:
        return
    if most is not None and samples[most] > _MORE * sum(samples.values()) / len(samples):
        waited = float(waits.drop(most).mean() - waits[most])
        least = min(samples, key=lambda rank: samples[rank])
        said = (
            f"Rank {most} gets {samples[most]:.3g} samples per step, rank {least} only {samples[least]:.3g}: in "
            f"collectives the others wait {fmt.duration(max(waited, 0.0))} per step longer than it does."
        )
        what = (
            "Give each rank equally much: torch.utils.data.DistributedSampler with drop_last=True, or batches of equal "
            "cost."
        )
        yield from _unbalanced(most, waited, step_ms, said, what, "high")
        return
    data = {rank: float(one.phases["data"].mean()) for rank, one in ranks.host.items() if one is not None}
    slowest = max(data, key=lambda rank: data[rank], default=None)
    if slowest is None or slowest != ranks.straggler or len(data) < 2:
        return
    others = [ms for rank, ms in data.items() if rank != slowest]
    more = data[slowest] - sum(others) / len(others)
    waited = min(more, float(waits.drop(slowest).mean()))
    said = (
        f"Rank {slowest} waits {fmt.duration(data[slowest])} per step for its data, {fmt.duration(more)} longer than "
        "the others, which then wait for it in collectives."
    )
    what = "Look at this rank's loader: its workers, its share of the files, its disk; and its own findings."
    yield from _unbalanced(slowest, waited, step_ms, said, what, "medium")


def _unbalanced(rank: int, bound: float, step_ms: float, said: str, what: str, confidence: str) -> Iterator[Finding]:
    if bound <= _WORTH * step_ms:
        return
    yield Finding(
        "unbalanced input",
        said,
        min(bound, step_ms),
        what,
        "",
        "high" if confidence == "high" else "medium",
        "From the samples in each rank's batches, or its waits for data, and the waits of the others in collectives.",
        "Whether samples cost equally much: sequences of other lengths do not.",
        (Row("rank", str(rank)),),
    )


def larger_buckets(ranks: RanksSummary, found: BucketSizes | None) -> Iterator[Finding]:
    """DDP's buckets are so many that their latencies add up."""
    if found is None or found.fewer_ms is None:
        return
    step_ms = float(ranks.times["wall_ms"].mean())
    if found.fewer_ms <= _WORTH * step_ms or (found.low_ms or 0.0) <= 0:
        return
    yield Finding(
        "bucket sizes",
        bucket_sentence(found),
        min(found.fewer_ms, step_ms),
        "Try larger buckets (bucket_cap_mb of DistributedDataParallel), and compare: they start later, so that less of "
        "them is hidden.",
        "",
        "medium",
        "From a line through the transfers of buckets of several sizes, without waiting for the last rank.",
        "How much more of larger buckets backward would hide.",
        rows("phase", ["communication"]),
    )


#: Rules about jobs that need their summary alone.
JOB_RULES: tuple[Callable[[RanksSummary], Iterator[Finding]], ...] = (straggler, unbalanced_input)


def job_findings(ranks: RanksSummary, buckets: BucketSizes | None) -> list[Finding]:
    """What the rules find, in their order."""
    return [*(found for rule in JOB_RULES for found in rule(ranks)), *larger_buckets(ranks, buckets)]
