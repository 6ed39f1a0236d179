"""Exposed communication: collectives that no computation hides."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfnb import quantities as fmt
from perfnb.attribution.device_work import COLLECTIVE
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, rows, rule
from perfnb.recording.labels import found

_WORTH = 0.05
_SHARDED = re.compile("AllGather|ReduceScatter")


@rule("collectives", "Communication-bound", "overlapping it with computation")
def exposed_communication(facts: Facts) -> Iterator[Finding]:
    """Time in which a GPU communicates and computes nothing."""
    gpu = facts.gpu
    if gpu is None or facts.share(gpu.exposed_ms) < _WORTH:
        return
    hidden = 1 - gpu.exposed_ms / gpu.communication_ms
    how = (
        "prefetch the next layer's weights (FSDP's prefetching), shard in larger units"
        if found(gpu.kernel_names, _SHARDED.search).any()
        else "DistributedDataParallel with another bucket size (bucket_cap_mb) and gradients as views of the buckets "
        "(gradient_as_bucket_view=True)"
    )
    yield Finding(
        "collectives",
        f"The GPU communicates for {fmt.duration(gpu.communication_ms)} per step; for {facts.of_step(gpu.exposed_ms)} "
        f"it computes nothing at the same time. {fmt.share(hidden)} of the communication is hidden.",
        gpu.exposed_ms,
        f"Overlap communication with computation: {how}, fewer synchronisations. Or send less, in lower precision.",
        "",
        "medium",
        "These are the kernels' times; waiting for a slower rank counts as communication.",
        "Which rank was late: load the traces of all ranks together to find a straggler.",
        rows("kernel", gpu.kernel_names[found(gpu.kernel_names, COLLECTIVE.search)].head(3)),
    )
