"""Findings about all ranks of a job, with one rule per cause.

All bounds for a job refer to the timed step, and no cost is counted twice. For example, the time spent waiting for a
late rank belongs to the finding about that rank, and not to the communication of the ranks that wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.interval_sets import union
from perfnb.findings.finding import Conclusion, Confidence, Finding, Findings, Row, Rule, deciding, rows, rule
from perfnb.findings.rules import BY_NAME
from perfnb.ranks.buckets import BucketSizes, bucket_sentence
from perfnb.ranks.host import LateWork
from perfnb.ranks.summary import RanksSummary

#: Largest number of samples of a rank, as a multiple of the mean, that counts as balanced.
_MORE = 1.05
#: Least share of a step that is worth a finding, and the same for exposed copies and communication.
_WORTH, _BINDS = 0.02, 0.05
#: Most ranks named for one finding.
_MOST_NAMED = 8
_COUNTED: Confidence = "high"
_MEASURED: Confidence = "medium"


@dataclass(frozen=True)
class RanksFacts:
    """The facts that the rules for jobs use."""

    ranks: RanksSummary
    buckets: BucketSizes | None
    #: The step that bounds refer to: the timed step, if all ranks have one.
    step_ms: float

    @cached_property
    def scale(self) -> float:
        """The factor that converts times in the traced steps of `ranks` to the step that the bounds refer to."""
        return self.step_ms / float(self.ranks.times["wall_ms"].mean())

    @cached_property
    def waiting_ms(self) -> pd.Series:
        """The mean time that each rank waits in collectives for the last rank, where it is known."""
        waiting = self.ranks.times.groupby("rank")["waiting_ms"].mean().dropna().astype(float)
        return waiting * self.scale

    def part_ms(self, part: str) -> float:
        """Return the time that ranks spend in a part of their mean step, or 0 if it is unknown.

        The parts are described in `RanksSummary.parts`.
        """
        return (fmt.known(self.ranks.parts[part].mean()) or 0.0) * self.scale

    def others_wait_ms(self, rank: int) -> float:
        """Return how long the other ranks wait per step."""
        return float(self.waiting_ms.drop(rank).mean())


def _straggler_words(job: RanksFacts) -> tuple[str, str]:
    return f"Held up by rank {job.ranks.straggler}", "making it as fast as the others"


@rule("straggler", "Held up by a slow rank", words=_straggler_words)
def straggler(job: RanksFacts) -> Iterator[Finding]:
    """Find the rank that arrives last at collectives and makes the others wait, unless its input is the cause."""
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
        f"({fmt.share(waited / job.step_ms)} of the step); it waits {fmt.duration(own) if own > 0 else 'for nobody'}."
        f"{_late(late, job.scale)}",
        waited - explained,
        "Check where this rank does more work, or works more slowly: its share of the data, its host, GPU clocks and "
        "links; and its own findings.",
        "medium",
        f"From the starts of matched collectives; clocks are compared by their ends.{_evidence(job)}",
        "Collectives that could not be matched between the ranks.",
        rows("rank", [rank]) + where,
    )


def _evidence(job: RanksFacts) -> str:
    """Return a sentence with the evidence for the verdict."""
    late = job.ranks.lateness
    if late is None:
        return ""
    seen = f"{fmt.counted(late.collectives, 'collective')} in {fmt.counted(late.steps, 'step')}"
    if late.low_ms is None or late.high_ms is None:
        return f" The others waited longer in {late.longer:,} of {seen}."
    ends = f"{fmt.duration(max(late.low_ms, 0.0) * job.scale)} to {fmt.duration(late.high_ms * job.scale)}"
    return f" Each of the others waited at least {ends} per step longer ({seen}, 90 % confidence)."


def _late(late: LateWork | None, scale: float) -> str:
    """Return a sentence about where the rank was late."""
    if late is None:
        return ""
    phase = "code outside model, loss and optimizer" if late.phase == "other" else late.phase.replace("_", " ")
    layer = f", most of all in {late.layer} ({fmt.duration(late.layer_ms * scale)})" if late.layer else ""
    return f" It is late in {phase}, where it takes {fmt.duration(late.more_ms * scale)} longer than the others{layer}."


@rule("unbalanced input", "Held up by unbalanced input", "giving each rank the same amount")
def unbalanced_input(job: RanksFacts) -> Iterator[Finding]:
    """Find a rank that gets more samples than the others, or a late rank that waits longer for its data."""
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
            "Give each rank the same amount: torch.utils.data.DistributedSampler with drop_last=True, or batches of "
            "equal cost."
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
        "Whether all samples cost the same: sequences of different lengths do not.",
        rows("rank", [rank]),
    )


@rule("bucket sizes", "Communication-bound by the latency of its buckets", "sending fewer, larger buckets")
def larger_buckets(job: RanksFacts) -> Iterator[Finding]:
    """Find out whether there are so many DDP buckets that their latencies add up."""
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
        "How much of the larger buckets backward would hide.",
        rows("phase", ["communication"]),
    )


@rule("copies", "Bound by copies", "removing the exposed copies")
def copies(job: RanksFacts) -> Iterator[Finding]:
    """Find copies that run while the GPUs are otherwise idle."""
    copying = job.part_ms("copying_ms")
    if copying < _BINDS * job.step_ms:
        return
    yield Finding(
        f"For {fmt.duration(copying)} of a step of {fmt.duration(job.step_ms)} the GPUs do nothing but copy. They "
        f"compute for {fmt.duration(job.part_ms('computing_ms') + job.part_ms('both_ms'))}.",
        copying,
        "Find the copies in the timeline and the findings of one rank (ranks[0]): keep data on the GPU, copy less, or "
        "start copies earlier, from pinned memory and on a stream of their own.",
        "medium",
        "The time when a GPU does nothing but copy was measured; how much of it can be hidden was not.",
        "Which code starts the copies.",
        rows("phase", ["host_to_device"]),
    )


@rule("communication", "Communication-bound", "hiding it behind computation or sending less")
def communication(job: RanksFacts) -> Iterator[Finding]:
    """Find exposed communication, excluding the time spent waiting for the last rank."""
    waiting = float(job.waiting_ms.mean()) if len(job.waiting_ms) else 0.0
    transfers = job.part_ms("exposed_ms") - waiting
    if transfers < _BINDS * job.step_ms:
        return
    apart = (
        "without waiting for the last rank" if len(job.waiting_ms) else "part of which may be waiting for other ranks"
    )
    yield Finding(
        f"The ranks communicate for {fmt.duration(transfers)} of a step of {fmt.duration(job.step_ms)} while nothing "
        f"computes, {apart}.",
        transfers,
        "Start collectives earlier, send less (gradients in lower precision), or do more work between them (larger "
        "batches, gradient accumulation with no_sync()).",
        "medium" if len(job.waiting_ms) else "low",
        "The time when collectives run and nothing computes was measured.",
        "How much of the communication computation could hide.",
        rows("phase", ["communication"]),
    )


RULES: tuple[Rule, ...] = (straggler, unbalanced_input, larger_buckets)
#: Findings that each rank has itself, for jobs whose ranks are not analysed one by one.
IN_ALL: tuple[Rule, ...] = (copies, communication)
_OF_JOB = {rule.name: rule for rule in (*RULES, *IN_ALL)}
_BY_NAME = BY_NAME | _OF_JOB


def job_report(job: RanksFacts, findings: pd.DataFrame) -> Findings:
    """Return the findings with the largest savings and the verdict.

    There is one finding per bottleneck, and it names the ranks that have the bottleneck.

    Parameters
    ----------
    job : RanksFacts
    findings : DataFrame
        As `Ranks.findings`.
    """
    table = _worst(findings)
    found = [
        Finding(
            **{name: row[name] for name in ("evidence", "bound_ms", "advice", "confidence", "why", "blind")},
            bottleneck=row["rule"],
        )
        for _, row in table.iterrows()
    ]
    place = deciding(found, _BY_NAME, job.step_ms, _WORTH)
    if place is None or found[place].bound_ms is None:
        return Findings(table, Conclusion("", "", ""), job.step_ms)
    first = found[place]
    rule = _BY_NAME[first.bottleneck]
    headline, saving = rule.words_for(job) if first.bottleneck in _OF_JOB else (rule.headline, rule.saving)
    most = (
        f"{fmt.duration(first.bound_ms)} of {fmt.duration(job.step_ms)} per step, {fmt.share(first.share(job.step_ms))}"
    )
    verdict = f"{headline}: {saving} could save up to {most}"
    return Findings(table, Conclusion(verdict, first.evidence, first.advice, place), job.step_ms)


def _worst(findings: pd.DataFrame) -> pd.DataFrame:
    """Return the row with the highest bound for each bottleneck, named together with the ranks that have it."""
    table = findings.drop_duplicates("bottleneck", ignore_index=True)
    names = []
    for name, first in zip(table["bottleneck"], table["rank"], strict=True):
        ranks = sorted(int(rank) for rank in findings.loc[findings["bottleneck"] == name, "rank"].dropna())
        here = f"; figures of rank {first}" if len(ranks) > 1 else ""
        names.append(f"{name} ({listed(ranks)}{here})" if ranks else str(name))
    return table.assign(rule=table["bottleneck"], bottleneck=names)


def listed(ranks: Sequence[int], word: str = "ranks") -> str:
    """Return ``rank 3`` or ``ranks 0, 1, 2``. If there are many ranks, only the first are listed."""
    numbers = fmt.named([*map(str, ranks)], _MOST_NAMED)
    return f"{word.removesuffix('s') if len(ranks) == 1 else word} {numbers}"


def without_waiting(found: pd.DataFrame, calls: pd.DataFrame, rank: int, late: Finding) -> pd.DataFrame:
    """Return a rank's findings, excluding the wait for a late rank from the findings about communication.

    Parameters
    ----------
    found : DataFrame
        The rank's ``findings`` table.
    calls : DataFrame
        The rank's collectives, from `collective_calls`, with ``waiting_ns``.
    rank : int
    late : Finding
        The finding about the late rank.
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
