"""Host code: what a step does between torch's ops, in Python or in other libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfnb import quantities as fmt
from perfnb.attribution.interval_sets import difference, union
from perfnb.attribution.python_calls import longest_calls
from perfnb.findings.elementwise import chains_of
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, rows, rule
from perfnb.findings.synchronisation import after_reads_ms
from perfnb.recording.labels import found
from perfnb.recording.nesting import Bools

_WORTH, _LEAST_MS = 0.1, 0.2
#: Nanoseconds of Python that calling an op or a layer costs anyway, and above which a stretch without ops is more.
_USUAL_NS, _STRETCH_NS = 30_000, 200_000
#: In forward and backward, freeing large memory between ops looks the same.
_PHASES = ("loss", "other")
_WORDS = {"loss": "around the loss", "other": "outside model, loss and optimizer"}
#: Peak bytes above which freeing memory may take long.
_LARGE = 256 * 2**20
#: Functions that are named: at most this many, each with this share of the time; letters of a name.
_MOST_NAMED, _NAMED, _LONGEST = 3, 0.1, 60
_COMPILED = re.compile(r"Torch-Compiled Region|CompiledFunction|TorchDynamo|## Call CompiledFxGraph")


@rule("host code", "Bound by code between torch's ops", "moving it out of the step")
def host_code(facts: Facts) -> Iterator[Finding]:
    """Time of a step in which no op of torch runs, if it is more than calling ops costs."""
    events, modules = facts.recording.events, facts.recording.modules
    compiled = modules["compiled"].any() or found(events["name"], _COMPILED.search).any()
    if not facts.live or facts.gpu is not None or compiled:
        return  # compiled code does not show up as ops
    cells = facts.attribution.cells
    outer = facts.ops[facts.ops["outer"]]
    calls = np.bincount(outer["block"].to_numpy(), minlength=len(cells)) + facts.blocks_inside
    free = facts.left_ns - chains_of(facts).gaps_ns - _USUAL_NS * (calls + 1)
    chosen = (free > _STRETCH_NS) & cells["phase"].isin(_PHASES).to_numpy()
    ms = facts.between_ops_ms(float(free[chosen].sum()))
    bound = ms - after_reads_ms(facts) - float(np.median(facts.pauses_ms))
    if bound < _LEAST_MS or facts.share(bound) < _WORTH:
        return
    memory = facts.figures.memory
    by_phase = {phase: free[chosen & (cells["phase"] == phase).to_numpy()].sum() for phase in _PHASES}
    most = max(by_phase, key=lambda phase: by_phase[phase])
    called = _called(facts, chosen)
    lever = "Do it outside the step, less often, in another thread or process, or with torch's ops."
    if not facts.records_python:
        lever += " To see which function it is, profile with stacks=True and open the timeline."
    yield Finding(
        "host code",
        f"For {facts.of_step(bound)} no op of torch runs: Python or another library does, mostly "
        f"{_WORDS[most]}.{called}",
        bound,
        lever,
        "",
        "low" if memory is not None and memory.peak_bytes > _LARGE else "medium",
        "The time between ops is known; "
        + ("recording slows functions down, short ones most." if called else "what it was spent on is not."),
        ("" if called else "Which function ran. ") + "Ops of other libraries and freeing large memory look the same.",
        rows("phase", [most]),
    )


def _called(facts: Facts, chosen: Bools) -> str:
    """The functions that take most of the time of some blocks, if Python's calls were recorded.

    Their times are as traced: recording slows down many short calls a lot, and a long one not at all.
    """
    host, outer = facts.attribution.host, facts.ops[facts.ops["outer"]]
    main = host.blocks["main"].to_numpy(dtype=bool)
    where = np.flatnonzero(chosen & main)
    if not facts.records_python or len(where) == 0:
        return ""
    thread = int(host.blocks["thread"].to_numpy()[where[0]])
    start, end = (host.blocks[name].to_numpy()[where] for name in ("start", "end"))
    ops = union(outer["start"].to_numpy(), outer["end"].to_numpy())
    inner = np.flatnonzero(main & np.isin(host.forest.parent, where))
    inside = union(*(host.blocks[name].to_numpy()[inner] for name in ("start", "end")))
    free = difference(difference(union(start, end), ops), inside)
    ns = longest_calls(facts.recording.events, host, thread, free)
    most = ns[ns >= _NAMED * ns.sum()].head(_MOST_NAMED)
    parts = [f"{fmt.duration(value / 1e6 / facts.steps)} in {_short(str(name))}" for name, value in most.items()]
    return f" Longest functions in a traced step: {', '.join(parts)}." if parts else ""


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"
