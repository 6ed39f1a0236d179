"""Memory of steps on a GPU against the allocator's own counters."""

from __future__ import annotations

import gc

import pytest
import torch

import perfnb
from perfnb.recording.schema import CATEGORIES
from tests.on_gpu.steps import KINDS, Transformer, tokens, training

#: The caching allocator hands out blocks in multiples of this.
ROUNDING = 512


def on_gpu(memory: object) -> object:
    return memory[memory["device"] == "cuda:0"]  # type: ignore[index]


@pytest.mark.parametrize("kind", ["transformer", "checkpointing", "fused optimizer", "bf16 autocast"])
def test_bytes_by_category_add_up_to_what_the_allocator_counts(kind: str) -> None:
    step = KINDS[kind]()
    p = perfnb.profile_step(step, budget_s=15)
    table = on_gpu(p.memory)
    assert (table[list(CATEGORIES)].sum(axis=1) == table["total"]).all()
    gc.collect()
    step()
    torch.cuda.synchronize()
    after = torch.cuda.memory_allocated()
    assert abs(int(table["total"].iloc[-1]) - after) <= ROUNDING * len(p.allocations)


def test_at_the_end_of_each_phase_the_bytes_are_the_allocators() -> None:
    model, x, ends = Transformer().cuda(), tokens(), []
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        ends.clear()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        ends.append(torch.cuda.memory_allocated())
        loss.backward()
        ends.append(torch.cuda.memory_allocated())
        optimizer.step()
        ends.append(torch.cuda.memory_allocated())

    p = perfnb.profile_step(step, budget_s=15, flops=False)  # the last step is the one recorded for memory
    totals = on_gpu(p.memory)["total"].to_numpy(dtype="int64")
    for bytes_then in ends:
        assert abs(totals - bytes_then).min() <= ROUNDING * len(p.allocations)


@pytest.mark.parametrize("kind", ["transformer", "checkpointing", "fused optimizer"])
def test_the_peak_is_the_allocators(kind: str) -> None:
    step = KINDS[kind]()
    p = perfnb.profile_step(step, budget_s=15)
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    assert int(on_gpu(p.memory)["total"].max()) == pytest.approx(peak, rel=0.01)


def test_an_estimate_is_near_the_truth() -> None:
    left = torch.cuda.memory_allocated()
    model, x = Transformer().cuda(), tokens()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    estimate = perfnb.estimate_memory(step=step)
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak, now = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()  # which an estimate does not count
    workspaces = now - torch.cuda.memory_allocated()
    assert estimate.peak_bytes == pytest.approx(peak - workspaces - left, rel=0.02)


def test_growth_is_found() -> None:
    kept: list[torch.Tensor] = []
    plain = training(Transformer().cuda(), tokens())

    def step() -> None:
        plain()
        kept.append(torch.empty(2**20, device="cuda"))

    leaks = perfnb.find_leaks(step, steps=20)
    assert leaks.allocator is not None
    assert leaks.allocator.bytes_per_step == pytest.approx(4 * 2**20, rel=0.05)


def test_a_step_that_runs_out_of_memory_shows_who_has_it() -> None:
    kept: list[torch.Tensor] = []
    before = torch.cuda.memory_allocated()
    free, _ = torch.cuda.mem_get_info()

    def step() -> None:
        kept.append(torch.empty(free // 4, dtype=torch.uint8, device="cuda"))

    with pytest.raises(torch.OutOfMemoryError) as caught:
        perfnb.profile_step(step, budget_s=20)
    assert caught.value is not None
    kept.clear()
    del caught
    gc.collect()
    assert torch.cuda.memory_allocated() <= before
