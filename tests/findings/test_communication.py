"""Findings about collectives on the host and what DDP was asked to do: planted once, and left out once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.attribution import attribute
from perfnb.attribution.blocks import Kind
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding
from perfnb.findings.rules.communication import every_micro_step, exposed_on_host, small_buckets, unused_parameters
from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT
from tests.findings.findings_recordings import facts as facts_from
from tests.findings.findings_recordings import one_layer
from tests.recordings import NODE, ByHand

ACCUMULATE = NODE + "torch::autograd::AccumulateGrad"


def ddp(passes: int = 1, buckets: int = 1, wait: float = 300, size: int = 1000, **parallel: Any) -> Recording:
    """Return two steps of backward passes, each followed by a wait for its buckets."""
    hand, net = one_layer("net")
    hand.modules[net]["module"] = "DistributedDataParallel"
    for number in range(2):
        t = 10_000 * number
        hand.step(t, t + 10_000)
        at = t + 100.0
        for one in range(passes):
            sequence = 10 * number + one + 1
            hand.call(net, at, at + 200).op("aten::mm", at + 150, at + 200, sequence)
            at += 200
            hand.node("MmBackward0", at, at + 100, sequence)
            at += 100
            for bucket in range(buckets):
                told = {"elements": size, "dtype": "float32"}
                hand.event(ACCUMULATE, at, at + 10).op("c10d::allreduce_", at + 2, at + 8)
                thread = 50 + bucket
                hand.event("gloo:all_reduce", at + 4, at + wait, "user_annotation", thread=thread, **told)  # type: ignore[arg-type]
                at += 10
            at += wait
        hand.event("Optimizer.step#SGD.step", at + 10, at + 100, "user_annotation")
    parts = {"models": [{"name": "net", "called": True}], "imports": ["torch"], "optimizers": [], "loader": None}
    known = [{"name": "net", **parallel}] if parallel else []
    return hand.recording(parts=parts | {"parallel": known})


def found(rule: Any, recording: Recording) -> list[Finding]:
    facts: Facts = facts_from(recording)
    assert attribute(recording).steps == facts.steps
    return list(rule(facts))


def test_no_wait_is_longer_than_its_collectives_are_in_flight() -> None:
    """On a busy machine the step's thread wakes up late, and it waits until then."""
    hand = ByHand()
    for t in range(0, 10_000 * 2, 10_000):
        hand.step(t, t + 10_000).op("c10d::allreduce_", t + 100, t + 110)
        hand.event("gloo:all_reduce", t + 105, t + 2000, "user_annotation", thread=9)
        hand.op("aten::as_strided", t + 4000, t + 4010)

    (one,) = found(exposed_on_host, hand.recording())

    assert "The step spends 3.90 ms (39 % of the step) only waiting" in one.evidence
    assert "in flight for 3.90 ms, of which 0 % is hidden" in one.evidence


def test_a_wait_for_collectives_is_reported_if_it_is_long() -> None:
    (one,) = found(exposed_on_host, ddp(wait=3000))

    assert one.bound_ms == pytest.approx(3.0, abs=0.02)
    assert found(exposed_on_host, ddp(wait=100)) == []


@pytest.mark.parametrize(
    ("exposed_ms", "traced_ms", "step_ms", "flying", "hidden", "saves"),
    [
        (1.5, 3.0, 4.5, "3.00 ms", "50 %", "would save all of this time"),
        (1.5, 3.0, 4.0, "3.00 ms", "50 %", "would save 1.00 ms"),
        (1.5, 3.0, 3.0, "3.00 ms", "50 %", "would save nothing"),
        (1.5, 0.0, 10.0, "6.00 ms", "75 %", "would save all of this time"),  # the traced steps did not wait
        (9.0, 18.0, 20.0, "9.00 ms", "0 %", "would save all of this time"),
    ],
)
def test_collectives_are_in_flight_as_much_shorter_as_timed_steps_wait_for_them(
    exposed_ms: float, traced_ms: float, step_ms: float, flying: str, hidden: str, saves: str
) -> None:
    """In each of two traced steps, three collectives take 4, 5 and 3 ms, and together 6 ms."""
    rows = [(step + start, step + end) for step in (0, 100) for start, end in ((0, 4), (1, 6), (3, 6))]
    calls = pd.DataFrame(rows, columns=["start_ns", "end_ns"]) * 10**6
    calls = calls.assign(collective=["allreduce", "allgather", "allreduce"] * 2, exposed_ns=traced_ms * 1e6 / 3)
    facts: Any = SimpleNamespace(
        **{"phases_ms": {"communication": exposed_ms}, "collectives": calls, "gpu": None, "steps": 2},
        **{"step_ms": step_ms, "of_step": lambda ms: f"{ms:g} ms"},
    )

    (one,) = exposed_on_host.search(facts)

    assert one.bound_ms == exposed_ms
    assert f"{exposed_ms:g} ms only waiting for collectives (2 allreduce, 1 allgather per step)" in one.evidence
    assert f"in flight for {flying}, of which {hidden} is hidden. Perfect overlap" in one.evidence
    assert saves in one.evidence


def test_synchronising_each_micro_step_is_bounded_by_the_waits_before_the_last() -> None:
    (one,) = found(every_micro_step, ddp(passes=4, wait=1000))

    assert one.bound_ms == pytest.approx(3.0, abs=0.05)
    assert "net.no_sync()" in one.advice
    assert found(every_micro_step, ddp(passes=1, wait=1000)) == []


@pytest.mark.parametrize(
    ("exposed_ms", "updates", "bound_ms"), [(9.0, 1.0, 4.0), (3.0, 1.5, 2.0), (3.0, 1.51, None), (3.0, 3.0, None)]
)
def test_on_a_gpu_micro_steps_cost_what_is_not_hidden_before_the_last(
    exposed_ms: float, updates: float, bound_ms: float | None
) -> None:
    """Two steps of three backward passes; after each, a bucket is sent, which nothing hides for 2 ms."""
    starts = [0, 10, 20, 100, 110, 120]
    calls = pd.DataFrame({"bucket": [*range(6), -1], "start_ns": [*(at + 5 for at in starts), 7]})
    calls = calls.assign(end_ns=calls["start_ns"] + 1, exposed_ns=2_000_000)
    blocks = pd.DataFrame(
        {"kind": [Kind.ENGINE] * 6 + [Kind.STEP], "start": [*starts, 0], "step": [0, 0, 0, 1, 1, 1, 0]}
    )
    facts: Any = SimpleNamespace(
        collectives=calls,
        attribution=SimpleNamespace(host=SimpleNamespace(blocks=blocks)),
        steps=2,
        optimizer_steps=np.array([updates, updates]),
        gpu=SimpleNamespace(exposed_ms=exposed_ms),
        of_step=lambda ms: f"{ms:g} ms",
        variable=lambda: None,
    )

    found = list(every_micro_step.search(facts))

    assert [one.bound_ms for one in found] == ([] if bound_ms is None else [pytest.approx(bound_ms)])
    if found:
        assert "after each of the 3 backward passes per optimizer step: sending them" in found[0].evidence
        assert "`with model.no_sync():`" in found[0].advice
    calls.loc[[1, 2, 4, 5], "bucket"] = -1  # only one pass sends now
    assert list(every_micro_step.search(facts)) == []


def test_many_small_buckets_are_found_with_the_line_that_makes_fewer() -> None:
    (one,) = found(small_buckets, ddp(buckets=10, wait=3000))

    assert one.bound_ms == pytest.approx(0.9 * 3.0, abs=0.1)
    assert one.code == "net = torch.nn.parallel.DistributedDataParallel(net.module, bucket_cap_mb=25)"
    assert len(found(small_buckets, ddp(buckets=6, wait=3000, size=2**18 - 1))) == 1
    assert found(small_buckets, ddp(buckets=6, wait=3000, size=2**18)) == []  # a MiB each
    assert found(small_buckets, ddp(buckets=5, wait=3000)) == []


@pytest.mark.parametrize(
    ("changes", "bound_ms", "step_ms"),
    [
        ([], 3.0, 99.0),  # its own 2 ms, and 1 ms for a map of unused parameters that nothing else hides
        ([], 2.5, 2.5),
        ([{"dtype": "float32"}], 2.0, 99.0),
        ([{"collective": "allgather"}], 2.0, 99.0),
        ([{"exposed_ns": 400_000}], 2.4, 99.0),
        ([{}, {"dtype": "float32", "start_ns": 300_000}], 2.3, 99.0),
    ],
)
def test_telling_others_of_unused_parameters_is_a_part_of_the_search(
    changes: list[dict[str, Any]], bound_ms: float, step_ms: float
) -> None:
    usual = {"dtype": "int32", "collective": "allreduce", "start_ns": 0, "end_ns": 1_000_000, "exposed_ns": 1_000_000}
    known: Any = SimpleNamespace(
        parallel=[{"name": "net", "find_unused_parameters": True, "unused_bytes": 0}],
        owners=np.array(["net", "net", "net.fc"], dtype=object),
        attribution=SimpleNamespace(cells=pd.DataFrame({"direction": ["forward", "backward", "forward"]})),
        cells_ns=np.array([2e6, 4e6, 8e6]),
        per_step=lambda ns: ns / 1e6,
        collectives=pd.DataFrame([usual | change for change in changes or [{}]]).astype({"dtype": TEXT}),
        variable=lambda layer: None,
        steps=1,
        step_ms=step_ms,
        phases_ms={"communication": 9.0},
        gpu=None,
    )

    (one,) = unused_parameters.search(known)

    assert one.bound_ms == pytest.approx(bound_ms)
    assert ("is spent informing the other ranks" in one.evidence) == (bound_ms != 2.0)


def test_a_search_for_unused_parameters_that_finds_none_is_reported() -> None:
    (one,) = found(unused_parameters, ddp(find_unused_parameters=True, unused_bytes=0))

    assert one.confidence == "medium"
    assert one.bound_ms == pytest.approx(0.2, abs=0.06)
    assert one.code.endswith("DistributedDataParallel(net.module)")
    assert found(unused_parameters, ddp(find_unused_parameters=True, unused_bytes=400)) == []
    assert found(unused_parameters, ddp(find_unused_parameters=True, unused_bytes=0, static_graph=True)) == []
    assert found(unused_parameters, ddp(find_unused_parameters=False)) == []
