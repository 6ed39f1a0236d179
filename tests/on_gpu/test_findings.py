"""Causes planted on a GPU are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import perfnb
from tests.on_gpu.steps import KINDS, Transformer, training

Sleep = Callable[[float], None]


def found(step: Callable[[], object], **options: object) -> list[str]:
    return perfnb.profile_step(step, budget_s=15, **options).findings["bottleneck"].tolist()  # type: ignore[arg-type]


def test_many_tiny_kernels_are_launch_bound() -> None:
    x = torch.randn(64, device="cuda")

    def step() -> None:
        y = x
        for _ in range(500):
            y = y + 1

    assert {"launch overhead", "dispatch overhead"} & set(found(step)[:2])


def test_an_item_in_the_loop_is_synchronisation(sleep: Sleep) -> None:
    x = torch.randn(64, device="cuda")

    def step() -> float:
        total = 0.0
        for _ in range(50):
            sleep(0.05)
            total += x.sum().item()
            torch.randn(32, 32).sum()  # the GPU has nothing to do meanwhile
        return total

    assert "synchronisation" in found(step)


def test_copies_that_the_gpu_waits_for_are_found() -> None:
    model, x = nn.Linear(4096, 64).cuda(), torch.randn(4096, 4096)

    def step() -> None:
        model(x.to("cuda")).sum().backward()

    assert "host-device copies" in found(step)


def test_large_products_in_float32_are_compute_bound() -> None:
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(4)]).cuda()
    p = perfnb.profile_step(training(model, torch.randn(4096, 4096, device="cuda")), budget_s=20)
    assert "low precision unused" in p.findings["bottleneck"].tolist()
    points = p.roofline.points
    assert points["efficiency"].dropna().le(1.05).all()


def test_slow_loading_is_input_bound(sleep: Sleep) -> None:
    import time

    def batches() -> object:
        while True:
            time.sleep(0.02)
            yield torch.randn(8, 256, 256)

    model = Transformer().cuda()

    def step(x: torch.Tensor) -> None:
        model(x.to("cuda")).sum().backward()

    p = perfnb.profile_step(step, batches, budget_s=15)
    assert "input pipeline" in p.findings["bottleneck"].tolist()


@pytest.mark.parametrize("kind", ["transformer", "convolutions"])
def test_no_bound_exceeds_the_step(kind: str) -> None:
    p = perfnb.profile_step(KINDS[kind](), budget_s=15)
    assert p.findings["bound_ms"].dropna().le(p.timing.median_ms).all()
