"""Host code: what a step does between torch's ops, in Python or in other libraries."""

from __future__ import annotations

import re

import numpy as np

from perfnb.analysis.findings.elementwise import chains_of
from perfnb.analysis.findings.facts import Facts
from perfnb.analysis.findings.finding import Finding, Row, part, time
from perfnb.analysis.findings.synchronisation import after_reads_ms
from perfnb.analysis.labels import found

_WORTH, _LEAST_MS = 0.1, 0.2
#: Nanoseconds of Python that calling an op or a layer costs anyway, and from which on a stretch without ops is more.
_USUAL_NS, _STRETCH_NS = 30_000, 200_000
#: In forward and backward large memory is given back between ops, which looks alike.
_PHASES = ("loss", "other")
_WORDS = {"loss": "beside the loss", "other": "outside of model, loss and optimizer"}
#: Bytes at the peak from which on giving them back may take long.
_LARGE = 256 * 2**20
_COMPILED = re.compile(r"Torch-Compiled Region|CompiledFunction|TorchDynamo|## Call CompiledFxGraph")


def host_code(facts: Facts) -> list[Finding]:
    """Time of a step in which no op of torch runs, where it is too long to be the cost of calling ops."""
    events, modules = facts.recording.events, facts.recording.modules
    compiled = modules["compiled"].any() or found(events["name"], _COMPILED.search).any()
    if not facts.live or facts.gpu is not None or compiled:
        return []  # compiled code runs as no op
    cells = facts.attribution.cells
    outer = facts.ops[facts.ops["outer"]]
    calls = np.bincount(outer["block"].to_numpy(), minlength=len(cells)) + facts.blocks_inside
    free = facts.left_ns - chains_of(facts).gaps_ns - _USUAL_NS * (calls + 1)
    chosen = (free > _STRETCH_NS) & cells["phase"].isin(_PHASES).to_numpy()
    ms = facts.between_ops_ms(float(free[chosen].sum()))
    pauses = float(np.median(facts.pauses_ms))
    bound = ms - after_reads_ms(facts) - pauses
    if bound < _LEAST_MS or facts.share(bound) < _WORTH:
        return []
    memory = facts.summary.memory
    by_phase = {phase: free[chosen & (cells["phase"] == phase).to_numpy()].sum() for phase in _PHASES}
    most = max(by_phase, key=lambda phase: by_phase[phase])
    return [
        Finding(
            "host code",
            f"For {time(bound)}, {part(facts.share(bound))} of the step, no op of torch runs: Python or another "
            f"library works, most of it {_WORDS[most]}.",
            bound,
            "Do it outside of the step, less often, in another thread or process, or with torch's ops. Which function "
            "it is, a profile with stacks=True shows in its timeline.",
            "",
            "low" if memory is not None and memory.peak_bytes > _LARGE else "medium",
            "The time between ops is known; what was done in it is not.",
            "Which function ran. Ops of other libraries, and giving large memory back, look alike.",
            (Row("phase", most),),
        )
    ]
