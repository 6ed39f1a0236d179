"""Dispatch and launch overhead: many small operators or kernels, each too short to be worth its call."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from perfnb import quantities as fmt
from perfnb.findings.code import compiling
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, rows, rule

_WORTH = 0.1
#: Fewest small operators per step worth reporting.
_FEWEST = 30
#: What Python may take around a call, in lengths of a tiny op; a third of one is usual on a quiet machine.
_AROUND = 2.0
_PHASES = ("forward", "loss", "backward")
#: Share of the work above which CUDA graphs launch it already.
_GRAPHS = 0.5


@rule("dispatch overhead", "Bound by dispatch overhead", "fewer and larger ops")
def dispatch_overhead(facts: Facts) -> Iterator[Finding]:
    """On the CPU: everything in forward and backward that is not work in longer operators."""
    if facts.gpu is not None:
        return
    ops = facts.ops
    outer = ops[ops["phase"].isin(_PHASES) & ops["outer"]]
    small = outer[outer["whole_ns"] < facts.tiny_ns]
    count = len(small) / facts.steps
    if count < _FEWEST:
        return
    bound = _calling_ms(facts, small["whole_ns"].to_numpy())
    if facts.share(bound) < _WORTH:
        return
    layers = facts.heaviest_layers(small)
    modules = facts.recording.modules
    note, code = compiling(facts, layers)
    leaves = int((~modules.index.isin(modules["parent"])).sum())
    among = f" (in {fmt.counted(leaves, 'layer')})" if leaves else ""  # a trace may know no layers
    yield Finding(
        "dispatch overhead",
        f"{count:,.0f} of {len(outer) / facts.steps:,.0f} ops in forward and backward{among} are shorter than "
        f"{facts.tiny_ns / 1e3:.0f} µs: calling them, from Python and through autograd, takes {facts.of_step(bound)}.",
        bound,
        f"Make each op do more: a larger batch, fewer and wider layers, or fusion with torch.compile.{note}",
        code,
        "low" if facts.busy else "medium",
        "All time of these phases outside longer ops counts as overhead, up to what calls can cost; a little of it is "
        "work." + (" The CPU was busy with other work." if facts.busy else ""),
        "How much of this a compiler would actually fuse, and how much of the work a longer op would need.",
        rows("layer", layers) + rows("op", small.groupby("op", observed=True)["whole_ns"].sum().nlargest(2).index),
    )


def _calling_ms(facts: Facts, small_ns: npt.NDArray[np.float64]) -> float:
    """Milliseconds per step in small ops and around all ops; no call counts for more than a call can cost.

    Anything longer is not overhead: freeing memory, or other programs that had the core.
    """
    cells, outer = facts.attribution.cells, facts.ops[facts.ops["outer"]]
    line = facts.lines[outer["block"].to_numpy()]
    calls = np.bincount(line, minlength=len(cells)) + facts.blocks_inside + 1
    here = cells["phase"].isin(_PHASES).to_numpy()
    most = (facts.tiny_ns if facts.busy else _AROUND * facts.tiny_ns) * calls[here]
    # In time of a timed step: if other programs made threads wait, that is many times a traced one.
    ns = np.minimum(facts.left_ns[here] * facts.scale, most).sum()
    ns += np.minimum(small_ns * facts.scale, facts.tiny_ns).sum()
    return float(ns) / 1e6 / facts.steps


@rule("launch overhead", "Bound by launch overhead (the GPU waits for the host)", "launching less often")
def launch_overhead(facts: Facts) -> Iterator[Finding]:
    """On a GPU: the time it waited for launches."""
    gpu = facts.gpu
    if gpu is None or facts.share(bound := gpu.idle_by["launches"]) < _WORTH:
        return
    mostly_idle = gpu.idle_share > 0.5
    speed = ""
    if gpu.call_us is not None and gpu.kernel_us is not None:
        call, kernel = fmt.duration(gpu.call_us / 1e3), fmt.duration(gpu.kernel_us / 1e3)
        speed = f" A launch takes {call} on the host, a kernel {kernel} (medians)."
    short = "" if gpu.short_share is None else f", {fmt.share(gpu.short_share)} of them shorter than their launch"
    lever, code = "Give the GPU more work per launch: a larger batch, or larger kernels.", ""
    if gpu.graph_share < _GRAPHS:
        note, code = compiling(facts, facts.heaviest_layers(facts.ops), "reduce-overhead")
        lever = (
            "Give the GPU more work per launch: a larger batch, fusion (torch.compile), or CUDA graphs, which launch a "
            f"whole step at once.{note}"
        )
    yield Finding(
        "launch overhead",
        f"The GPU was idle for {facts.of_step(bound)} because the host had launched nothing yet; "
        f"a step has {gpu.kernels:,.0f} kernels{short}.{speed}",
        bound,
        lever,
        code,
        "high" if mostly_idle else "medium",
        "Each gap ended with work that was launched too late"
        + (
            "; the GPU is idle for most of the step."
            if mostly_idle
            else ", but other work was queued before and after."
        ),
        "How much the profiler itself slowed down the host; without it the gaps are shorter.",
        rows("op", gpu.late_ops[:3]),
    )
