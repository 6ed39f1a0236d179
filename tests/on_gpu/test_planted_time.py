"""GPU time planted in one place shows there and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import perfnb
from tests.on_gpu.steps import Sleeping, training

Sleep = Callable[[float], None]
WORK_MS = 4.0


def around(module: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), module, nn.Linear(64, 64)).cuda()


def profile(step: Callable[[], None]) -> perfnb.Profile:
    return perfnb.profile_step(step, budget_s=10, memory=False, flops=False)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_layers_gpu_time_is_its_own(sleep: Sleep, where: str) -> None:
    model = around(Sleeping(sleep, **{f"{where}_ms": WORK_MS}))
    p = profile(training(model, torch.randn(8, 64, device="cuda")))
    assert p.layers.loc["model.1", "self_gpu_ms"] == pytest.approx(WORK_MS, rel=0.05, abs=0.1)
    others = p.layers.drop(index=["model", "model.1"])["self_gpu_ms"].fillna(0)
    assert others.max() < 0.1 * WORK_MS
    assert p.timing.median_ms >= 0.98 * WORK_MS


def test_the_optimizers_gpu_time_belongs_to_no_layer(sleep: Sleep) -> None:
    class Slow(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            sleep(WORK_MS)
            super().step()

    model = around(nn.Identity())
    optimizer, x = Slow(model.parameters(), 1e-3), torch.randn(8, 64, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    p = profile(step)
    kernels = p.events[p.events["category"] == "kernel"]
    in_optimizer = kernels[kernels["phase"] == "optimizer"]
    assert in_optimizer["duration_ns"].sum() / kernels["step"].nunique() / 1e6 >= 0.95 * WORK_MS
    assert p.layers["self_gpu_ms"].drop(index="(unattributed)", errors="ignore").max() < 0.1 * WORK_MS


def test_the_step_lasts_to_the_end_of_its_work(sleep: Sleep) -> None:
    torch.randn(1, device="cuda")
    p = profile(lambda: sleep(WORK_MS))
    assert p.timing.median_ms == pytest.approx(WORK_MS, rel=0.02)


def test_work_on_a_side_stream_counts(sleep: Sleep) -> None:
    torch.randn(1, device="cuda")
    side = torch.cuda.Stream()

    def step() -> None:
        with torch.cuda.stream(side):
            sleep(WORK_MS)

    assert profile(step).timing.median_ms == pytest.approx(WORK_MS, rel=0.05)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_to_the_gpu_is_a_phase(pinned: bool) -> None:
    """A pageable copy holds the host; a pinned one that does not block leaves it free."""
    x = torch.randn(16_000_000)
    x = x.pin_memory() if pinned else x
    there = torch.empty_like(x, device="cuda")

    def step() -> None:
        there.copy_(x, non_blocking=True)
        there.mul_(2)

    p = profile(step)
    copies = p.events[p.events["category"] == "gpu_memcpy"]
    assert len(copies) >= 1
    host_ms = float(p.phases.loc["host_to_device", "ms"])
    copied_ms = float(copies["duration_ns"].mean()) / 1e6
    assert host_ms < 0.3 * copied_ms if pinned else host_ms > 0.5 * copied_ms
