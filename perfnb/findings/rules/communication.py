"""Find the cost of exchanging gradients between processes, caused by collectives on the host or by DDP's settings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.blocks import Kind
from perfnb.attribution.interval_sets import IntervalSet, difference, union
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, rows, rule
from perfnb.recording.nesting import NONE

#: A finding about sending gradients is worthwhile above this share of the step.
_LITTLE = 0.02
#: The size below which buckets are small, the number from which they are many, and DDP's default bucket size.
_SMALL_BYTES, _MANY, _USUAL_BYTES = 2**20, 6, 25 * 2**20
_DDP = "DistributedDataParallel"


@rule("collectives", "Communication-bound", "overlapping it with computation, or sending less,", worth=0.05)
def exposed_on_host(facts: Facts) -> Iterator[Finding]:
    """Find the time that the step spends only waiting for collectives that run on the host."""
    exposed = facts.phases_ms["communication"]
    calls = facts.collectives
    if facts.gpu is not None or not len(calls):
        return
    traced = float(calls["exposed_ns"].sum()) / 1e6 / facts.steps
    # Traced steps wait longer than timed ones, so the time in flight is scaled by the same factor. On a busy machine, a
    # wait lasts longer than the collective, because the step's thread does not wake up immediately.
    flying = max(_in_flight_ms(facts, calls) * (exposed / traced if traced > 0 else 1.0), exposed)
    hidden = max(0.0, 1 - exposed / flying) if flying > 0 else 0.0
    overlap = min(exposed, max(facts.step_ms - flying, 0.0))
    kinds = calls["collective"].value_counts()
    listed = ", ".join(f"{count / facts.steps:.3g} {name}" for name, count in kinds.head(3).items())
    perfect = "Perfect overlap would save all of this time."
    if overlap < exposed:
        most = f"save {fmt.duration(overlap)}" if overlap > 0 else "save nothing"
        perfect = f"Perfect overlap alone would {most}, because the rest of the step is shorter than this wait."
    yield Finding(
        f"The step spends {facts.of_step(exposed)} only waiting for collectives ({listed} per step). They are in "
        f"flight for {fmt.duration(flying)}, of which {fmt.share(hidden)} is hidden. {perfect}",
        exposed,
        "Overlap communication with computation by starting it earlier (smaller first buckets, gradients reduced "
        "during backward). Alternatively, synchronise less often, or send less data by using lower precision.",
        "medium",
        "Waiting for a slower rank counts as communication.",
        "Which rank was late: load the profiles or traces of all ranks together to find a straggler.",
        rows("phase", ["communication"]),
    )


@rule("small buckets", "Communication-bound by many small messages", "sending fewer and larger ones", worth=_LITTLE)
def small_buckets(facts: Facts) -> Iterator[Finding]:
    """Find gradients that are sent in many small buckets, each of which has its own latency."""
    calls = facts.collectives
    calls = calls[(calls["bucket"] != NONE) & (calls["bytes"] != NONE)]
    count, size = len(calls) / facts.steps, float(calls["bytes"].median()) if len(calls) else 0.0
    whole = float(calls["bytes"].sum()) / facts.steps
    fewer = max(1.0, np.ceil(whole / _USUAL_BYTES))
    if count < _MANY or size >= _SMALL_BYTES or fewer >= count:
        return
    exposed = _exposed_ms(facts, calls)
    model = facts.variable() if facts.kinds.get(facts.root() or "") == _DDP else None
    line = f"{model} = torch.nn.parallel.DistributedDataParallel({model}.module, bucket_cap_mb=25)" if model else ""
    yield Finding(
        f"DDP sends {fmt.size(whole)} of gradients per step in {count:.3g} buckets of about {fmt.size(size)}. Of the "
        f"time that this takes, {facts.of_step(exposed)} is not hidden.",
        exposed * (1 - fewer / count),
        f"Use larger buckets: with bucket_cap_mb=25, torch's default, there would be {fewer:.0f}. Each message adds "
        "latency, but larger messages start later, so compare two sizes.",
        "low",
        "The bound assumes that the time depends only on the number of messages.",
        "How much longer larger messages would take, and how much of that the rest of the backward pass would hide.",
        rows("phase", ["communication"]),
        code=line,
    )


@rule("unused parameters", "Slowed by the search for unused parameters", "leaving it out")
def unused_parameters(facts: Facts) -> Iterator[Finding]:
    """Find steps where DDP searches the graph for unused parameters although there are none."""
    for wrapped in facts.parallel:
        layer, unused = wrapped["name"], wrapped.get("unused_bytes")
        if not wrapped.get("find_unused_parameters") or wrapped.get("static_graph") or unused:
            continue
        mine = (facts.owners == layer) & (facts.attribution.cells["direction"] == "forward").to_numpy()
        own = facts.per_step(float(facts.cells_ns[mine].sum()))
        calls = facts.collectives
        maps = calls[calls["dtype"].str.startswith("int").fillna(False) & (calls["collective"] == "allreduce")]
        telling = _exposed_beside_others_ms(facts, maps, calls.drop(maps.index))
        certain = unused == 0
        model = facts.variable(layer)
        line = f"{model} = torch.nn.parallel.DistributedDataParallel({model}.module)" if model else ""
        yield Finding(
            f"{layer} was created with find_unused_parameters=True"
            + (", but DDP found no unused parameters. " if certain else ". ")
            + f"The module's own code, which includes the graph search, takes {fmt.duration(own)} per step"
            + (f", and {fmt.duration(telling)} is spent informing the other ranks." if telling > 0 else "."),
            min(own + telling, facts.step_ms),
            "Remove find_unused_parameters, or use static_graph=True if the same parameters are unused in every step.",
            "medium" if certain else "low",
            "The module's own time also includes other work that DDP does in its forward pass.",
            "Whether other batches leave parameters unused.",
            rows("layer", [layer]),
            code=line,
        )


@rule("every micro-step", "Communication-bound by synchronising each micro-step", "synchronising once", worth=_LITTLE)
def every_micro_step(facts: Facts) -> Iterator[Finding]:
    """Find gradients that are accumulated over several backward passes but sent after each of them."""
    calls = facts.collectives
    sent, blocks = calls[calls["bucket"] != NONE], facts.attribution.host.blocks
    runs = blocks[(blocks["kind"] == Kind.ENGINE).to_numpy()].sort_values("start")
    of_run = np.searchsorted(runs["start"].to_numpy(), sent["start_ns"].to_numpy(), side="right") - 1
    per_step = len(np.unique(of_run[of_run != NONE])) / facts.steps
    if per_step < 2 or facts.optimizer_steps.sum() / facts.steps > per_step / 2:
        return
    if facts.gpu is None:  # overlap is not free, because the sending threads compete with backward for cores
        is_last = ~runs["step"].duplicated(keep="last").to_numpy()
        bound = min(_in_flight_ms(facts, sent[(of_run != NONE) & ~is_last[of_run]]), facts.step_ms)
        cost = (
            f"before the last pass, they are in flight for {facts.of_step(bound)}, and computation at the same time "
            "competes for the same cores"
        )
    else:
        bound = _exposed_ms(facts, sent) * (1 - 1 / per_step)
        cost = f"sending them before the last pass takes {facts.of_step(bound)} that is not hidden"
    yield Finding(
        f"Gradients are sent after each of the {per_step:.3g} backward passes per optimizer step: {cost}.",
        bound,
        "Run the forward and backward passes of all micro-steps except the last one inside "
        f"`with {facts.variable() or 'model'}.no_sync():`. Gradients are then accumulated on each rank and sent once.",
        "medium",
        "The last backward pass still sends all gradients. On a CPU with spare cores, overlap costs less.",
        "Whether the gradients of each pass are used before the last one, for example to clip them.",
        rows("phase", ["communication"]),
    )


def _in_flight(calls: pd.DataFrame) -> IntervalSet:
    """Return the time when any collective is in flight."""
    return union(calls["start_ns"].to_numpy(dtype=np.int64), calls["end_ns"].to_numpy(dtype=np.int64))


def _in_flight_ms(facts: Facts, calls: pd.DataFrame) -> float:
    return _in_flight(calls).length / 1e6 / facts.steps


def _exposed_ms(facts: Facts, calls: pd.DataFrame) -> float:
    ms = float(calls["exposed_ns"].sum()) / 1e6 / facts.steps
    return min(ms, facts.phases_ms["communication"]) if facts.gpu is None else min(ms, facts.gpu.exposed_ms)


def _exposed_beside_others_ms(facts: Facts, calls: pd.DataFrame, others: pd.DataFrame) -> float:
    """Return the exposed time of `calls` during which none of the `others` is in flight."""
    alone = difference(_in_flight(calls), _in_flight(others))
    return min(_exposed_ms(facts, calls), alone.length / 1e6 / facts.steps)
