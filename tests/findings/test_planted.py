"""Waits planted into real steps are found; what activations hold; whether threads are tried. Bounds: tests/accuracy."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import perfnb
from tests.planted_steps import loader


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch on one thread: threads wait for each other while other processes use the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_sleeps_comes_first(workers: int) -> None:
    """It takes a hundred times as long as the rest of the step."""
    planted = loader(workers)
    p = perfnb.profile_step(planted.step, planted.batches, warmup=3, steps=8, memory=False, flops=False)

    assert planted.bottleneck in set(p.findings["bottleneck"])
    assert p.phases["ms"].idxmax() == "data"


def test_threads_are_tried_where_they_do_not_fit_the_cores_and_put_back() -> None:
    model, x = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]), torch.randn(64, 64)
    torch.set_num_threads(64)
    p = perfnb.profile_step(lambda: model(x), warmup=3, steps=10, traced=1, memory=False, flops=False)

    assert torch.get_num_threads() == 64
    tried = p.meta["threads_tried"]
    assert tried["threads"] <= len(os.sched_getaffinity(0))
    assert len(tried["steps_ms"]) >= 3
    assert (p.steps["pass"] == "trial").sum() == 2 + len(tried["steps_ms"])
    assert "trial" in str(p)


def test_threads_that_fit_are_not_tried() -> None:
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    torch.set_num_threads(threads)
    p = perfnb.profile_step(lambda: torch.ones(3), warmup=3, steps=5, traced=1, memory=False, flops=False)

    assert "threads_tried" not in p.meta
    assert "trial" not in set(p.steps["pass"])


class Block(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layers, x, use_reentrant=False) if self.again else self.layers(x)


def peak(again: bool) -> tuple[int, perfnb.Profile]:
    model, x = nn.Sequential(*[Block(again) for _ in range(16)]), torch.randn(2500, 64)
    p = perfnb.profile_step(lambda: model(x).sum().backward(), warmup=1, steps=2, traced=1, flops=False)
    return int(p.memory["total"].max()), p


@pytest.mark.slow
def test_activations_that_dominate_are_found_with_what_removing_them_frees() -> None:
    most, profile = peak(again=False)
    table = profile.findings
    least, _ = peak(again=True)

    assert "activation memory" in table["bottleneck"].tolist()
    row = table[table["bottleneck"] == "activation memory"].iloc[0]
    # Without the activations of all blocks but one, which is computed again at a time.
    assert row["bound_bytes"] == pytest.approx(most - least, rel=0.2)
    assert row["bound_ms"] is None or str(row["bound_ms"]) == "<NA>"
    times = table[table["bound_ms"].notna()]
    assert table["bottleneck"].tolist().index("activation memory") == len(times)
