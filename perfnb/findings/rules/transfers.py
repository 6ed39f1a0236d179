"""Find data transfers that no computation hides: copies between host and device, and communication between GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfnb import quantities as fmt
from perfnb.attribution.device_work import COLLECTIVE
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, rows, rule
from perfnb.findings.gpu_facts import GpuFacts
from perfnb.recording.text import found

_SHARDED = re.compile("AllGather|ReduceScatter")


@rule("host-device copies", "Bound by copies between host and device", idle_cause="copies", worth=0.05)
def host_device_copies(facts: Facts) -> Iterator[Finding]:
    """Find the time spent on copies, and the device's idle time while a copy call blocked the host."""
    gpu = facts.gpu
    if gpu is None:
        return
    held, perhaps, unsure = gpu.held_ms("copies"), gpu.idle_perhaps["copies"], gpu.is_unsure("copies")
    bound = gpu.copies_ms + held
    in_calls, calls = gpu.calls_ms["copies"]
    behind = (
        f" For {fmt.duration(perhaps)} of this time, nothing shows that the GPU waited for the copy: its next work had "
        "already been launched, or the launch is not in the trace."
    )
    blocked = f"the device was idle for {fmt.duration(held)} while a copy call blocked the host"
    said = [blocked] if held else []
    said += [f"copies ran for {fmt.duration(gpu.copies_ms)} while nothing was computed"] if gpu.copies_ms else []
    yield Finding(
        f"{fmt.capital(' and '.join(said))}: {fmt.share(facts.share(bound))} of the step "
        f"({fmt.counted(calls, 'copy call')} in the trace, {fmt.duration(in_calls)} of host time per "
        f"step{_moved(gpu)}).{behind if perhaps else ''}",
        bound,
        _advice(facts, gpu),
        "low" if unsure else "medium",
        "The host was certainly blocked, but the GPU may have been idle for another reason, because the copy itself "
        "may have been waiting."
        if unsure
        else "Idle time is attributed to the host's work at that time. Part of a copy may already be hidden.",
        "Whether a copy waited for earlier work on its stream"
        + (", such as work launched before the trace began or by another process." if unsure else "."),
        rows("phase", ["host_to_device"]),
    )


def _moved(gpu: GpuFacts) -> str:
    """Describe the number of copies in each direction, and how much data they move."""
    said = ""
    for way, copies in (("to the device", gpu.to_device), ("to the host", gpu.to_host)):
        if copies.count:
            each = "" if copies.each_bytes is None else f" of {fmt.size(copies.each_bytes)}"
            said += f"; {fmt.counted(copies.count, 'copy')} {way}{each}"
            said += f", {copies.pageable} of them using pageable memory" if copies.pageable else ""
    return said


def _advice(facts: Facts, gpu: GpuFacts) -> str:
    """Return a recommendation based on the direction that blocks the host longer, and on the size of its copies."""
    there, back = gpu.to_device, gpu.to_host
    if not there.count and not back.count:
        return (
            "Find the calls that copy: reading a result blocks the host until all earlier work is done, and so does "
            "copying from pageable memory."
        )
    if back.count and (not there.count or back.call_ms >= there.call_ms):
        if back.is_small:
            return (
                "Read results less often. These copies to the host are so small that their time is spent waiting for "
                "earlier work, so pinned memory would not help."
            )
        return (
            "Copy less data back to the host, or copy it asynchronously into pinned memory"
            f"{facts.for_torch(' with non_blocking=True')} and synchronise only where the data is read."
        )
    if there.is_small:
        return (
            f"Create these small tensors on the device{facts.for_torch(' (device=...)')}, or pack several of them into "
            "one copy. Each copy is so small that it takes no longer than the call itself, so pinned memory would not "
            "help."
        )
    if there.pinned == there.count:
        return (
            "The copies to the device already come from pinned memory. Start each one "
            f"{facts.for_torch('with non_blocking=True, ') or 'asynchronously, '}one batch ahead of the step that uses "
            "the batch."
        )
    how = ": pin_memory=True in the DataLoader and .to(device, non_blocking=True) in the step"
    return (
        f"Copy batches asynchronously from pinned memory{facts.for_torch(how)}. A copy from pageable memory blocks the "
        "host until it is done."
    )


@rule("collectives", "Communication-bound", "overlapping it with computation, or sending less,", worth=0.05)
def exposed_communication(facts: Facts) -> Iterator[Finding]:
    """Find the time when a GPU communicates without computing anything."""
    gpu = facts.gpu
    if gpu is None or not gpu.communication_ms:
        return
    hidden = 1 - gpu.exposed_ms / gpu.communication_ms
    how = (
        "prefetch the next layer's weights (FSDP prefetching), shard in larger units"
        if facts.uses_torch and found(gpu.kernel_names, _SHARDED.search).any()
        else "start communication earlier and in smaller pieces"
        if not facts.uses_torch
        else "use DistributedDataParallel with another bucket size (bucket_cap_mb), and with gradients that are views "
        "of the buckets (gradient_as_bucket_view=True)"
    )
    yield Finding(
        f"The GPU communicates for {fmt.duration(gpu.communication_ms)} per step. For {facts.of_step(gpu.exposed_ms)}, "
        f"it computes nothing at the same time. {fmt.share(hidden)} of the communication is hidden.",
        gpu.exposed_ms,
        f"Overlap communication with computation: {how}, or synchronise less often. Alternatively, send less data by "
        "using lower precision.",
        "medium",
        "The times are those of the kernels, so waiting for a slower rank counts as communication.",
        "Which rank was late: load the traces of all ranks together to find a straggler.",
        rows("kernel", gpu.kernel_names[found(gpu.kernel_names, COLLECTIVE.search)].head(3)),
    )
