"""Copies between host and device that nothing hides."""

from __future__ import annotations

from perfnb.analysis.findings.facts import Facts
from perfnb.analysis.findings.finding import Confidence, Finding, Row, many, part, time

_WORTH = 0.05


def host_device_copies(facts: Facts) -> list[Finding]:
    """Time of copies on the device, and time that the device was idle while the host was held in a call that copies."""
    gpu = facts.gpu
    if gpu is None:
        return []
    held, perhaps = gpu.held_ms("copies"), gpu.idle_perhaps["copies"]
    bound = gpu.memcpy_ms + held
    if facts.share(bound) < _WORTH:
        return []
    in_calls, calls = gpu.calls_ms["copies"]
    pageable = f", {gpu.pageable} of them from or to memory that is not pinned" if gpu.pageable else ""
    said = [f"the device was idle for {time(held)} while the host was held in a call that copies"] if held else []
    said += [f"copies ran on the device for {time(gpu.memcpy_ms)}"] if gpu.memcpy_ms else []
    batch = "batch"
    unsure = gpu.is_unsure("copies")
    confidence: Confidence = "low" if unsure else "medium"
    return [
        Finding(
            "host-device copies",
            f"{' and '.join(said).capitalize()}, {part(facts.share(bound))} of the step ({many(calls, 'call')} "
            f"that copy in the trace, {time(in_calls)} of the host a step{pageable}).{_behind(perhaps)}",
            bound,
            "Copy from pinned memory without waiting, in few large copies, and bring back less: a copy from pageable "
            "memory, or one to the host, holds the host until all earlier work is done.",
            f"{batch} = {batch}.to(device, non_blocking=True)  # with pin_memory=True in the DataLoader",
            confidence,
            "That the host was held is sure; that the GPU idled for it is not: the copy may have waited as well."
            if unsure
            else "Idle time is laid to what the host did meanwhile; part of a copy may lie behind computation already.",
            "How many bytes each copy moved, and whether a copy waited for earlier work on its stream"
            + (", such as work launched before the trace began or by another process." if unsure else "."),
            (Row("phase", "host_to_device"),),
        )
    ]


def _behind(perhaps: float) -> str:
    """Idle time for which the host may not be to blame, in words."""
    if not perhaps:
        return ""
    return (
        f" For {time(perhaps)} of it nothing shows that the GPU waited for this: its next work had been launched "
        "already, or the launch is not on record."
    )
