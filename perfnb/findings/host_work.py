"""A GPU that waits while the host does something else than launch, and one that idles for no reason on record."""

from __future__ import annotations

from perfnb.findings.facts import Facts
from perfnb.findings.finding import Confidence, Finding, Row, part, time
from perfnb.findings.gpu import GpuFacts
from perfnb.findings.idle import LONG_NS

#: What such a finding is called.
UNEXPLAINED = "unexplained idle time"
_WORTH, _UNKNOWN_WORTH = 0.05, 0.1
_WORDS = {"calls": "calls of the GPU's runtime", "ops": "ops", "functions": "Python functions"}
#: Share of the time from which on one place where the host was seen takes most of it.
_MOST = 0.5
_KINDS = {"ops": "op"}
_RECORDING_MORE = (
    "torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA], "
    "with_stack=True"
)


def host_work(facts: Facts) -> list[Finding]:
    """Idle time in pieces too long for launching: the host was in a long op or call, or in Python."""
    gpu = facts.gpu
    if gpu is None:
        return []
    bound = gpu.idle_by["host"]
    if facts.share(bound) < _WORTH:
        return []
    known = gpu.doing.seen >= _MOST
    confidence: Confidence = "high" if known and gpu.idle_share > 0.5 else "medium"
    lever, code = _lever(facts, gpu)
    rows = tuple(Row(kind, gpu.doing.longest[place]) for place, kind in _KINDS.items() if gpu.doing.longest[place])
    return [
        Finding(
            "host work",
            f"The GPU was idle for {time(bound)} a step, {part(facts.share(bound))} of it, in pieces of more than "
            f"{time(LONG_NS / 1e6)}: longer than it takes to launch, so the host did something else. {_seen(gpu)}",
            bound,
            lever,
            code,
            confidence,
            "The host had launched nothing that the GPU could have run"
            + ("." if known else ", but for most of that time the trace does not show what it did."),
            "What the host did outside ops, calls and functions on record; and work that is missing from the trace.",
            rows,
        )
    ]


def _seen(gpu: GpuFacts) -> str:
    """What the host did: ``Of that 30.0 s are in calls of the GPU's runtime (most in cudaMalloc) ...``."""
    doing = gpu.doing
    parts = []
    for place, word in _WORDS.items():
        share = doing.by[place] / doing.whole
        if share >= 0.01:
            parts.append(f"{time(share * gpu.idle_by['host'])} in {word} (most in {_short(doing.longest[place])})")
    if not parts:
        return "The trace does not show what."
    rest = 1 - doing.seen
    left = f", and for {time(rest * gpu.idle_by['host'])} the trace does not show what" if rest >= 0.01 else ""
    return f"It spent {', '.join(parts)}{left}."


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:59]}…"


def _lever(facts: Facts, gpu: GpuFacts) -> tuple[str, str]:
    share = {place: ns / gpu.doing.whole for place, ns in gpu.doing.by.items()}
    if share["calls"] >= _MOST:
        return (
            "Look at this call: the first use of a GPU, a library or a kernel loads what it needs. Let steps run "
            "before the one that is traced.",
            "" if facts.live else "schedule = torch.profiler.schedule(wait=1, warmup=3, active=3)",
        )
    if share["calls"] + share["ops"] >= _MOST:
        return "Look at this op: it runs on the host for long, and launches late.", ""
    if share["functions"] >= _MOST:
        return (
            "Take this function off the step's way: do it less often, elsewhere, or before the loop.",
            "",
        )
    if facts.records_python:
        return "Find what the host does there: none of the ops, calls and functions on record takes most of it.", ""
    if facts.live:
        return "Find what the host does there: profile with stacks=True, which records Python's functions too.", ""
    return "Find what the host does there: record Python's functions too.", f"profiler = {_RECORDING_MORE})"


def unexplained_idle(facts: Facts) -> list[Finding]:
    """Idle time of which the trace does not show why."""
    gpu = facts.gpu
    if gpu is None or facts.share(gpu.unexplained_ms) < _UNKNOWN_WORTH:
        return []
    bound = gpu.unexplained_ms
    reasons = {
        "unknown": "the launch of what came next is not in the trace",
        "awaited": "what came next had been launched, and its stream awaited an event that is not in the trace",
        "other": "what came next had been launched, and nothing shows what it waited for",
    }
    said = [
        f"for {time(gpu.idle_by[why])} {reason}" for why, reason in reasons.items() if gpu.idle_by[why] >= 0.01 * bound
    ]
    return [
        Finding(
            UNEXPLAINED,
            f"The GPU was idle for {time(bound)} a step, {part(facts.share(bound))} of it, and the trace does not show "
            f"why: {'; '.join(said)}.",
            bound,
            "Record more: the host's ops and calls together with the GPU's work, "
            + ("" if facts.records_python else "Python's stacks, ")
            + "events of synchronisation, and no less than whole steps.",
            ""
            if facts.live
            else f"profiler = {_RECORDING_MORE}, "
            "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True))",
            "low",
            "That the GPU ran nothing on record is sure, if the trace is whole; the cause is not known.",
            "Work that is missing from the trace, work of other processes, other streams, and ranks that came late.",
        )
    ]
