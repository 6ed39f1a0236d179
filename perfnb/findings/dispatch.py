"""Overhead of calling: many small operators or kernels, each too short to be worth its call."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfnb.findings.compiling import compiling
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Confidence, Finding, Row, many, part, time

_WORTH = 0.1
#: Fewest small operators of a step that are worth a word.
_FEWEST = 30
#: What Python may take around a call, in lengths of a tiny op; on a quiet machine a third of one was usual.
_AROUND = 2.0
_PHASES = ("forward", "loss", "backward")
#: Share of the work from which on graphs launch it already.
_GRAPHS = 0.5


def dispatch(facts: Facts) -> list[Finding]:
    """On a GPU the time for which it waited for launches; on the CPU all that is not work in longer operators."""
    return _launches(facts) if facts.gpu is not None else _small_ops(facts)


def _small_ops(facts: Facts) -> list[Finding]:
    ops = facts.ops
    here = ops["phase"].isin(_PHASES)
    outer = ops[here & ops["outer"]]
    is_small = outer["whole_ns"] < facts.tiny_ns
    small = outer[is_small]
    count = len(small) / max(facts.attribution.steps, 1)
    if count < _FEWEST:
        return []
    bound = _calling_ms(facts, small["whole_ns"].to_numpy())
    if facts.share(bound) < _WORTH:
        return []
    layers = facts.heaviest_layers(small)
    modules = facts.recording.modules
    note, code = compiling(facts, layers)
    leaves = int((~modules.index.isin(modules["parent"])).sum())
    among = f", in {many(leaves, 'layer')}" if leaves else ""  # a trace may know no layers
    return [
        Finding(
            "dispatch overhead",
            f"{count:,.0f} of {len(outer) / max(facts.attribution.steps, 1):,.0f} ops of forward and backward are "
            f"shorter than {facts.tiny_ns / 1e3:.0f} µs{among}: calling them, from Python and through "
            f"autograd, takes {time(bound)}, {part(facts.share(bound))} of the step.",
            bound,
            f"Let each op do more: a larger batch, fewer and wider layers, or fuse them with torch.compile.{note}",
            code,
            "low" if facts.busy else "medium",
            "Counted as overhead is the time of these phases outside longer ops, up to what calls can cost; a "
            "little of it is work." + (" Other programs had the cores, too." if facts.busy else ""),
            "How much of this a compiler would really fuse, and how much of the work a longer op would need.",
            tuple(Row("layer", name) for name in layers)
            + tuple(
                Row("op", str(name)) for name in small.groupby("op", observed=True)["whole_ns"].sum().nlargest(2).index
            ),
        )
    ]


def _calling_ms(facts: Facts, small_ns: npt.NDArray[np.float64]) -> float:
    """Milliseconds of a step in small ops and around all ops; no call counts for more than a call can cost.

    What lasts longer is no overhead: memory that is given back, or other programs that had the core.
    """
    cells, outer = facts.attribution.cells, facts.ops[facts.ops["outer"]]
    line = facts.lines[outer["block"].to_numpy()]
    calls = np.bincount(line, minlength=len(cells)) + facts.blocks_inside + 1
    around = facts.left_ns[cells["phase"].isin(_PHASES).to_numpy()]
    each = facts.tiny_ns if facts.busy else _AROUND * facts.tiny_ns
    most = each * calls[cells["phase"].isin(_PHASES).to_numpy()]
    # In time of a timed step: where other programs made threads wait, that is many times a traced one.
    ns = np.minimum(around * facts.scale, most).sum() + np.minimum(small_ns * facts.scale, facts.tiny_ns).sum()
    return float(ns) / 1e6 / max(facts.attribution.steps, 1)


def _launches(facts: Facts) -> list[Finding]:
    gpu = facts.gpu
    assert gpu is not None
    bound = gpu.idle_by["launches"]
    if facts.share(bound) < _WORTH:
        return []
    ready = gpu.idle_share > 0.5
    speed = (
        ""
        if gpu.call_us is None or gpu.kernel_us is None
        else (f" A launch takes {gpu.call_us:.3g} µs of the host, a kernel runs for {gpu.kernel_us:.3g} µs (medians).")
    )
    short = "" if gpu.short_share is None else f", {part(gpu.short_share)} of them shorter than their launch"
    heaviest = [str(name) for name in gpu.before["op"].head(3)]
    confidence: Confidence = "high" if ready else "medium"
    lever, code = "Give the GPU more at a time with each launch: a larger batch, or larger kernels.", ""
    if gpu.graph_share < _GRAPHS:
        note, code = compiling(facts, facts.heaviest_layers(facts.ops), "reduce-overhead")
        lever = (
            "Give the GPU more at a time: a larger batch, fusion (torch.compile), or CUDA graphs, which launch all of "
            f"a step at once.{note}"
        )
    return [
        Finding(
            "launch overhead",
            f"The GPU was idle for {time(bound)} a step, {part(facts.share(bound))} of it, because the host had not "
            f"launched anything: {gpu.kernels:,.0f} kernels{short}.{speed}",
            bound,
            lever,
            code,
            confidence,
            "Each gap ended with work whose launch came too late"
            + ("; the GPU idles for most of the step." if ready else ", while other work was queued before and after."),
            "How much the profiler itself slowed the host; without it the gaps are shorter.",
            tuple(Row("op", name) for name in heaviest),
        )
    ]
