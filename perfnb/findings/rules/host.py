"""Find the host as the bottleneck.

The host calls many small ops or kernels, runs code between ops or other work, or is idle for unknown reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.blocks import Kind
from perfnb.findings.facts import COMPILED, Facts
from perfnb.findings.finding import Finding, rows, rule
from perfnb.findings.gpu_facts import LONG_NS, GpuFacts
from perfnb.findings.lines import NAMED, lines_in_words, not_below_samples, short
from perfnb.findings.proposed_code import RECORD_MORE, compiling
from perfnb.findings.rules.fusion import chains_of
from perfnb.findings.rules.optimizer import clips_gradients, gaps_after_backward
from perfnb.findings.rules.repeated import model_calls
from perfnb.findings.rules.synchronisation import FREEING_NS, reads_of
from perfnb.recording.nesting import Bools, Floats
from perfnb.recording.schema import PHASES
from perfnb.recording.text import TEXT, found
from perfnb.trace_names import LAYER_SPAN

#: Share of the step, and milliseconds of it, worth reporting.
_WORTH, _LEAST_MS = 0.1, 0.2
#: Share of the step above which the host's own code is always explained, by sampled stacks if possible.
WORTH_SAMPLING = 0.15
#: Minimum number of traced steps that reliably show a step's regular work.
_SURE = 2
#: Minimum number of small operators per step worth reporting.
_FEWEST = 30
#: The time that Python may take around a call, as a multiple of a tiny op; on a quiet machine, a third is usual.
_AROUND = 2.0
#: Calls to a model per step that count as a loop around it.
_FEWEST_ROUNDS = 8
_PHASES = ("forward", "loss", "backward")
#: Share of the work above which CUDA graphs launch it already.
_GRAPHS = 0.5
#: Nanoseconds of Python that a call to an op or a layer always costs, and above which a stretch without ops must
#: contain other code.
_USUAL_NS, _STRETCH_NS = 30_000, 200_000
#: Where the host's own code runs. In the model, freeing large amounts of memory between ops looks the same.
_WHERE = {
    "loss": "around the loss",
    "other": "outside model, loss and optimizer",
    "forward": "in the model, between its ops",
    "backward": "in the backward pass, between its ops",
}
_OUTSIDE = ("loss", "other")
#: Peak bytes above which freeing memory may take long.
_LARGE = 256 * 2**20
_PLACES = {"calls": "calls to the GPU's runtime", "ops": "ops", "functions": "Python functions"}
#: Share of the time above which one of these places accounts for most of it.
_MAINLY = 0.5


@rule("dispatch overhead", "Bound by dispatch overhead", "fewer and larger ops", remedy="compile")
def dispatch_overhead(facts: Facts) -> Iterator[Finding]:
    """Find all time in forward and backward on the CPU that is not spent on work in longer operators."""
    if facts.gpu is not None:
        return
    ops, blocks = facts.ops, facts.attribution.host.blocks
    # Reads in loops and compiled code have their own findings.
    chosen = ~reads_of(facts).looped & ~facts.in_compiled(blocks["thread"].to_numpy(), blocks["start"].to_numpy())
    outer = ops[ops["phase"].isin(_PHASES) & ops["outer"] & chosen[facts.lines[ops["block"].to_numpy()]]]
    outer = outer[~facts.in_compiled(outer["thread"].to_numpy(), outer["start"].to_numpy())]
    small = outer[outer["whole_ns"] < facts.tiny_ns]
    count = len(small) / facts.steps
    if count < _FEWEST:
        return
    calling, rounds = _calling_ms(facts, small["whole_ns"].to_numpy(), chosen), _rounds(facts)
    if facts.share(calling) < _WORTH:
        return
    layers, modules = facts.heaviest_layers(small), facts.recording.modules
    if rounds > _FEWEST_ROUNDS:
        bound, code = min(max(calling, _together_ms(facts, rounds)), facts.step_ms), ""
        takes = (
            f"at least {fmt.duration(calling)}. The model is called {rounds:,.0f} times per step, and a single "
            f"call instead could save up to {facts.of_step(bound)}"
        )
        advice = "Call the model once, with all samples in one batch, if no call needs the result of another."
    else:
        bound, (note, code) = calling, compiling(facts, layers)
        takes, fuse = facts.of_step(bound), facts.for_torch(" with torch.compile")
        advice = f"Give each op more work: use a larger batch, fewer and wider layers, or fusion{fuse}.{note}"
    leaves = int((~modules.index.isin(modules["parent"])).sum())
    among = f" (in {fmt.counted(leaves, 'layer')})" if leaves else ""  # a trace may contain no layers
    yield Finding(
        f"{count:,.0f} of {len(outer) / facts.steps:,.0f} ops in forward and backward{among} are shorter than "
        f"{facts.tiny_ns / 1e3:.0f} µs: calling them, from Python and through autograd, takes {takes}.",
        bound,
        advice,
        "medium",
        "All time in these phases outside longer ops counts as overhead, up to the most that calls can cost. A small "
        "part of it is actual work.",
        "How much of this a compiler would actually fuse, and how much time the same work would take in longer ops.",
        rows("layer", layers) + rows("op", facts.heaviest_ops(small, 2)),
        code=code,
    )


def _rounds(facts: Facts) -> float:
    """Return the number of calls to the model that the step calls most often.

    The result is 0 if each call has its own backward pass. Such calls are micro-batches, whose gradients are
    accumulated because a single large batch does not fit.
    """
    calls, blocks = model_calls(facts), facts.attribution.host.blocks
    often = float(calls.groupby("layer").size().max()) / facts.steps if len(calls) else 0.0
    backward_passes = float((blocks["kind"] == Kind.ENGINE).sum()) / facts.steps
    return 0.0 if backward_passes > 0.5 * often else often


def _together_ms(facts: Facts, rounds: float) -> float:
    """Return the most time that a single call to the model could save, compared with this many calls.

    This is the time of all rounds except one, minus the arithmetic. Python code after the last call counts as freeing
    the results of the calls, up to the time that this can take.
    """
    blocks, cells, calls = facts.attribution.host.blocks, facts.attribution.cells, model_calls(facts)
    last = cells["step"].map(calls.groupby("step")["end"].max())
    other = (cells["phase"] == "other").to_numpy()
    before = other & (blocks["start"] < last).fillna(False).to_numpy()
    freeing_ns = min(float(facts.left_ns[other & ~before].sum()), FREEING_NS * float(facts.ops["outer"].sum()))
    whole = facts.per_step(float(facts.cells_ns[cells["phase"].isin(_PHASES).to_numpy() | before].sum()) + freeing_ns)
    roofline, arithmetic_ms = facts.figures.roofline, 0.0
    if roofline is not None and roofline.flops and roofline.peaks:
        arithmetic_ms = roofline.flops / max(roofline.peaks.values()) * 1e3
    return max(whole * (1 - 1 / rounds) - arithmetic_ms, 0.0)


def _calling_ms(facts: Facts, small_ns: Floats, chosen: Bools) -> float:
    """Return the milliseconds per step in small ops and around all ops, limited to the most that each call can cost.

    Any additional time is not overhead, but is caused by freeing memory or by other programs that use the core.
    """
    cells, outer = facts.attribution.cells, facts.ops[facts.ops["outer"]]
    line = facts.lines[outer["block"].to_numpy()]
    calls = np.bincount(line, minlength=len(cells)) + facts.blocks_inside + 1
    here = cells["phase"].isin(_PHASES).to_numpy() & chosen
    most = (1.0 if facts.busy else _AROUND) * facts.tiny_ns * calls[here]
    # Scaled to a timed step, which may take many times as long as a traced one if other programs made threads wait.
    around, inside = facts.left_ns[here] * facts.scale, small_ns * facts.scale
    return float(np.minimum(around, most).sum() + np.minimum(inside, facts.tiny_ns).sum()) / 1e6 / facts.steps


@rule("launch overhead", "Bound by launch overhead (the GPU waits for the host)", "launching less often", worth=_WORTH)
def launch_overhead(facts: Facts) -> Iterator[Finding]:
    """Find the time that a GPU waited for launches."""
    gpu = facts.gpu
    if gpu is None:
        return
    bound = gpu.idle_by["launches"]
    speed = ""
    if gpu.call_us is not None and gpu.kernel_us is not None:
        call, kernel = fmt.duration(gpu.call_us / 1e3), fmt.duration(gpu.kernel_us / 1e3)
        speed = f" A launch takes {call} on the host, a kernel {kernel} (medians)."
    short = "" if gpu.short_share is None else f", {fmt.share(gpu.short_share)} of them shorter than their launch"
    advice, code = "Give the GPU more work per launch: a larger batch, or larger kernels.", ""
    if gpu.graph_share < _GRAPHS:
        note, code = compiling(facts, facts.heaviest_layers(facts.ops), "compile_reduce_overhead")
        advice = (
            f"Give the GPU more work per launch: a larger batch, fusion{facts.for_torch(' (torch.compile)')}, or CUDA "
            f"graphs, which launch a whole step at once.{note}"
        )
    yield Finding(
        f"The GPU was idle for {facts.of_step(bound)} because the host had not launched any work yet; "
        f"a step has {gpu.kernels:,.0f} kernels{short}.{speed}",
        bound,
        advice,
        "high" if gpu.idle_share > 0.5 else "medium",
        "Each gap ended with work that was launched too late.",
        "How much the profiler itself slowed down the host. Without the profiler, the gaps are shorter.",
        rows("op", gpu.late_ops[:3]),
        code=code,
        remedy="compile_reduce_overhead" if gpu.graph_share < _GRAPHS else "",
    )


@rule("host code", "Bound by code outside the model", "moving it out of the step", worth=_WORTH)
def host_code(facts: Facts) -> Iterator[Finding]:
    """Find the host's own work: time when no op runs, and ops outside the model, loss, backward and optimizer."""
    cells, work = facts.attribution.cells, host_time(facts, _WHERE if len(facts.lines_of_code) else _OUTSIDE)
    if not work.chosen.any():
        return
    reads = reads_of(facts)  # a separate finding
    python = np.maximum(work.python_ns - np.where(reads.looped, reads.loop_python_ns, reads.after_ns), 0.0)
    ops = np.maximum(work.ops_ns - reads.loop_ops_ns, 0.0)
    ops_ms = facts.per_step(float(ops[work.chosen].sum()))
    bound = facts.between_ops_ms(float(python[work.chosen].sum())) + ops_ms - float(np.median(facts.pauses_ms))
    phases = [phase for phase in _WHERE if (cells["phase"] == phase).to_numpy()[work.chosen].any()]
    bound = not_below_samples(facts, phases, bound)
    if bound < _LEAST_MS:
        return
    memory = facts.figures.memory
    by_phase = pd.Series(python + ops).where(work.chosen, 0.0).groupby(cells["phase"].astype(TEXT).to_numpy()).sum()
    most = str(by_phase.idxmax())
    named = lines_in_words(facts, by_phase.index[by_phase > NAMED * by_phase.sum()], bound)
    ask = "" if named else " To see which function it is, profile with stacks=True."
    among = f", {fmt.duration(ops_ms)} of it in ops" if ops_ms > NAMED * bound else ""
    yield Finding(
        f"The host spends {facts.of_step(bound)} on code {_WHERE[most]}: Python, or another library{among}.{named}",
        bound,
        "Move this code out of the step, or run it less often, in another thread or process, or with fewer "
        f"calls.{ask}",
        "low" if memory is not None and memory.peak_bytes > _LARGE and not named else "medium",
        "The time is known; "
        + ("the lines that took it were sampled a hundred times per second." if named else "its cause is not."),
        f"{'' if named else 'Which function ran. '}Freeing large amounts of memory looks the same.",
        rows("phase", [most]),
    )


@dataclass(frozen=True)
class HostTime:
    """The host's own work by block, in nanoseconds."""

    python_ns: Floats
    ops_ns: Floats
    #: The blocks with enough of this work.
    chosen: Bools


def host_time(facts: Facts, phases: Collection[str]) -> HostTime:
    """Return the time of Python code between ops, and of ops outside model, loss, backward pass and optimizer.

    Python code is counted in the given phases. Long ops before the last backward pass may be the step's purpose, so
    they do not count. Inside the other phases, only long stretches of Python count, and in the model only those whose
    lines can be named by stacks.
    """
    cells, modules = facts.attribution.cells, facts.recording.modules
    nothing = np.zeros(len(cells))
    compiled = modules["compiled"].any() or found(facts.recording.events["name"], COMPILED.search).any()
    if not facts.live or facts.gpu is not None or compiled:  # compiled code does not show up as ops
        return HostTime(nothing, nothing, nothing.astype(bool))
    outer = facts.ops[facts.ops["outer"]]
    line, whole = facts.lines[outer["block"].to_numpy()], outer["whole_ns"].to_numpy()
    calls = np.bincount(line, minlength=len(cells)) + facts.blocks_inside
    other = (cells["phase"] == "other").to_numpy() & bool(len(modules))
    counts = other[line] & ((whole < facts.tiny_ns) | gaps_after_backward(facts)[line])
    ops = np.bincount(line[counts], weights=whole[counts], minlength=len(cells)).astype(float)
    python = np.maximum(facts.left_ns - chains_of(facts).gaps_ns - np.where(other, 0.0, _USUAL_NS * (calls + 1)), 0.0)
    chosen = (python + ops > _STRETCH_NS) & cells["phase"].isin(list(phases)).to_numpy()
    return HostTime(python, ops, chosen & ~clips_gradients(facts))


def unnamed_share(facts: Facts) -> float:
    """Return the share of the step that the host spends on its own work, whose lines sampled stacks could name.

    Such work must occur in each of several traced steps, because an interruption of a single step would look the same.
    The result is 0 if sampling is not worthwhile.
    """
    if not facts.live or facts.steps < _SURE:
        return 0.0
    if facts.gpu is not None:
        return facts.share(facts.gpu.idle_by["host"])
    work = host_time(facts, _WHERE)
    step = facts.attribution.cells["step"].to_numpy()[work.chosen]
    ms = [
        facts.between_ops_ms(float(python)) + facts.per_step(float(ops))
        for python, ops in zip(
            *(np.bincount(step, ns[work.chosen], facts.steps) for ns in (work.python_ns, work.ops_ns)), strict=True
        )
    ]
    least = min(ms) * facts.steps - float(np.median(facts.pauses_ms))
    return facts.share(least) if least >= _LEAST_MS else 0.0


def _short(name: str) -> str:
    if name == LAYER_SPAN:
        return "the code of a layer"
    return short(name)


@rule("host work", "Host-bound (the GPU waits for other work on the host)", "removing that work", worth=0.05)
def host_work(facts: Facts) -> Iterator[Finding]:
    """Find periods of idle time that are too long for a launch, while the host runs a long op, a call, or Python."""
    gpu = facts.gpu
    if gpu is None:
        return
    bound = gpu.idle_by["host"]
    known = gpu.doing.seen >= _MAINLY
    advice, code = _advice(facts, gpu)
    longest = gpu.doing.longest["ops"]
    yield Finding(
        f"The GPU was idle for {facts.of_step(bound)} in periods of more than {fmt.duration(LONG_NS / 1e6)}. Launching "
        f"takes less time, so the host did something else. {_seen(gpu)}{lines_in_words(facts, PHASES, bound)}",
        bound,
        advice,
        "high" if known and gpu.idle_share > 0.5 else "medium",
        "The host had not launched anything that the GPU could have run"
        + ("." if known else ", but for most of this time, the trace does not show the host's work."),
        "What the host did outside recorded ops, calls and functions, and work that is missing from the trace.",
        rows("op", [longest] if longest else []),
        code=code,
    )


def _seen(gpu: GpuFacts) -> str:
    """Describe the host's work, as in ``It spent 30.0 s in calls to the GPU's runtime (most in cudaMalloc) ...``."""
    doing, bound = gpu.doing, gpu.idle_by["host"]
    parts = [
        f"{fmt.duration(doing.shares[place] * bound)} in {word} (most in {_short(doing.longest[place])})"
        for place, word in _PLACES.items()
        if doing.shares[place] >= 0.01
    ]
    if not parts:
        return "The trace does not show its work."
    rest = 1 - doing.seen
    left = f"; for {fmt.duration(rest * bound)}, the trace does not show its work" if rest >= 0.01 else ""
    return f"It spent {', '.join(parts)}{left}."


def _advice(facts: Facts, gpu: GpuFacts) -> tuple[str, str]:
    share, longest = gpu.doing.shares, gpu.doing.longest
    if share["calls"] >= _MAINLY:
        return (
            f"Look at {_short(longest['calls'])}: on first use, a GPU, a library or a kernel has to be loaded. "
            "Run a few steps before the traced one.",
            "",
        )
    if share["calls"] + share["ops"] >= _MAINLY:
        most = longest[max(("ops", "calls"), key=lambda place: share[place])]
        return f"Look at {_short(most)}: it runs on the host for a long time and launches work late.", ""
    if share["functions"] >= _MAINLY:
        return "Take this function off the critical path: call it less often, elsewhere, or before the loop.", ""
    how, code = "record Python functions too", RECORD_MORE
    if facts.recording.is_foreign:
        how, code = "mark its parts with ranges, or sample its stacks, and record again", ""
    elif facts.records_python:
        how, code = "none of the recorded ops, calls and functions takes most of it", ""
    elif facts.live:
        how, code = "profile with stacks=True to record Python functions too", ""
    return f"Find out how the host spends that time: {how}.", code


@rule("unexplained idle time", "", explained=False, worth=_WORTH)
def unexplained_idle(facts: Facts) -> Iterator[Finding]:
    """Find idle time that nothing in the trace explains."""
    gpu = facts.gpu
    if gpu is None:
        return
    bound = gpu.unexplained_ms
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
        f"The GPU was idle for {facts.of_step(bound)}, and the trace does not show why: {'; '.join(said)}.",
        bound,
        "Record more: the host's ops and calls together with the GPU's work, "
        + ("" if facts.records_python or facts.recording.is_foreign else "Python stacks, ")
        + "synchronisation events, and only complete steps.",
        "low",
        "If the trace is complete, the GPU certainly ran nothing; the cause is unknown.",
        "Work missing from the trace, work of other processes, other streams, and ranks that were late.",
        code="" if facts.live or facts.recording.is_foreign else RECORD_MORE,
    )
