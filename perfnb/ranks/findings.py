"""Findings about all ranks of a job: one rule per cause.

All bounds of a job refer to the timed step, and no cost is in two of them: waiting for a late rank belongs to the
finding about that rank, and not to the communication of the ranks that wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.interval_sets import union
from perfnb.findings.finding import Confidence, Finding, Row, Rule, found_by, rows, rule
from perfnb.ranks.buckets import BucketSizes, bucket_sentence
from perfnb.ranks.host import LateWork
from perfnb.ranks.summary import RanksSummary

#: How many times the mean number of samples a rank may have.
_MORE = 1.05
#: Least share of a step that is worth a finding.
_WORTH = 0.02
_COUNTED: Confidence = "high"
_MEASURED: Confidence = "medium"


@dataclass(frozen=True)
class RanksFacts:
    """What the rules about a job argue from."""

    ranks: RanksSummary
    buckets: BucketSizes | None
    #: The step that bounds refer to: the timed one, if all ranks timed theirs.
    step_ms: float

    @cached_property
    def scale(self) -> float:
        """Factor from the traced steps of `ranks` to that step."""
        return self.step_ms / float(self.ranks.times["wall_ms"].mean())

    @cached_property
    def waiting_ms(self) -> pd.Series:
        """By rank, its mean wait in collectives for the last rank, if that is known."""
        waiting = self.ranks.times.groupby("rank")["waiting_ms"].mean().dropna().astype(float)
        return waiting * self.scale

    def others_wait_ms(self, rank: int) -> float:
        """How long the other ranks wait per step."""
        return float(self.waiting_ms.drop(rank).mean())


@rule("straggler", "Held up by a slow rank", "making it as fast as the others")
def straggler(job: RanksFacts) -> Iterator[Finding]:
    """The rank that arrives last at collectives, so that the others wait for it, as far as its input is not why."""
    rank = job.ranks.straggler
    if rank is None:
        return
    waited, own = job.others_wait_ms(rank), float(job.waiting_ms[rank])
    explained = sum(finding.bound_ms or 0.0 for finding in unbalanced_input(job) if finding.rows[0].name == str(rank))
    if explained and waited - explained <= _WORTH * job.step_ms:
        return
    late = job.ranks.late
    where: tuple[Row, ...] = ()
    if late is not None:
        where = rows("phase", [late.phase]) + rows("layer", [late.layer] if late.layer else [])
    yield Finding(
        f"Rank {rank} arrives last at collectives: the others wait {fmt.duration(waited)} per step for it "
        f"({fmt.share(waited / job.step_ms)} of the step); it waits {fmt.duration(own) if own > 0 else 'for none'}."
        f"{_late(late, job.scale)}",
        waited - explained,
        "Check what this rank does more of, or slower: its share of the data, its host, GPU clocks and links; and "
        "its own findings.",
        "medium",
        f"From the starts of matched collectives; clocks are compared by their ends.{_evidence(job)}",
        "Collectives that could not be matched between the ranks.",
        rows("rank", [rank]) + where,
    )


def _evidence(job: RanksFacts) -> str:
    """On what the verdict rests, in words."""
    late = job.ranks.lateness
    if late is None:
        return ""
    seen = f"{fmt.counted(late.collectives, 'collective')} in {fmt.counted(late.steps, 'step')}"
    if late.low_ms is None or late.high_ms is None:
        return f" The others waited longer in {late.longer:,} of {seen}."
    ends = f"{fmt.duration(max(late.low_ms, 0.0) * job.scale)} to {fmt.duration(late.high_ms * job.scale)}"
    return f" Each of the others waited at least {ends} per step longer ({seen}, 90 % confidence)."


def _late(late: LateWork | None, scale: float) -> str:
    """Where it was late, in words."""
    if late is None:
        return ""
    phase = "code outside model, loss and optimizer" if late.phase == "other" else late.phase.replace("_", " ")
    layer = f", most of all in {late.layer} ({fmt.duration(late.layer_ms * scale)})" if late.layer else ""
    return f" It is late in {phase}, which takes it {fmt.duration(late.more_ms * scale)} longer than the others{layer}."


@rule("unbalanced input", "Held up by unbalanced input", "giving each rank equally much")
def unbalanced_input(job: RanksFacts) -> Iterator[Finding]:
    """A rank that gets more samples than others, or else a late rank that waits longer for them."""
    if len(job.waiting_ms) < 2:
        return
    samples = {rank: count for rank, count in job.ranks.samples.items() if rank in job.waiting_ms.index}
    hosts = {rank: host for rank, host in job.ranks.host.items() if host is not None}
    data = {rank: float(host.phases["data"].mean()) * job.scale for rank, host in hosts.items()}
    most = max(samples, key=lambda rank: samples[rank], default=None)
    slowest = max(data, key=lambda rank: data[rank], default=None)
    if most is not None and samples[most] > _MORE * sum(samples.values()) / len(samples):
        rank, least, confidence = most, min(samples, key=lambda rank: samples[rank]), _COUNTED
        bound = job.others_wait_ms(rank) - float(job.waiting_ms[rank])
        evidence = (
            f"Rank {rank} gets {samples[rank]:.3g} samples per step, rank {least} only {samples[least]:.3g}: in "
            f"collectives the others wait {fmt.duration(max(bound, 0.0))} per step longer than it does."
        )
        advice = (
            "Give each rank equally much: torch.utils.data.DistributedSampler with drop_last=True, or batches of equal "
            "cost."
        )
    elif slowest is not None and slowest == job.ranks.straggler and len(data) > 1:
        rank, confidence = slowest, _MEASURED
        more = data[rank] - sum(ms for other, ms in data.items() if other != rank) / (len(data) - 1)
        bound = min(more, job.others_wait_ms(rank))
        evidence = (
            f"Rank {rank} waits {fmt.duration(data[rank])} per step for its data, {fmt.duration(more)} longer than "
            "the others, which then wait for it in collectives."
        )
        advice = "Look at this rank's loader: its workers, its share of the files, its disk; and its own findings."
    else:
        return
    if bound <= _WORTH * job.step_ms:
        return
    yield Finding(
        evidence,
        bound,
        advice,
        confidence,
        "From the samples in each rank's batches, or its waits for data, and the waits of the others in collectives.",
        "Whether samples cost equally much: sequences of other lengths do not.",
        rows("rank", [rank]),
    )


@rule("bucket sizes", "Communication-bound by the latency of its buckets", "sending fewer and larger ones")
def larger_buckets(job: RanksFacts) -> Iterator[Finding]:
    """DDP's buckets are so many that their latencies add up."""
    buckets = job.buckets
    if buckets is None or buckets.fewer_ms is None:
        return
    if buckets.fewer_ms <= _WORTH * job.step_ms or (buckets.low_ms or 0.0) <= 0:
        return
    yield Finding(
        bucket_sentence(buckets),
        buckets.fewer_ms,
        "Try larger buckets (bucket_cap_mb of DistributedDataParallel), and compare: they start later, so that less of "
        "them is hidden.",
        "medium",
        "From a line through the transfers of buckets of several sizes, without waiting for the last rank.",
        "How much more of larger buckets backward would hide.",
        rows("phase", ["communication"]),
    )


RULES: tuple[Rule, ...] = (straggler, unbalanced_input, larger_buckets)


def job_findings(ranks: RanksSummary, buckets: BucketSizes | None, timed_ms: float | None = None) -> list[Finding]:
    """What the rules find.

    Parameters
    ----------
    ranks : RanksSummary
    buckets : BucketSizes or None
    timed_ms : float, optional
        A timed step, if all ranks timed theirs: the figures of traced steps are scaled to it.
    """
    step_ms = float(ranks.times["wall_ms"].mean()) if timed_ms is None else timed_ms
    return found_by(RULES, RanksFacts(ranks, buckets, step_ms), step_ms)


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
            ms, waited = (fmt.duration(times.iloc[place]) for times in (result["bound_ms"], explained))
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
