"""Collectives: communication that no computation hides."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from perfnb.attribution.device_work import COLLECTIVE
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, Row, part, time
from perfnb.recording.labels import found

if TYPE_CHECKING:
    from perfnb.ranks.tables import RanksSummary

_WORTH = 0.05
_SHARDED = re.compile("AllGather|ReduceScatter")


def exposed_communication(facts: Facts) -> list[Finding]:
    """Time in which a GPU communicated and computed nothing."""
    gpu = facts.gpu
    if gpu is None or facts.share(gpu.exposed_ms) < _WORTH:
        return []
    hidden = 1 - gpu.exposed_ms / gpu.communication_ms
    names = gpu.work[found(gpu.work["name"], COLLECTIVE.search)]["name"].head(3)
    sharded = bool(found(gpu.work["name"], _SHARDED.search).any())
    how = (
        "fetch the next layer's weights ahead (prefetching of FSDP), shard fewer layers apart"
        if sharded
        else "DistributedDataParallel with buckets of another size (bucket_cap_mb) and gradients as views of them "
        "(gradient_as_bucket_view=True)"
    )
    return [
        Finding(
            "collectives",
            f"The GPU communicates for {time(gpu.communication_ms)} a step and computes nothing meanwhile for "
            f"{time(gpu.exposed_ms)}, {part(facts.share(gpu.exposed_ms))} of the step; {part(hidden)} is hidden.",
            gpu.exposed_ms,
            f"Let communication run behind computation: {how}, fewer synchronisations; or send less, in lower "
            "precision.",
            "",
            "medium",
            "The times are those of the kernels; waiting for a slower rank counts as communication.",
            "Who came late: load the traces of all ranks together to see a straggler.",
            tuple(Row("kernel", str(name)) for name in names),
        )
    ]


def straggler(ranks: RanksSummary) -> list[Finding]:
    """The rank that comes last to collectives, so that the others wait for it."""
    if ranks.straggler is None:
        return []
    mean = ranks.times.groupby("rank")[["waiting_ms", "wall_ms"]].mean()
    waited = float(mean["waiting_ms"].drop(ranks.straggler).mean())
    step_ms = float(mean["wall_ms"].mean())
    own = float(mean["waiting_ms"][ranks.straggler])
    return [
        Finding(
            "straggler",
            f"Rank {ranks.straggler} comes last to collectives: the others wait {time(waited)} a step for it, "
            f"{part(waited / step_ms)} of the step; it waits {time(own) if own > 0 else 'for none'}.",
            min(waited, step_ms),
            "Look at what this rank does more, or slower: its share of the data, its host, its clocks, its links; and "
            "at its own findings.",
            "",
            "medium",
            "From the begins of collectives that could be matched; clocks were compared by the ends.",
            "Collectives that could not be matched between the ranks.",
            (Row("rank", str(ranks.straggler)),),
        )
    ]
