"""Collectives: communication that no computation hides."""

from __future__ import annotations

import re

from perfnb.attribution.device_work import COLLECTIVE
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, Row, part, time
from perfnb.recording.labels import found

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
