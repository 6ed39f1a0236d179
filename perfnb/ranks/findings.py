"""Rules that produce findings about all ranks of a job. Each rule detects one cause.

All bounds for a job refer to the timed step, and no cost is counted twice. For example, the time spent waiting for a
late rank is part of the finding about that rank, and is not counted as communication of the waiting ranks.
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

#: The input is balanced if no rank gets more samples than the mean multiplied by this factor.
_MORE = 1.05
#: The minimum share of a step that a finding must account for, in general and for exposed copies and communication.
_WORTH, _BINDS = 0.02, 0.05
#: The maximum number of ranks to name in a finding.
_MOST_NAMED = 8
_COUNTED: Confidence = "high"
_MEASURED: Confidence = "medium"


@dataclass(frozen=True)
class RanksFacts:
    """The facts that the rules for jobs are based on."""

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
        """The mean time per step that each rank waits in collectives for the last rank, if it is known."""
        waiting = self.ranks.times.groupby("rank")["waiting_ms"].mean().dropna().astype(float)
        return waiting * self.scale

    def part_ms(self, part: str) -> float:
        """Return the time that the ranks spend in a part of a step on average, or 0 if it is unknown.

        The parts are described in `RanksSummary.parts`.
        """
        return (fmt.known(self.ranks.parts[part].mean()) or 0.0) * self.scale

    def others_wait_ms(self, rank: int) -> float:
        """Return how long the other ranks wait per step on average."""
        return float(self.waiting_ms.drop(rank).mean())


def _straggler_words(job: RanksFacts) -> tuple[str, str]:
    return f"Held up by rank {job.ranks.straggler}", "making it as fast as the others"


@rule("straggler", "Held up by a slow rank", words=_straggler_words)
def straggler(job: RanksFacts) -> Iterator[Finding]:
    """Find a rank that arrives last at collectives and makes the other ranks wait, unless its input is the cause."""
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
        f"Rank {rank} arrives last at collectives. The other ranks wait {fmt.duration(waited)} per step for it "
        f"({fmt.share(waited / job.step_ms)} of the step), but it waits "
        f"{fmt.duration(own) if own > 0 else 'for no other rank'}.{_late(late, job.scale)}",
        waited - explained,
        "Find out where this rank does more work or is slower than the others. Check its share of the data, its host, "
        "its GPU clocks, its links, and its own findings.",
        "medium",
        f"From the starts of matched collectives. Clocks are aligned by the ends of the collectives.{_evidence(job)}",
        "Collectives that could not be matched between the ranks.",
        rows("rank", [rank]) + where,
    )


def _evidence(job: RanksFacts) -> str:
    """Return a sentence with the evidence that this rank is late."""
    late = job.ranks.lateness
    if late is None:
        return ""
    seen = f"{fmt.counted(late.collectives, 'collective')} in {fmt.counted(late.steps, 'step')}"
    if late.low_ms is None or late.high_ms is None:
        return f" The other ranks waited longer in {late.longer:,} of {seen}."
    ends = f"{fmt.duration(max(late.low_ms, 0.0) * job.scale)} to {fmt.duration(late.high_ms * job.scale)}"
    return f" Each of the other ranks waited at least {ends} longer per step ({seen}, 90 % confidence)."


def _late(late: LateWork | None, scale: float) -> str:
    """Return a sentence about the phase and layer where the rank was late."""
    if late is None:
        return ""
    phase = "code outside the model, loss and optimizer" if late.phase == "other" else late.phase.replace("_", " ")
    layer = f", mostly in {late.layer} ({fmt.duration(late.layer_ms * scale)})" if late.layer else ""
    return f" It is late in {phase}, which takes {fmt.duration(late.more_ms * scale)} longer than on the others{layer}."


@rule("unbalanced input", "Held up by unbalanced input", "giving each rank the same amount of data")
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
            f"Rank {rank} gets {samples[rank]:.3g} samples per step, but rank {least} only {samples[least]:.3g}. The "
            f"other ranks wait {fmt.duration(max(bound, 0.0))} longer per step in collectives than this rank."
        )
        advice = (
            "Give each rank the same amount of data, with torch.utils.data.DistributedSampler and drop_last=True or "
            "with batches of equal cost."
        )
    elif slowest is not None and slowest == job.ranks.straggler and len(data) > 1:
        rank, confidence = slowest, _MEASURED
        more = data[rank] - sum(ms for other, ms in data.items() if other != rank) / (len(data) - 1)
        bound = min(more, job.others_wait_ms(rank))
        evidence = (
            f"Rank {rank} waits {fmt.duration(data[rank])} per step for its data, which is {fmt.duration(more)} longer "
            "than the other ranks. These then wait for it in collectives."
        )
        advice = "Check this rank's loader: its workers, its share of the files, its disk, and the rank's own findings."
    else:
        return
    if bound <= _WORTH * job.step_ms:
        return
    yield Finding(
        evidence,
        bound,
        advice,
        confidence,
        "From the number of samples in each rank's batches or its waits for data, and the other ranks' waits in "
        "collectives.",
        "Whether all samples cost the same. For example, sequences of different lengths do not.",
        rows("rank", [rank]),
    )


@rule("bucket sizes", "Communication-bound by the latency of its buckets", "sending fewer, larger buckets")
def larger_buckets(job: RanksFacts) -> Iterator[Finding]:
    """Check whether DDP uses so many buckets that their latencies add up."""
    buckets = job.buckets
    if buckets is None or buckets.fewer_ms is None:
        return
    if buckets.fewer_ms <= _WORTH * job.step_ms or (buckets.low_ms or 0.0) <= 0:
        return
    yield Finding(
        bucket_sentence(buckets),
        buckets.fewer_ms,
        "Try larger buckets (bucket_cap_mb of DistributedDataParallel), and compare the step times. Larger buckets "
        "start later, so less of their transfer is hidden.",
        "medium",
        "From a line fitted to the transfer times of buckets of several sizes, excluding the wait for the last rank.",
        "How much of the larger buckets' transfers the backward pass would hide.",
        rows("phase", ["communication"]),
    )


@rule("copies", "Bound by copies", "removing the exposed copies")
def copies(job: RanksFacts) -> Iterator[Finding]:
    """Find copies that run while the GPUs do nothing else."""
    copying = job.part_ms("copying_ms")
    if copying < _BINDS * job.step_ms:
        return
    yield Finding(
        f"In each step of {fmt.duration(job.step_ms)}, the GPUs only copy data for {fmt.duration(copying)}. They "
        f"compute for {fmt.duration(job.part_ms('computing_ms') + job.part_ms('both_ms'))}.",
        copying,
        "Find the copies in the timeline and the findings of one rank (ranks[0]). Then keep data on the GPU, copy less "
        "data, or start copies earlier, from pinned memory and on a separate stream.",
        "medium",
        "The time when a GPU only copies data was measured. How much of it can be hidden was not measured.",
        "The code that starts the copies.",
        rows("phase", ["host_to_device"]),
    )


@rule("communication", "Communication-bound", "hiding it behind computation or sending less")
def communication(job: RanksFacts) -> Iterator[Finding]:
    """Find communication that is not hidden by computation, excluding the time spent waiting for the last rank."""
    waiting = float(job.waiting_ms.mean()) if len(job.waiting_ms) else 0.0
    transfers = job.part_ms("exposed_ms") - waiting
    if transfers < _BINDS * job.step_ms:
        return
    apart = (
        "excluding the wait for the last rank" if len(job.waiting_ms) else "which may include waiting for other ranks"
    )
    yield Finding(
        f"In each step of {fmt.duration(job.step_ms)}, the ranks communicate without computing anything for "
        f"{fmt.duration(transfers)}, {apart}.",
        transfers,
        "Start collectives earlier, send less data (for example, gradients in lower precision), or do more work "
        "between collectives (larger batches, or gradient accumulation with no_sync()).",
        "medium" if len(job.waiting_ms) else "low",
        "The time when collectives run and nothing computes was measured.",
        "How much of the communication could be hidden by computation.",
        rows("phase", ["communication"]),
    )


RULES: tuple[Rule, ...] = (straggler, unbalanced_input, larger_buckets)
#: Rules for causes that a rank's own findings also cover. They are used if the ranks are not analysed one by one.
IN_ALL: tuple[Rule, ...] = (copies, communication)
_OF_JOB = {rule.name: rule for rule in (*RULES, *IN_ALL)}
_BY_NAME = BY_NAME | _OF_JOB


def job_report(job: RanksFacts, findings: pd.DataFrame) -> Findings:
    """Return the findings about a job, and the verdict.

    Each bottleneck has one finding, which is the one with the largest saving. It lists the ranks that have the
    bottleneck.

    Parameters
    ----------
    job : RanksFacts
    findings : DataFrame
        In the format of `Ranks.findings`.
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
    """Return the finding with the highest bound for each bottleneck, with the affected ranks added to its name."""
    table = findings.drop_duplicates("bottleneck", ignore_index=True)
    names = []
    for name, first in zip(table["bottleneck"], table["rank"], strict=True):
        ranks = sorted(int(rank) for rank in findings.loc[findings["bottleneck"] == name, "rank"].dropna())
        here = f"; figures of rank {first}" if len(ranks) > 1 else ""
        names.append(f"{name} ({listed(ranks)}{here})" if ranks else str(name))
    return table.assign(rule=table["bottleneck"], bottleneck=names)


def listed(ranks: Sequence[int], word: str = "ranks") -> str:
    """List rank numbers in words, as in ``rank 3`` or ``ranks 0, 1, 2``. If there are many, only list the first."""
    numbers = fmt.named([*map(str, ranks)], _MOST_NAMED)
    return f"{word.removesuffix('s') if len(ranks) == 1 else word} {numbers}"


def without_waiting(found: pd.DataFrame, calls: pd.DataFrame, rank: int, late: Finding) -> pd.DataFrame:
    """Exclude the wait for a late rank from a rank's findings about communication.

    Parameters
    ----------
    found : DataFrame
        The rank's ``findings`` table.
    calls : DataFrame
        The rank's collectives from `collective_calls`, with the column ``waiting_ns``.
    rank : int
    late : Finding
        The finding about the late rank.
    """
    name = late.rows[0].name
    if name == str(rank):
        return found
    start, end, exposed = (calls[column].to_numpy(dtype=np.int64) for column in ("start_ns", "end_ns", "exposed_ns"))
    waiting = calls["waiting_ns"].fillna(0).to_numpy(dtype=np.int64)
    # If part of a collective is hidden, the exposed part may still be transfer.
    transfer = np.clip(np.maximum(end - start, exposed) - waiting, 0, exposed)
    alone = _ratio(transfer.sum(), exposed.sum())
    flying = _ratio(union(np.minimum(start + waiting, end), end).length, union(start, end).length)
    kept = {"collectives": alone, "small buckets": alone, "every micro-step": max(alone, flying)}
    part = found["bottleneck"].map(kept).astype("Float64").fillna(1.0)
    result = found.assign(bound_ms=found["bound_ms"] * part, bound_share=found["bound_share"] * part)
    explained = found["bound_ms"] - result["bound_ms"]
    evidence, why = (list(found[column]) for column in ("evidence", "why"))
    covered = f"rank {name}, which is part of the finding {late.bottleneck}"
    for place in np.flatnonzero(part < 1):
        if found["bottleneck"].iloc[place] == "collectives":
            ms, waited = (fmt.duration(times.iloc[place]) for times in (result["bound_ms"], explained))
            evidence[place] = (
                f"For {ms} ({fmt.share(result['bound_share'].iloc[place])} of the step), the rank only waits for the "
                f"transfers of collectives. In addition, it waits {waited} in them for {covered}."
            )
            why[place] = "It may not be possible to hide all transfers behind computation."
        else:
            evidence[place] += f" The bound does not include the wait for {covered}."
    result = result.assign(evidence=evidence, why=why).astype(found.dtypes.to_dict())
    return result[(part == 1) | (result["bound_share"] >= _WORTH)]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 1.0
