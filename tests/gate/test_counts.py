"""What a step does is counted exactly, whatever else the process holds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from perfnb.gate.counts import _figures, counts_of, environment_of, peak_bytes
from perfnb.memory.allocations import BEFORE
from tests.recordings import ENVIRONMENT, ByHand
from tests.step.models import three_linears, training_step

#: Floats of the tensors below.
SIZE = 1000


def sums(extra: int = 0, read: bool = False) -> Callable[[], Any]:
    """Return a step that has 2 × SIZE + extra floats at its peak, in 4 ops with 6 calls inside, and perhaps a read."""

    def step() -> None:
        with torch.no_grad():
            a = torch.ones(SIZE)
            b = torch.ones(SIZE + extra)
            del a, b
            c = torch.ones(SIZE)
            if read:
                c[0].item()

    return step


@pytest.fixture(autouse=True)
def collects() -> Iterator[None]:
    assert gc.isenabled()
    yield
    assert gc.isenabled()


def test_the_peak_is_what_the_step_allocates_and_owns_at_once() -> None:
    counts, _ = counts_of(sums())
    assert counts == {
        "peak_bytes": 2 * 4 * SIZE,
        "flops": 0,
        "ops": 9,  # three times ones, empty and fill_
        "kernels": None,
        "synchronisations": 0,
        "graph_breaks": 0,
    }


def test_parameters_gradients_and_optimizer_state_count_and_other_tensors_of_the_process_do_not() -> None:
    model = nn.Linear(SIZE, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    batch = torch.ones(1, SIZE)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    alone, _ = counts_of(step)
    junk = [torch.ones(SIZE) for _ in range(50)]
    cycle: list[Any] = [torch.ones(SIZE)]
    cycle.append(cycle)
    del cycle
    assert counts_of(step)[0] == alone
    assert len(junk) == 50
    # Weight, gradient, momentum and batch, and a few numbers; no second copy of any.
    assert 4 * 4 * SIZE <= (alone["peak_bytes"] or 0) < 5 * 4 * SIZE
    assert alone["flops"] == 2 * 2 * SIZE  # forward, and the gradient of the weight


def test_five_percent_more_memory_and_one_more_read_always_show() -> None:
    usual, _ = counts_of(sums())
    more, _ = counts_of(sums(extra=SIZE // 10))
    assert more["peak_bytes"] == pytest.approx(1.05 * (usual["peak_bytes"] or 0))
    read, _ = counts_of(sums(read=True))
    assert (usual["synchronisations"], read["synchronisations"]) == (0, 1)


def test_a_shuffled_loader_and_random_numbers_are_as_before_afterwards() -> None:
    batches = [torch.ones(rows, 8) for rows in (1, 2, 4)]
    learn = training_step(three_linears(), torch.ones(4, 8))
    before = torch.get_rng_state()

    def step() -> None:
        torch.rand(1)
        learn()

    assert counts_of(lambda batch: step(), batches) == counts_of(lambda batch: step(), lambda: iter(batches))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_step_must_be_a_function() -> None:
    with pytest.raises(TypeError, match=r"^step must be a function that runs one step, not str"):
        counts_of("x")  # type: ignore[arg-type]


def test_a_step_without_torch_has_counts_of_nothing() -> None:
    counts, _ = counts_of(lambda: sum(range(10)))
    assert {name: counts[name] for name in ("peak_bytes", "flops", "ops", "synchronisations")} == {
        "peak_bytes": 0,
        "flops": 0,
        "ops": 0,
        "synchronisations": 0,
    }


@pytest.mark.parametrize(
    ("gpus", "kernels", "synchronisations"),
    [([], None, 3), (["NVIDIA H100"], 2, 4)],  # the CPU only waits where a result is read
)
def test_the_work_of_a_recording_is_counted(gpus: list[str], kernels: int | None, synchronisations: int) -> None:
    made = ByHand().step(0, 1000).op("aten::mm", 10, 20).kernel("gemm", 12, 30, 50).kernel("add", 52, 53, 60)
    made.op("aten::nonzero", 100, 110).op("aten::item", 120, 140)
    made.op("aten::_local_scalar_dense", 121, 139).op("aten::_local_scalar_dense", 150, 160)
    for place, name in enumerate(("cudaStreamSynchronize", "cudaDeviceSynchronize", "hipEventSynchronize")):
        made.event(name, 200 + place, 200.5 + place, "cuda_runtime")
    made.event("cuCtxSynchronize", 300, 301, "cuda_driver")
    counts = {"flops": 0, "ops": 5, "kernels": kernels, "synchronisations": synchronisations, "graph_breaks": 0}
    meta = {"environment": {**ENVIRONMENT, "gpus": gpus}}
    assert _figures(made.recording(**meta)) == {"peak_bytes": 0, **counts}
    made.block(10, 500, 1, 4000).block(20, 30, 2, 600)
    assert _figures(made.recording(**meta)) == {"peak_bytes": 4600, **counts}


def test_the_peak_is_that_of_the_fullest_device_without_what_others_had_before() -> None:
    def peak(*rows: Any) -> int:
        blocks = pd.DataFrame(rows, columns=["start", "end", "bytes", "device", "category"])
        watched: Any = SimpleNamespace(counted=blocks.astype({"device": "category", "category": "category"}))
        return peak_bytes(watched)

    cpu = [
        (BEFORE, 30, 100, "cpu", "parameters"),
        (BEFORE, 30, 1000, "cpu", "other"),
        (10, 20, 50, "cpu", "other"),
        (20, 30, 70, "cpu", "other"),  # never together with the one above
    ]
    assert peak(*cpu) == 170
    assert peak(*cpu, (5, 40, 169, "cuda:0", "other")) == 170
    assert peak(*cpu, (5, 40, 171, "cuda:0", "other")) == 171
    assert peak(cpu[1]) == 0


@pytest.mark.slow
def test_a_graph_break_is_counted() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    def whole(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    x = torch.ones(8)
    for function, breaks in ((broken, 1), (whole, 0)):
        compiled = torch.compile(function, backend="eager")
        assert counts_of(lambda compiled=compiled: compiled(x))[0]["graph_breaks"] == breaks


def test_the_environment_is_the_version_the_device_and_the_threads() -> None:
    facts = {"torch": "2.13.0+cpu", "gpus": [], "machine": "x86_64", "threads": 1}
    assert environment_of(facts) == "torch 2.13.0+cpu, CPU (x86_64), 1 thread"
    gpu = {**facts, "torch": "2.13.0+cu130", "gpus": ["NVIDIA H100"], "threads": 8}
    assert environment_of(gpu) == "torch 2.13.0+cu130, NVIDIA H100, 8 threads"
