"""Copies between host and device that nothing hides."""

from __future__ import annotations

from perfnb.findings.facts import Facts
from perfnb.findings.finding import Confidence, Finding, Row, many, part, size, time
from perfnb.findings.gpu import Copies, GpuFacts

_WORTH = 0.05
#: Bytes below which a copy takes no longer than any call does.
_SMALL = 64 * 2**10


def host_device_copies(facts: Facts) -> list[Finding]:
    """Time of copies on the device, and time that the device was idle while the host was held in a call that copies."""
    gpu = facts.gpu
    if gpu is None:
        return []
    held, perhaps = gpu.held_ms("copies"), gpu.idle_perhaps["copies"]
    bound = gpu.copies_ms + held
    if facts.share(bound) < _WORTH:
        return []
    in_calls, calls = gpu.calls_ms["copies"]
    said = [f"the device was idle for {time(held)} while the host was held in a call that copies"] if held else []
    said += [f"copies ran on the device for {time(gpu.copies_ms)} beside no computation"] if gpu.copies_ms else []
    evidence = " and ".join(said)
    unsure = gpu.is_unsure("copies")
    confidence: Confidence = "low" if unsure else "medium"
    return [
        Finding(
            "host-device copies",
            f"{evidence[0].upper()}{evidence[1:]}, {part(facts.share(bound))} of the step ({many(calls, 'call')} "
            f"that copy in the trace, {time(in_calls)} of the host a step{_moved(gpu)}).{_behind(perhaps)}",
            bound,
            _lever(gpu),
            "",
            confidence,
            "That the host was held is sure; that the GPU idled for it is not: the copy may have waited as well."
            if unsure
            else "Idle time is laid to what the host did meanwhile; part of a copy may lie behind computation already.",
            "Whether a copy waited for earlier work on its stream"
            + (", such as work launched before the trace began or by another process." if unsure else "."),
            (Row("phase", "host_to_device"),),
        )
    ]


def _moved(gpu: GpuFacts) -> str:
    """How many copies there are each way, and what they move."""
    said = ""
    for way, copies in (("to the device", gpu.to_device), ("to the host", gpu.to_host)):
        if copies.count:
            each = "" if copies.each_bytes is None else f" of {size(copies.each_bytes)}"
            said += f"; {many(copies.count, 'copy')} {way}{each}"
            said += f", {copies.pageable} of them in memory that is not pinned" if copies.pageable else ""
    return said


def _lever(gpu: GpuFacts) -> str:
    """What to change, by where the copies lead that hold the host for longer, and by what they move."""
    there, back = gpu.to_device, gpu.to_host
    if not there.count and not back.count:
        return (
            "Find the calls that copy: reads of results hold the host until all earlier work is done, and so do copies "
            "from memory that is not pinned."
        )
    if back.count and (not there.count or back.call_ms >= there.call_ms):
        if _is_small(back):
            return (
                "Read results less often: these copies to the host move so little that their time is waiting for "
                "earlier work, and pinned memory would not shorten it."
            )
        return (
            "Bring less back to the host, or copy it without waiting: into pinned memory with non_blocking=True, and "
            "synchronise only where it is read."
        )
    if _is_small(there):
        return (
            "Make these small tensors on the device (device=... where they are created), or put several into one copy: "
            "each moves so little that its time is the call's, and pinned memory would not shorten it."
        )
    if there.pinned == there.count:
        return (
            "The copies to the device come from pinned memory already: start them with non_blocking=True, one batch "
            "ahead of the step that uses it."
        )
    return (
        "Copy batches from pinned memory without waiting: pin_memory=True in the DataLoader and "
        ".to(device, non_blocking=True) in the step. A copy from other memory holds the host until it is done."
    )


def _is_small(copies: Copies) -> bool:
    return copies.each_bytes is not None and copies.each_bytes < _SMALL


def _behind(perhaps: float) -> str:
    """Idle time for which the host may not be to blame, in words."""
    if not perhaps:
        return ""
    return (
        f" For {time(perhaps)} of it nothing shows that the GPU waited for this: its next work had been launched "
        "already, or the launch is not on record."
    )
