"""A GPU that waits while the host does other work, and one that is idle for no visible reason."""

from __future__ import annotations

from collections.abc import Iterator

from perfnb import quantities as fmt
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, rows, rule
from perfnb.findings.gpu import GpuFacts
from perfnb.findings.idle import LONG_NS

_WORTH, _UNKNOWN_WORTH = 0.05, 0.1
_WORDS = {"calls": "calls of the GPU's runtime", "ops": "ops", "functions": "Python functions"}
#: Share of the time above which one place where the host was seen takes most of it.
_MOST = 0.5
_RECORDING_MORE = (
    "torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA], "
    "with_stack=True"
)


@rule("host work", "Host-bound (the GPU waits for other work on the host)", "removing that work")
def host_work(facts: Facts) -> Iterator[Finding]:
    """Idle time in pieces too long for launching: the host was in a long op or call, or in Python."""
    gpu = facts.gpu
    if gpu is None or facts.share(bound := gpu.idle_by["host"]) < _WORTH:
        return
    known = gpu.doing.seen >= _MOST
    lever, code = _lever(facts, gpu)
    longest = gpu.doing.longest["ops"]
    yield Finding(
        "host work",
        f"The GPU was idle for {facts.of_step(bound)} in pieces of more than {fmt.duration(LONG_NS / 1e6)}: launching "
        f"takes less, so the host did something else. {_seen(gpu)}",
        bound,
        lever,
        code,
        "high" if known and gpu.idle_share > 0.5 else "medium",
        "The host had launched nothing that the GPU could have run"
        + ("." if known else ", but for most of that time the trace does not show what the host did."),
        "What the host did outside recorded ops, calls and functions; work that is missing from the trace.",
        rows("op", [longest] if longest else []),
    )


def _seen(gpu: GpuFacts) -> str:
    """What the host did: ``It spent 30.0 s in calls of the GPU's runtime (most in cudaMalloc) ...``."""
    doing, bound = gpu.doing, gpu.idle_by["host"]
    parts = [
        f"{fmt.duration(doing.by[place] / doing.whole * bound)} in {word} (most in {_short(doing.longest[place])})"
        for place, word in _WORDS.items()
        if doing.by[place] / doing.whole >= 0.01
    ]
    if not parts:
        return "The trace does not show what."
    rest = 1 - doing.seen
    left = f"; for {fmt.duration(rest * bound)} the trace does not show what it did" if rest >= 0.01 else ""
    return f"It spent {', '.join(parts)}{left}."


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:59]}…"


def _lever(facts: Facts, gpu: GpuFacts) -> tuple[str, str]:
    share = {place: ns / gpu.doing.whole for place, ns in gpu.doing.by.items()}
    if share["calls"] >= _MOST:
        return (
            "Look at this call: the first use of a GPU, a library or a kernel loads what it needs. Run a few steps "
            "before the traced one.",
            "" if facts.live else "schedule = torch.profiler.schedule(wait=1, warmup=3, active=3)",
        )
    if share["calls"] + share["ops"] >= _MOST:
        return "Look at this op: it runs on the host for a long time and launches late.", ""
    if share["functions"] >= _MOST:
        return "Take this function off the critical path: call it less often, elsewhere, or before the loop.", ""
    if facts.records_python:
        return "Find out what the host does there: none of the recorded ops, calls and functions takes most of it.", ""
    if facts.live:
        return "Find out what the host does there: profile with stacks=True to record Python functions too.", ""
    return "Find out what the host does there: record Python functions too.", f"profiler = {_RECORDING_MORE})"


@rule("unexplained idle time", "", explained=False)
def unexplained_idle(facts: Facts) -> Iterator[Finding]:
    """Idle time that nothing in the trace explains."""
    gpu = facts.gpu
    if gpu is None or facts.share(bound := gpu.unexplained_ms) < _UNKNOWN_WORTH:
        return
    reasons = {
        "unknown": "the launch of the next work is not in the trace",
        "awaited": "the next work had been launched, and its stream waited for an event that is not in the trace",
        "other": "the next work had been launched, and nothing shows what it waited for",
    }
    said = [
        f"for {fmt.duration(gpu.idle_by[why])} {reason}"
        for why, reason in reasons.items()
        if gpu.idle_by[why] >= 0.01 * bound
    ]
    yield Finding(
        "unexplained idle time",
        f"The GPU was idle for {facts.of_step(bound)}, and the trace does not show why: {'; '.join(said)}.",
        bound,
        "Record more: the host's ops and calls together with the GPU's work, "
        + ("" if facts.records_python else "Python stacks, ")
        + "synchronisation events, and only whole steps.",
        ""
        if facts.live
        else f"profiler = {_RECORDING_MORE}, "
        "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True))",
        "low",
        "If the trace is complete, the GPU certainly ran nothing; the cause is unknown.",
        "Work missing from the trace, work of other processes, other streams, and ranks that were late.",
    )
