"""Findings about all ranks of a job: each rule is a function from `RanksSummary` to findings.

All bounds of a job refer to the timed step, and no cost is in two of them: waiting for a late rank belongs to the
finding about that rank, and not to the communication of the ranks that wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.interval_sets import union
from perfnb.findings.finding import Finding, Row, rows
from perfnb.ranks.buckets import BucketSizes, bucket_sentence
from perfnb.ranks.summary import RanksSummary, in_timed_steps

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


def job_findings(ranks: RanksSummary, buckets: BucketSizes | None, timed_ms: float | None = None) -> list[Finding]:
    """What the rules find.

    Parameters
    ----------
    ranks : RanksSummary
    buckets : BucketSizes or None
    timed_ms : float, optional
        A timed step, if all ranks timed theirs: the figures of traced steps are scaled to it.
    """
    if timed_ms is not None:
        ranks = in_timed_steps(ranks, timed_ms)
    late, uneven = list(straggler(ranks)), list(unbalanced_input(ranks))
    return [*(rest for one in late for rest in _beyond(one, uneven, ranks)), *uneven, *larger_buckets(ranks, buckets)]


def _beyond(late: Finding, uneven: list[Finding], ranks: RanksSummary) -> Iterator[Finding]:
    """The finding about a late rank without the part that its input explains, unless little is left."""
    step_ms = float(ranks.times["wall_ms"].mean())
    explained = sum(one.bound_ms or 0.0 for one in uneven if one.rows[:1] == late.rows[:1])
    rest = max((late.bound_ms or 0.0) - explained, 0.0)
    if not explained or rest > _WORTH * step_ms:
        yield replace(late, bound_ms=rest)


def without_waiting(found: pd.DataFrame, calls: pd.DataFrame, rank: int, late: Finding) -> pd.DataFrame:
    """A rank's findings, where those about communication leave out its waiting for a rank that arrives late.

    Parameters
    ----------
    found : DataFrame
        The frame ``findings`` of the rank.
    calls : DataFrame
        Its collectives, from `collective_calls`, with ``waiting_ns``.
    rank : int
    late : Finding
        The one about the late rank, which waits for none.
    """
    name = late.rows[0].name
    if name == str(rank):
        return found
    start, end, exposed = (calls[column].to_numpy(dtype=np.int64) for column in ("start_ns", "end_ns", "exposed_ns"))
    waiting = calls["waiting_ns"].fillna(0).to_numpy(dtype=np.int64)
    # If a part of a collective is hidden, the rest may be transfer.
    transfer = np.clip(np.maximum(end - start, exposed) - waiting, 0, exposed)
    alone = _ratio(transfer.sum(), exposed.sum())
    flying = _ratio(union(np.minimum(start + waiting, end), end).length, union(start, end).length)
    kept = {"collectives": alone, "small buckets": alone, "every micro-step": max(alone, flying)}
    part = found["bottleneck"].map(kept).astype("Float64").fillna(1.0)
    result = found.assign(bound_ms=found["bound_ms"] * part, bound_share=found["bound_share"] * part)
    explained = found["bound_ms"] - result["bound_ms"]
    evidence, why = (list(found[column]) for column in ("evidence", "why"))
    covered = f"rank {name}, which the finding {late.bottleneck} covers"
    for place in np.flatnonzero(part < 1):
        if found["bottleneck"].iloc[place] == "collectives":
            ms, waited = (fmt.duration(one.iloc[place]) for one in (result["bound_ms"], explained))
            evidence[place] = (
                f"For {ms} ({fmt.share(result['bound_share'].iloc[place])} of the step) the rank only waits for the "
                f"transfers of collectives. It waits another {waited} in them for {covered}."
            )
            why[place] = "Part of the transfers may not be hidden by any computation."
        else:
            evidence[place] += f" The bound leaves out waiting for {covered}."
    result = result.assign(evidence=evidence, why=why).astype(found.dtypes.to_dict())
    return result[(part == 1) | (result["bound_share"] >= _WORTH)]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 1.0
